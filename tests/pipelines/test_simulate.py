import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from phantoms import load_image
from siteless.bids import find_scans, read_scan
from siteless.cli import _simulate, main
from siteless.errors import OutputError
from siteless.pipelines import check_dataset, simulate_cohort
from siteless.simulation import EFFECTS, PRESETS, draw_cohort, read_scanners

WORDS = ["--preset", "tiny", "--sites", "prisma30", "connectom60", "--lesions", "1", "--rescans"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("simulated") / "a cohort v0.1"
    assert main(["simulate", str(out), *WORDS, "--nprocs", "2"]) == 0
    return out


def _bytes(root: Path) -> dict[str, str]:
    """Return what identifies each file; content itself would drown a failure's report."""
    paths = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}


def _assert_same(first: Path, second: Path) -> None:
    ours, theirs = _bytes(first), _bytes(second)
    assert set(ours) == set(theirs)
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_the_check_finds_no_problem(tiny: Path) -> None:
    assert [p for p in check_dataset(tiny).problems if p.code != "few-scans"] == []


@pytest.mark.parametrize("dataset", ["", "derivatives/masks", "derivatives/truth"])
def test_the_validator_finds_no_error(tiny: Path, dataset: str) -> None:
    validator = Path(sys.executable).with_name("bids-validator-deno")
    process = subprocess.run(
        [validator, "--format", "json", tiny / dataset],
        capture_output=True,
        text=True,
        check=False,
    )
    issues = json.loads(process.stdout)["issues"]["issues"]
    assert [issue for issue in issues if issue["severity"] == "error"] == []


def test_one_seed_gives_the_same_bytes_on_any_number_of_processes(
    tiny: Path, tmp_path: Path
) -> None:
    assert main(["simulate", str(tmp_path / "again"), *WORDS, "--nprocs", "1"]) == 0
    _assert_same(tmp_path / "again", tiny)


def test_people_sites_runs_and_splits(tiny: Path) -> None:
    scans = find_scans(tiny).scans
    assert Counter(str(files.site) for files in scans) == {"prisma30": 4, "connectom60": 4}
    splits = Counter(files.attributes["split"] for files in scans)
    assert splits == {"train": 2, "val": 2, "test": 4}
    assert {files.entities.get("run") for files in scans} == {None, "2"}


def test_masks_and_truth_lie_on_the_scans_grid(tiny: Path) -> None:
    [files, *_] = find_scans(tiny, filters={"sub": ["03"]}).scans
    scan = read_scan(files)
    assert "derivatives/masks" in scan.mask_origin
    truth = tiny / "derivatives" / "truth" / "sub-03" / "dwi"
    for name, maps in (
        ("desc-tissue_probseg", 3),
        ("desc-fibredirections_dwimap", 9),
        ("desc-fibrefractions_dwimap", 3),
    ):
        image = load_image(truth / f"sub-03_{name}.nii.gz")
        assert image.shape == (*scan.mask.shape, maps)
        np.testing.assert_allclose(image.affine, scan.affine, atol=1e-5)
    lesion = load_image(truth / "sub-03_label-lesion_mask.nii.gz").get_fdata() > 0
    assert lesion.any()
    assert (lesion <= scan.mask).all()
    assert not (tiny / "derivatives/truth/sub-01/dwi/sub-01_label-lesion_mask.nii.gz").exists()


def test_the_noiseless_scan_is_the_scan_without_noise(tiny: Path) -> None:
    [files, *_] = find_scans(tiny).scans
    measured = read_scan(files)
    session = files.dwi.parent.relative_to(tiny)
    clean = (
        tiny / "derivatives" / "truth" / session / f"{files.name[:-4]}_desc-noiseless_dwi.nii.gz"
    )
    error = (measured.signal - load_image(clean).get_fdata())[measured.mask]
    b0 = measured.gradients.is_b0
    gain = read_scanners()[str(files.site)].gain
    snr = read_scanners()[str(files.site)].snr
    assert error[:, b0].std() == pytest.approx(1000 * gain / snr, rel=0.1)


def test_an_interrupted_run_goes_on(tiny: Path, tmp_path: Path) -> None:
    again = shutil.copytree(tiny, tmp_path / "again")
    lost = again / "sub-02" / "ses-prisma30" / "dwi" / "sub-02_ses-prisma30_dwi.nii.gz"
    kept = again / "sub-01" / "ses-prisma30" / "dwi" / "sub-01_ses-prisma30_dwi.nii.gz"
    before = kept.stat().st_mtime_ns
    lost.unlink()
    assert main(["simulate", str(again), *WORDS, "--nprocs", "1"]) == 0
    _assert_same(again, tiny)
    assert kept.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seed", "1"], "the folder holds another simulation"),
        (["--sites", "nowhere"], "there is no site 'nowhere'; choose from prisma30"),
        (["--sites", "prisma30", "prisma30"], "site prisma30 is named twice"),
        (["--lesions", "9"], "9 lesions need as many subjects, got 3"),
        (["--sites-file", "none.toml"], "none.toml: the sites cannot be read"),
    ],
)
def test_mistakes_are_one_line(
    tiny: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    before = _bytes(tiny)
    assert main(["simulate", str(tiny), "--preset", "tiny", *words]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert _bytes(tiny) == before


def test_folders_with_something_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    cohort = draw_cohort((read_scanners()["prisma30"],), subjects=1, voxel_size=8.0)
    with pytest.raises(OutputError, match="expected a new or empty folder"):
        simulate_cohort(tmp_path, cohort)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_fifteen_people_split_as_in_the_paper() -> None:
    cohort = draw_cohort((), subjects=15, voxel_size=2.4)
    assert Counter(person.split for person in cohort.people) == {"train": 9, "val": 1, "test": 5}
    assert len({person.seed for person in cohort.people}) == 15
    assert sorted(person.age for person in cohort.people)[::14] == [20, 80]


@pytest.mark.parametrize("words", [["--seed", "-1"], ["--lesions", "-1"], ["--subjects", "0"]])
def test_numbers_out_of_range_are_usage_errors(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["simulate", str(tmp_path / "out"), *words])
    assert stop.value.code == 2
    assert not (tmp_path / "out").exists()


def test_settings_are_plain_json(tiny: Path) -> None:
    record = (tiny / "derivatives" / "truth" / "simulation.json").read_text()
    assert json.loads(record, parse_constant=pytest.fail)["seed"] == 0


def test_the_command_line_names_what_there_is() -> None:
    assert tuple(PRESETS) == _simulate.PRESETS
    assert tuple(EFFECTS) == _simulate.EFFECTS
