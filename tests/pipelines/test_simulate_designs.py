import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from phantoms import load_image
from siteless.bids import find_scans
from siteless.cli import _simulate, main
from siteless.pipelines import check_dataset
from siteless.simulation import DESIGNS, PATIENT_EFFECT, Biology, draw_scanners, draw_world

TINY = ["--preset", "tiny", "--sites", "prisma30", "connectom60"]
FEW = ["--people-per-site", "3", "--test-people", "1"]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Simulate tiny cohorts, each design once."""
    datasets = {}

    def simulate(design: str) -> Path:
        if design not in datasets:
            out = tmp_path_factory.mktemp("designs") / design
            assert main(["simulate", str(out), "--design", design, *TINY, *FEW]) == 0
            datasets[design] = out
        return datasets[design]

    return simulate


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines, delimiter="\t"))


def test_only_the_sessions_that_people_have_are_written(simulated: Callable[[str], Path]) -> None:
    out = simulated("confounded")
    scans = find_scans(out).scans
    assert len(scans) == 2 * 3 + 2
    people = _rows(out / "participants.tsv")
    assert [person["split"] for person in people] == ["train"] * 6 + ["test"]
    assert list(people[0]) == ["participant_id", "age", "sex", "split"]
    for person in people:
        label = person["participant_id"]
        sessions = [row["session_id"] for row in _rows(out / label / f"{label}_sessions.tsv")]
        assert set(sessions) == {folder.name for folder in (out / label).glob("ses-*")}
        assert len(sessions) == (2 if person["split"] == "test" else 1)


@pytest.mark.parametrize("design", ["confounded", "patients", "longitudinal"])
def test_the_check_can_read_a_simulated_study(
    simulated: Callable[[str], Path], design: str
) -> None:
    codes = {problem.code for problem in check_dataset(simulated(design)).problems}
    assert codes <= {"few-scans", "confounded"}


def test_the_record_has_the_design(simulated: Callable[[str], Path]) -> None:
    record = simulated("confounded") / "derivatives" / "truth" / "simulation.json"
    design = json.loads(record.read_text())["design"]
    assert design["name"] == "confounded"
    assert design["age_gap"] == 20


def test_groups_and_what_they_change_are_written(simulated: Callable[[str], Path]) -> None:
    out = simulated("patients")
    groups = {row["participant_id"]: row["group"] for row in _rows(out / "participants.tsv")}
    truth = out / "derivatives" / "truth"
    assert set(groups.values()) == {"control", "patient"}
    for label in groups:
        affected = load_image(truth / label / "dwi" / f"{label}_label-affected_mask.nii.gz")
        assert affected.get_fdata().any()
    effect = json.loads((truth / "simulation.json").read_text())["patient_effect"]
    assert effect["intra_axonal"] == PATIENT_EFFECT.intra_axonal
    assert "group" in json.loads((out / "participants.json").read_text())
    assert {files.attributes["group"] for files in find_scans(out).scans} == set(groups.values())


def test_ages_of_follow_ups_are_those_at_the_session(simulated: Callable[[str], Path]) -> None:
    out = simulated("longitudinal")
    start = {row["participant_id"]: float(row["age"]) for row in _rows(out / "participants.tsv")}
    scans = find_scans(out).scans
    assert len(scans) == 3 * 2 + 4
    for files in scans:
        years = float(files.attributes["years"])
        assert years == (3 if files.entities["ses"].endswith("followup") else 0)
        assert float(files.attributes["age"]) == start[f"sub-{files.subject}"] + years
        assert files.entities["ses"].startswith(str(files.site))


def test_the_truth_of_both_visits_is_written(simulated: Callable[[str], Path]) -> None:
    truth = simulated("longitudinal") / "derivatives" / "truth" / "sub-01"
    [before, after] = (
        load_image(path).get_fdata()
        for path in (
            truth / "ses-prisma30" / "dwi" / "sub-01_ses-prisma30_desc-intraaxonal_dwimap.nii.gz",
            *truth.glob("ses-*followup/dwi/*_desc-intraaxonal_dwimap.nii.gz"),
        )
    )
    brain = before > 0
    np.testing.assert_allclose(
        (after - before)[brain], 3 * Biology().intra_axonal_per_year, atol=1e-6
    )
    assert not list((truth / "dwi").glob("*intraaxonal*"))


def test_an_interrupted_run_goes_on(simulated: Callable[[str], Path], tmp_path: Path) -> None:
    whole, again = simulated("longitudinal"), tmp_path / "again"
    shutil.copytree(whole, again)
    lost = "sub-01/ses-connectom60followup/dwi/sub-01_ses-connectom60followup_dwi.nii.gz"
    (again / lost).unlink()
    words = ["--design", "longitudinal", *TINY, *FEW, "--nprocs", "1"]
    assert main(["simulate", str(again), *words]) == 0
    assert (again / lost).read_bytes() == (whole / lost).read_bytes()


@pytest.mark.parametrize("dataset", ["", "derivatives/truth"])
@pytest.mark.parametrize("design", ["patients", "longitudinal"])
def test_the_validator_finds_no_error(
    simulated: Callable[[str], Path], design: str, dataset: str
) -> None:
    validator = Path(sys.executable).with_name("bids-validator-deno")
    command: list[str | Path] = [validator, "--format", "json", simulated(design) / dataset]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    issues = json.loads(process.stdout)["issues"]["issues"]
    assert [issue for issue in issues if issue["severity"] == "error"] == []


def test_the_record_of_travelling_people_has_no_settings_of_other_designs(tmp_path: Path) -> None:
    assert main(["simulate", str(tmp_path), "--preset", "tiny", "--sites", "prisma30"]) == 0
    record = json.loads((tmp_path / "derivatives" / "truth" / "simulation.json").read_text())
    assert set(record) == {"siteless", "people", "scanners", "voxel_size", "seed", "rescans"}
    person = {"label", "age", "sex", "split", "seed", "lesion"}
    assert {name for recorded in record["people"] for name in recorded} == person


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--age-gap", "5"], "--age-gap does not fit the design travelling; leave it out, or use"),
        (["--design", "unpaired", "--subjects", "5"], "use --design travelling"),
        (["--design", "bridged", "--lesions", "1"], "--lesions does not fit the design bridged"),
        (["--design", "unpaired", "--people-per-site", "1", "2", "3"], "give one number, or 2"),
        (["--random-sites", "3"], "--random-sites does not go with named sites; leave out"),
        (["--world", "0"], "--world does not go with named sites; leave out"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["simulate", str(tmp_path / "out"), *TINY, *words]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


def test_random_sites_are_those_of_the_seed(tmp_path: Path) -> None:
    words = ["--preset", "tiny", "--random-sites", "2", "--seed", "5", "--design", "unpaired"]
    few = ["--people-per-site", "1", "--test-people", "0"]
    assert main(["simulate", str(tmp_path / "out"), *words, *few]) == 0
    record = tmp_path / "out" / "derivatives" / "truth" / "simulation.json"
    recorded = json.loads(record.read_text())["scanners"]
    assert recorded == json.loads(
        json.dumps([asdict(scanner) for scanner in draw_scanners(2, seed=5)])
    )


def test_a_world_is_that_of_its_number(tmp_path: Path) -> None:
    words = ["--preset", "tiny", "--world", "0", "--random-sites", "2", "--design", "unpaired"]
    few = ["--people-per-site", "1", "--test-people", "0"]
    assert main(["simulate", str(tmp_path / "out"), *words, *few]) == 0
    record = tmp_path / "out" / "derivatives" / "truth" / "simulation.json"
    recorded = json.loads(record.read_text())
    expected = json.loads(json.dumps(asdict(draw_world(0, sites=2))))
    assert {name: recorded[name] for name in ("biology", "scanners")} == expected


def test_the_command_line_names_all_designs() -> None:
    assert set(_simulate.DESIGNS) == {"travelling", *DESIGNS}
