"""What training is given, and what it tells as it goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from siteless.training._scan import TrainingScan

# Of a log: a figure for each name.
Row = dict[str, float]
# Called with the updates done, their total, and the log.
Watch = Callable[[int, int, Sequence[Row]], None]


@dataclass(frozen=True, eq=False)
class Lesson:
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
    """

    scans: Sequence[TrainingScan]
    validation: Sequence[TrainingScan]
    sites: Sequence[str]
    whole: Sequence[TrainingScan] = ()
