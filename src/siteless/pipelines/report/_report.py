"""`siteless report`: write pages on a harmonized dataset and its scans."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from siteless.bids import (
    Dataset,
    ScanFiles,
    ScanSelection,
    fingerprint,
    read_gradient_table,
    read_json,
    read_rows,
    require_outside,
    write_json,
    write_text,
)
from siteless.errors import (
    DatasetError,
    MissingFileError,
    ModelError,
    OutputError,
    SitelessError,
    errors_at,
)
from siteless.evaluation import ALL, Score, ScoreTable
from siteless.methods import load_model
from siteless.pipelines._run import Run
from siteless.pipelines.evaluate import Derivatives, RenderedScan, find_renderings, folder_name
from siteless.pipelines.report._summary import files_beside, scan_name, summarize_scan
from siteless.population import SiteVerdict
from siteless.report import (
    ScanSummary,
    Study,
    find_niivue,
    flag_scans,
    profiles_url,
    subject_page,
    viewer_html,
)
from siteless.storage import cache_key, require_writable, size_and_time

HOME = "index.html"
# Number of scans on the page of the study, one per site.
_SHOWN = 4
# Increased when summaries or pages change.
_FORM = 3
# Entries of sidecars that differ from scan to scan.
_OF_SCANS = ("SourceSite", "SourceFiles", "Covariates")


def write_report(
    dataset: ScanSelection | Path | str,
    harmonized: Derivatives | Sequence[Path | str],
    out: Path | str,
    *,
    scores: Path | str | None = None,
    model: Path | str | None = None,
    people: int | None = 40,
    run: Run = Run(),
) -> Path:
    """Write the page of a harmonized study, and pages of participants, each as one file.

    Existing pages of participants with the same scans are kept.

    Parameters
    ----------
    dataset
        Folder, manifest, or selection of the original scans.
    harmonized
        Folders of derivatives of one method and one target.
    out
        Folder for the pages.
    scores
        Folder from `siteless evaluate`.
    model
        Model that rendered the scans, whose site fields are shown.
    people
        Number of participants with pages, flagged ones first; None for all.
    run
        Processes and progress of the work.

    Returns
    -------
    Path
        Page of the study.
    """
    selection, derivatives = ScanSelection.of(dataset), Derivatives.of(harmonized)
    scans, out = selection.find(), Path(out)
    require_outside(out, scans.root)
    if (out / HOME).exists() and not (out / "records").exists():
        raise OutputError(
            f"the folder has another {HOME}", remedy="choose another folder", path=out
        )
    table, notes = read_scores(Path(scores)) if scores else (ScoreTable(()), ())
    with errors_at(scans.root):
        renderings = find_renderings(scans.scans, derivatives)
    targets = sorted({rendered.to for rendered in renderings})
    if len(targets) > 1:
        raise DatasetError(
            f"expected scans rendered as one site, found {', '.join(targets)}",
            remedy="give the folder of one target",
        )
    fields = _fields(Path(model), renderings) if model else ""
    require_writable(out)
    summaries, pages = _summarize_people(renderings, out, people, run)
    _, folder = derivatives.by_method()[0]
    command = "siteless", "evaluate", selection.path, "--harmonized", folder, "--out", "scores"
    study = replace(
        _study(scans, renderings, summaries),
        scores=table,
        notes=notes,
        pages=pages,
        fields=fields,
        next_command=shlex.join(map(str, command)),
    )
    write_text(out / HOME, study.html())
    return out / HOME


def _study(
    scans: Dataset, renderings: Sequence[RenderedScan], summaries: Sequence[ScanSummary]
) -> Study:
    """Return a study from scans and sidecars."""
    examples = _examples(renderings, flag_scans(summaries))
    return Study(
        title=f"{scans.root.name if scans.root.is_dir() else scans.root.stem}, harmonized",
        provenance=_provenance(renderings),
        summaries=summaries,
        missing=_missing(scans.scans, renderings),
        viewer=viewer_html([summarize_scan(rendered)[1] for rendered in examples]),
        is_tested=any(files.attributes.get("split") == "test" for files in scans.scans),
        verdicts=_verdicts(renderings),
    )


def _missing(originals: Sequence[ScanFiles], renderings: Sequence[RenderedScan]) -> list[str]:
    """Return the names of scans with shells that are not among the harmonized."""
    harmonized = {rendered.source.dwi for rendered in renderings}
    others = (files for files in originals if files.dwi not in harmonized)
    return [scan_name(files) for files in others if not _lacks_shells(files)]


def _lacks_shells(files: ScanFiles) -> bool:
    try:
        return not read_gradient_table(files).shells
    except SitelessError:  # possibly the reason why it was not harmonized
        return False


def _fields(path: Path, renderings: Sequence[RenderedScan]) -> str:
    """Draw the site fields of the model of some renderings, if it has any."""
    model = load_model(path)
    if model.identity not in _provenance(renderings).get("Model", ""):
        raise ModelError(
            "the scans were rendered by another model",
            remedy="give the one that has rendered them",
            path=path,
        )
    fields = model.site_fields
    return profiles_url(fields, model.preparation.shells) if fields else ""


def read_scores(folder: Path) -> tuple[ScoreTable, tuple[str, ...]]:
    """Read the scores and notes from `siteless evaluate`."""
    path = folder / "scores.tsv"
    if not path.exists():
        raise MissingFileError(
            "expected a folder with scores.tsv, found none",
            remedy="give a folder that `siteless evaluate` wrote",
            path=folder,
        )
    rows, words = read_rows(path, *Score._fields), Score._fields[:-1]
    try:
        scores = [
            Score._make([*(row.get(name, ALL) for name in words), float(row["value"])])
            for row in rows
        ]
    except (KeyError, ValueError):
        raise DatasetError(
            "expected a number in every row of the column value",
            remedy="run `siteless evaluate` again",
            path=path,
        ) from None
    description = path.with_suffix(".json")
    notes = read_json(description).get("NotScored", []) if description.exists() else []
    return ScoreTable(tuple(scores)), tuple(notes)


@dataclass(frozen=True)
class _Person:
    """A participant whose scans are summarized."""

    subject: str
    scans: tuple[RenderedScan, ...]
    out: Path  # folder for the pages
    has_page: bool

    @property
    def name(self) -> str:
        return f"sub-{self.subject}"

    @property
    def page(self) -> Path:
        return self.out / f"{folder_name(self.name)}.html"

    def run(self) -> list[ScanSummary]:
        """Return summaries of the scans, from a record if it exists, and write the page."""
        record = self.out / "records" / f"{folder_name(self.name)}.json"
        scans = [fingerprint(files) for rendered in self.scans for files in rendered.files]
        beside = [path for rendered in self.scans for path in files_beside(rendered)]
        stamps = [size_and_time(path) for path in beside if path.exists()]
        labels = [[scan.to, scan.source.attributes.get("age")] for scan in self.scans]
        key = cache_key(_FORM, scans, stamps, labels, find_niivue() is not None)
        with suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(record.read_text(encoding="utf-8"))
            if content["key"] == key and (self.page.exists() or not self.has_page):
                return [ScanSummary(**summary) for summary in content["summaries"]]
        self.page.unlink(missing_ok=True)  # as it might not match new summaries
        pairs = [summarize_scan(rendered) for rendered in self.scans]
        summaries = [summary for summary, _ in pairs]
        if self.has_page:
            viewer = viewer_html([viewed for _, viewed in pairs])
            write_text(self.page, subject_page(summaries, HOME, viewer))
        write_json(record, {"key": key, "summaries": [asdict(summary) for summary in summaries]})
        return summaries


def _summarize_people(
    renderings: Sequence[RenderedScan], out: Path, people: int | None, run: Run
) -> tuple[list[ScanSummary], dict[str, str]]:
    """Return summaries of all scans, and the pages of participants by subject."""
    by_subject: dict[str, list[RenderedScan]] = {}
    for rendered in renderings:
        by_subject.setdefault(rendered.source.subject, []).append(rendered)
    everybody = people is None or len(by_subject) <= people
    persons = [_Person(who, tuple(scans), out, everybody) for who, scans in by_subject.items()]
    summarized = run.map("Looking at scans", _Person.run, persons)
    summaries = [summary for scans in summarized for summary in scans]
    if not everybody:
        subjects = {summary.name: summary.subject for summary in summaries}
        worst = [subjects[name] for name in flag_scans(summaries)]
        chosen = list(dict.fromkeys([*worst, *by_subject]))[:people]
        persons = [_Person(who, tuple(by_subject[who]), out, has_page=True) for who in chosen]
        run.map("Writing pages", _Person.run, persons)
    return summaries, {who.subject: who.page.name for who in persons if who.has_page}


def _examples(renderings: Sequence[RenderedScan], flagged: Iterable[str]) -> list[RenderedScan]:
    """Return one scan of each of some sites, preferably a flagged one."""
    order = {name: place for place, name in enumerate(flagged)}
    ranked = sorted(renderings, key=lambda scan: order.get(scan_name(scan.source), len(order)))
    first = {str(rendered.source.site): rendered for rendered in reversed(ranked)}
    return [first[site] for site in sorted(first)][:_SHOWN]


def _provenance(renderings: Sequence[RenderedScan]) -> dict[str, str]:
    """Return the provenance of all scans from sidecars, with all values that differ."""
    values: dict[str, dict[str, None]] = {}
    for rendered in renderings:
        for name, value in rendered.read_sidecar().get("Siteless", {}).items():
            if name not in _OF_SCANS:
                values.setdefault(name, {})[str(value)] = None
    return {name: ", ".join(known) for name, known in values.items()}


def _verdicts(renderings: Sequence[RenderedScan]) -> list[SiteVerdict]:
    """Return the summaries of site effects from sidecars."""
    findings = [rendered.read_sidecar().get("SitelessFound", {}) for rendered in renderings]
    effects = [effect for found in findings for effect in found.get("SiteEffects", [])]
    verdicts = {verdict.site: verdict for verdict in map(SiteVerdict.from_json, effects)}
    return [verdicts[site] for site in sorted(verdicts)]
