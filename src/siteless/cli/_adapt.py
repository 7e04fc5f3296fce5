"""`siteless adapt`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from siteless.cli._options import add_command, running, selection_of

_HELP = """\
teach a model a new site from a few scans

Teach a model a site that it has not learned, from a few scans of it, in about a minute. What the
model knows stays as it is: only the new site's point spread, field, units and look are fitted.
What few people have in common is shrunk by how much known sites, and people at them, differ.
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "adapt", run, _HELP)
    parser.add_argument("model", metavar="MODEL", type=Path, help="model of `siteless fit`")
    parser.add_dataset()
    parser.add_argument("--site", required=True, metavar="SITE", help="label of the new site")
    parser.add_argument(
        "--out", required=True, metavar="FILE", type=Path, help="the model that knows it too"
    )
    parser.add_seed()
    parser.add_nprocs()


def run(options: argparse.Namespace) -> None:
    from siteless.cli._info import show_card
    from siteless.pipelines import adapt_model

    scans = selection_of(options)
    with running(options) as work:
        model = adapt_model(options.model, scans, options.out, site=options.site, run=work)
    show_card(model)
