from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siteless.acquisition import Scan, Site
from siteless.bids import ScanFiles, find_scans, read_scan
from siteless.errors import DatasetError
from siteless.methods import Invariant, budget, store
from siteless.methods.budget import Budget
from siteless.methods.cohort import Cohort
from siteless.methods.store import ScanStore
from siteless.model import _preparation
from siteless.pipelines import FitFiles, Run, fit_model
from training_scans import PREPARATION, QUICK, write_study

SHAPE = (10, 10, 10, 20)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class _Header:
    def get_data_shape(self) -> tuple[int, int, int, int]:
        return SHAPE


def _cohort(labels: Sequence[str], validating: int = 0) -> Cohort:
    scans = tuple(
        ScanFiles(Path(f"{number}.nii.gz"), {"sub": str(number)}, site=Site(label))
        for number, label in enumerate(labels)
    )
    split = len(scans) - validating
    sites = tuple(dict.fromkeys(labels))
    return Cohort(scans[:split], scans[split:], (), (), sites, PREPARATION.shells, 4)


def _budget(share: float, cohort: Cohort) -> Budget:
    size = budget._bytes_of(SHAPE, PREPARATION, with_signal=True)
    with patch.object(budget, "read_header", lambda _: (_Header(), None)):
        limit = share * len(cohort.scans) * size
        return Budget.within(limit, cohort, PREPARATION, with_signal=True)


@given(
    st.lists(st.sampled_from("abc"), min_size=3, max_size=30),
    st.floats(0.0, 2.0),
    st.integers(0, 3),
)
def test_sites_share_a_budget_alike_and_some_scans_validate(
    labels: list[str], share: float, validating: int
) -> None:
    cohort = _cohort([*labels, *"abc"[:validating]], validating)
    try:
        chosen = _budget(share, cohort)
    except DatasetError:
        least = len(cohort.sites) + min(1, validating)
        assert 0.8 * share * len(cohort.scans) < least
        return
    if share > 1:
        assert chosen == Budget()
    counts = {
        site: sum(chosen.keeps_signal(scan) for scan in cohort.learning if str(scan.site) == site)
        for site in cohort.sites
    }
    poorer = [counts[site] for site in counts if counts[site] < labels.count(site)]
    assert all(max(poorer) - 1 <= count for count in poorer)
    assert all(counts[site] for site in set(labels))
    kept = sum(map(chosen.keeps_signal, cohort.validating))
    assert kept >= min(1, validating)
    assert sum(counts.values()) + kept <= max(1, share) * len(cohort.scans)


def test_the_reference_group_comes_first() -> None:
    cohort = _cohort("a" * 10 + "b" * 10)
    controls = (*cohort.learning[5:10], *cohort.learning[15:])
    chosen = _budget(0.5, replace(cohort, reference=controls))
    kept = [scan for scan in cohort.learning if chosen.keeps_signal(scan)]
    assert kept
    assert all(scan in controls for scan in kept)


def test_a_signal_that_is_stored_is_the_scans_own(tmp_path: Path) -> None:
    files = find_scans(write_study(tmp_path / "data", people=1)).scans[0]
    kept = ScanStore(tmp_path / "work", PREPARATION)
    kept.make(files, features={}, with_signal=True)
    scan, stored = read_scan(files), kept.signal(files)
    np.testing.assert_array_equal(stored.signal[scan.mask], scan.signal[scan.mask])
    np.testing.assert_array_equal(stored.white_matter, scan.white_matter)
    np.testing.assert_array_equal(stored.affine, scan.affine)
    np.testing.assert_array_equal(stored.gradients.b, scan.gradients.b)
    np.testing.assert_array_equal(stored.gradients.directions, scan.gradients.directions)


def test_each_scan_is_read_and_denoised_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_study(tmp_path / "data", people=3)
    read, denoised = [], []

    def read_counted(files: ScanFiles) -> Scan:
        read.append(files.name)
        return read_scan(files)

    def denoise_counted(scan: Scan, _: str) -> Scan:
        denoised.append(scan.name)
        return scan

    monkeypatch.setattr(store, "read_scan", read_counted)
    monkeypatch.setattr(_preparation, "denoise", denoise_counted)
    method = Invariant(training=replace(QUICK, updates=10), denoise=True)
    fit_model(manifest, tmp_path / "m.safetensors", method, run=Run(nprocs=1))
    names = sorted(scan.name for scan in find_scans(manifest).scans)
    assert sorted(read) == names
    assert sorted(denoised) == names


def test_a_work_folder_stays_within_its_size(tmp_path: Path) -> None:
    manifest = write_study(tmp_path / "data", people=6)
    method = Invariant(training=replace(QUICK, updates=10))
    sizes = {}
    files = find_scans(manifest).scans[0]
    scan = read_scan(files)
    brain, white = scan.mask.mean(), scan.white_matter.mean()
    with patch.multiple(budget, _BRAIN=brain, _WHITE_MATTER=white):
        preparation = replace(PREPARATION, order=6)
        whole = 12 * budget._bytes_of(scan.signal.shape, preparation, with_signal=True)
        for share in (1.0, 0.6):
            model = tmp_path / f"{share}.safetensors"
            work_gb = share * whole / 1e9
            fitted = fit_model(manifest, model, method, work_gb=work_gb, run=Run(nprocs=1))
            sizes[share] = _size(FitFiles(model).work)
            summary = fitted.card.summary
            assert summary["training_scans"] == {"a": 5, "b": 5}
            assert (summary["network_scans"] < 10) == (share < 1)
            assert summary["validation_people"]
    assert sizes[0.6] < 1.1 * 0.6 * whole
    assert sizes[0.6] < 0.75 * sizes[1.0]


def test_patches_of_a_sample_lie_at_the_same_places(tmp_path: Path) -> None:
    manifest = write_study(tmp_path / "data", people=3)
    whole = ScanStore(tmp_path / "whole", PREPARATION)
    files = find_scans(manifest).scans
    sampled = ScanStore(tmp_path / "sampled", PREPARATION, Budget(patches=200))
    for scan in files[:2]:
        whole.make(scan, features={}, with_signal=False)
        sampled.make(scan, features={}, with_signal=False)
    first, second = (set(sampled.patches(scan).voxels.tolist()) for scan in files[:2])
    assert len(first) == 200
    assert len(first & second) > 150
    full, sample = whole.patches(files[0]), sampled.patches(files[0])
    rows = np.searchsorted(full.voxels, sample.voxels)
    np.testing.assert_array_equal(full.signal[rows], sample.signal)
    np.testing.assert_array_equal(
        full.values[full.neighbours[rows]], sample.values[sample.neighbours]
    )
