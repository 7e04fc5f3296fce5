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
# Of the table that is printed: metrics, their titles and decimals.
_COLUMNS = {
    "rmse_percent": ("RMSE, %", 2),
    "rmse_truth_percent": ("to truth, %", 2),
    "block_percent": ("blocks, %", 2),
    "fa_cv": ("FA, CV", 3),
    "fa_block_percent": ("FA blocks, %", 2),
    "md_block_percent": ("MD blocks, %", 2),
    "angle_closest_median": ("angle", 1),
    "leakage_accuracy": ("site told", 2),
    "fa_site_d": ("FA, d", 2),
    "fa_icc_agreement": ("FA, ICC", 2),
}
_TOLD = """\
means over people and the tasks that all methods share, in white matter. RMSE: to the target scan,
of its b0; blocks: error of 10 mm means, where noise averages out; angle: of fibres, degrees; site
told: share of voxels whose source site an adversary names; d: largest difference between sites, in
standard deviations; ICC: agreement of sites on people"""


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
    parser.set_defaults(run=run)


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
    """Print a table of methods, and what was not scored."""
    from rich.table import Table

    from siteless.cli._console import stdout

    console = stdout()
    shown = {metric: told for metric, told in _COLUMNS.items() if found.table.methods(metric)}
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("method")
    for title, _ in shown.values():
        grid.add_column(title, justify="right")
    methods = dict.fromkeys(m for metric in shown for m in found.table.methods(metric))
    for method in methods:
        cells = (_cell(found.table, metric, method, told[1]) for metric, told in shown.items())
        grid.add_row(method, *cells)
    console.print(grid)
    console.print(_TOLD, style="dim", markup=False, highlight=False)
    for note in found.notes:
        console.print(f"not scored: {note}", soft_wrap=True, markup=False, highlight=False)
    console.print(str(found.file), soft_wrap=True, markup=False, highlight=False)


def _cell(table: ScoreTable, metric: str, method: str, decimals: int) -> str:
    """Return a mean over the tasks that all methods share."""
    tasks = [set(table.tasks(metric, method=one)) for one in table.methods(metric)]
    shared = set.intersection(*tasks) or set().union(*tasks)
    found = [table.mean(metric, method=method, task=task) for task in sorted(shared)]
    known = [value for value in found if value == value]
    return f"{sum(known) / len(known):.{decimals}f}" if known else "-"
