"""`siteless encode`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from siteless.cli._options import (
    add_dataset_options,
    add_model,
    add_nprocs,
    run_of,
    selection_of,
)

_DESCRIPTION = """\
Write the codes of scans: for each scan an image with a volume for each unit, and a row of
codes.tsv with each unit's mean and standard deviation over voxels. Codes tell little of the site,
and can serve to predict other outcomes.
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "encode",
        help="write the codes of scans, as images and as a table",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_dataset_options(parser)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for the derivative dataset")
    add_model(parser)
    add_nprocs(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Encode and return the exit code."""
    from siteless.cli._console import shown, stdout
    from siteless.pipelines import encode_dataset

    with shown(verbose=options.verbose) as progress:
        table = encode_dataset(
            options.model, selection_of(options), options.out, run=run_of(options, progress)
        )
    stdout().print(str(table), soft_wrap=True, markup=False, highlight=False)
    return 0
