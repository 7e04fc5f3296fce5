"""`siteless harmonize`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from siteless.cli._options import add_dataset_options, add_model, add_nprocs, filters_of

_DESCRIPTION = """\
Render scans as another site would show them, at their own b-vectors, and write them as a BIDS
derivative. Nothing is fitted again. What an earlier run has written with the same model and
settings is kept; a scan that fails is named at the end, and the others are done.
"""
_EXAMPLES = """\
examples:
  siteless harmonize my_study harmonized --model my_study.safetensors --to berlin
  siteless harmonize my_study harmonized --model my_study.safetensors --to berlin --sites leeds
"""


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "harmonize",
        help="render scans as a site",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_dataset_options(parser)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for the derivative dataset")
    add_model(parser)
    parser.add_argument("--to", required=True, metavar="SITE", help="site to render scans as")
    parser.add_argument(
        "--outside",
        choices=("scaled", "unchanged"),
        default="scaled",
        help="what happens to voxels that the model has not learned (default: scaled by the ratio "
        "of the target site's level to the scan's)",
    )
    parser.add_argument("--force", action="store_true", help="render again what is there already")
    add_nprocs(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Harmonize and return the exit code."""
    from siteless.cli._console import count, shown_progress, stdout
    from siteless.pipelines import harmonize_dataset

    with shown_progress("Rendering scans") as progress:
        report = harmonize_dataset(
            options.dataset,
            options.out,
            options.model,
            options.to,
            sites=options.sites,
            site_from=options.site_from,
            filters=filters_of(options),
            outside=options.outside,
            force=options.force,
            nprocs=options.nprocs,
            progress=progress,
        )
    for error in report.errors:
        print(f"siteless: {error}", file=sys.stderr)  # noqa: T201
    parts = [f"{count(len(report.written), 'scan')} rendered as {options.to}"]
    if report.skipped:
        parts.append(f"{len(report.skipped)} there already")
    if report.left_out:
        parts.append(f"{len(report.left_out)} without shells left out")
    if report.errors:
        parts.append(f"{len(report.errors)} failed")
    told = f"{', '.join(parts)}: {options.out}"
    stdout().print(told, soft_wrap=True, markup=False, highlight=False)
    return 1 if report.errors else 0
