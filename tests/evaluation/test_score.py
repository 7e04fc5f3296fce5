import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siteless.evaluation import WHITE_MATTER, Score, ScoreTable

tables = st.lists(
    st.builds(
        Score,
        subject=st.sampled_from(["01", "02", "03"]),
        task=st.sampled_from(["a>b", "b>a"]),
        method=st.sampled_from(["rish", "scaled"]),
        region=st.sampled_from([WHITE_MATTER, "lesion"]),
        metric=st.sampled_from(["rmse", "fa_cv"]),
        value=st.floats(-1e6, 1e6),
    ),
    max_size=40,
).map(lambda scores: ScoreTable(tuple(scores)))


@given(tables)
def test_mean_takes_the_scores_that_are_asked_for(table: ScoreTable) -> None:
    chosen = [
        score.value
        for score in table.scores
        if (score.metric, score.region, score.method) == ("rmse", WHITE_MATTER, "rish")
    ]
    mean = table.mean("rmse", method="rish")
    assert math.isnan(mean) if not chosen else mean == pytest.approx(fmean(chosen), abs=1e-6)


@given(tables)
def test_selections_share_out_all_scores(table: ScoreTable) -> None:
    parts = [
        score
        for metric in ("rmse", "fa_cv")
        for region in (WHITE_MATTER, "lesion")
        for task in table.tasks(metric)
        for score in table.select(metric, region=region, task=task)
    ]
    assert sorted(parts) == sorted(table.scores)


@given(tables)
def test_selections_keep_the_order(table: ScoreTable) -> None:
    chosen = [
        score for score in table.scores if score.metric == "rmse" and score.region == "lesion"
    ]
    assert table.select("rmse", region="lesion") == chosen


def test_methods_and_tasks_follow_each_other_as_they_came() -> None:
    rows = [
        ("z", "b>a", "rmse"),
        ("a", "a>b", "rmse"),
        ("z", "a>b", "rmse"),
        ("m", "c>a", "md_cv"),
    ]
    table = ScoreTable(
        tuple(Score("01", task, method, "lesion", metric, 1.0) for method, task, metric in rows)
    )
    assert table.methods("rmse") == ["z", "a"]
    assert table.tasks("rmse") == ["b>a", "a>b"]
    assert table.methods("md_cv") == ["m"]
    assert table.methods("fa_cv") == table.tasks("fa_cv") == []


def test_white_matter_is_the_default_region() -> None:
    regions = {WHITE_MATTER: 1.0, "lesion": 5.0}
    table = ScoreTable(
        tuple(Score("01", "a>b", "rish", region, "rmse", v) for region, v in regions.items())
    )
    assert table.mean("rmse") == 1
    assert table.mean("rmse", region="lesion") == 5
    assert math.isnan(table.mean("rmse", region="thalamus"))
    assert math.isnan(table.mean("cv"))
