"""`siteless evaluate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import MAPS, add_command, positive_or_all, running, selection_of
from siteless.cli._report import report_at_end
from siteless.errors import DatasetError

if TYPE_CHECKING:
    from siteless.pipelines import Evaluation

_HELP = """\
score what methods have made of scans

Score what methods have made of scans. People who were also scanned at the target site give errors
of the signal, of maps (FA, MD, MK, RTOP) and of fibre orientations; everybody else how maps differ
between sites. An adversary measures what is left of the source site, and what must survive is
compared before and after: the effect of age, differences between people, lesions. What the scans
do not allow is said. When the split column of participants.tsv says who was learned from, only
test people are scored.

OUT gets scores.tsv, a row for each score (subject, task, method, region, metric, value), with
scores.json that explains them, pictures, and maps of errors. Run again to go on.

examples:
  siteless evaluate my_study --harmonized rish_out invariant_out --out scores
  siteless evaluate my_study --harmonized rish=out/to_leeds rish=out/to_berlin --out scores
  siteless evaluate my_study --harmonized out --out scores --labels atlas_dseg.nii.gz
  siteless evaluate my_study --harmonized other_tool --to berlin --out scores --scores signal maps
  siteless evaluate my_study --harmonized out --codes model=codes --out scores
"""
KINDS = ("signal", "maps", "orientation", "leakage", "biology")


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "evaluate", run, _HELP, goes_on=True)
    parser.add_dataset()
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
        "--maps",
        nargs="+",
        choices=MAPS,
        help="maps to score (default: all that the shells allow; rtop takes longest)",
    )
    parser.add_to()
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="PATH",
        help="score in regions too: a label image on the grid of the scans, or a folder of a "
        "dataset with a *_dseg.nii.gz for each",
    )
    parser.add_argument(
        "--fibres",
        type=positive_or_all,
        default=1000,
        metavar="N",
        help="voxels of a scan whose fibre orientations are compared, or all (default: 1000)",
    )
    parser.add_seed("of adversaries and intervals")
    parser.add_no_report()
    parser.add_nprocs()


def run(options: argparse.Namespace) -> None:
    harmonized = _named(options.harmonized)
    codes = _named(options.codes)
    twice = [name for name, folders in codes.items() if len(folders) > 1]
    if twice:
        raise DatasetError(f"two folders of codes are called {twice[0]!r}", remedy="rename one")
    if codes and "leakage" not in options.scores:
        raise DatasetError("--codes are scored by leakage", remedy="add it to --scores")
    if options.maps and not {"maps", "biology"} & set(options.scores):
        raise DatasetError(
            "--maps are for scores of maps or biology", remedy="add one to --scores"
        )
    from siteless.pipelines import Derivatives, Scoring, evaluate_dataset

    with running(options) as work:
        evaluation = evaluate_dataset(
            selection_of(options),
            Derivatives(harmonized, options.to),
            options.out,
            codes={name: folder for name, [folder] in codes.items()},
            scoring=Scoring(options.scores, options.maps or MAPS, options.labels, options.fibres),
            run=work,
        )
    _show(evaluation)
    if not options.no_report:
        [first, *_] = harmonized.values()
        shown = Derivatives({"harmonized": first[:1]}, options.to)
        report_at_end(options, shown, scores=options.out)


def _named(words: list[str]) -> dict[str, list[Path]]:
    """Collect folders by name."""
    named: dict[str, list[Path]] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not equals or Path(word).is_dir():
            name, folder = Path(word).absolute().name, word
        if not name or not folder:
            raise DatasetError(f"expected NAME=DIR or DIR, found {word!r}")
        named.setdefault(name, []).append(Path(folder))
    return named


def _show(evaluation: Evaluation) -> None:
    """Print a table with a column for each method, and notes."""
    from rich.table import Table

    from siteless.cli._console import say, stdout
    from siteless.report import compare_methods

    console, table = stdout(), evaluation.table
    compared = compare_methods(table)
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("means over people and tasks", no_wrap=True)
    for method in compared.methods:
        grid.add_column(method, justify="right", overflow="fold")
    for criterion, values in compared.rows:
        cells = (f"{value:.{criterion.decimals}f}" if value == value else "-" for value in values)
        grid.add_row(criterion.title, *cells)
    console.print(grid)
    for score in table.select("leakage_accuracy", task="codes"):
        chance = table.mean("leakage_chance", task="codes", method=score.method)
        say(f"codes of {score.method}: site told {score.value:.2f}, by chance {chance:.2f}")
    for note in evaluation.notes:
        say(f"note: {note}")
    say(str(evaluation.file))
