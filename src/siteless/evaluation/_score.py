"""Scores and tables of scores."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

# The region of every scan.
WHITE_MATTER = "white-matter"
# Subject of a score over all people.
ALL = "n/a"
# Names of scans before harmonization, and of errors that do not depend on a method.
BEFORE = "before"
NOISE, RESCAN = "noise floor", "rescan floor"


class Score(NamedTuple):
    """A score of a participant, or of all.

    Attributes
    ----------
    subject
        Label of the participant; `ALL` for a score over all.
    task
        Source and target site, such as ``leeds>berlin``.
    method
        Method that is scored.
    region
        Region of the brain.
    metric
        Metric, as in `describe_metric`.
    value
        Value in the metric's unit.
    """

    subject: str
    task: str
    method: str
    region: str
    metric: str
    value: float


@dataclass(frozen=True)
class ScoreTable:
    """A table of scores."""

    scores: tuple[Score, ...]

    @cached_property
    def _by_metric(self) -> dict[str, list[Score]]:
        by_metric = defaultdict(list)
        for score in self.scores:
            by_metric[score.metric].append(score)
        return by_metric

    def select(self, metric: str, **wanted: str) -> list[Score]:
        """Return the scores of a metric with the wanted fields, by default in white matter."""
        conditions = {"region": WHITE_MATTER, **wanted}
        places = [(Score._fields.index(field), value) for field, value in conditions.items()]
        known = self._by_metric.get(metric, [])
        return [score for score in known if all(score[at] == value for at, value in places)]

    def mean(self, metric: str, **wanted: str) -> float:
        """Return the mean of selected scores, NaN if there are none.

        Examples
        --------
        >>> scores = [Score(who, "a>b", "rish", WHITE_MATTER, "rmse", 2.0) for who in ("01", "02")]
        >>> ScoreTable(tuple(scores)).mean("rmse", method="rish")
        2.0
        """
        values = [score.value for score in self.select(metric, **wanted)]
        return float(np.mean(values)) if values else float("nan")

    def methods(self, metric: str) -> list[str]:
        """Return the methods that have a metric, in their order."""
        return list(dict.fromkeys(score.method for score in self._by_metric.get(metric, [])))

    def tasks(self, metric: str, method: str | None = None) -> list[str]:
        """Return the tasks that have a metric, of a method or of any, in their order."""
        scores = self._by_metric.get(metric, [])
        return list(
            dict.fromkeys(score.task for score in scores if method in (None, score.method))
        )
