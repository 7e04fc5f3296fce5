import json
import os
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from defects import Plant, plant_defects
from phantoms import ONE_SHELL, make_gradients, make_scan, write_mask, write_raw, write_table
from siteless.bids import ScanFiles, ScanSelection
from siteless.errors import SitelessError
from siteless.pipelines import CheckReport, Run, _check, check_dataset
from siteless.pipelines._parallel import run_all
from siteless.preflight import Problem, ScanFacts


def _listing(root: Path) -> set[tuple[str, int, int]]:
    return {
        (str(path), path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(Path(root).rglob("*"))
    }


@pytest.fixture(scope="module")
def planted(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[Plant], set[tuple[str, int, int]], CheckReport]:
    root = tmp_path_factory.mktemp("in") / "a study v1.0"
    plants = plant_defects(root)
    before = _listing(root)
    report = check_dataset(root, order=4, run=Run(nprocs=2))
    return root, plants, before, report


def test_every_planted_defect_is_reported_with_its_file(
    planted: tuple[Path, list[Plant], set[tuple[str, int, int]], CheckReport],
) -> None:
    _, plants, _, report = planted
    reported = {(problem.code, problem.path.name) for problem in report.problems}
    assert {(plant.code, plant.file) for plant in plants} - reported == set()


def test_nothing_else_is_reported(
    planted: tuple[Path, list[Plant], set[tuple[str, int, int]], CheckReport],
) -> None:
    _, plants, _, report = planted
    expected = {(plant.code, plant.file) for plant in plants}
    assert {(problem.code, problem.path.name) for problem in report.problems} <= expected


def test_the_dataset_is_left_as_it_was(
    planted: tuple[Path, list[Plant], set[tuple[str, int, int]], CheckReport],
) -> None:
    root, _, before, _ = planted
    assert _listing(root) == before


def test_one_process_and_two_report_the_same(
    planted: tuple[Path, list[Plant], set[tuple[str, int, int]], CheckReport],
) -> None:
    root, _, _, report = planted
    assert check_dataset(root, order=4, run=Run(nprocs=1)) == report


def test_problems_are_plain_for_machines_and_errors_come_first(
    planted: tuple[Path, list[Plant], set[tuple[str, int, int]], CheckReport],
) -> None:
    _, _, _, report = planted
    content = json.loads(json.dumps(report.as_dict()))
    assert {"code", "severity", "path", "what", "remedy"} == set(content["problems"][0])
    severities = [problem["severity"] for problem in content["problems"]]
    assert severities == sorted(severities)
    assert len(content["scans"]) == len(report.scans)


def test_a_confound_is_the_first_warning_of_many(
    planted: tuple[Path, list[Plant], set[tuple[str, int, int]], CheckReport],
) -> None:
    _, _, _, report = planted
    codes = [problem.code for problem in report.warnings]
    assert len(codes) > 5
    assert [code for code in codes if code != "confound"] == codes[codes.count("confound") :]


def test_a_healthy_dataset_has_no_problem(tmp_path: Path) -> None:
    rows = []
    for number in range(6):
        scan = make_scan(make_gradients(seed=number), seed=number)
        write_raw(scan, tmp_path / f"sub-{number}" / "dwi", f"sub-{number}_dwi")
        rows.append({"participant_id": f"sub-{number}", "site": "ab"[number % 2]})
    write_table(tmp_path / "participants.tsv", rows)
    calls = []
    report = check_dataset(
        tmp_path, run=Run(nprocs=1, progress=lambda _: lambda *call: calls.append(call))
    )
    assert report.problems == ()
    assert [call[:2] for call in calls] == [(done, 6) for done in range(7)]


def test_one_broken_part_does_not_hide_the_others(tmp_path: Path) -> None:
    scan = make_scan(make_gradients(ONE_SHELL))
    broken = scan.signal.copy()
    broken[13, 11, 9, 2] = np.nan
    write_raw(scan, tmp_path, "s", dtype=np.float32)
    nib.Nifti1Image(broken, scan.affine).to_filename(tmp_path / "s.nii.gz")
    (tmp_path / "s.bvec").unlink()
    holes = scan.mask.copy()
    holes[9:11, 10:12, 8:10] = False
    mask = write_mask(holes, scan.affine, tmp_path / "m.nii.gz")
    row = {"subject": 1, "site": "a", "dwi": "s.nii.gz", "mask": mask.name, "wm_mask": "none.nii"}
    report = check_dataset(write_table(tmp_path / "m.tsv", [row]), run=Run(nprocs=1))
    codes = {problem.code for problem in report.problems}
    assert codes >= {"missing-file", "mask-holes", "not-finite"}
    assert {p.path.name for p in report.errors if p.code == "missing-file"} == {
        "s.nii.gz",
        "none.nii",
    }


def test_an_unexpected_failure_is_named_and_the_rest_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        write_raw(make_scan(make_gradients(ONE_SHELL)), tmp_path, f"s{number}")
    rows = [{"subject": n, "site": "a", "dwi": f"s{n}.nii.gz"} for n in range(2)]
    real = _check.inspect_scan

    def fail_on_first(files: ScanFiles) -> tuple[ScanFacts, list[Problem]]:
        if files.subject == "0":
            raise RuntimeError("boom")
        return real(files)

    monkeypatch.setattr(_check, "inspect_scan", fail_on_first)
    report = check_dataset(write_table(tmp_path / "m.tsv", rows), run=Run(nprocs=1))
    [internal] = [problem for problem in report.problems if problem.code == "internal"]
    assert internal.path.name == "s0.nii.gz"
    assert "RuntimeError: boom" in internal.what
    assert report.scans[1].fingerprint is not None


def test_an_option_that_a_table_overrules_is_reported(tmp_path: Path) -> None:
    for session in ("a", "b"):
        folder = tmp_path / "sub-1" / f"ses-{session}" / "dwi"
        write_raw(make_scan(make_gradients(ONE_SHELL)), folder, f"sub-1_ses-{session}_dwi")
    write_table(tmp_path / "participants.tsv", [{"participant_id": "sub-1", "site": "north"}])
    report = check_dataset(ScanSelection(tmp_path, site_from="ses"), run=Run(nprocs=1))
    [warning] = [problem for problem in report.problems if problem.code == "site-from"]
    assert "participants.tsv goes before --site-from ses: 2 scans" in warning.what


def test_a_worker_that_dies_is_an_error() -> None:
    with pytest.raises(SitelessError, match="smaller --nprocs"):
        list(run_all(os._exit, [3, 3], nprocs=2))


def test_a_worker_that_fails_unexpectedly_is_not_hidden() -> None:
    with pytest.raises(TypeError):
        list(run_all(len, [1, 2], nprocs=2))  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root reads everything")
def test_folders_without_permission_are_named(tmp_path: Path) -> None:
    (tmp_path / "sub-1").mkdir(mode=0)
    scan = make_scan(make_gradients(ONE_SHELL))
    write_raw(scan, tmp_path / "sub-2" / "dwi", "sub-2_dwi")
    report = check_dataset(tmp_path, run=Run(nprocs=1))
    assert any("no permission" in problem.what for problem in report.errors)
