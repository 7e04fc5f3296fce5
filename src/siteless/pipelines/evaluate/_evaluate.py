"""`siteless evaluate`: what methods have made of a dataset, scored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

from siteless.acquisition import GradientTable
from siteless.bids import ScanSelection, require_outside, write_json, write_table
from siteless.errors import DatasetError, GradientTableError, SitelessError, errors_at
from siteless.evaluation import ScoreTable, describe_metric, find_engine
from siteless.harmonics import common_order
from siteless.microstructure import MAPS, require_maps
from siteless.pipelines._choice import read_table
from siteless.pipelines._run import Run
from siteless.pipelines.evaluate._comparison import Contest, require_names, set_contest
from siteless.pipelines.evaluate._figures import Gallery
from siteless.pipelines.evaluate._group_scores import require_codes, score_groups, score_leakage
from siteless.pipelines.evaluate._regions import Labels, find_labels
from siteless.pipelines.evaluate._scan_scores import Heat, Measures, make_heats
from siteless.storage import require_writable

Kind = Literal["signal", "maps", "orientation", "leakage", "biology"]
KINDS: tuple[Kind, ...] = get_args(Kind)


@dataclass(frozen=True)
class Evaluation:
    """What was found.

    Attributes
    ----------
    file
        With all scores.
    table
        The same.
    notes
        What could not be scored and why, and what to beware of.
    gallery
        Draws them.
    """

    file: Path
    table: ScoreTable
    notes: tuple[str, ...]
    gallery: Gallery


def evaluate_dataset(
    dataset: ScanSelection | Path | str,
    harmonized: Mapping[str, Sequence[Path]],
    out: Path | str,
    *,
    codes: Mapping[str, Path] | None = None,
    kinds: Collection[Kind] = KINDS,
    maps: Collection[str] = tuple(MAPS),
    to: str | None = None,
    labels: Path | None = None,
    fibres: int | None = 1000,
    run: Run = Run(),
) -> Evaluation:
    """Score what methods have made of scans, and write the scores as a table.

    People with a scan at the target site give paired scores: errors of signal, maps and fibre
    orientations. All others give how maps are distributed. When a ``split`` column tells who was
    learned from, only test people are scored, and adversaries learn from training people.

    Parameters
    ----------
    dataset
        Its folder, a manifest, or a selection of its scans.
    harmonized
        Folders of derivatives that `siteless harmonize` wrote, or another tool, by the name of
        the method; a method may have one for each target.
    out
        Folder for ``scores.tsv``, its description, maps of errors, and records that an
        interrupted run goes on from.
    codes
        Folders that `siteless encode` wrote, by name.
    kinds
        Of scores, all by default.
    maps
        Of `siteless.microstructure.MAPS`; those that the scans do not allow are left out.
    to
        The target site, for derivatives that do not tell it.
    labels
        A label image on the grid of the scans, or a folder of a dataset with one for each.
    fibres
        Voxels of white matter, evenly spaced, whose fibre orientations are compared; None for
        all. MRtrix3 takes a few milliseconds for each, and DIPY ten times as long.
    run
        How the work is done. Its random seed is for adversaries and bootstraps.
    """
    found = ScanSelection.of(dataset).find()
    out, codes = Path(out), codes or {}
    for folder in (found.root, *chain(*harmonized.values()), *codes.values()):
        require_outside(out, folder)
    require_names(harmonized)
    regions = find_labels(labels)
    with errors_at(found.root):
        contest = set_contest(found.scans, harmonized, to=to)
    require_codes(codes, contest)
    measures, notes = _measures(contest, out, found.root, kinds, maps, regions, fibres)
    require_writable(out)
    scored = run.map("Scoring scans", Heat.run, make_heats(measures, contest))
    scores = [score for heat in scored for score in heat]
    if "leakage" in kinds:
        leaked = score_leakage(measures, contest, codes, run)
        scores, notes = scores + leaked[0], notes + leaked[1]
    if "biology" in kinds:
        survived = score_groups(measures, contest, seed=run.seed)
        scores, notes = scores + survived[0], notes + survived[1]
    if not scores:
        raise DatasetError(
            f"nothing could be scored: {notes[0] if notes else 'there is nobody'}",
            remedy="give renderings of other scans, or ask for other --scores",
        )
    table = ScoreTable(tuple(scores))
    _write(out, table, measures, notes)
    compared = [one for one in contest.scored if one.target]
    gallery = Gallery(measures, compared, table, sorted({one.task for one in compared}))
    made = [name for name in harmonized if any(o.method == name and o.image for o in compared)]
    if made:
        gallery.draw_errors(out, made)
    return Evaluation(out / "scores.tsv", table, tuple(notes), gallery)


def _measures(
    contest: Contest,
    out: Path,
    root: Path,
    kinds: Collection[str],
    maps: Collection[str],
    regions: Labels | None,
    fibres: int | None,
) -> tuple[Measures, list[str]]:
    """Choose what all scans allow, and say what they do not."""
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise DatasetError(
            f"there are no scores of {min(unknown)!r}", remedy=f"choose of {', '.join(KINDS)}"
        )
    tables = [read_table(files) for files in contest.originals]
    allowed, lacking = _common_maps(tables, maps)
    engine, missing = _engine(contest, kinds)
    chosen = set(kinds) - (set() if engine else {"orientation"})
    order = common_order(tables)
    measures = Measures(out, root, frozenset(chosen), allowed, order, engine, fibres, regions)
    return measures, [*contest.notes, *lacking, *missing]


def _common_maps(
    tables: Sequence[GradientTable], names: Collection[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the maps that all tables allow; and why not the others."""
    maps, notes = [], []
    for name in dict.fromkeys([*(known for known in MAPS if known in names), *names]):
        try:
            for table in tables:
                require_maps([name], table)
            maps.append(name)
        except GradientTableError as error:
            notes.append(error.problem)
    return tuple(maps), notes


def _engine(contest: Contest, kinds: Collection[str]) -> tuple[str, list[str]]:
    """Return what finds fibre orientations, if they are to be found; and why not."""
    if not any(one.target for one in contest.scored):
        told = "no person who is scored has a comparable scan at the target site"
        return "", [f"errors of signal, maps and fibres, and their pictures: {told}"]
    if "orientation" not in kinds:
        return "", []
    try:
        return find_engine(), []
    except SitelessError as error:
        return "", [f"fibre orientations: {error}"]


def _write(out: Path, table: ScoreTable, measures: Measures, notes: Sequence[str]) -> None:
    """Write the scores, and what they mean."""
    metrics = dict.fromkeys(score.metric for score in table.scores)
    told = {
        name: {"Units": unit, "Description": text}
        for name, (unit, text) in zip(metrics, map(describe_metric, metrics), strict=True)
    }
    description = {
        "subject": {"Description": "person, n/a for scores of all"},
        "task": {"Description": "source site > target site"},
        "method": {"Description": "as it was named; before: the scan as it was"},
        "region": {"Description": "where in the brain"},
        "metric": {"Levels": told},
        "value": {"Description": "in the unit of the metric"},
        "FibreOrientations": measures.engine or "n/a",
        "NotScored": list(notes),
        "GeneratedBy": [{"Name": "siteless", "Version": version("siteless")}],
    }
    rows = [{**one._asdict(), "value": f"{one.value:.6g}"} for one in table.scores]
    write_json(out / "scores.json", description)
    write_table(out / "scores.tsv", rows)
