"""`siteless demo`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import add_command, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from siteless.evaluation import ScoreTable

_HELP = """\
show everything on simulated scans, ending in a report

Show what siteless does, in a few minutes and without data: simulate people who were scanned at two
sites, check the scans, learn a model from some people, render the others' scans as one site,
compare with RISH and with doing nothing, and write a report to open in a browser. Run again to go
on after an interruption.
"""
# Metrics to print at the end, with their description and format.
_LINES = {
    "leakage_accuracy": ("share of voxels whose source site an adversary names rightly", "{:.2f}"),
    "fa_block_percent": ("error of FA to the noiseless target, 10 mm means", "{:.1f} %"),
    "fa_site_ks": (
        "largest distance between sites' distributions of FA, Kolmogorov-Smirnov, 0 to 1",
        "{:.2f}",
    ),
}


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "demo", run, _HELP, goes_on=True)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for all of it")
    parser.add_seed()
    parser.add_nprocs()


def run(options: argparse.Namespace) -> None:
    from siteless.cli._console import say
    from siteless.experiments import run_demo

    with running(options) as work:
        demo = run_demo(options.out, run=work)
    taken = ", ".join(f"{step} {seconds:.0f} s" for step, seconds in demo.seconds.items())
    total = sum(demo.seconds.values()) / 60
    for line in (f"{taken}; {total:.1f} min in all", *_results(demo.table)):
        say(line)
    say(f"report: {demo.page}")


def _results(table: ScoreTable) -> Iterator[str]:
    """Yield a line for each of a few scores, with a value for each method."""
    for metric, (title, form) in _LINES.items():
        values = [
            f"{method} {form.format(table.mean(metric, method=method))}"
            for method in table.methods(metric)
        ]
        chance = table.mean("leakage_chance") if metric == "leakage_accuracy" else float("nan")
        note = f" (chance {chance:.2f})" if chance == chance else ""
        yield f"{title}: {', '.join(values)}{note}"
