"""`siteless report`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from siteless.cli._options import add_nprocs, positive

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
    parser.add_argument(
        "dataset", metavar="DATASET", type=Path, help="the scans as they were: BIDS, or a manifest"
    )
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
        "--people",
        type=_people,
        default=_PEOPLE,
        metavar="N",
        help=f"with a page of their own, those that stand out first, or all (default: {_PEOPLE})",
    )
    parser.add_argument(
        "--to", metavar="SITE", help="the target site, for derivatives that do not tell it"
    )
    parser.add_argument(
        "--site-from", metavar="ENTITY", help="take the site from this part of file names"
    )
    add_nprocs(parser)
    parser.set_defaults(run=run, goes_on=True)


def run(options: argparse.Namespace) -> int:
    """Write the report and return the exit code."""
    show_pages(
        options.dataset,
        options.harmonized,
        options.out,
        verbose=options.verbose,
        scores=options.scores,
        to=options.to,
        people=options.people,
        site_from=options.site_from,
        nprocs=options.nprocs,
    )
    return 0


def show_pages(
    dataset: Path, harmonized: list[Path], out: Path, *, verbose: bool, **options: Any
) -> None:
    """Write a report and print where it is."""
    from siteless.cli._console import shown_fit, stdout
    from siteless.pipelines import write_report

    with shown_fit(verbose=verbose) as (progress, _):
        page = write_report(dataset, harmonized, out, progress=progress, **options)
    stdout().print(f"report: {page}", soft_wrap=True, markup=False, highlight=False)


def add_no_report(parser: argparse.ArgumentParser) -> None:
    """Add the option to do without a report."""
    parser.add_argument(
        "--no-report", action="store_true", help="do not write pages about it at the end"
    )


def _people(text: str) -> int | None:
    return None if text == "all" else positive(text)
