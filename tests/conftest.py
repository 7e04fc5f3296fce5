import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=40)
settings.load_profile("ci")


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
