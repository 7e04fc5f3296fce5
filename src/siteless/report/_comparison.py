"""Comparison of methods: a column for each, with the best of each row marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from siteless.evaluation import NOISE, RESCAN, ScoreTable

# Error floors, which are not compared with methods.
_FLOORS = (NOISE, RESCAN)


@dataclass(frozen=True)
class Criterion:
    """A metric for the comparison of methods."""

    metric: str
    title: str
    decimals: int
    best: Literal["lowest", "highest"] | None = "lowest"  # None if neither is better


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
    """Means over participants and over the tasks that all methods share.

    Rows have values in the order of methods, NaN where a method has none.
    """

    methods: tuple[str, ...]
    rows: tuple[tuple[Criterion, tuple[float, ...]], ...]

    def best(self, criterion: Criterion, values: tuple[float, ...]) -> set[str]:
        """Return the best methods by a criterion, to its number of decimals."""
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
    """Return the means of all criteria with scores."""
    known = [criterion for criterion in CRITERIA if _tasks(table, criterion.metric)]
    methods = dict.fromkeys(m for criterion in known for m in _methods(table, criterion.metric))
    rows = tuple(
        (criterion, tuple(_mean(table, criterion.metric, m) for m in methods))
        for criterion in known
    )
    return Comparison(tuple(methods), rows)


def _methods(table: ScoreTable, metric: str) -> list[str]:
    names = {score.method for score in table.select(metric) if score.task != "codes"}
    return [method for method in table.methods(metric) if method in names]


def _tasks(table: ScoreTable, metric: str) -> set[str]:
    """Return the tasks that all methods share; or all, when they share none."""
    methods = [method for method in _methods(table, metric) if method not in _FLOORS]
    tasks = [set(table.tasks(metric, method)) - {"codes"} for method in methods]
    return set.intersection(*tasks) or set.union(*tasks) if tasks else set()


def _mean(table: ScoreTable, metric: str, method: str) -> float:
    tasks = sorted(_tasks(table, metric))
    if method in _FLOORS and metric.startswith("rmse_truth"):
        return float("nan")  # noise floors do not apply to a noiseless target
    means = [table.mean(metric, method=method, task=task) for task in tasks]
    known = [value for value in means if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")
