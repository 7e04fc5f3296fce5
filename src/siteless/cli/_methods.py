"""`siteless methods`."""

from __future__ import annotations

import argparse
from typing import Any

from siteless.cli._options import add_command

_HELP = """\
list the ways to harmonize

List the methods that `siteless fit --method` has, a line each.
"""


def add_parser(commands: Any) -> None:
    add_command(commands, "methods", run, _HELP)


def run(_options: argparse.Namespace) -> None:
    from siteless.cli._console import say
    from siteless.methods import METHODS

    for method in METHODS.values():
        say(f"{method.name:<12}{method.summary}")
