"""The page of a study: what was done, is the site gone, is the brain still there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np
from markupsafe import Markup

from siteless.errors import DatasetError
from siteless.evaluation import BEFORE, NOISE, RESCAN, ScoreTable, linear_effect
from siteless.population import SiteVerdict
from siteless.report._comparison import Comparison, compare_methods
from siteless.report._page import render_page
from siteless.report._plots import (
    Cloud,
    Curve,
    CurvePlot,
    Dot,
    ScatterPlot,
    Strip,
    StripPlot,
)
from siteless.report._profiles import expected_errors_url
from siteless.report._summary import SCALES, ScanSummary, flag_scans
from siteless.report._text import citations, methods_text

# What scans are called when a method has changed them.
_AFTER = "after"
# Colours of sites that the style sheet has.
_COLOURS = 7
# Scans of the last table, if no more stand out.
_LISTED = 200
# Scores of people that are drawn for each method, with their label.
_DRAWN = {
    "rmse_percent": "RMSE to the target scan, % of its b0",
    "fa_block_percent": "error of FA's 10 mm block means, %",
    "angle_closest_median": "angle of fibres to the target's, degrees",
}


@dataclass(frozen=True)
class Study:
    """What a report tells of a harmonized study.

    Attributes
    ----------
    title
        Of the page.
    told
        What sidecars of its scans tell of how they were made.
    summaries
        Of its scans.
    scores
        That `siteless evaluate` gave; empty for none.
    notes
        What could not be scored, or shown.
    missing
        Names of scans of the dataset that are not among the harmonized.
    pages
        Files of people's pages, by subject.
    viewer
        Scans of some sites to look at, as HTML.
    is_tested
        Whether scores are of people that no model has learned from.
    next_command
        What gives the scores that are not there.
    fields
        Address of a picture of the sites' fields; empty for none.
    verdicts
        How much of each site's difference is the scanner's.
    """

    title: str
    told: Mapping[str, str]
    summaries: Sequence[ScanSummary]
    scores: ScoreTable = field(default_factory=lambda: ScoreTable(()))
    notes: Sequence[str] = ()
    missing: Sequence[str] = ()
    pages: Mapping[str, str] = field(default_factory=dict)
    viewer: str = ""
    is_tested: bool = False
    next_command: str = ""
    fields: str = ""
    verdicts: Sequence[SiteVerdict] = ()

    def html(self) -> str:
        """Return the page."""
        return render_page(
            "group.html",
            study=self,
            title=self.title,
            scales=SCALES,
            viewer=Markup(self.viewer),
            nan=float("nan"),
        )

    @property
    def expected_errors(self) -> str:
        """Address of a picture of the error of site effects against numbers of people."""
        return expected_errors_url(self.verdicts)

    @cached_property
    def sites(self) -> list[str]:
        """Sites that scans are from."""
        return sorted({one.site for one in self.summaries})

    @cached_property
    def people(self) -> list[str]:
        """Who was scanned."""
        return sorted({one.subject for one in self.summaries})

    @property
    def to(self) -> str:
        """The site that scans were rendered as."""
        return ", ".join(sorted({one.to for one in self.summaries}))

    def scans_of(self, site: str) -> list[ScanSummary]:
        """Return summaries of a site's scans."""
        return [one for one in self.summaries if one.site == site]

    @cached_property
    def methods(self) -> str:
        """Sentences for the methods section."""
        return methods_text(
            self.told, scans=len(self.summaries), people=len(self.people), sites=self.sites
        )

    @cached_property
    def bibliography(self) -> str:
        """What is to be cited."""
        return citations(self.told)

    @cached_property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """Scans to look at, and why."""
        return flag_scans(self.summaries)

    @property
    def listed(self) -> list[ScanSummary]:
        """Scans of the table at the end, those that stand out first."""
        order = {name: place for place, name in enumerate(self.flags)}
        ranked = sorted(
            self.summaries, key=lambda one: (order.get(one.name, len(order)), one.name)
        )
        return ranked[: max(_LISTED, len(self.flags))]

    @property
    def unlisted(self) -> int:
        """How many scans that table leaves out."""
        return len(self.summaries) - len(self.listed)

    @cached_property
    def maps(self) -> list[str]:
        """Maps that there are of every scan."""
        return [name for name in SCALES if all(name in one.after for one in self.summaries)]

    @cached_property
    def spreads(self) -> dict[str, tuple[CurvePlot, StripPlot]]:
        """How maps are distributed at sites, before and after, by title."""
        return {SCALES[name].title: (self._curves(name), self._means(name)) for name in self.maps}

    def site_gap(self, name: str) -> tuple[float, float]:
        """Return the largest difference of sites' means of a map, before and after."""
        return tuple(  # type: ignore[return-value]
            float(
                np.ptp([np.mean([_of(one, when)[name] for one in own]) for own in self._by_site])
            )
            for when in (BEFORE, _AFTER)
        )

    @cached_property
    def _by_site(self) -> list[list[ScanSummary]]:
        return [self.scans_of(site) for site in self.sites]

    def _curves(self, name: str) -> CurvePlot:
        scale = SCALES[name]
        panels = {
            when: tuple(
                Curve(
                    site,
                    tuple(np.mean([one.curves[name][place] for one in own], axis=0)),
                    f"site-{number % _COLOURS}",
                )
                for number, (site, own) in enumerate(zip(self.sites, self._by_site, strict=True))
            )
            for place, when in enumerate((BEFORE, _AFTER))
        }
        label = f"{scale.title} of white-matter voxels {_in(scale.unit)}".strip()
        return CurvePlot(f"Voxels of each site: {scale.title}", label, scale.usual, panels)

    def _means(self, name: str) -> StripPlot:
        scale = SCALES[name]
        strips = tuple(
            Strip(
                site,
                tuple(Dot(scale.factor * _of(one, when)[name], one.name) for one in own),
                when,
                when if number == 0 else "",
            )
            for when in (BEFORE, _AFTER)
            for number, (site, own) in enumerate(zip(self.sites, self._by_site, strict=True))
        )
        label = f"mean {scale.title} of white matter {_in(scale.unit)}".strip()
        return StripPlot(f"Scans of each site: {scale.title}", label, strips)

    @cached_property
    def leakage(self) -> StripPlot | None:
        """How often an adversary names the source site."""
        found = self.scores.select("leakage_accuracy")
        found = sorted(found, key=lambda one: (one.task != "codes", one.task))
        if not found:
            return None
        strips = []
        for task, own in groupby(found, key=lambda one: one.task):
            told = "codes" if task == "codes" else f"scans rendered as {task.partition('>')[2]}"
            for number, one in enumerate(own):
                dots = (Dot(one.value, f"{one.method}, {told}"),)
                heading = told if number == 0 else ""
                chance = self.scores.mean("leakage_chance", task=task, method=one.method)
                strips.append(Strip(one.method, dots, _kind(one.method), heading, chance))
        title = "How often an adversary names the source site of a voxel"
        label = "share of voxels, of people that it has not seen"
        return StripPlot(title, label, tuple(strips), "chance")

    @cached_property
    def likeness(self) -> StripPlot:
        """How far each scan goes with itself before."""
        strips = tuple(
            Strip(
                site,
                tuple(Dot(one.likeness[name], one.name) for one in own if name in one.likeness),
                "after",
                SCALES[name].title if number == 0 else "",
            )
            for name in self.maps
            for number, (site, own) in enumerate(zip(self.sites, self._by_site, strict=True))
        )
        label = "correlation of white-matter voxels before and after"
        return StripPlot("Is each brain still itself?", label, strips)

    @cached_property
    def ages(self) -> dict[str, tuple[ScatterPlot, str]]:
        """How maps go with age before and after, and what that means; by title."""
        found = {}
        for name in self.maps:
            try:
                found[SCALES[name].title] = self._age(name)
            except DatasetError:
                continue
        return found

    def _age(self, name: str) -> tuple[ScatterPlot, str]:
        scale = SCALES[name]
        aged = [one for one in self.summaries if one.age is not None]
        clouds, told = [], []
        for when in (BEFORE, _AFTER):
            ages = np.array([one.age for one in aged], dtype=float)
            values = np.array([scale.factor * _of(one, when)[name] for one in aged])
            effect = linear_effect(values, ages, [one.subject for one in aged])
            points = tuple(
                (float(age), float(value), f"{one.name}, {age:.0f} years, {when}")
                for age, value, one in zip(ages, values, aged, strict=True)
            )
            line = float(values.mean() - effect.slope * ages.mean()), effect.slope
            clouds.append(Cloud(when, points, when, line))
            told.append(
                f"{when} {10 * effect.slope:+.4f} a decade (95 % interval "
                f"{10 * effect.slope_low:+.4f} to {10 * effect.slope_high:+.4f})"
            )
        labels = "age, years", f"mean {scale.title} of white matter {_in(scale.unit)}".strip()
        return ScatterPlot(f"{scale.title} and age", labels, tuple(clouds)), "; ".join(told)

    @cached_property
    def lesions(self) -> StripPlot | None:
        """How lesions stand out, by method."""
        found = self.scores.select("fa_contrast", region="lesion")
        methods = dict.fromkeys(one.method for one in found)
        strips = tuple(
            Strip(
                method,
                tuple(
                    Dot(one.value, f"sub-{one.subject}, {one.task}")
                    for one in found
                    if one.method == method
                ),
                _kind(method),
            )
            for method in methods
        )
        title = "Contrast of lesions: FA in the lesion over FA around it"
        label = "should stay as before; 1: the lesion cannot be seen"
        return StripPlot(title, label, strips) if strips else None

    @cached_property
    def comparison(self) -> Comparison | None:
        """Methods side by side, where there are several."""
        made = compare_methods(self.scores)
        return made if made.rows and len(made.methods) > 1 else None

    @cached_property
    def drawn(self) -> dict[str, StripPlot]:
        """Scores of people for each method, by what they are."""
        return {
            label.partition(",")[0]: plot
            for metric, label in _DRAWN.items()
            for plot in self._score_plot(metric, label)
        }

    def _score_plot(self, metric: str, label: str) -> Iterator[StripPlot]:
        methods = self.scores.methods(metric)
        if metric == "rmse_percent":  # of other scanners' units, before
            methods = [method for method in methods if method != BEFORE]
        strips = tuple(
            Strip(
                method,
                tuple(
                    Dot(one.value, f"sub-{one.subject}, {one.task}")
                    for one in self.scores.select(metric, method=method)
                ),
                _kind(method),
            )
            for method in methods
        )
        if strips:
            yield StripPlot(f"Each person in each task: {label.partition(',')[0]}", label, strips)


def _of(one: ScanSummary, when: str) -> Mapping[str, float]:
    return one.before if when == BEFORE else one.after


def _in(unit: str) -> str:
    return f"({unit})" if unit else ""


def _kind(method: str) -> str:
    """Return the class of the style sheet for what a method has made."""
    return {BEFORE: "before", NOISE: "other", RESCAN: "other"}.get(method, "after")
