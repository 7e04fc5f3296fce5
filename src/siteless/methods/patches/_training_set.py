"""What training is given, and what it tells as it goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from siteless.acquisition import Array
from siteless.bids import write_table
from siteless.distributed import rank
from siteless.methods.patches._scan import TrainingScan
from siteless.model import ModelCard
from siteless.population import Design

# Of a log: a figure for each name.
Row = dict[str, float]
# Called with the updates done, their total, and the log.
Watch = Callable[[int, int, Sequence[Row]], None]


def _describe(row: Row) -> str:
    return (
        f"loss {row['val_loss']:.4g}, RMSE {row['val_rmse_percent']:.2f} % of b0, "
        f"{row['patches_per_second']:.0f} patches/s"
    )


def without_speed(row: Row) -> Row:
    """Return a row of a log without what depends on the machine."""
    return {name: value for name, value in row.items() if name != "patches_per_second"}


@dataclass(frozen=True)
class TrainingLog:
    """Keeps the log of a training on disk as it grows, and shows its last figures.

    Attributes
    ----------
    path
        A row for each evaluation, tab-separated.
    show
        Called with the updates done, their total, and a line about the last evaluation.
    """

    path: Path
    show: Callable[[int, int, str], None]

    def __call__(self, update: int, total: int, log: Sequence[Row]) -> None:
        """Write the log when it has grown, and show how far the training is."""
        if log and log[-1]["update"] == update:
            self.write(log)
        if rank() == 0:
            self.show(update, total, _describe(log[-1]) if log else "the first figures come soon")

    def write(self, log: Sequence[Row]) -> None:
        """Write all rows, unless another process does."""
        if rank() == 0:
            rows = [{name: f"{value:.6g}" for name, value in row.items()} for row in log]
            write_table(self.path, rows)


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """What to learn from: scans, the sites they are of, and scans to choose the best weights by.

    Attributes
    ----------
    scans, validation
        The latter may be empty.
    sites
        Labels, in the order of the network's numbers.
    whole
        Scans with all their directions, when the others are in parts: codes of such scans are
        what a model gives.
    covariates
        Covariates of each scan's person by the scan's name, shape (column,); none by default.
    reference
        Names of the scans that site effects are estimated from; None for all.
    """

    scans: Sequence[TrainingScan]
    validation: Sequence[TrainingScan]
    sites: Sequence[str]
    whole: Sequence[TrainingScan] = ()
    covariates: Mapping[str, Array] = field(default_factory=dict)
    reference: Collection[str] | None = None

    def design(self, scans: Sequence[TrainingScan]) -> Design:
        """Return who was scanned where, for some of the scans."""
        columns = reference = None
        if self.covariates:
            columns = np.stack([self.covariates[one.name] for one in scans])
        if self.reference is not None:
            reference = np.array([one.name in self.reference for one in scans])
        people = [one.subject or one.name for one in scans]
        return Design.of([one.site for one in scans], people, self.sites, columns, reference)


def describe_validation(card: ModelCard, people: int, where: str) -> tuple[str, str]:
    """Say how well a network was validated, and by how many people."""
    by = count_people(people) if people else "nobody, so on the training scans"
    error = card.summary["best"]["val_rmse_percent"]
    return "validation", f"{by}: RMSE {error:.2f} % of white matter's b0, {where}"


def count_people(number: int) -> str:
    """Return a number of people in words."""
    return "1 person" if number == 1 else f"{number} people"
