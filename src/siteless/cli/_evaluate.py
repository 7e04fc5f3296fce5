"""`siteless evaluate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import (
    add_dataset_options,
    add_nprocs,
    filters_of,
    natural,
    positive,
)
from siteless.errors import DatasetError

if TYPE_CHECKING:
    from siteless.evaluation import ScoreTable
    from siteless.pipelines import Evaluation

_DESCRIPTION = """\
Score what methods have made of scans. People who were also scanned at the target site give errors
of the signal, of maps (FA, MD, MK, RTOP) and of fibre orientations; everybody else how maps differ
between sites. An adversary tells what is left of the source site, and what must survive is
compared before and after: the effect of age, differences between people, lesions. What the scans
do not allow is said. When the split column of participants.tsv says who was learned from, only
test people are scored.

OUT gets scores.tsv, a row for each score (subject, task, method, region, metric, value), with
scores.json that explains them, pictures, and maps of errors. Run again to go on.
"""
_EXAMPLES = """\
examples:
  siteless evaluate my_study --harmonized rish_out invariant_out --out scores
  siteless evaluate my_study --harmonized rish=out/to_leeds rish=out/to_berlin --out scores
  siteless evaluate my_study --harmonized out --out scores --labels atlas_dseg.nii.gz
  siteless evaluate my_study --harmonized other_tool --to berlin --out scores --scores signal maps
  siteless evaluate my_study --harmonized out --codes model=codes --out scores
"""
KINDS = ("signal", "maps", "orientation", "leakage", "biology")
# Of the table that is printed: metrics, what they are and decimals.
_ROWS = {
    "rmse_percent": ("RMSE to the target, % of b0", 2),
    "rmse_truth_percent": ("  to the noiseless target, %", 2),
    "block_percent": ("signal, 10 mm means: error, %", 2),
    "fa_cv": ("FA: coefficient of variation", 3),
    "fa_block_percent": ("  10 mm means: error, %", 2),
    "md_cv": ("MD: coefficient of variation", 3),
    "md_block_percent": ("  10 mm means: error, %", 2),
    "angle_closest_median": ("fibres: angle, degrees", 1),
    "leakage_accuracy": ("source site told by a voxel", 2),
    "leakage_chance": ("  by chance", 2),
    "fa_site_d": ("FA: largest d between sites", 2),
    "fa_icc_agreement": ("FA: ICC of sites on people", 2),
}


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "evaluate",
        help="score what methods have made of scans",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_dataset_options(parser)
    parser.add_argument(
        "--harmonized",
        nargs="+",
        required=True,
        metavar="[NAME=]DIR",
        help="derivatives to score, of `siteless harmonize` or another tool; those of one method "
        "have the same NAME (default: the folder's)",
    )
    parser.add_argument(
        "--codes",
        nargs="+",
        default=[],
        metavar="[NAME=]DIR",
        help="folders of `siteless encode`, to score what codes tell of the site",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="OUT", help="folder for scores")
    parser.add_argument(
        "--scores", nargs="+", choices=KINDS, default=KINDS, help="only these (default: all)"
    )
    parser.add_argument(
        "--to", metavar="SITE", help="the target site, for derivatives that do not tell it"
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="PATH",
        help="score in regions too: a label image on the grid of the scans, or a folder of a "
        "dataset with a *_dseg.nii.gz for each",
    )
    parser.add_argument(
        "--fibres",
        type=_voxels,
        default=1000,
        metavar="N",
        help="voxels of a scan whose fibre orientations are compared, or all (default: 1000)",
    )
    parser.add_argument(
        "--seed", type=natural, default=0, help="of adversaries and intervals (default: 0)"
    )
    add_nprocs(parser)
    parser.set_defaults(run=run, goes_on=True)


def run(options: argparse.Namespace) -> int:
    """Evaluate and return the exit code."""
    harmonized = _named(options.harmonized)
    codes = _named(options.codes)
    twice = [name for name, folders in codes.items() if len(folders) > 1]
    if twice:
        raise DatasetError(f"two folders of codes are called {twice[0]!r}", remedy="rename one")
    if codes and "leakage" not in options.scores:
        raise DatasetError("--codes are scored by leakage", remedy="add it to --scores")
    from siteless.cli._console import shown_fit
    from siteless.pipelines import evaluate_dataset

    with shown_fit(verbose=options.verbose) as (progress, _):
        found = evaluate_dataset(
            options.dataset,
            harmonized,
            options.out,
            codes={name: folder for name, [folder] in codes.items()},
            kinds=options.scores,
            to=options.to,
            labels=options.labels,
            fibres=options.fibres,
            site_from=options.site_from,
            filters=filters_of(options),
            seed=options.seed,
            nprocs=options.nprocs,
            progress=progress,
        )
    _show(found)
    return 0


def _named(words: list[str]) -> dict[str, list[Path]]:
    """Gather folders by name."""
    named: dict[str, list[Path]] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not equals or Path(word).is_dir():
            name, folder = Path(word).absolute().name, word
        if not name or not folder:
            raise DatasetError(f"expected NAME=DIR or DIR, found {word!r}")
        named.setdefault(name, []).append(Path(folder))
    return named


def _voxels(text: str) -> int | None:
    return None if text == "all" else positive(text)


def _show(found: Evaluation) -> None:
    """Print a table with a column for each method, and what to know of it."""
    from rich.table import Table

    from siteless.cli._console import stdout

    console, table = stdout(), found.table
    shown = {metric: told for metric, told in _ROWS.items() if _tasks(table, metric)}
    methods = list(dict.fromkeys(m for metric in shown for m in _methods(table, metric)))
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("means over people and tasks", no_wrap=True)
    for method in methods:
        grid.add_column(method, justify="right", overflow="fold")
    for metric, (title, decimals) in shown.items():
        grid.add_row(title, *(_cell(table, metric, method, decimals) for method in methods))
    console.print(grid)
    for score in table.select("leakage_accuracy", task="codes"):
        chance = table.mean("leakage_chance", task="codes", method=score.method)
        _say(f"codes of {score.method}: site told {score.value:.2f}, by chance {chance:.2f}")
    for note in found.notes:
        _say(f"note: {note}")
    _say(str(found.file))


def _say(line: str) -> None:
    from siteless.cli._console import stdout

    stdout().print(line, soft_wrap=True, markup=False, highlight=False)


def _methods(table: ScoreTable, metric: str) -> list[str]:
    found = {one.method for one in table.select(metric) if one.task != "codes"}
    return [method for method in table.methods(metric) if method in found]


def _tasks(table: ScoreTable, metric: str) -> set[str]:
    """Return the tasks that all methods share; or all, when they share none."""
    found = [set(table.tasks(metric, one)) - {"codes"} for one in _methods(table, metric)]
    return set.intersection(*found) or set.union(*found) if found else set()


def _cell(table: ScoreTable, metric: str, method: str, decimals: int) -> str:
    tasks = sorted(_tasks(table, metric))
    found = [table.mean(metric, method=method, task=task) for task in tasks]
    known = [value for value in found if value == value]
    return f"{sum(known) / len(known):.{decimals}f}" if known else "-"
