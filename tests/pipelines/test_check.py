import json
import os
import sys
from pathlib import Path

import pytest

from defects import plant_defects
from phantoms import make_gradients, make_scan, write_raw, write_table
from siteless.errors import SitelessError
from siteless.pipelines import check_dataset
from siteless.pipelines._parallel import run_all


def _listing(root):
    return {
        (str(path), path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(Path(root).rglob("*"))
    }


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    root = tmp_path_factory.mktemp("in") / "a study v1.0"
    plants = plant_defects(root)
    before = _listing(root)
    report = check_dataset(root, nprocs=2)
    return root, plants, before, report


def test_every_planted_defect_is_reported_with_its_file(planted):
    _, plants, _, report = planted
    found = {(problem.code, problem.path.name) for problem in report.problems}
    assert {(plant.code, plant.file) for plant in plants} - found == set()


def test_nothing_else_is_reported(planted):
    _, plants, _, report = planted
    expected = {(plant.code, plant.file) for plant in plants}
    # Every scan of this small dataset has too few directions for order 8.
    others = [p for p in report.problems if p.code != "low-order"]
    assert {(problem.code, problem.path.name) for problem in others} <= expected


def test_the_dataset_is_left_as_it_was(planted):
    root, _, before, _ = planted
    assert _listing(root) == before


def test_one_process_and_two_report_the_same(planted):
    root, _, _, report = planted
    assert check_dataset(root, nprocs=1) == report


def test_problems_are_plain_for_machines_and_errors_come_first(planted):
    _, _, _, report = planted
    content = json.loads(json.dumps(report.as_dict()))
    assert {"code", "severity", "path", "what", "remedy"} == set(content["problems"][0])
    severities = [problem["severity"] for problem in content["problems"]]
    assert severities == sorted(severities)
    assert len(content["scans"]) == len(report.scans)


def test_a_healthy_dataset_has_no_problem(tmp_path):
    rows = []
    for number in range(6):
        scan = make_scan(make_gradients(seed=number), seed=number)
        write_raw(scan, tmp_path / f"sub-{number}" / "dwi", f"sub-{number}_dwi")
        rows.append({"participant_id": f"sub-{number}", "site": "ab"[number % 2]})
    write_table(tmp_path / "participants.tsv", rows)
    calls = []
    report = check_dataset(tmp_path, nprocs=1, progress=lambda *call: calls.append(call))
    assert report.problems == ()
    assert [call[:2] for call in calls] == [(done, 6) for done in range(1, 7)]


def test_a_worker_that_dies_is_told():
    with pytest.raises(SitelessError, match="smaller --nprocs"):
        list(run_all(os._exit, [3, 3], nprocs=2))


def test_a_worker_that_fails_unexpectedly_is_not_hidden():
    with pytest.raises(TypeError):
        list(run_all(len, [1, 2], nprocs=2))


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root reads everything")
def test_folders_without_permission_are_named(tmp_path):
    (tmp_path / "sub-1").mkdir(mode=0)
    with pytest.raises(SitelessError, match="no permission"):
        check_dataset(tmp_path)
