"""`siteless simulate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from siteless.cli._options import add_nprocs, natural, positive
from siteless.errors import DatasetError

_DESCRIPTION = """\
Write a simulated cohort of travelling subjects: everyone is scanned at every site, and the truth
is known. The result is a BIDS dataset with masks and truth in its derivatives folder. The same
seed gives the same bytes; an interrupted run goes on where it was.
"""
_EXAMPLES = """\
examples:
  siteless simulate cohort                              8 people, 4 sites, 3 mm
  siteless simulate cohort --preset cdmri2018           15 people, 4 sites, 2.4 mm
  siteless simulate cohort --sites prisma30 connectom30 --without noise receive
  siteless simulate cohort --sites-file mine.toml --sites prisma30 mine
"""
PRESETS = ("cdmri2018", "small", "tiny")
EFFECTS = (
    *("gain", "echo-time", "receive", "nonlinearity"),
    *("blur", "noise", "position", "b-values"),
)


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "simulate",
        help="write a cohort of travelling subjects with known truth",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for the dataset")
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        default="small",
        help="cdmri2018: 15 people, 2.4 mm; small: 8, 3 mm; tiny: 3, 6 mm (default: small)",
    )
    parser.add_argument(
        "--subjects", type=positive, metavar="N", help="people, if not the preset's"
    )
    parser.add_argument(
        "--sites",
        nargs="+",
        metavar="SITE",
        help="of prisma30, prisma60, connectom30, connectom60 and those of --sites-file "
        "(default: all)",
    )
    parser.add_argument(
        "--sites-file", type=Path, metavar="FILE", help="TOML file with sites of your own"
    )
    parser.add_argument(
        "--without",
        nargs="+",
        default=[],
        choices=EFFECTS,
        metavar="EFFECT",
        help=f"leave these effects out at every site: {', '.join(EFFECTS)}",
    )
    parser.add_argument(
        "--rescans", action="store_true", help="scan each test subject twice at each site"
    )
    parser.add_argument(
        "--lesions", type=natural, default=0, metavar="N", help="people with a lesion (default: 0)"
    )
    parser.add_argument(
        "--seed", type=natural, default=0, help="of all that is random (default: 0)"
    )
    add_nprocs(parser)
    parser.set_defaults(run=run, goes_on=True)


def run(options: argparse.Namespace) -> int:
    """Simulate and return the exit code."""
    from siteless.cli._console import count, shown_progress, stdout
    from siteless.pipelines import simulate_cohort
    from siteless.simulation import PRESETS as SIZES
    from siteless.simulation import draw_cohort, read_scanners

    preset = SIZES[options.preset]
    known = read_scanners(options.sites_file)
    own = [site for site in known if site not in read_scanners()] if options.sites_file else []
    chosen = options.sites or [*preset.sites, *own]
    unknown = [site for site in chosen if site not in known]
    if unknown:
        raise DatasetError(
            f"there is no site {unknown[0]!r}", remedy=f"choose of {', '.join(known)}"
        )
    cohort = draw_cohort(
        tuple(known[site].without(*options.without) for site in chosen),
        subjects=options.subjects or preset.subjects,
        voxel_size=preset.voxel_size,
        seed=options.seed,
        rescans=options.rescans,
        lesions=options.lesions,
    )
    with shown_progress("Simulating people", verbose=options.verbose) as progress:
        out = simulate_cohort(options.out, cohort, nprocs=options.nprocs, progress=progress)
    scans = sum(len(cohort.runs(person)) for person in cohort.people) * len(cohort.scanners)
    people = "1 person" if len(cohort.people) == 1 else f"{len(cohort.people)} people"
    stdout().print(f"{count(scans, 'scan')} of {people} at {count(len(chosen), 'site')}: {out}")
    return 0
