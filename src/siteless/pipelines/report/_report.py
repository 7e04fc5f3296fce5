"""`siteless report`: pages that show what harmonizing has done to a dataset, and to each scan."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from siteless.bids import (
    ScanFiles,
    ScanSelection,
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
from siteless.methods.invariant import InvariantModel
from siteless.pipelines._choice import fingerprint, read_table
from siteless.pipelines._run import Run
from siteless.pipelines.evaluate._comparison import Judged, find_judged, folder_name
from siteless.pipelines.report._summary import beside_of, name_of, portray, told_of
from siteless.population import SiteVerdict
from siteless.report import (
    Portrait,
    Study,
    ViewedScan,
    find_niivue,
    flag,
    profiles_url,
    subject_page,
    viewer_html,
)
from siteless.storage import cache_key, require_writable, size_and_time

HOME = "index.html"
# People with a page of their own, unless more are asked for.
PEOPLE = 40
# Scans that the page of the study shows, one a site.
_SHOWN = 4
# Raised when numbers or pages change.
_FORM = 3
# What sidecars tell of single scans.
_OF_SCANS = ("SourceSite", "SourceFiles", "Covariates")


def write_report(
    dataset: ScanSelection | Path | str,
    harmonized: Sequence[Path | str],
    out: Path | str,
    *,
    scores: Path | str | None = None,
    model: Path | str | None = None,
    to: str | None = None,
    people: int | None = PEOPLE,
    run: Run = Run(),
) -> Path:
    """Write the page of a harmonized study, and pages of people, each one file.

    Pages of people that are there, of the same scans, are kept.

    Parameters
    ----------
    dataset
        Its folder, a manifest, or a selection of its scans: the scans as they were.
    harmonized
        Folders of derivatives of one method and one target.
    out
        Folder for the pages.
    scores
        Folder that `siteless evaluate` wrote.
    model
        That has rendered the scans: what it has learned of sites is shown.
    to
        The target site, for derivatives that do not tell it.
    people
        With pages of their own, those whose scans stand out first; None for all.
    run
        How the work is done.

    Returns
    -------
    Path
        The page of the study.
    """
    selection = ScanSelection.of(dataset)
    found = selection.find()
    out, folders = Path(out), [Path(folder) for folder in harmonized]
    require_outside(out, found.root)
    _require_pages(out)
    table, notes = read_scores(Path(scores)) if scores else (ScoreTable(()), ())
    with errors_at(found.root):
        judged = find_judged(found.scans, {"harmonized": folders}, to=to)
    _require_one_target(judged)
    told = _told(judged)
    fields = _fields(Path(model), told) if model else ""
    require_writable(out)
    portraits, pages = _portray_all(judged, out, people, run)
    shown = [portray(one)[1] for one in _examples(judged, flag(portraits))]
    command = "siteless", "evaluate", selection.path, "--harmonized", folders[0], "--out", "scores"
    study = Study(
        title=f"{found.root.name if found.root.is_dir() else found.root.stem}, harmonized",
        told=told,
        portraits=portraits,
        scores=table,
        notes=notes,
        missing=_missing(found.scans, judged),
        pages=pages,
        viewer=viewer_html(shown),
        is_tested=any(files.attributes.get("split") == "test" for files in found.scans),
        next_command=shlex.join(map(str, command)),
        fields=fields,
        verdicts=_verdicts(judged),
    )
    write_text(out / HOME, study.html())
    return out / HOME


def _require_pages(out: Path) -> None:
    """Refuse a folder that has another page at the place of ours."""
    if (out / HOME).exists() and not (out / "records").exists():
        raise OutputError(
            f"the folder has another {HOME}", remedy="choose another folder", path=out
        )


def _require_one_target(judged: Sequence[Judged]) -> None:
    targets = sorted({one.to for one in judged})
    if len(targets) > 1:
        raise DatasetError(
            f"expected scans rendered as one site, found {', '.join(targets)}",
            remedy="give the folder of one target",
        )


def _missing(originals: Sequence[ScanFiles], judged: Sequence[Judged]) -> list[str]:
    """Return the names of scans with shells that are not among the harmonized."""
    made = {one.source.dwi for one in judged}
    others = (files for files in originals if files.dwi not in made)
    return [name_of(files) for files in others if not _lacks_shells(files)]


def _lacks_shells(files: ScanFiles) -> bool:
    try:
        return not read_table(files).shells
    except SitelessError:  # which may be why it was not harmonized
        return False


def _fields(path: Path, told: Mapping[str, str]) -> str:
    """Draw what a model has learned of its sites, if it has."""
    model = load_model(path)
    if model.identity not in told.get("Model", ""):
        raise ModelError(
            "the scans were rendered by another model",
            remedy="give the one that has rendered them",
            path=path,
        )
    profiles = model.profiles if isinstance(model, InvariantModel) else None
    return profiles_url(profiles, model.preparation.shells) if profiles else ""


def read_scores(folder: Path) -> tuple[ScoreTable, tuple[str, ...]]:
    """Read what `siteless evaluate` wrote: the scores, and notes on them."""
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
    told = path.with_suffix(".json")
    notes = read_json(told).get("NotScored", []) if told.exists() else []
    return ScoreTable(tuple(scores)), tuple(notes)


@dataclass(frozen=True)
class _Sitter:
    """A person whose scans are portrayed.

    Attributes
    ----------
    scans
        Rendered, of one person.
    out
        Folder for the pages.
    has_page
        Whether the person gets a page.
    """

    scans: tuple[Judged, ...]
    out: Path
    has_page: bool

    @property
    def subject(self) -> str:
        return self.scans[0].source.subject

    @property
    def stem(self) -> str:
        return folder_name(f"sub-{self.subject}")

    @property
    def page(self) -> Path:
        return self.out / f"{self.stem}.html"

    def run(self) -> list[Portrait]:
        """Return numbers of the scans, from a record where there is one; and write the page."""
        record = self.out / "records" / f"{self.stem}.json"
        key = self._key()
        with suppress(OSError, ValueError, KeyError, TypeError):
            told = json.loads(record.read_text(encoding="utf-8"))
            if told["key"] == key and (self.page.exists() or not self.has_page):
                return [Portrait(**one) for one in told["portraits"]]
        self.page.unlink(missing_ok=True)  # or it might stand beside other numbers
        pairs = [portray(one) for one in self.scans]
        portraits = [portrait for portrait, _ in pairs]
        if self.has_page:
            self._paint(portraits, [viewed for _, viewed in pairs])
        write_json(record, {"key": key, "portraits": [asdict(one) for one in portraits]})
        return portraits

    def _paint(self, portraits: Sequence[Portrait], viewed: Sequence[ViewedScan]) -> None:
        page = subject_page(portraits, HOME, viewer_html(viewed))
        write_text(self.page, page)

    def _key(self) -> str:
        """Return what numbers and page depend on, as a hash."""
        scans = [fingerprint(files) for one in self.scans for files in one.files]
        beside = [path for one in self.scans for path in beside_of(one)]
        told = [[one.to, one.source.attributes.get("age")] for one in self.scans]
        viewer = find_niivue() is not None
        files = [size_and_time(path) for path in beside if path.exists()]
        return cache_key(_FORM, scans, files, told, viewer)


def _portray_all(
    judged: Sequence[Judged], out: Path, people: int | None, run: Run
) -> tuple[list[Portrait], dict[str, str]]:
    """Return portraits of all scans, and the pages of people by subject."""
    own: dict[str, list[Judged]] = {}
    for one in judged:
        own.setdefault(one.source.subject, []).append(one)
    everybody = people is None or len(own) <= people
    sitters = [_Sitter(tuple(scans), out, everybody) for scans in own.values()]
    portraits = _run(sitters, "Looking at scans", run)
    if not everybody:
        subjects = {portrait.name: portrait.subject for portrait in portraits}
        worst = [subjects[name] for name in flag(portraits)]
        chosen = list(dict.fromkeys([*worst, *own]))[:people]
        sitters = [_Sitter(tuple(own[who]), out, has_page=True) for who in chosen]
        _run(sitters, "Writing pages", run)
    return portraits, {one.subject: one.page.name for one in sitters if one.has_page}


def _run(sitters: Sequence[_Sitter], title: str, run: Run) -> list[Portrait]:
    found = run.map(title, _Sitter.run, sitters, name=lambda one: f"sub-{one.subject}")
    return [portrait for portraits in found for portrait in portraits]


def _examples(judged: Sequence[Judged], flags: Mapping[str, object]) -> list[Judged]:
    """Return a scan of each of some sites, one that stands out where there is one."""
    order = {name: place for place, name in enumerate(flags)}
    ranked = sorted(judged, key=lambda one: order.get(name_of(one.source), len(order)))
    first = {str(one.source.site): one for one in reversed(ranked)}
    return [first[site] for site in sorted(first)][:_SHOWN]


def _told(judged: Sequence[Judged]) -> dict[str, str]:
    """Return what sidecars tell of how all scans were made; of several ways, all."""
    found: dict[str, dict[str, None]] = {}
    for one in judged:
        for name, value in told_of(one).get("Siteless", {}).items():
            if name not in _OF_SCANS:
                found.setdefault(name, {})[str(value)] = None
    return {name: ", ".join(values) for name, values in found.items()}


def _verdicts(judged: Sequence[Judged]) -> list[SiteVerdict]:
    """Return what sidecars say about the effects of sites."""
    found: dict[str, SiteVerdict] = {}
    for one in judged:
        for known in told_of(one).get("SitelessFound", {}).get("SiteEffects", []):
            verdict = SiteVerdict.from_json(known)
            found[verdict.site] = verdict
    return [found[site] for site in sorted(found)]
