"""`siteless report`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from siteless.cli._options import (
    add_dataset_options,
    add_nprocs,
    positive_or_all,
    run_of,
    selection_of,
)
from siteless.errors import SitelessError

_DESCRIPTION = """\
Write pages that show what harmonizing has done: one of the whole study (what was done, is the site
gone, is the brain still there, where did it change, how do other methods compare, which scans to
look at), and one of each person with a viewer of scans before and after. Each page is one file
that needs no network: send it, or keep it beside the data. `siteless harmonize` and `siteless
evaluate` write such a report at their end.
"""
_EXAMPLES = """\
examples:
  siteless report my_study --harmonized as_berlin --out report
  siteless report my_study --harmonized as_berlin --scores scores --out report
  siteless report my_study --harmonized as_berlin --model my_study.safetensors --out report
  siteless report my_study --harmonized as_berlin --out report --people all
"""
_PEOPLE = 40


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "report",
        help="write pages that show what was done to scans",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_dataset_options(parser)
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
    parser.add_argument(
        "--to", metavar="SITE", help="the target site, for derivatives that do not tell it"
    )
    add_nprocs(parser)
    parser.set_defaults(run=run, goes_on=True)


def run(options: argparse.Namespace) -> int:
    """Write the report and return the exit code."""
    from siteless.cli._console import shown
    from siteless.pipelines import Derivatives, write_report

    with shown(verbose=options.verbose) as progress:
        page = write_report(
            selection_of(options),
            Derivatives({"harmonized": options.harmonized}, options.to),
            options.out,
            scores=options.scores,
            model=options.model,
            people=options.people,
            run=run_of(options, progress),
        )
    say_page(page)
    return 0


def say_page(page: Path) -> None:
    """Print the path of a report."""
    from siteless.cli._console import say

    say(f"report: {page}")


@contextmanager
def warned() -> Iterator[None]:
    """Turn errors of a report into warnings, as the main work is finished."""
    try:
        yield
    except SitelessError as error:
        print(f"siteless: warning: no report: {error}", file=sys.stderr)  # noqa: T201


def add_no_report(parser: argparse.ArgumentParser) -> None:
    """Add the option to skip the report."""
    parser.add_argument(
        "--no-report", action="store_true", help="do not write pages about it at the end"
    )
