"""Tables of the paper's experiment, with the published values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from siteless.evaluation import ScoreTable
from siteless.report._tables import Table

_Rows: TypeAlias = dict[str, dict[str, float | str]]
# Moyer et al. 2020, on the data of the CDMRI challenge of 2018: accuracy of post-hoc adversaries
# for each network, complete, without lambda, and without lambda and alpha.
_PRINTED_ACCURACY = {
    "single, connectom30": (0.61, 0.63, 0.63),
    "single, prisma60": (0.50, 0.51, 0.54),
    "single, connectom60": (0.63, 0.68, 0.85),
    "multi": (0.41, 0.41, 0.62),
}
# Published errors of FA, from prisma30 to connectom30.
_PRINTED_TASK = "prisma30>connectom30"
_PRINTED_FA = {
    "ape": {"RISH": 0.46, "single": 0.25, "multi": 0.28},
    "cv": {"RISH": 0.48, "single": 0.26, "multi": 0.30},
}
_ERRORS = {
    "ape": "Absolute proportional error (APE): mean of |estimated - observed| / |observed|",
    "cv": "Coefficient of variation (CV): RMS of estimated - observed, over the mean of observed",
    "pe": "Proportional error (PE): mean of (estimated - observed) / observed",
}
_SYSTEMATIC = {
    "signal": "block_percent",
    "FA": "fa_block_percent",
    "MD": "md_block_percent",
    "MK": "mk_block_percent",
    "RTOP": "rtop_block_percent",
    "shells": "shell_error",
    "anisotropy": "block_anisotropy",
}
_ANGLES = {
    "closest, median": "angle_closest_median",
    "closest, p90": "angle_closest_p90",
    "largest, median": "angle_largest_median",
    "largest, p90": "angle_largest_p90",
}


def error_tables(table: ScoreTable, tasks: Sequence[str]) -> Iterator[Table]:
    """Yield the tables of errors by task, for every method with scores."""
    yield _by_task(table, tasks, "rmse", "rmse_percent", "RMSE to the target scan, % of its b0")
    if table.methods("rmse_truth_percent"):
        title = "RMSE to the noiseless target, % of the target's b0"
        yield _by_task(table, tasks, "rmse_truth", "rmse_truth_percent", title)
    title = "Systematic errors, %: 10 mm block means, means of shells, anisotropy; mean over tasks"
    yield _by_metric(table, tasks, "systematic", _SYSTEMATIC, title)
    title = "Angle of FOD maxima to the target's, degrees"
    yield _by_metric(table, tasks, "angle", _ANGLES, title, decimals=1)
    for kind, title in _ERRORS.items():
        yield _of_maps(table, tasks, kind, title)


def _by_task(table: ScoreTable, tasks: Sequence[str], name: str, metric: str, title: str) -> Table:
    rows = {
        method: _with_mean({t: table.mean(metric, method=method, task=t) for t in tasks})
        for method in table.methods(metric)
    }
    return Table(name, title, rows)


def _with_mean(row: Mapping[str, float]) -> dict[str, float | str]:
    return {**row, "mean": sum(row.values()) / len(row)}


def _by_metric(
    table: ScoreTable,
    tasks: Sequence[str],
    name: str,
    metrics: Mapping[str, str],
    title: str,
    *,
    decimals: int = 2,
) -> Table:
    """Return means over tasks for each method and metric."""
    methods = dict.fromkeys(m for metric in metrics.values() for m in table.methods(metric))
    rows = {
        method: {
            shown: sum(table.mean(metric, method=method, task=t) for t in tasks) / len(tasks)
            for shown, metric in metrics.items()
        }
        for method in methods
    }
    return Table(name, title, rows, decimals)


def _of_maps(table: ScoreTable, tasks: Sequence[str], kind: str, title: str) -> Table:
    rows: _Rows = {}
    for shown in ("fa", "md", "mk", "rtop"):
        metric = f"{shown}_{kind}"
        for task in tasks if table.methods(metric) else ():
            rows[f"{shown.upper()} {task}"] = {
                method: table.mean(metric, method=method, task=task)
                for method in table.methods(metric)
            }
    printed = _PRINTED_FA.get(kind)
    if printed and _PRINTED_TASK in tasks:
        rows[f"FA {_PRINTED_TASK}, in the paper"] = dict(printed)
    return Table(kind, title, rows, 3, corner="map and task")


def ablation_table(table: ScoreTable, tasks: Sequence[str], ablations: Sequence[str]) -> Table:
    """Return the change of RMSE without terms of the loss."""
    rows = {
        f"{network}{ablation}": _with_mean(
            {
                task: table.mean("rmse_percent", method=f"{network}{ablation}", task=task)
                - table.mean("rmse_percent", method=network, task=task)
                for task in tasks
            }
        )
        for network in ("single", "multi")
        for ablation in ablations
    }
    title = "Change of RMSE without terms of the loss, in % of the target's b0"
    return Table("ablation", title, rows, 3, corner="network")


def accuracy_table(table: ScoreTable, networks: Sequence[str], ablations: Sequence[str]) -> Table:
    """Return the accuracy of post hoc adversaries on codes."""
    rows: _Rows = {}
    for network in networks:
        accuracies = {
            ablation.removeprefix(", ") or "complete": table.mean(
                "leakage_accuracy", task="codes", method=f"{network}{ablation}"
            )
            for ablation in ablations
        }
        chance = table.mean("leakage_chance", task="codes", method=network)
        printed = _PRINTED_ACCURACY.get(network)
        paper = {"paper": " / ".join(f"{value:.2f}" for value in printed)} if printed else {}
        rows[network] = {"chance": chance, **accuracies, **paper}
    title = "Post-hoc adversaries on codes of test people: share of voxels whose site is named"
    return Table("posthoc", title, rows, corner="network")


def leakage_table(table: ScoreTable) -> Table:
    """Return the leakage of the source site from codes, and from scans rendered as one site."""
    rows: _Rows = {}
    for task in table.tasks("leakage_accuracy"):
        for method in table.methods("leakage_accuracy"):
            values = {
                name: table.mean(f"leakage_{name}", task=task, method=method)
                for name in ("chance", "accuracy", "nats", "nats_low", "nats_high")
            }
            if values["accuracy"] == values["accuracy"]:
                rows[f"{method} ({task})"] = {**values}
    title = "How well an adversary names the source site: accuracy, and a lower bound in nats"
    return Table("leakage", title, rows, 3, corner="method (task)")


def biology_table(table: ScoreTable, to: str) -> Table:
    """Return scores of biological variation, for scans rendered as one site."""
    metrics = {
        "1000 FA per decade": ("fa_age_slope", 1e4),
        "low": ("fa_age_slope_low", 1e4),
        "high": ("fa_age_slope_high", 1e4),
        "ICC of FA": ("fa_icc_agreement", 1.0),
        "ICC of MD": ("md_icc_agreement", 1.0),
        "FA, d of sites": ("fa_site_d", 1.0),
        "MD, d of sites": ("md_site_d", 1.0),
    }
    rows: _Rows = {
        method: {
            shown: factor * table.mean(metric, method=method, task=f"all>{to}")
            for shown, (metric, factor) in metrics.items()
        }
        for method in table.methods("fa_icc_agreement")
    }
    title = (
        f"Scans of all sites rendered as {to}: effect of age on mean FA with its 95 % interval, "
        "agreement of sites on people (ICC(A,1)), largest difference between sites"
    )
    return Table("biology", title, rows)
