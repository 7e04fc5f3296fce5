"""`siteless check`."""

from __future__ import annotations

import argparse
import os
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import add_command, running, selection_of
from siteless.errors import OutputError

if TYPE_CHECKING:
    from siteless.pipelines import CheckReport
    from siteless.preflight import Problem

_HELP = """\
say what is wrong with a dataset, before hours are spent on it

Read every scan of a dataset and report everything that is wrong, in one run.

Errors must be corrected before scans are harmonized; warnings should be understood. Nothing is
written to the dataset. The exit code is 1 when there is an error, 0 otherwise.

examples:
  siteless check my_study                        a BIDS dataset with a site column in its tables
  siteless check my_study --site-from ses        sessions were acquired at different sites
  siteless check my_study/derivatives/qsiprep    QSIPrep output
  siteless check scans.tsv --json problems.json  a manifest; also for machines
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "check", run, _HELP)
    parser.add_dataset()
    parser.add_argument(
        "--order",
        type=_even,
        default=8,
        help="order of the spherical harmonics to be fitted (default: %(default)s)",
    )
    parser.add_nprocs()
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all findings here too")


def run(options: argparse.Namespace) -> int:
    """Check a dataset, print the report, and return the exit code."""
    from siteless.bids import write_json
    from siteless.pipelines import check_dataset

    if options.json:
        _require_outside(options.json, options.dataset)
    with running(options) as work:
        report = check_dataset(selection_of(options), order=options.order, run=work)
    _show(report)
    if options.json:
        write_json(options.json, report.as_dict())
    return 1 if report.errors else 0


def _require_outside(out: Path, dataset: Path) -> None:
    """Raise an error for an output inside the dataset or one that cannot be written."""
    inside = dataset.is_dir() and out.resolve().is_relative_to(dataset.resolve())
    if inside or (out.is_file() and not _is_json_report(out)):
        what = "is inside the dataset" if inside else "exists and is no report of siteless"
        raise OutputError(f"the output {what}", remedy="choose another path", path=out)
    if out.is_dir() or not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise OutputError(
            "expected a file in a folder that can be written to", remedy="correct it", path=out
        )


def _is_json_report(path: Path) -> bool:
    start = path.read_bytes()[:200].decode(errors="replace")
    return start.startswith("{") and '"dataset"' in start


def _show(report: CheckReport) -> None:
    """Print problems, as tables on a terminal, and the number of scans by site."""
    from siteless.cli._console import count, say, stdout

    console = stdout()
    for title, problems in (("Errors", report.errors), ("Warnings", report.warnings)):
        if problems and console.is_terminal:
            console.print(_table(title, problems, report.dataset))
        for problem in () if console.is_terminal else problems:
            say(f"{problem.severity}: {problem.path}: {problem.what}; {problem.remedy}")
    counts = Counter((scan.site, scan.site_origin) for scan in report.scans if scan.site)
    for (site, origin), number in counts.items():
        say(f"site {site}: {count(number, 'scan')}, by {origin}")
    scans, sites = len(report.scans), len({site for site, _ in counts})
    errors, warnings = len(report.errors), len(report.warnings)
    found = f"{count(errors, 'error')}, {count(warnings, 'warning')}"
    say(f"{count(scans, 'scan')} of {count(sites, 'site')}: {found}")


def _table(title: str, problems: tuple[Problem, ...], dataset: Path) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_lines=True, expand=True)
    table.add_column("file", overflow="fold", ratio=3)
    table.add_column("what is wrong", ratio=4)
    table.add_column("what to do", ratio=3)
    kinds: defaultdict[tuple[str, str], list[Path]] = defaultdict(list)
    for problem in problems:
        kinds[problem.what, problem.remedy].append(problem.path)
    for (what, remedy), paths in kinds.items():
        shown = [Text(_short(path, dataset)) for path in paths[:3]]
        if len(paths) > 3:
            shown.append(Text(f"and {len(paths) - 3} more; --json lists all", style="dim"))
        table.add_row(Text("\n").join(shown), Text(what), Text(remedy))
    return table


def _short(path: Path, dataset: Path) -> str:
    """Format a path relative to the dataset, with folder and name on separate lines."""
    root = dataset if dataset.is_dir() else dataset.parent
    if path == root or not path.is_relative_to(root):
        return str(path)
    inside = path.relative_to(root)
    return str(inside) if inside.parent == Path() else f"{inside.parent}/\n{inside.name}"


def _even(text: str) -> int:
    order = int(text)
    if order < 2 or order % 2:
        raise argparse.ArgumentTypeError(f"expected 2, 4, 6, ..., got {order}")
    return order
