"""`siteless reproduce`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from siteless.cli._options import add_command, running

_HELP = """\
repeat the paper's experiment

Repeat the experiment of Moyer et al. (2020), from a cohort of travelling people to its tables and
figures: networks of pairs of sites and of all sites, RISH, the ablations of the loss, post-hoc
adversaries, errors of signal, maps and fibre orientations, in six tasks. The cohort is simulated,
or yours: the CDMRI data of 2018, or other travelling people, with a split column.

OUT gets results.md with every table and figure, tables as TSV, and all models, rendered scans and
scores. Run again to go on after an interruption: what is done is kept.

examples:
  siteless reproduce experiment                         a small cohort, in some 15 minutes
  siteless reproduce experiment_full --preset full      as many people and voxels as the paper
  siteless reproduce experiment_cdmri --dataset cdmri.tsv --preset full
"""
PRESETS = ("quick", "full")


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "reproduce", run, _HELP, goes_on=True)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for all of it")
    parser.add_argument(
        "--dataset",
        type=Path,
        help="scans of travelling people, as a BIDS dataset or a manifest (default: simulated)",
    )
    parser.add_argument(
        "--preset", choices=PRESETS, default="quick", help="how large (default: quick)"
    )
    parser.add_argument(
        "--hub",
        metavar="SITE",
        help="the site that scans are rendered from and as (default: prisma30, or the first)",
    )
    parser.add_seed()
    parser.add_nprocs()


def run(options: argparse.Namespace) -> None:
    from siteless.cli._console import say
    from siteless.experiments import reproduce_experiment

    with running(options) as work:
        page = reproduce_experiment(
            options.out,
            dataset=options.dataset,
            scale=options.preset,
            hub=options.hub,
            run=work,
        )
    say(str(page))
