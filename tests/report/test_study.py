import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import open_page, run_browser
from siteless.evaluation import WHITE_MATTER, Score, ScoreTable
from siteless.report import ScanSummary, Study, compare_methods, flag_scans, subject_page
from siteless.report._page import short
from siteless.report._plots import Axis
from siteless.report._text import citations, methods_text

CURVE = [0.0, 0.5, 0.3, 0.2]
NUMBERS = st.floats(-1e6, 1e6).map(lambda value: round(value, 6))


def _summary(number: int, site: str, **changes: Any) -> ScanSummary:
    mean = 0.4 + 0.01 * number + (0.05 if site == "b" else 0.0)
    return replace(
        ScanSummary(
            name=f"sub-{number}_ses-{site}_dwi",
            subject=str(number),
            site=site,
            to="b",
            age=20.0 + 5 * number,
            before={"fa": mean, "md": 7e-4},
            after={"fa": 0.4 + 0.01 * number, "md": 7e-4},
            curves={"fa": (CURVE, CURVE[::-1]), "md": (CURVE, CURVE)},
            likeness={"fa": 0.97 + 0.001 * number, "md": 0.9},
            change=2.0,
            unfamiliar=0.001,
        ),
        **changes,
    )


def _study(summaries: list[ScanSummary] | None = None, **changes: Any) -> Study:
    summaries = summaries or [_summary(n, site) for n in range(5) for site in "ab"]
    metadata = {"Method": "invariant", "Version": "9.9", "TargetSite": "b", "Gradients": "own"}
    return Study(
        "A study", {**metadata, "Model": "abc123", "Denoiser": "n/a"}, summaries, **changes
    )


def _scores() -> ScoreTable:
    rows = []
    for who in "56":
        for method, error in (("before", 9.0), ("rish", 4.0), ("mine", 3.0), ("noise floor", 1.0)):
            rows.append(Score(who, "a>b", method, WHITE_MATTER, "rmse_percent", error))
        rows.append(Score(who, "a>b", "mine", WHITE_MATTER, "fa_icc_agreement", 0.9))
        rows.append(Score(who, "a>b", "rish", WHITE_MATTER, "fa_icc_agreement", 0.8))
    for method, accuracy in (("before", 0.95), ("mine", 0.55)):
        rows.append(Score("n/a", "all>b", method, WHITE_MATTER, "leakage_accuracy", accuracy))
        rows.append(Score("n/a", "all>b", method, WHITE_MATTER, "leakage_chance", 0.5))
    return ScoreTable(tuple(rows))


@given(st.lists(NUMBERS, min_size=1, max_size=20))
def test_a_scale_holds_its_values_in_their_order(values: list[float]) -> None:
    axis = Axis.around(values)
    positions = [axis.at(value) for value in sorted(values)]
    assert all(0 <= position <= 100 for position in positions)
    assert positions == sorted(positions)
    assert all(0 <= position <= 100 for position, _ in axis.ticks)


@given(st.lists(NUMBERS, min_size=2, max_size=20, unique=True))
def test_no_two_ticks_say_the_same_and_each_is_where_it_says(values: list[float]) -> None:
    axis = Axis.around(values)
    labels = [float(text) for _, text in axis.ticks]
    assert len(set(labels)) == len(labels)
    for position, text in axis.ticks:
        assert axis.at(float(text)) == pytest.approx(position, abs=1)


def test_sections_say_what_was_asked() -> None:
    page = _study(scores=_scores()).html()
    for title in (
        "What was done",
        "Is the site gone?",
        "Is the brain still there?",
        "Where did it change?",
        "Against other methods",
        "Which scans to look at",
    ):
        assert f">{title}</h2>" in page
    assert "sub-0_ses-a_dwi: 0.400" in page


def test_the_gap_between_sites_is_that_of_their_means() -> None:
    before, after = _study().site_gap("fa")
    assert before == pytest.approx(0.05)
    assert after == pytest.approx(0.0, abs=1e-12)


def test_the_slope_with_age_is_that_of_the_scans() -> None:
    _, caption = _study().ages["FA"]
    assert "after +0.0200 a decade" in caption


def test_without_ages_the_page_does_not_mention_them() -> None:
    study = _study([replace(summary, age=None) for summary in _study().summaries])
    assert study.ages == {}
    assert "and age" not in study.html()


def test_names_are_text_and_not_html() -> None:
    evil = [_summary(n, s, name=f"<b>{n}</b>{s}") for n in range(3) for s in ("a", "b")]
    page = _study([replace(summary, site=f"<i>{summary.site}") for summary in evil]).html()
    assert "<b>" not in page
    assert "<i>a" not in page
    assert "&lt;b&gt;0&lt;/b&gt;a" in page


def test_the_best_is_marked_and_floors_are_no_methods() -> None:
    compared = compare_methods(_scores())
    best = {row.metric: compared.best(row, values) for row, values in compared.rows}
    assert best["rmse_percent"] == {"mine"}
    assert best["fa_icc_agreement"] == {"mine"}
    assert best["leakage_chance"] == set()
    marked = re.findall(r'<td class="starred best">([\d.]+)<', _study(scores=_scores()).html())
    assert marked == ["3.00", "0.55", "0.90"]


def test_equals_are_all_best() -> None:
    rows = [Score("1", "a>b", m, WHITE_MATTER, "rmse_percent", 2.001) for m in ("x", "y")]
    compared = compare_methods(ScoreTable(tuple(rows)))
    [(row, values)] = compared.rows
    assert compared.best(row, values) == {"x", "y"}


def test_without_scores_the_page_says_how_to_get_them() -> None:
    page = _study(next_command="siteless evaluate here").html()
    assert page.count("siteless evaluate here") == 2


def test_scans_stand_out_by_unfamiliar_voxels_or_by_likeness_the_worst_first() -> None:
    usual = [_summary(n, "a") for n in range(8)]
    strange = _summary(8, "a", unfamiliar=0.2)
    unlike = _summary(9, "a", likeness={"fa": 0.5, "md": 0.9})
    flags = flag_scans([*usual, unlike, strange])
    assert list(flags) == [strange.name, unlike.name]
    assert "20.0 % of voxels" in flags[strange.name][0]
    assert "correlation of FA" in flags[unlike.name][0]
    assert flag_scans(usual) == {}


def test_a_map_that_is_no_number_stands_out_and_spoils_no_other() -> None:
    usual = [_summary(n, "a") for n in range(8)]
    broken = _summary(8, "a", likeness={"fa": np.nan, "md": 0.9})
    unlike = _summary(9, "a", likeness={"fa": 0.5, "md": 0.9})
    assert set(flag_scans([*usual, broken, unlike])) == {broken.name, unlike.name}


def test_one_site_alone_has_no_gap() -> None:
    assert "largest gap" in _study().html()
    assert "largest gap" not in _study([_summary(n, "a") for n in range(3)]).html()


@pytest.mark.parametrize("tested", [True, False])
def test_scores_say_whether_people_were_learned_from(tested: bool) -> None:
    page = _study(scores=_scores(), is_tested=tested).html()
    assert ("that no model has learned from" in page) == tested
    assert ("may have learned from" in page) != tested


def test_a_floor_of_one_task_leaves_other_tasks_in_the_means() -> None:
    rows = [
        Score("1", task, "x", WHITE_MATTER, "rmse_percent", e)
        for task, e in (("a>b", 1), ("b>a", 3))
    ]
    floor = Score("1", "a>b", "rescan floor", WHITE_MATTER, "rmse_percent", 0.5)
    [(_, values)] = compare_methods(ScoreTable((*rows, floor))).rows
    assert values == (2.0, 0.5)


def test_curves_are_drawn_at_the_middle_of_bins() -> None:
    curves, _ = _study().distributions["FA"]
    first = curves.path(curves.panels["before"][0]).split()
    assert [float(point.split(",")[0]) for point in first] == [12.5, 37.5, 62.5, 87.5]


def test_scans_that_are_not_among_the_harmonized_are_named() -> None:
    page = _study(missing=[f"sub-{number}_dwi" for number in range(30)]).html()
    assert "Of 40 scans of the dataset, 30 are not" in page
    assert "sub-19_dwi, and 10 more" in page
    assert "not among the harmonized" not in _study().html()


def test_scans_that_stand_out_come_first_in_the_table() -> None:
    strange = _summary(7, "b", unfamiliar=0.2)
    study = _study([*_study().summaries, strange])
    assert study.listed[0] == strange
    assert len(study.listed) == 11
    assert study.unlisted == 0


def test_a_page_of_a_person_has_a_row_for_each_scan_and_leads_home() -> None:
    page = subject_page([_summary(1, "a"), _summary(1, "b")], "index.html", "<p>the viewer</p>")
    assert "<p>the viewer</p>" in page
    assert 'href="index.html"' in page
    assert page.count('<tr><th scope="row">') == 2


def test_what_is_not_known_is_a_dash() -> None:
    summary = _summary(1, "a", change=None, unfamiliar=None, likeness={"fa": np.nan})
    page = subject_page([summary], "index.html", "")
    assert page.count("<td>-</td>") == 4


def test_sentences_name_method_target_model_and_papers() -> None:
    metadata = {
        "Method": "rish",
        "Version": "1.2",
        "TargetSite": "leeds",
        "Model": "f00",
        "Gradients": "target",
        "Denoiser": "MRtrix3 3.0",
        "NoiseFloor": "remove",
    }
    text = methods_text(metadata, scans=4, people=2, sites=["berlin", "leeds"])
    for phrase in (
        "siteless 1.2",
        "RISH",
        "Mirzaalian et al. 2016",
        "site leeds",
        "f00",
        "MRtrix3",
        "noise floor",
    ):
        assert phrase in text
    assert "b-vectors of its protocol" in text
    assert {"mirzaalian2016", "cetinkarayumak2019", "veraart2016", "koay2006"} == set(
        re.findall(r"@article{(\w+),", citations(metadata))
    )


def test_what_another_tool_made_is_described_without_citations() -> None:
    text = methods_text({}, scans=4, people=2, sites=["a", "b"])
    assert text.endswith("(4 scans, sites a, b) were harmonized with another tool.")
    assert "siteless" not in text
    assert citations({}) == ""


@pytest.mark.parametrize(
    ("value", "text"), [(0.41362, "0.414"), (-12.34, "-12.3"), (123.4, "123"), (0, "0")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert short(value) == text


def test_citations_are_copied(tmp_path: Path) -> None:
    (tmp_path / "study.html").write_text(_study().html(), encoding="utf-8")
    with run_browser() as browser, open_page(browser, tmp_path / "study.html") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_text("What to cite").click()
        page.get_by_role("button", name="Copy the citations").click()
        page.get_by_role("button", name="Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == citations({"Method": "invariant"})
