"""`siteless report`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import add_command, positive_or_all, running, selection_of
from siteless.errors import SitelessError

if TYPE_CHECKING:
    from siteless.pipelines import Derivatives

_HELP = """\
write pages that show what was done to scans

Write pages that show what harmonizing has done: one of the whole study (what was done, is the site
gone, is the brain still there, where did it change, how do other methods compare, which scans to
look at), and one of each person with a viewer of scans before and after. Each page is one file
that needs no network: send it, or keep it beside the data. `siteless harmonize` and `siteless
evaluate` write such a report at their end.

examples:
  siteless report my_study --harmonized as_berlin --out report
  siteless report my_study --harmonized as_berlin --scores scores --out report
  siteless report my_study --harmonized as_berlin --model my_study.safetensors --out report
  siteless report my_study --harmonized as_berlin --out report --people all
"""
_PEOPLE = 40


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "report", run, _HELP, goes_on=True)
    parser.add_dataset()
    parser.add_argument(
        "--harmonized",
        nargs="+",
        required=True,
        type=Path,
        metavar="DIR",
        help="derivatives of one method, of `siteless harmonize` or another tool",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="OUT", help="folder for pages")
    parser.add_argument(
        "--scores", type=Path, metavar="DIR", help="folder that `siteless evaluate` wrote"
    )
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="that has rendered them: what it has learned of sites is shown",
    )
    parser.add_argument(
        "--people",
        type=positive_or_all,
        default=_PEOPLE,
        metavar="N",
        help=f"with a page of their own, those that stand out first, or all (default: {_PEOPLE})",
    )
    parser.add_to()
    parser.add_nprocs()


def run(options: argparse.Namespace) -> None:
    from siteless.cli._console import say
    from siteless.pipelines import Derivatives, write_report

    with running(options) as work:
        page = write_report(
            selection_of(options),
            Derivatives({"harmonized": options.harmonized}, options.to),
            options.out,
            scores=options.scores,
            model=options.model,
            people=options.people,
            run=work,
        )
    say(f"report: {page}")


def report_at_end(
    options: argparse.Namespace,
    harmonized: Sequence[Path] | Derivatives,
    *,
    scores: Path | None = None,
    model: Path | None = None,
) -> None:
    """Write the report of another command; its errors are warnings, as the main work is done."""
    from siteless.cli._console import say, warn
    from siteless.pipelines import write_report

    out = options.out / "report"
    try:
        with running(options) as work:
            page = write_report(
                selection_of(options), harmonized, out, scores=scores, model=model, run=work
            )
    except SitelessError as error:
        warn(f"warning: no report: {error}")
    else:
        say(f"report: {page}")
