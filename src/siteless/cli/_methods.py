"""`siteless methods`."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "methods",
        help="list the ways to harmonize",
        description="List the methods that `siteless fit --method` has, a line each.",
    )
    parser.set_defaults(run=run)


def run(_options: argparse.Namespace) -> int:
    """List methods and return the exit code."""
    from siteless.cli._console import stdout
    from siteless.methods import METHODS

    for method in METHODS.values():
        line = f"{method.name:<12}{method.summary}"
        stdout().print(line, soft_wrap=True, markup=False, highlight=False)
    return 0
