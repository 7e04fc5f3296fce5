"""`siteless evaluate`: score harmonized scans of a dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from siteless.acquisition import GradientTable
from siteless.bids import (
    ScanSelection,
    read_gradient_table,
    require_outside,
    write_json,
    write_table,
)
from siteless.errors import (
    DatasetError,
    GradientTableError,
    MissingFileError,
    SitelessError,
    errors_at,
)
from siteless.evaluation import BEFORE, ScoreTable, describe_metric, find_engine
from siteless.harmonics import common_order
from siteless.microstructure import MAPS, require_maps
from siteless.pipelines._run import Run
from siteless.pipelines.evaluate._comparison import Comparison, Derivatives, pair_scans
from siteless.pipelines.evaluate._figures import Figures
from siteless.pipelines.evaluate._group_scores import require_codes, score_groups, score_leakage
from siteless.pipelines.evaluate._measures import Measures, Scoring
from siteless.pipelines.evaluate._scan_scores import ScoringGroup, group_by_reference
from siteless.storage import require_writable


@dataclass(frozen=True)
class Evaluation:
    """Scores of a dataset.

    Attributes
    ----------
    file
        Table of all scores.
    table
        Content of the table.
    notes
        What could not be scored and why, and warnings.
    figures
        Figures of the scores.
    """

    file: Path
    table: ScoreTable
    notes: tuple[str, ...]
    figures: Figures


def evaluate_dataset(
    dataset: ScanSelection | Path | str,
    harmonized: Derivatives | Mapping[str, Sequence[Path | str]],
    out: Path | str,
    *,
    codes: Mapping[str, Path] | None = None,
    scoring: Scoring = Scoring(),
    run: Run = Run(),
) -> Evaluation:
    """Score harmonized scans, and write the scores as a table.

    Participants with a scan at the target site have paired scores: errors of signal, maps and
    fibre orientations. For all others, distributions of maps are scored. When the tables have a
    ``split`` column, only test participants are scored, and adversaries learn from training
    participants.

    Parameters
    ----------
    dataset
        Folder, manifest, or selection of scans.
    harmonized
        Folders of derivatives from `siteless harmonize` or another tool, by the name of the
        method, which may have one for each target.
    out
        Folder for ``scores.tsv``, its description, maps of errors, and records for resuming.
    codes
        Folders from `siteless encode`, by name.
    scoring
        Scores to compute; by default all that the scans support.
    run
        Processes and progress of the work, and the random seed of adversaries and bootstraps.
    """
    derivatives, out, codes = Derivatives.of(harmonized), Path(out), codes or {}
    scans = ScanSelection.of(dataset).find()
    folders = [folder for _, folder in derivatives.by_method()]
    for folder in (scans.root, *folders, *codes.values()):
        require_outside(out, folder)
    if scoring.labels and not scoring.labels.exists():
        raise MissingFileError(
            "there is no such file or folder", remedy="correct the path", path=scoring.labels
        )
    with errors_at(scans.root):
        comparison = pair_scans(scans.scans, derivatives)
    require_codes(codes, comparison)
    measures, notes = _measures(comparison, scoring, scans.root, out)
    require_writable(out)
    table, unscored = _score(measures, comparison, codes, run)
    notes = (*notes, *unscored)
    if not table.scores:
        raise DatasetError(
            f"nothing could be scored: {notes[0] if notes else 'there is nobody'}",
            remedy="give renderings of other scans, or ask for other --scores",
        )
    file = _write(table, measures, notes)
    return Evaluation(file, table, notes, _draw(measures, comparison, table))


def _measures(
    comparison: Comparison, scoring: Scoring, root: Path, out: Path
) -> tuple[Measures, tuple[str, ...]]:
    """Return the scores that all scans support, and notes on the others."""
    tables = [read_gradient_table(files) for files in comparison.originals]
    maps, lacking = _common_maps(tables, scoring.maps)
    engine, missing = _engine(scoring, comparison)
    kinds = frozenset(kind for kind in scoring.kinds if engine or kind != "orientation")
    allowed = replace(scoring, kinds=kinds, maps=maps)
    measures = Measures(out, root, allowed, common_order(tables), engine)
    return measures, (*comparison.notes, *lacking, *missing)


def _common_maps(
    tables: Sequence[GradientTable], names: Collection[str]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the maps that all tables support, and notes on the others."""
    maps, notes = [], []
    for name in dict.fromkeys([*(known for known in MAPS if known in names), *names]):
        try:
            for table in tables:
                require_maps([name], table)
            maps.append(name)
        except GradientTableError as error:
            notes.append(error.problem)
    return tuple(maps), notes


def _engine(scoring: Scoring, comparison: Comparison) -> tuple[str, list[str]]:
    """Return the engine for fibre orientations, if needed and available, and notes."""
    if not any(rendered.target for rendered in comparison.scored):
        reason = "no person who is scored has a comparable scan at the target site"
        return "", [f"errors of signal, maps and fibres, and their pictures: {reason}"]
    if "orientation" not in scoring.kinds:
        return "", []
    try:
        return find_engine(), []
    except SitelessError as error:
        return "", [f"fibre orientations: {error}"]


def _score(
    measures: Measures, comparison: Comparison, codes: Mapping[str, Path], run: Run
) -> tuple[ScoreTable, list[str]]:
    """Return all scores, and notes on missing ones."""
    groups = group_by_reference(measures, comparison)
    by_group = run.map("Scoring scans", ScoringGroup.run, groups)
    scores = [score for group in by_group for score in group]
    notes: list[str] = []
    if measures.include("leakage"):
        leakage, notes = score_leakage(measures, comparison, codes, run)
        scores += leakage
    if measures.include("biology"):
        biology, unmeasured = score_groups(measures, comparison, seed=run.seed)
        scores, notes = scores + biology, notes + unmeasured
    return ScoreTable(tuple(scores)), notes


def _draw(measures: Measures, comparison: Comparison, table: ScoreTable) -> Figures:
    """Draw the errors of all methods that harmonize scans."""
    compared = [rendered for rendered in comparison.scored if rendered.target]
    figures = Figures(measures, compared, table, sorted({rendered.task for rendered in compared}))
    harmonized = [rendered for rendered in compared if rendered.image]
    methods = dict.fromkeys(r.method for r in harmonized if r.method != BEFORE)
    if methods:
        figures.draw_errors(measures.out, list(methods))
    return figures


def _write(table: ScoreTable, measures: Measures, notes: Sequence[str]) -> Path:
    """Write the scores and their description; return the file of the scores."""
    metrics = {score.metric: describe_metric(score.metric) for score in table.scores}
    levels = {name: {"Units": unit, "Description": text} for name, (unit, text) in metrics.items()}
    description = {
        "subject": {"Description": "person, n/a for scores of all"},
        "task": {"Description": "source site > target site"},
        "method": {"Description": "as it was named; before: the scan as it was"},
        "region": {"Description": "where in the brain"},
        "metric": {"Levels": levels},
        "value": {"Description": "in the unit of the metric"},
        "FibreOrientations": measures.engine or "n/a",
        "NotScored": list(notes),
        "GeneratedBy": [{"Name": "siteless", "Version": version("siteless")}],
    }
    rows = [{**score._asdict(), "value": f"{score.value:.6g}"} for score in table.scores]
    file = measures.out / "scores.tsv"
    write_json(file.with_suffix(".json"), description)
    write_table(file, rows)
    return file
