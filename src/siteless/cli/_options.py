"""Options that commands share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.errors import DatasetError

if TYPE_CHECKING:
    from siteless.bids import ScanSelection
    from siteless.pipelines import Run

# Maps of `siteless.microstructure`, whose import is slow.
MAPS = ("fa", "md", "mk", "rtop")
_WITHOUT_CHOICE = ("datatype", "suffix", "extension")


class Command(argparse.ArgumentParser):
    """Parser of a command, with the options that several commands have."""

    def add_dataset(self) -> None:
        """Add the dataset and the options that select its scans."""
        self.add_argument(
            "dataset",
            metavar="DATASET",
            type=Path,
            help="a BIDS dataset (raw, or a derivative such as QSIPrep's), or a tab-separated "
            "manifest with the columns subject, site and dwi, and optionally session, bval, bvec, "
            "mask, wm_mask, age, sex and split",
        )
        self.add_choice()

    def add_choice(self) -> None:
        """Add the options that select scans of a dataset."""
        self.add_argument(
            "--site-from",
            metavar="ENTITY",
            help="take the site from this part of file names, such as ses or acq, for scans that "
            "no table gives a site",
        )
        labels: dict[str, Any] = {"nargs": "+", "metavar": "LABEL"}
        people, sessions = "only these people (without sub-)", "only these sessions (without ses-)"
        self.add_argument("--participant-label", "--participant_label", help=people, **labels)
        self.add_argument("--session-label", "--session_label", help=sessions, **labels)
        self.add_argument(
            "--bids-filter-file",
            type=Path,
            metavar="FILE",
            help="only scans that pass this JSON file, such as "
            '{"dwi": {"acquisition": "multishell"}}',
        )

    def add_model(self) -> None:
        """Add the model and the sites to apply it to."""
        self.add_argument(
            "--model", type=Path, required=True, metavar="FILE", help="that `siteless fit` wrote"
        )
        self.add_argument(
            "--site",
            "--sites",
            dest="sites",
            nargs="+",
            metavar="SITE",
            help="only scans of these sites (default: all)",
        )

    def add_to(self) -> None:
        """Add the target site of scans that other tools have rendered."""
        self.add_argument(
            "--to", metavar="SITE", help="the target site, for derivatives that do not tell it"
        )

    def add_seed(self, what: str = "of all that is random") -> None:
        self.add_argument("--seed", type=natural, default=0, help=f"{what} (default: 0)")

    def add_nprocs(self) -> None:
        """Add the number of processes, and the verbosity."""
        self.add_argument(
            "--nprocs",
            type=positive,
            metavar="N",
            help="processes to work with (default: one for each core that may be used)",
        )
        self.add_verbose()

    def add_verbose(self) -> None:
        self.add_argument(
            "-v", "--verbose", action="store_true", help="tell of every scan, a line each"
        )

    def add_no_report(self) -> None:
        self.add_argument(
            "--no-report", action="store_true", help="do not write pages about it at the end"
        )


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    text: str,
    *,
    goes_on: bool = False,
) -> Command:
    """Add a command; one that goes on says so when it is interrupted.

    Its text has a line for the list of commands, a description, and perhaps examples. Its function
    `run` does the work, and returns an exit code or None for 0.
    """
    summary, _, text = text.partition("\n\n")
    description, _, examples = text.partition("\nexamples:\n")
    parser: Command = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=examples and f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, goes_on=goes_on)
    return parser


def selection_of(options: argparse.Namespace) -> ScanSelection:
    """Return the selection of scans from options."""
    from siteless.bids import ScanSelection

    sites = getattr(options, "sites", None)
    return ScanSelection(options.dataset, options.site_from, filters_of(options), sites)


@contextmanager
def running(options: argparse.Namespace) -> Iterator[Run]:
    """Provide the run from options, and show its progress."""
    from siteless.cli._console import shown
    from siteless.pipelines import Run

    with shown(verbose=options.verbose) as progress:
        yield Run(
            nprocs=options.nprocs,
            cluster=getattr(options, "dask", None),
            progress=progress,
            seed=getattr(options, "seed", 0),
        )


def filters_of(options: argparse.Namespace) -> dict[str, list[str | None]]:
    """Return filters of entities from options, as allowed labels."""
    filters = _read_filters(options.bids_filter_file) if options.bids_filter_file else {}
    if options.participant_label:
        filters["sub"] = [label.removeprefix("sub-") for label in options.participant_label]
    if options.session_label:
        filters["ses"] = [label.removeprefix("ses-") for label in options.session_label]
    return filters


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def positive_or_all(text: str) -> int | None:
    """Parse a whole number of at least 1, or ``all``, which is None."""
    return None if text == "all" else positive(text)


def natural(text: str) -> int:
    """Parse a whole number of at least 0."""
    if not text.isdigit() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def _read_filters(path: Path) -> dict[str, list[str | None]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DatasetError(
            f"the filter file cannot be read ({error.strerror})", remedy="correct it", path=path
        ) from None
    except ValueError:
        raise DatasetError("expected JSON", remedy="correct the file", path=path) from None
    chosen = content.get("dwi") if isinstance(content, dict) else None
    if not isinstance(chosen, dict):
        raise DatasetError(
            "expected filters under dwi, found none",
            remedy='write them as {"dwi": {"acquisition": "multishell"}}',
            path=path,
        )
    from siteless.bids import ENTITIES

    filters: dict[str, list[str | None]] = {}
    for word, labels in chosen.items():
        if word in _WITHOUT_CHOICE:
            continue
        if word not in ENTITIES:
            raise DatasetError(
                f"there is no entity {word!r}",
                remedy=f"choose from {', '.join(ENTITIES)}",
                path=path,
            )
        allowed = labels if isinstance(labels, list) else [labels]
        filters[ENTITIES[word]] = [None if label is None else str(label) for label in allowed]
    return filters
