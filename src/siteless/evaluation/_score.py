"""A score, and many of them as a table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

# The region that all scans have.
WHITE_MATTER = "white-matter"
# Whom a score of all people is of.
ALL = "n/a"
# What scans are called before any method has changed them; and errors that no method has made.
BEFORE = "before"
NOISE, RESCAN = "noise floor", "rescan floor"


class Score(NamedTuple):
    """A score of a person, or of all.

    Attributes
    ----------
    subject
        Whom it is of; `ALL` for a score of all people.
    task
        From which site to which, as ``leeds>berlin``.
    method
        What is scored.
    region
        Where in the brain.
    metric
        As `describe_metric` tells.
    value
        In the metric's unit.
    """

    subject: str
    task: str
    method: str
    region: str
    metric: str
    value: float


@dataclass(frozen=True)
class ScoreTable:
    """Scores to choose from."""

    scores: tuple[Score, ...]

    @cached_property
    def _by_metric(self) -> dict[str, list[Score]]:
        found = defaultdict(list)
        for one in self.scores:
            found[one.metric].append(one)
        return found

    def select(self, metric: str, **wanted: str) -> list[Score]:
        """Return the scores by a metric whose other fields are as wanted, in white matter."""
        asked = {"region": WHITE_MATTER, **wanted}
        places = [(Score._fields.index(field), value) for field, value in asked.items()]
        known = self._by_metric.get(metric, [])
        return [one for one in known if all(one[at] == value for at, value in places)]

    def mean(self, metric: str, **wanted: str) -> float:
        """Return the mean of such scores, NaN when there are none.

        Examples
        --------
        >>> scores = [Score(who, "a>b", "rish", WHITE_MATTER, "rmse", 2.0) for who in ("01", "02")]
        >>> ScoreTable(tuple(scores)).mean("rmse", method="rish")
        2.0
        """
        values = [one.value for one in self.select(metric, **wanted)]
        return float(np.mean(values)) if values else float("nan")

    def methods(self, metric: str) -> list[str]:
        """Return the methods that have a metric, in their order."""
        return list(dict.fromkeys(one.method for one in self._by_metric.get(metric, [])))

    def tasks(self, metric: str, method: str | None = None) -> list[str]:
        """Return the tasks that have a metric, of a method or of any, in their order."""
        found = self._by_metric.get(metric, [])
        return list(dict.fromkeys(one.task for one in found if method in (None, one.method)))
