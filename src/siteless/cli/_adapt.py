"""`siteless adapt`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from siteless.cli._options import add_dataset_options, add_nprocs, run_of, selection_of

_DESCRIPTION = """\
Teach a model a site that it has not learned, from a few scans of it, in about a minute. What the
model knows stays as it is: only the new site's point spread, field, units and look are fitted.
What few people have in common is shrunk by how much known sites, and people at them, differ.
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "adapt",
        help="teach a model a new site from a few scans",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", type=Path, help="model of `siteless fit`")
    add_dataset_options(parser)
    parser.add_argument("--site", required=True, metavar="SITE", help="label of the new site")
    parser.add_argument(
        "--out", required=True, metavar="FILE", type=Path, help="the model that knows it too"
    )
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default 0)")
    add_nprocs(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Adapt and return the exit code."""
    from siteless.cli._console import shown
    from siteless.cli._info import show_card
    from siteless.pipelines import adapt_model

    with shown(verbose=options.verbose) as progress:
        model = adapt_model(
            options.model,
            selection_of(options),
            options.out,
            site=options.site,
            run=run_of(options, progress),
        )
    show_card(model)
    return 0
