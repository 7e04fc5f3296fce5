"""The page of a study: methods, remaining site effects and preserved biology."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from markupsafe import Markup

from siteless.errors import DatasetError
from siteless.evaluation import BEFORE, NOISE, RESCAN, Score, ScoreTable, linear_effect
from siteless.population import SiteVerdict
from siteless.report._comparison import Comparison, compare_methods
from siteless.report._page import render_page
from siteless.report._plots import Cloud, Curve, CurvePlot, Dot, ScatterPlot, Strip, StripPlot
from siteless.report._profiles import expected_errors_url
from siteless.report._summary import SCALES, ScanSummary, flag_scans
from siteless.report._text import citations, methods_text

# Name of harmonized scans.
_AFTER = "after"
# Number of site colours in the style sheet.
_COLOURS = 7
# Largest number of scans in the last table, unless more are flagged.
_LISTED = 200
# Scores of participants to draw for each method, with their labels.
_DRAWN = {
    "rmse_percent": "RMSE to the target scan, % of its b0",
    "fa_block_percent": "error of FA's 10 mm block means, %",
    "angle_closest_median": "angle of fibres to the target's, degrees",
}


@dataclass(frozen=True)
class Study:
    """Content of the report on a harmonized study."""

    title: str
    provenance: Mapping[str, str]  # from the sidecars of harmonized scans
    summaries: Sequence[ScanSummary]
    scores: ScoreTable = field(default_factory=lambda: ScoreTable(()))
    notes: Sequence[str] = ()  # what could not be scored or shown
    missing: Sequence[str] = ()  # names of scans of the dataset without a harmonized one
    pages: Mapping[str, str] = field(default_factory=dict)  # files of people's pages, by subject
    viewer: str = ""  # HTML of scans from some sites
    is_tested: bool = False  # whether scores are those of test participants
    next_command: str = ""  # computes missing scores
    fields: str = ""  # data URL of a picture of the sites' fields
    verdicts: Sequence[SiteVerdict] = ()

    def html(self) -> str:
        """Return the page."""
        return render_page("group.html", study=self, title=self.title, viewer=Markup(self.viewer))

    @property
    def expected_errors(self) -> str:
        """Data URL of a picture of the error of site effects against numbers of participants."""
        return expected_errors_url(self.verdicts)

    @cached_property
    def by_site(self) -> dict[str, list[ScanSummary]]:
        """Summaries of the scans of each source site."""
        sites = sorted({scan.site for scan in self.summaries})
        return {site: [scan for scan in self.summaries if scan.site == site] for site in sites}

    @cached_property
    def people(self) -> list[str]:
        """Labels of the participants."""
        return sorted({scan.subject for scan in self.summaries})

    @property
    def to(self) -> str:
        """The site that scans were rendered as."""
        return ", ".join(sorted({scan.to for scan in self.summaries}))

    @cached_property
    def methods(self) -> str:
        """Sentences for the methods section."""
        return methods_text(
            self.provenance,
            scans=len(self.summaries),
            people=len(self.people),
            sites=list(self.by_site),
        )

    @cached_property
    def bibliography(self) -> str:
        """BibTeX entries to cite."""
        return citations(self.provenance)

    @cached_property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """Flagged scans, with the reasons."""
        return flag_scans(self.summaries)

    @property
    def listed(self) -> list[ScanSummary]:
        """Scans in the last table, flagged ones first."""
        order = {name: place for place, name in enumerate(self.flags)}
        ranked = sorted(
            self.summaries, key=lambda scan: (order.get(scan.name, len(order)), scan.name)
        )
        return ranked[: max(_LISTED, len(self.flags))]

    @property
    def unlisted(self) -> int:
        """Number of scans that are left out of that table."""
        return len(self.summaries) - len(self.listed)

    @cached_property
    def maps(self) -> list[str]:
        """Maps that exist for every scan."""
        return [name for name in SCALES if all(name in scan.after for scan in self.summaries)]

    @cached_property
    def distributions(self) -> dict[str, tuple[CurvePlot, StripPlot]]:
        """Distributions of maps at each site before and after, by title."""
        return {SCALES[name].title: (self._curves(name), self._means(name)) for name in self.maps}

    def site_gap(self, name: str) -> tuple[float, float]:
        """Return the largest difference of sites' means of a map, before and after."""
        sites = self.by_site.values()
        before, after = (
            float(np.ptp([np.mean([_of(scan, when)[name] for scan in s]) for s in sites]))
            for when in (BEFORE, _AFTER)
        )
        return before, after

    def _curves(self, name: str) -> CurvePlot:
        scale = SCALES[name]
        panels = {
            when: tuple(
                Curve(
                    site,
                    tuple(np.mean([scan.curves[name][place] for scan in scans], axis=0)),
                    f"site-{number % _COLOURS}",
                )
                for number, (site, scans) in enumerate(self.by_site.items())
            )
            for place, when in enumerate((BEFORE, _AFTER))
        }
        label = f"{scale.title} of white-matter voxels{_in(scale.unit)}"
        return CurvePlot(f"Voxels of each site: {scale.title}", label, scale.usual, panels)

    def _means(self, name: str) -> StripPlot:
        scale, strips = SCALES[name], []
        for when in (BEFORE, _AFTER):
            dots = {
                site: [Dot(scale.factor * _of(scan, when)[name], scan.name) for scan in scans]
                for site, scans in self.by_site.items()
            }
            strips += _rows(dots, when, when)
        label = f"mean {scale.title} of white matter{_in(scale.unit)}"
        return StripPlot(f"Scans of each site: {scale.title}", label, tuple(strips))

    @cached_property
    def leakage(self) -> StripPlot | None:
        """Accuracy of adversaries on the source site."""
        scores = self.scores.select("leakage_accuracy")
        strips = []
        for task in sorted({score.task for score in scores}, key=lambda t: (t != "codes", t)):
            what = "codes" if task == "codes" else f"scans rendered as {task.partition('>')[2]}"
            for number, score in enumerate(score for score in scores if score.task == task):
                dots = (Dot(score.value, f"{score.method}, {what}"),)
                heading = what if number == 0 else ""
                chance = self.scores.mean("leakage_chance", task=task, method=score.method)
                strips.append(Strip(score.method, dots, _kind(score.method), heading, chance))
        title = "How often an adversary names the source site of a voxel"
        label = "share of voxels, of people that it has not seen"
        return StripPlot(title, label, tuple(strips), "chance") if strips else None

    @cached_property
    def likeness(self) -> StripPlot:
        """Correlation of each scan with itself before harmonization."""
        strips = []
        for name in self.maps:
            dots = {
                site: [
                    Dot(scan.likeness[name], scan.name) for scan in scans if name in scan.likeness
                ]
                for site, scans in self.by_site.items()
            }
            strips += _rows(dots, "after", SCALES[name].title)
        label = "correlation of white-matter voxels before and after"
        return StripPlot("Is each brain still itself?", label, tuple(strips))

    @cached_property
    def ages(self) -> dict[str, tuple[ScatterPlot, str]]:
        """Effects of age on maps before and after, with a description, by title."""
        plots = {}
        for name in self.maps:
            try:
                plots[SCALES[name].title] = self._age(name)
            except DatasetError:
                continue
        return plots

    def _age(self, name: str) -> tuple[ScatterPlot, str]:
        scale = SCALES[name]
        aged = [scan for scan in self.summaries if scan.age is not None]
        clouds, sentences = [], []
        for when in (BEFORE, _AFTER):
            ages = np.array([scan.age for scan in aged], dtype=float)
            values = np.array([scale.factor * _of(scan, when)[name] for scan in aged])
            effect = linear_effect(values, ages, [scan.subject for scan in aged])
            points = tuple(
                (float(age), float(value), f"{scan.name}, {age:.0f} years, {when}")
                for age, value, scan in zip(ages, values, aged, strict=True)
            )
            line = float(values.mean() - effect.slope * ages.mean()), effect.slope
            clouds.append(Cloud(when, points, when, line))
            sentences.append(
                f"{when} {10 * effect.slope:+.4f} a decade (95 % interval "
                f"{10 * effect.slope_low:+.4f} to {10 * effect.slope_high:+.4f})"
            )
        labels = "age, years", f"mean {scale.title} of white matter{_in(scale.unit)}"
        return ScatterPlot(f"{scale.title} and age", labels, tuple(clouds)), "; ".join(sentences)

    @cached_property
    def lesions(self) -> StripPlot | None:
        """Contrast of lesions, by method."""
        scores = self.scores.select("fa_contrast", region="lesion")
        strips = _by_method(scores, dict.fromkeys(score.method for score in scores))
        title = "Contrast of lesions: FA in the lesion over FA around it"
        label = "should stay as before; 1: the lesion cannot be seen"
        return StripPlot(title, label, strips) if strips else None

    @cached_property
    def comparison(self) -> Comparison | None:
        """Comparison of methods, if there are several."""
        comparison = compare_methods(self.scores)
        return comparison if comparison.rows and len(comparison.methods) > 1 else None

    @cached_property
    def drawn(self) -> dict[str, StripPlot]:
        """Plots of participants' scores for each method, by title."""
        plots = {}
        for metric, label in _DRAWN.items():
            methods = self.scores.methods(metric)
            if metric == "rmse_percent":  # scans before have other units
                methods = [method for method in methods if method != BEFORE]
            if methods:
                what = label.partition(",")[0]
                strips = _by_method(self.scores.select(metric), methods)
                plots[what] = StripPlot(f"Each person in each task: {what}", label, strips)
        return plots


def _rows(dots: Mapping[str, Sequence[Dot]], kind: str, heading: str) -> list[Strip]:
    """Return a row for each label, under a heading."""
    return [
        Strip(label, tuple(row), kind, heading if number == 0 else "")
        for number, (label, row) in enumerate(dots.items())
    ]


def _by_method(scores: Sequence[Score], methods: Iterable[str]) -> tuple[Strip, ...]:
    """Return a row for each method, with a dot for each person and task."""
    return tuple(
        Strip(
            method,
            tuple(
                Dot(score.value, f"sub-{score.subject}, {score.task}")
                for score in scores
                if score.method == method
            ),
            _kind(method),
        )
        for method in methods
    )


def _of(scan: ScanSummary, when: str) -> Mapping[str, float]:
    return scan.before if when == BEFORE else scan.after


def _in(unit: str) -> str:
    return f" ({unit})" if unit else ""


def _kind(method: str) -> str:
    """Return the style-sheet class of a method."""
    return {BEFORE: "before", NOISE: "other", RESCAN: "other"}.get(method, "after")
