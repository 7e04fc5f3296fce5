"""Training sets and training logs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from siteless.acquisition import Array
from siteless.bids import write_table
from siteless.distributed import rank
from siteless.methods.patches import TrainingScan
from siteless.model import ModelCard
from siteless.population import Design

# A row of a training log.
Row = dict[str, float]
# Called with the number of finished updates, their total, and the log.
TrainingCallback = Callable[[int, int, Sequence[Row]], None]


def without_speed(row: Row) -> Row:
    """Return a row of a log without machine-dependent values."""
    return {name: value for name, value in row.items() if name != "patches_per_second"}


@dataclass(frozen=True)
class TrainingLog:
    """Writes a row for each evaluation to a table, and shows the last one with the progress."""

    path: Path
    show: Callable[[int, int, str], None]

    def __call__(self, update: int, total: int, log: Sequence[Row]) -> None:
        """Write the log if it has grown, and show the progress."""
        shown = "the first figures come soon"
        if log:
            last = log[-1]
            if last["update"] == update:
                self.write(log)
            shown = (
                f"loss {last['val_loss']:.4g}, RMSE {last['val_rmse_percent']:.2f} % of b0, "
                f"{last['patches_per_second']:.0f} patches/s"
            )
        if rank() == 0:
            self.show(update, total, shown)

    def write(self, log: Sequence[Row]) -> None:
        """Write all rows, in the first process only."""
        if rank() == 0:
            rows = [{name: f"{value:.6g}" for name, value in row.items()} for row in log]
            write_table(self.path, rows)


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """Training and validation scans and their sites.

    Attributes
    ----------
    whole
        Scans with all directions, if the others are in parts; their codes are those of new scans.
    covariates
        Covariates of each scan's participant by the scan's name, shape (column,).
    reference
        Names of the reference scans for site effects; None for all.
    """

    scans: Sequence[TrainingScan]
    validation: Sequence[TrainingScan]
    sites: Sequence[str]
    whole: Sequence[TrainingScan] = ()
    covariates: Mapping[str, Array] = field(default_factory=dict)
    reference: Collection[str] | None = None

    def design(self, scans: Sequence[TrainingScan]) -> Design:
        """Return the design of some of the scans."""
        columns = reference = None
        if self.covariates:
            columns = np.stack([self.covariates[scan.name] for scan in scans])
        if self.reference is not None:
            reference = np.array([scan.name in self.reference for scan in scans])
        people = [scan.subject or scan.name for scan in scans]
        return Design.of([scan.site for scan in scans], people, self.sites, columns, reference)


def describe_validation(card: ModelCard, people: int, where: str) -> tuple[str, str]:
    """Describe the validation of a network."""
    by = count_people(people) if people else "nobody, so on the training scans"
    error = card.summary["best"]["val_rmse_percent"]
    return "validation", f"{by}: RMSE {error:.2f} % of white matter's b0, {where}"


def count_people(number: int) -> str:
    """Format a number of participants."""
    return "1 person" if number == 1 else f"{number} people"
