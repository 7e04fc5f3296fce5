import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from phantoms import ONE_SHELL, make_gradients, make_scan, write_mask, write_raw, write_table
from siteless.acquisition import Scan, Site
from siteless.bids import find_scans, read_scan, read_sidecar
from siteless.errors import DatasetError, GradientTableError, MissingFileError, UnreadableFileError


@pytest.fixture(scope="module")
def scan() -> Scan:
    return make_scan(make_gradients(ONE_SHELL))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    # Dots, spaces and brackets in folder names break tools that guess or glob.
    root = tmp_path / "my study v1.2 [final]"
    root.mkdir()
    return root


def _write(
    scan: Scan, root: Path, name: str, sidecar: Mapping[str, float | str] | None = None
) -> Path:
    entities = dict(pair.split("-") for pair in name.split("_")[:-1])
    folders = [f"{key}-{entities[key]}" for key in ("sub", "ses") if key in entities]
    return write_raw(scan, root.joinpath(*folders, "dwi"), name, sidecar=sidecar)


def test_scans_with_and_without_sessions_are_found_in_order(scan: Scan, root: Path) -> None:
    for name in (
        "sub-02_ses-b_dwi",
        "sub-01_dir-AP_dwi",
        "sub-02_ses-a_dwi",
        "sub-02_ses-a_sbref",
    ):
        _write(scan, root, name)
    names = [files.name for files in find_scans(root).scans]
    assert names == ["sub-01_dir-AP_dwi", "sub-02_ses-a_dwi", "sub-02_ses-b_dwi"]


def test_phase_images_are_passed_over(scan: Scan, root: Path) -> None:
    for quantity in ("mag", "phase"):
        _write(scan, root, f"sub-01_part-{quantity}_dwi")
    assert [files.name for files in find_scans(root).scans] == ["sub-01_part-mag_dwi"]


@pytest.mark.parametrize("folder", ["", "sub-01", "sub-01/ses-a", "sub-01/ses-a/dwi"])
def test_gradients_are_inherited_from_every_level(scan: Scan, root: Path, folder: str) -> None:
    image = _write(scan, root, "sub-01_ses-a_dir-AP_dwi")
    prefix = "" if not folder else "sub-01_" if folder == "sub-01" else "sub-01_ses-a_"
    for end in ("bval", "bvec", "json"):
        beside_image = image.with_name(f"sub-01_ses-a_dir-AP_dwi.{end}")
        beside_image.rename(root / folder / f"{prefix}dir-AP_dwi.{end}")
    other = root / folder / f"{prefix}dir-PA_dwi.bvec"
    other.write_text("applies to another scan")
    [files] = find_scans(root).scans
    assert files.bvec == root / folder / f"{prefix}dir-AP_dwi.bvec"
    assert len(read_scan(files).gradients) == len(scan.gradients)


def test_the_nearest_file_wins_and_json_is_merged(scan: Scan, root: Path) -> None:
    _write(scan, root, "sub-01_dwi", sidecar={"EchoTime": 0.08})
    (root / "dwi.bval").write_text("not used")
    (root / "dwi.json").write_text(json.dumps({"EchoTime": 0.1, "RepetitionTime": 3}))
    [files] = find_scans(root).scans
    assert files.bval == root / "sub-01" / "dwi" / "sub-01_dwi.bval"
    assert [path.name for path in files.sidecars] == ["dwi.json", "sub-01_dwi.json"]
    assert read_sidecar(files) == {"EchoTime": 0.08, "RepetitionTime": 3}


def test_site_comes_from_the_most_specific_table(scan: Scan, root: Path) -> None:
    sidecar = {"Manufacturer": "M", "ManufacturersModelName": "X", "DeviceSerialNumber": "7"}
    for name in ("sub-01_ses-a_dwi", "sub-01_ses-b_dwi", "sub-02_dwi", "sub-03_ses-z_dwi"):
        _write(scan, root, name, sidecar)

    def sites(**options: Any) -> dict[str, str | None]:
        return {
            f.name: f.site.label if f.site else None for f in find_scans(root, **options).scans
        }

    scanner = "M-X-7"
    assert set(sites().values()) == {scanner}
    assert sites(site_from="ses")["sub-03_ses-z_dwi"] == "z"
    assert sites(site_from="ses")["sub-02_dwi"] == scanner
    people = [{"participant_id": f"sub-0{n}", "age": 20 + n, "site": "p"} for n in (1, 2)]
    write_table(root / "participants.tsv", people)
    assert sites(site_from="ses")["sub-01_ses-a_dwi"] == "p"
    write_table(
        root / "sub-01" / "ses-a" / "sub-01_ses-a_scans.tsv",
        [{"filename": "dwi/sub-01_ses-a_dwi.nii.gz", "site": "scans"}],
    )
    assert sites()["sub-01_ses-a_dwi"] == "scans"
    write_table(
        root / "sub-02" / "sub-02_scans.tsv",
        [{"filename": "dwi/sub-02_dwi.nii.gz", "site": "scans2"}],
    )
    assert sites()["sub-02_dwi"] == "scans2"
    rows = [{"session_id": "ses-a", "site": "sessions"}, {"session_id": "ses-b", "site": "n/a"}]
    write_table(root / "sub-01" / "sub-01_sessions.tsv", rows)
    assert sites() == {
        "sub-01_ses-a_dwi": "sessions",
        "sub-01_ses-b_dwi": "p",
        "sub-02_dwi": "scans2",
        "sub-03_ses-z_dwi": scanner,
    }
    [first, *_] = find_scans(root).scans
    assert first.site is not None
    assert first.site.origin == "sessions.tsv"
    assert first.attributes["age"] == "21"


def test_a_derivative_uses_the_tables_of_its_raw_dataset(scan: Scan, root: Path) -> None:
    derivative = root / "derivatives" / "preproc"
    _write(scan, derivative, "sub-01_space-ACPC_desc-preproc_dwi")
    write_table(root / "participants.tsv", [{"participant_id": "sub-01", "site": "raw"}])
    [files] = find_scans(derivative).scans
    assert files.site == Site("raw")


def test_masks_are_found_beside_and_in_derivatives(scan: Scan, root: Path) -> None:
    for name in ("sub-01_run-1_dwi", "sub-01_run-2_dwi"):
        _write(scan, root, name)
    masks = root / "derivatives" / "bet" / "sub-01" / "dwi"
    run = write_mask(scan.mask, scan.affine, masks / "sub-01_run-1_desc-brain_mask.nii.gz")
    both = write_mask(scan.mask, scan.affine, masks / "sub-01_desc-brain_mask.nii.gz")
    write_mask(scan.mask, scan.affine, masks / "sub-01_space-MNI_desc-brain_mask.nii.gz")
    white = write_mask(scan.white_matter, scan.affine, masks / "sub-01_label-WM_mask.nii.gz")
    first, second = find_scans(root).scans
    assert (first.mask, second.mask) == (run, both)
    assert first.white_matter == white
    read = read_scan(first)
    assert np.array_equal(read.white_matter, scan.white_matter)
    assert np.array_equal(read.mask, scan.mask)
    assert read.mask_origin == str(run)


def test_filters_choose_scans(scan: Scan, root: Path) -> None:
    for name in ("sub-01_ses-a_dwi", "sub-02_ses-a_dwi", "sub-02_ses-b_dwi"):
        _write(scan, root, name)
    scans = find_scans(root, filters={"sub": ["02"], "ses": ["b"]}).scans
    assert [files.name for files in scans] == ["sub-02_ses-b_dwi"]
    assert len(find_scans(root, filters={"acq": [None]}).scans) == 3
    with pytest.raises(DatasetError, match="no scan has sub-09; choose from 01, 02"):
        find_scans(root, filters={"sub": ["02", "09"]})
    with pytest.raises(DatasetError, match="none of 3 scans passes"):
        find_scans(root, filters={"sub": ["01"], "ses": ["b"]})


def test_a_broken_table_is_noted_and_does_not_stop(scan: Scan, root: Path) -> None:
    _write(scan, root, "sub-01_dwi")
    (root / "participants.tsv").write_text("id,site\nsub-01,a\n")
    dataset = find_scans(root)
    assert [str(error.path) for error in dataset.errors] == [str(root / "participants.tsv")]
    assert dataset.scans[0].site is None


def test_folders_without_scans_are_refused(root: Path) -> None:
    with pytest.raises(DatasetError, match="no diffusion scan was found"):
        find_scans(root)
    (root / "dataset_description.json").write_text("{")
    with pytest.raises(UnreadableFileError, match="line 1 is not"):
        find_scans(root)


def test_single_files_are_no_dataset(scan: Scan, root: Path) -> None:
    image = _write(scan, root, "sub-01_dwi")
    with pytest.raises(DatasetError, match="found a single file"):
        find_scans(image)


def test_ambiguous_gradient_files_are_an_error(scan: Scan, root: Path) -> None:
    image = _write(scan, root, "sub-01_acq-a_dir-AP_dwi")
    image.with_name("sub-01_acq-a_dir-AP_dwi.bvec").rename(root / "acq-a_dwi.bvec")
    (root / "dir-AP_dwi.bvec").write_text("0")
    [error] = find_scans(root).errors
    assert "acq-a_dwi.bvec and dir-AP_dwi.bvec both apply" in str(error)


def test_scans_whose_outputs_would_clash_are_an_error(scan: Scan, root: Path) -> None:
    for desc in ("preproc", "denoised"):
        _write(scan, root, f"sub-01_desc-{desc}_dwi")
    [error] = find_scans(root).errors
    assert "would have the names of those of" in str(error)
    assert find_scans(root, filters={"desc": ["preproc"]}).errors == ()


def test_travellers_of_a_manifest_are_kept_apart(scan: Scan, root: Path) -> None:
    write_raw(scan, root, "x")
    rows = [{"subject": 1, "site": site, "dwi": "x.nii.gz"} for site in ("a", "b")]
    dataset = find_scans(write_table(root / "scans.tsv", rows))
    assert dataset.errors == ()
    assert [files.entities["ses"] for files in dataset.scans] == ["a", "b"]


def test_sites_of_a_manifest_can_come_from_sessions(scan: Scan, root: Path) -> None:
    write_raw(scan, root, "x")
    row = {"subject": 1, "site": "n/a", "dwi": "x.nii.gz", "session": "late"}
    [files] = find_scans(write_table(root / "m.tsv", [row]), site_from="session").scans
    assert files.site == Site("late")


@pytest.mark.parametrize("word", ["bogus", "acq"])
def test_sites_from_an_entity_that_no_name_has_are_refused(
    scan: Scan, root: Path, word: str
) -> None:
    _write(scan, root, "sub-01_ses-a_dwi")
    with pytest.raises(DatasetError, match="choose from ses, sub"):
        find_scans(root, site_from=word)


def test_tables_are_read_as_people_write_them(scan: Scan, root: Path) -> None:
    for name in ("sub-01_ses-a_dwi", "sub-02_dwi", "sub-03_dwi"):
        _write(scan, root, name)
    text = 'Participant_ID\tSite\tnote\n01\tnorth\t5" coil\n\nsub-02\tNA\tn/a\nsub-03\tsouth\t"\n'
    (root / "participants.tsv").write_text(text)
    dataset = find_scans(root)
    assert [str(files.site) for files in dataset.scans] == ["north", "None", "south"]
    (root / "participants.tsv").write_text(text + "sub-01\twest\tagain\n")
    assert "sub-01 is listed twice" in str(find_scans(root).errors[0])


def test_the_first_of_many_people_listed_twice_is_named(scan: Scan, root: Path) -> None:
    _write(scan, root, "sub-01_dwi")
    people = [{"participant_id": f"sub-{number:02d}"} for number in range(20)]
    write_table(root / "participants.tsv", [*people, *people])
    [error] = find_scans(root).errors
    assert "sub-00 is listed twice" in str(error)


def test_misnamed_files_do_not_stop_the_search(scan: Scan, root: Path) -> None:
    write_raw(scan, root / "sub-01" / "dwi", "sub-09_dwi")
    assert [files.name for files in find_scans(root).scans] == ["sub-09_dwi"]


def test_a_missing_dataset_is_named(root: Path) -> None:
    with pytest.raises(MissingFileError, match="nowhere"):
        find_scans(root / "nowhere")


def test_manifest_paths_are_relative_to_it_and_defaults_lie_beside(scan: Scan, root: Path) -> None:
    image = write_raw(scan, root / "scans", "first scan.v2")
    mask = write_mask(scan.mask, scan.affine, root / "masks" / "m.nii.gz")
    rows = [
        {"subject": "sub-1", "site": "a", "dwi": "scans/first scan.v2.nii.gz", "mask": "n/a"},
        {"subject": "2", "site": "n/a", "dwi": os.fspath(image), "mask": "masks/m.nii.gz"},
    ]
    first, second = find_scans(write_table(root / "scans.tsv", rows)).scans
    assert (first.subject, second.subject) == ("1", "2")
    assert first.site == Site("a")
    assert second.site is None
    assert first.bvec == root / "scans" / "first scan.v2.bvec"
    assert (first.mask, second.mask) == (None, mask)
    assert read_scan(first).mask_origin.startswith("computed")


def test_manifest_without_its_columns_is_refused_with_what_was_found(root: Path) -> None:
    path = write_table(root / "scans.tsv", [{"subject": "1", "path": "x"}])
    with pytest.raises(DatasetError, match=r"site, dwi, found subject \| path; add site, dwi"):
        find_scans(path)


def test_probabilities_count_from_one_half_and_only_in_the_brain(scan: Scan, root: Path) -> None:
    _write(scan, root, "sub-01_dwi")
    folder = root / "sub-01" / "dwi"
    write_mask(scan.mask, scan.affine, folder / "sub-01_desc-brain_mask.nii.gz")
    chance = np.where(scan.white_matter, 0.6, 0.4).astype(np.float32)
    chance[~scan.mask] = 0.9
    image = nib.Nifti1Image(chance, scan.affine)
    image.to_filename(folder / "sub-01_label-WM_probseg.nii.gz")
    [files] = find_scans(root).scans
    assert np.array_equal(read_scan(files).white_matter, scan.white_matter)


def test_an_explicit_bvec_goes_before_a_world_table(scan: Scan, root: Path) -> None:
    image = write_raw(scan, root, "x")
    (root / "x.b").write_text("not used")
    row = {"subject": 1, "site": "a", "dwi": image.name, "bvec": "x.bvec"}
    [files] = find_scans(write_table(root / "m.tsv", [row])).scans
    np.testing.assert_allclose(read_scan(files).gradients.bvecs, scan.gradients.bvecs, atol=1e-5)


@pytest.mark.parametrize("generated_by", [{"Name": "qsiprep"}, [{"Name": "QSIPrep"}], 3])
def test_qsiprep_is_known_by_whatever_form_its_description_has(
    lps_scan: Scan, root: Path, generated_by: dict[str, str] | int | list[dict[str, str]]
) -> None:
    _qsiprep(lps_scan, root)
    (root / "dataset_description.json").write_text(json.dumps({"GeneratedBy": generated_by}))
    [files] = find_scans(root).scans
    assert files.written_by_qsiprep == (generated_by != 3)


def _qsiprep(scan: Scan, root: Path) -> Path:
    """Write a scan as QSIPrep does: LPS+, b-vectors along the image's axes, and a .b file."""
    description = {"Name": "out", "BIDSVersion": "1.9.0", "GeneratedBy": [{"Name": "QSIPrep"}]}
    (root / "dataset_description.json").write_text(json.dumps(description))
    image = _write(scan, root, "sub-01_space-ACPC_desc-preproc_dwi")
    axes = scan.affine[:3, :3] / np.linalg.norm(scan.affine[:3, :3], axis=0)
    np.savetxt(
        image.with_name(image.name.replace(".nii.gz", ".bvec")), (scan.gradients.bvecs @ axes).T
    )
    table = np.column_stack([scan.gradients.bvecs, scan.gradients.bvals])
    world = image.with_name(image.name.replace(".nii.gz", ".b"))
    np.savetxt(world, table, header="command_history: mrconvert")
    mask = root / "sub-01" / "dwi" / "sub-01_space-ACPC_desc-brain_mask.nii.gz"
    write_mask(scan.mask, scan.affine, mask)
    return world


@pytest.fixture(scope="module")
def lps_scan() -> Scan:
    from phantoms import centred_affine

    affine = centred_affine(rotation=np.diag([-1.0, -1.0, 1.0]))
    return make_scan(make_gradients(ONE_SHELL), affine=affine)


def test_qsiprep_gradients_come_from_the_world_table(lps_scan: Scan, root: Path) -> None:
    world = _qsiprep(lps_scan, root)
    [files] = find_scans(root).scans
    assert files.world_table == world
    read = read_scan(files)
    np.testing.assert_allclose(read.gradients.bvecs, lps_scan.gradients.bvecs, atol=1e-6)
    assert np.array_equal(read.mask, lps_scan.mask)


def test_qsiprep_vectors_without_the_world_table_are_refused_not_guessed(
    lps_scan: Scan, root: Path
) -> None:
    _qsiprep(lps_scan, root).unlink()
    [files] = find_scans(root).scans
    with pytest.raises(GradientTableError, match="do not follow FSL's convention"):
        read_scan(files)
    row = {"subject": "01", "site": "a", "dwi": os.path.relpath(files.dwi, root)}
    [listed] = find_scans(write_table(root / "manifest.tsv", [row])).scans
    with pytest.raises(GradientTableError, match="do not follow FSL's convention"):
        read_scan(listed)
