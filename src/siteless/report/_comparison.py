"""Methods side by side: a column for each, the best of each row marked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from siteless.evaluation import NOISE, RESCAN, ScoreTable

# What no method has made, and is not to be compared with them.
_FLOORS = (NOISE, RESCAN)


@dataclass(frozen=True)
class Criterion:
    """A metric that methods are compared by.

    Attributes
    ----------
    metric
        As tables of scores call it.
    title
        What people read.
    decimals
        Of its values.
    best
        The lowest or the highest value; None where neither is better.
    """

    metric: str
    title: str
    decimals: int
    best: str | None = "lowest"


CRITERIA = (
    Criterion("rmse_percent", "RMSE to the target, % of b0", 2),
    Criterion("rmse_truth_percent", "RMSE to the noiseless target, %", 2),
    Criterion("rmse_truth_matched_percent", "the same, at the target's level, %", 2),
    Criterion("block_percent", "signal, 10 mm means: error, %", 2),
    Criterion("block_matched_percent", "the same, at the target's level, %", 2),
    Criterion("fa_cv", "FA: coefficient of variation", 3),
    Criterion("fa_block_percent", "FA, 10 mm means: error, %", 2),
    Criterion("md_cv", "MD: coefficient of variation", 3),
    Criterion("md_block_percent", "MD, 10 mm means: error, %", 2),
    Criterion("angle_closest_median", "fibres: angle, degrees", 1),
    Criterion("leakage_accuracy", "source site told by a voxel", 2),
    Criterion("leakage_chance", "source site told by chance", 2, None),
    Criterion("fa_site_d", "FA: largest d between sites", 2),
    Criterion("fa_icc_agreement", "FA: ICC of sites on people", 2, "highest"),
)


@dataclass(frozen=True)
class Comparison:
    """Means over people and over the tasks that all methods share.

    Attributes
    ----------
    methods
        Names of columns.
    rows
        Values in their order, NaN where a method has none, by what they are of.
    """

    methods: tuple[str, ...]
    rows: tuple[tuple[Criterion, tuple[float, ...]], ...]

    def best(self, criterion: Criterion, values: tuple[float, ...]) -> set[str]:
        """Return the methods that are best by a criterion, at the decimals that it shows."""
        compared = {
            method: round(value, criterion.decimals)
            for method, value in zip(self.methods, values, strict=True)
            if np.isfinite(value) and method not in _FLOORS
        }
        if criterion.best is None or len(compared) < 2:
            return set()
        first = (min if criterion.best == "lowest" else max)(compared.values())
        return {method for method, value in compared.items() if value == first}


def compare_methods(table: ScoreTable) -> Comparison:
    """Take the means of all criteria that there are scores of."""
    known = [one for one in CRITERIA if _tasks(table, one.metric)]
    methods = dict.fromkeys(m for one in known for m in _methods(table, one.metric))
    rows = tuple((one, tuple(_mean(table, one.metric, m) for m in methods)) for one in known)
    return Comparison(tuple(methods), rows)


def _methods(table: ScoreTable, metric: str) -> list[str]:
    found = {one.method for one in table.select(metric) if one.task != "codes"}
    return [method for method in table.methods(metric) if method in found]


def _tasks(table: ScoreTable, metric: str) -> set[str]:
    """Return the tasks that all methods share; or all, when they share none."""
    methods = [one for one in _methods(table, metric) if one not in _FLOORS]
    found = [set(table.tasks(metric, one)) - {"codes"} for one in methods]
    return set.intersection(*found) or set.union(*found) if found else set()


def _mean(table: ScoreTable, metric: str, method: str) -> float:
    tasks = sorted(_tasks(table, metric))
    if method in _FLOORS and metric.startswith("rmse_truth"):
        return float("nan")  # noise is what the noiseless target is without
    found = [table.mean(metric, method=method, task=task) for task in tasks]
    known = [value for value in found if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
