"""`siteless simulate`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import add_command, natural, positive, running
from siteless.errors import DatasetError

if TYPE_CHECKING:
    from siteless.simulation import Cohort, Scanner, World

_HELP = """\
write a cohort with known truth

Write a simulated cohort whose truth is known. By default everyone is scanned at every site; in the
other designs training people belong to one site, and test people travel to all. The result is a
BIDS dataset with masks and truth in its derivatives folder. The same seed gives the same bytes; an
interrupted run goes on where it was.

examples:
  siteless simulate cohort                              8 people, 4 sites, 3 mm
  siteless simulate cohort --preset cdmri2018           15 people, 4 sites, 2.4 mm
  siteless simulate cohort --sites prisma30 connectom30 --without noise receive
  siteless simulate cohort --sites-file mine.toml --sites prisma30 mine
  siteless simulate cohort --design unpaired --people-per-site 12 8 10 10
  siteless simulate cohort --design confounded --age-gap 25 --random-sites 6
  siteless simulate cohort --design unpaired --world 7
"""
PRESETS = ("cdmri2018", "small", "tiny")
DESIGNS = ("travelling", "unpaired", "confounded", "patients", "bridged", "longitudinal")
# Options of some designs only.
_DESIGN_OPTIONS = (
    *("subjects", "lesions", "people_per_site", "test_people"),
    *("age_gap", "bridging", "years"),
)
EFFECTS = (
    *("gain", "echo-time", "receive", "nonlinearity"),
    *("blur", "noise", "position", "b-values"),
    *("diffusion-time", "uneven-noise", "ringing", "motion"),
)


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "simulate", run, _HELP, goes_on=True)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder for the dataset")
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        default="small",
        help="cdmri2018: 15 people, 2.4 mm; small: 8, 3 mm; tiny: 3, 6 mm (default: small)",
    )
    parser.add_argument(
        "--subjects", type=positive, metavar="N", help="travelling people, if not the preset's"
    )
    _add_scanners(parser)
    parser.add_argument(
        "--rescans", action="store_true", help="scan each test subject twice in each session"
    )
    parser.add_argument(
        "--lesions", type=natural, metavar="N", help="travelling people with a lesion (default: 0)"
    )
    _add_design(parser)
    parser.add_seed()
    parser.add_nprocs()


def _add_scanners(parser: argparse.ArgumentParser) -> None:
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
        "--random-sites",
        type=positive,
        metavar="N",
        help="scanners drawn at random, instead of named sites",
    )
    parser.add_argument(
        "--world",
        type=natural,
        metavar="N",
        help="scanners and tissue drawn at random, N being the seed: uneven and correlated noise, "
        "ringing, motion, other diffusion times, richer grey matter (four sites, unless "
        "--random-sites says how many)",
    )
    parser.add_argument(
        "--without",
        nargs="+",
        default=[],
        choices=EFFECTS,
        metavar="EFFECT",
        help=f"leave these effects out at every site: {', '.join(EFFECTS)}",
    )


def _add_design(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--design",
        choices=DESIGNS,
        default="travelling",
        help="travelling: everyone is scanned at every site; unpaired: nobody but test people is; "
        "confounded: unpaired, with mean ages that differ between sites; patients: unpaired, with "
        "patients, and more of them at each site than at the one before; bridged: confounded, "
        "with a few training people who are scanned at every site; longitudinal: two visits, the "
        "second of most training people on the next scanner (default: travelling)",
    )
    parser.add_argument(
        "--people-per-site",
        type=positive,
        nargs="+",
        metavar="N",
        help="training people at each site, one number or one for each site (default: 10)",
    )
    parser.add_argument(
        "--test-people",
        type=natural,
        metavar="N",
        help="test people, who are scanned at every site in all designs (default: 5)",
    )
    parser.add_argument(
        "--age-gap",
        type=float,
        metavar="YEARS",
        help="between the mean ages of the first and the last site (default: 20)",
    )
    parser.add_argument(
        "--bridging",
        type=positive,
        metavar="N",
        help="training people who are scanned at every site (default: 2)",
    )
    parser.add_argument(
        "--years",
        type=float,
        metavar="YEARS",
        help="between the two visits of a person (default: 3)",
    )


def run(options: argparse.Namespace) -> None:
    from siteless.cli._console import count, say
    from siteless.pipelines import simulate_cohort

    cohort = _draw(options)
    with running(options) as work:
        out = simulate_cohort(options.out, cohort, run=work)
    scans = sum(len(cohort.runs(p)) * len(cohort.visits(p)) for p in cohort.people)
    people = "1 person" if len(cohort.people) == 1 else f"{len(cohort.people)} people"
    say(f"{count(scans, 'scan')} of {people} at {count(len(cohort.scanners), 'site')}: {out}")


def _draw(options: argparse.Namespace) -> Cohort:
    """Draw a cohort from options."""
    from siteless.simulation import PRESETS as SIZES
    from siteless.simulation import choose_design, draw_cohort, draw_design, require_fitting

    preset = SIZES[options.preset]
    given = {name: getattr(options, name) for name in _DESIGN_OPTIONS}
    settings = {name: value for name, value in given.items() if value is not None}
    require_fitting(options.design, settings)
    world = _world(options, preset.sites)
    scanners = tuple(scanner.without(*options.without) for scanner in world.scanners)
    shared = {
        "voxel_size": preset.voxel_size,
        "seed": options.seed,
        "rescans": options.rescans,
        "biology": world.biology,
    }
    if options.design == "travelling":
        return draw_cohort(scanners, **({"subjects": preset.subjects} | settings | shared))
    if "people_per_site" in settings:
        settings["people_per_site"] = tuple(settings["people_per_site"])
    return draw_design(scanners, choose_design(options.design, **settings), **shared)


def _world(options: argparse.Namespace, usual: tuple[str, ...]) -> World:
    """Return the selected scanners, with the usual tissue unless a world was asked for."""
    from siteless.simulation import USUAL_BIOLOGY, World, draw_scanners, draw_world

    for option in ("random_sites", "world"):
        if getattr(options, option) is not None and (options.sites or options.sites_file):
            flag = f"--{option.replace('_', '-')}"
            raise DatasetError(
                f"{flag} does not go with named sites",
                remedy=f"leave out --sites and --sites-file, or {flag}",
            )
    if options.world is not None:
        return draw_world(options.world, sites=options.random_sites or len(usual))
    if options.random_sites:
        return World(USUAL_BIOLOGY, draw_scanners(options.random_sites, options.seed))
    return World(USUAL_BIOLOGY, _named_scanners(options, usual))


def _named_scanners(options: argparse.Namespace, usual: tuple[str, ...]) -> tuple[Scanner, ...]:
    """Return the selected scanners, by default the usual ones and those of the user's file."""
    from siteless.simulation import read_scanners

    known = read_scanners(options.sites_file)
    custom = [site for site in known if site not in read_scanners()] if options.sites_file else []
    chosen = options.sites or [*usual, *custom]
    unknown = [site for site in chosen if site not in known]
    if unknown:
        raise DatasetError(
            f"there is no site {unknown[0]!r}", remedy=f"choose from {', '.join(known)}"
        )
    return tuple(known[site] for site in chosen)
