import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from siteless.evaluation import WHITE_MATTER, Score, ScoreTable
from siteless.report import (
    Table,
    ablation_table,
    accuracy_table,
    biology_table,
    error_tables,
    leakage_table,
)

TASKS = ["prisma30>connectom30", "connectom30>prisma30"]


def _scores(
    metric: str, values: list[float], *, task: str = TASKS[0], method: str = "multi"
) -> list[Score]:
    people = enumerate(values, start=1)
    return [Score(f"0{who}", task, method, WHITE_MATTER, metric, v) for who, v in people]


def _named(tables: Iterator[Table]) -> dict[str, Table]:
    return {table.name: table for table in tables}


def test_errors_are_means_over_people_then_over_tasks() -> None:
    scores = _scores("rmse_percent", [1.0, 2.0]) + _scores("rmse_percent", [4.0], task=TASKS[1])
    row = _named(error_tables(ScoreTable(tuple(scores)), TASKS))["rmse"].rows["multi"]
    assert row == {TASKS[0]: 1.5, TASKS[1]: 4.0, "mean": 2.75}


def test_the_papers_own_values_stand_beside_ours() -> None:
    scores = _scores("fa_ape", [0.08]) + _scores("fa_ape", [0.1], method="RISH")
    rows = _named(error_tables(ScoreTable(tuple(scores)), TASKS))["ape"].rows
    assert rows[f"FA {TASKS[0]}"] == {"multi": 0.08, "RISH": 0.1}
    assert rows[f"FA {TASKS[0]}, in the paper"] == {"RISH": 0.46, "single": 0.25, "multi": 0.28}
    elsewhere = _named(error_tables(ScoreTable(tuple(scores)), ["a>b"]))["ape"].rows
    assert not any("paper" in name for name in elsewhere)


def test_an_ablation_is_a_difference() -> None:
    scores = []
    for number, network in enumerate(("single", "multi")):
        for task in TASKS:
            scores += _scores("rmse_percent", [3.0], task=task, method=network)
            ablated = f"{network}, lambda = 0"
            scores += _scores("rmse_percent", [3.5 + number], task=task, method=ablated)
    rows = ablation_table(ScoreTable(tuple(scores)), TASKS, [", lambda = 0"]).rows
    assert rows["single, lambda = 0"]["mean"] == pytest.approx(0.5)
    assert rows["multi, lambda = 0"][TASKS[0]] == pytest.approx(1.5)


def test_accuracy_is_measured_on_the_codes_of_each_network() -> None:
    scores = [
        Score("n/a", "codes", method, WHITE_MATTER, f"leakage_{metric}", value)
        for method, metric, value in (
            ("multi", "accuracy", 0.35),
            ("multi", "chance", 0.25),
            ("multi, lambda = 0", "accuracy", 0.36),
        )
    ]
    scores += [Score("n/a", "all>a", "multi", WHITE_MATTER, "leakage_accuracy", 0.9)]
    table = ScoreTable(tuple(scores))
    [row] = accuracy_table(table, ["multi"], ["", ", lambda = 0"]).rows.values()
    assert row == {
        "chance": 0.25,
        "complete": 0.35,
        "lambda = 0": 0.36,
        "paper": "0.41 / 0.41 / 0.62",
    }
    assert leakage_table(table).rows["multi (all>a)"]["accuracy"] == 0.9


def test_biology_is_measured_on_scans_rendered_as_one_site() -> None:
    scores = [
        Score("n/a", f"all>{to}", "multi", WHITE_MATTER, metric, value)
        for to, metric, value in (
            ("a", "fa_age_slope", -0.0008),
            ("a", "fa_icc_agreement", 0.9),
            ("b", "fa_icc_agreement", 0.1),
        )
    ]
    row = biology_table(ScoreTable(tuple(scores)), "a").rows["multi"]
    assert row["1000 FA per decade"] == pytest.approx(-8)
    assert row["ICC of FA"] == 0.9


def test_a_table_is_written_for_people_and_for_programs(tmp_path: Path) -> None:
    table = Table("t", "Errors", {"x": {"a": 1 / 3, "b": "1 / 2"}, "y": {"a": float("nan")}})
    assert table.markdown().splitlines()[-2:] == ["| x | 0.33 | 1 / 2 |", "| y | - | - |"]
    with table.write(tmp_path).open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert rows == [
        {"method": "x", "a": "0.333333", "b": "1 / 2"},
        {"method": "y", "a": "n/a", "b": "n/a"},
    ]
