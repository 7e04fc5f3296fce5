"""`siteless encode`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from siteless.cli._options import add_command, running, selection_of

_HELP = """\
write the codes of scans, as images and as a table

Write the codes of scans: for each scan an image with a volume for each unit, and a row of
codes.tsv with each unit's mean and standard deviation over voxels. Codes tell little of the site,
and can serve to predict other outcomes.
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "encode", run, _HELP)
    parser.add_dataset()
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for the derivative dataset")
    parser.add_model()
    parser.add_nprocs()


def run(options: argparse.Namespace) -> None:
    from siteless.cli._console import say
    from siteless.pipelines import encode_dataset

    with running(options) as work:
        table = encode_dataset(options.model, selection_of(options), options.out, run=work)
    say(str(table))
