import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from phantoms import make_gradients, make_scan, write_mask, write_raw, write_table
from siteless.methods import Invariant
from siteless.pipelines import Run, _parallel, fit_model
from training_scans import QUICK, SHELLS

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("ci")

# Folders of the tests that take longest. Files are given out in the order of tests, and a long one
# at the end would leave the other processes idle.
_FIRST = [Path(__file__).with_name(name) for name in ("end_to_end", "experiments", "pipelines")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    items.sort(key=lambda item: _order(item.path))


def _order(path: Path) -> int:
    return next((n for n, folder in enumerate(_FIRST) if folder in path.parents), len(_FIRST))


@pytest.fixture(scope="session", autouse=True)
def _one_process_by_default() -> Iterator[None]:
    """Start no process that a test does not ask for: the suite has a process a core itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_parallel, "available_cpus", lambda: 1)
        yield


@pytest.fixture(scope="session")
def realscans() -> Path:
    """Folder of real scans from five vendors, when the machine has one."""
    folder = os.environ.get("SITELESS_REALSCANS")
    if not folder or not Path(folder).is_dir():
        pytest.skip("SITELESS_REALSCANS names no folder of real scans")
    return Path(folder)


@pytest.fixture
def mrtrix() -> None:
    if shutil.which("mrinfo") is None:
        pytest.skip("MRtrix3 is not installed")


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two people at two sites, as a BIDS dataset, and a model of them beside it."""
    root = tmp_path_factory.mktemp("study v1.0")
    data = root / "data"
    for person in ("01", "02"):
        rows = [{"session_id": f"ses-{site}", "site": site} for site in "ab"]
        write_table(data / f"sub-{person}" / f"sub-{person}_sessions.tsv", rows)
        for site in "ab":
            folder = data / f"sub-{person}" / f"ses-{site}" / "dwi"
            stem = f"sub-{person}_ses-{site}"
            scan = make_scan(make_gradients(SHELLS, seed="ab".index(site)), seed=int(person))
            write_raw(scan, folder, f"{stem}_dwi")
            write_mask(scan.mask, scan.affine, folder / f"{stem}_desc-brain_mask.nii.gz")
            write_mask(scan.white_matter, scan.affine, folder / f"{stem}_label-WM_mask.nii.gz")
    fit_model(
        data,
        root / "m.safetensors",
        Invariant(training=replace(QUICK, updates=40)),
        run=Run(nprocs=1),
    )
    return root
