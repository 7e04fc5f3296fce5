"""What training is given, and what it tells as it goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from siteless.acquisition import Array
from siteless.methods.patches._scan import TrainingScan
from siteless.population import Design

# Of a log: a figure for each name.
Row = dict[str, float]
# Called with the updates done, their total, and the log.
Watch = Callable[[int, int, Sequence[Row]], None]


def describe_row(row: Row) -> str:
    """Say what a row of a log tells."""
    return (
        f"loss {row['val_loss']:.4g}, RMSE {row['val_rmse_percent']:.2f} % of b0, "
        f"{row['patches_per_second']:.0f} patches/s"
    )


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
