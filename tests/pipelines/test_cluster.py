"""A real scheduler with real workers, and processes that are killed."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from phantoms import RENDER, load_image
from siteless.cli import main
from siteless.pipelines import Run, harmonize_dataset

DASK = Path(sys.executable).with_name("dask")
# Seconds within which processes must start.
PATIENCE = 60


def _wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Path, list[subprocess.Popen[bytes]]]]:
    """A scheduler's file and the processes of two workers."""
    scheduler = tmp_path / "scheduler.json"
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    started = [
        subprocess.Popen([DASK, "scheduler", *local, "--port", "0", "--scheduler-file", scheduler])
    ]
    _wait_for(lambda: scheduler.exists() and scheduler.read_text().strip())
    words = ["worker", "--scheduler-file", str(scheduler), "--nthreads", "1", "--no-nanny", *local]
    words += ["--local-directory", str(tmp_path)]
    started += [subprocess.Popen([str(DASK), *words]) for _ in range(2)]
    yield scheduler, started[1:]
    for process in started:
        process.kill()
        process.wait()


def _bytes(root: Path) -> dict[Path, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root): path.read_bytes() for path in paths}


def _more_people(study: Path, tmp_path: Path) -> Path:
    """Copy a study, with the same scans under more names."""
    data = tmp_path / "data"
    shutil.copytree(study / "data", data)
    for person in ("03", "04", "05", "06"):
        for path in sorted((study / "data" / "sub-01").rglob("*")):
            copy = data / str(path.relative_to(study / "data")).replace("sub-01", f"sub-{person}")
            if path.is_file():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, copy)
    return data


def test_a_cluster_writes_the_same_bytes_though_a_worker_dies(
    study: Path, tmp_path: Path, cluster: tuple[Path, list[subprocess.Popen[bytes]]]
) -> None:
    scheduler, workers = cluster
    data = _more_people(study, tmp_path)
    broken = data / "sub-04/ses-b/dwi/sub-04_ses-b_dwi.nii.gz"
    broken.write_bytes(broken.read_bytes()[:-3000])
    serial = harmonize_dataset(
        data, tmp_path / "serial", study / "m.safetensors", "b", run=Run(nprocs=1)
    )
    assert len(serial.written) == 11
    words = [*RENDER, str(data), str(tmp_path / "cluster"), "--to", "b", "--model"]
    words += [str(study / "m.safetensors"), "--dask", str(scheduler)]
    log = tmp_path / "log"
    with log.open("w") as stream:
        run = subprocess.Popen(
            [sys.executable, "-m", "siteless", *words], stdout=stream, stderr=stream
        )
    _wait_for(lambda: list((tmp_path / "cluster").rglob("*harmonized_dwi.nii.gz")))
    workers[0].kill()
    assert run.wait(PATIENCE) == 1
    lines = log.read_text().splitlines()
    # What the dead worker has written, but not reported, another worker finds there already.
    assert re.search(r"1[01] scans rendered as b, (1 there already, )?1 failed", lines[-1])
    [error] = [line for line in lines if line.startswith("siteless: ")]
    assert str(broken) in error
    ours = _bytes(tmp_path / "cluster")
    ours = {path: content for path, content in ours.items() if ".siteless-" not in str(path)}
    assert ours == _bytes(tmp_path / "serial")


def test_what_a_killed_run_leaves_is_not_taken_for_a_result(study: Path, tmp_path: Path) -> None:
    data, out = _more_people(study, tmp_path), tmp_path / "out"
    words = ["-m", "siteless", *RENDER, str(data), str(out), "--to", "b"]
    words += ["--model", str(study / "m.safetensors"), "--nprocs", "2"]
    run = subprocess.Popen([sys.executable, *words], stderr=subprocess.DEVNULL)
    _wait_for(lambda: list(out.rglob(".siteless-*/*harmonized_dwi.nii.gz")))
    workers = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    run.send_signal(signal.SIGKILL)
    run.wait(PATIENCE)
    _wait_for(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    images = [path for path in out.rglob("*.nii.gz") if ".siteless-" not in str(path)]
    for image in images:
        assert np.isfinite(load_image(image).get_fdata()).all()
    report = harmonize_dataset(data, out, study / "m.safetensors", "b", run=Run(nprocs=1))
    assert len(report.written) + len(report.skipped) == 12
    assert report.written
    assert not list(out.rglob(".siteless-*"))


def test_a_run_that_is_asked_to_end_does_so_with_its_workers(study: Path, tmp_path: Path) -> None:
    data, out = _more_people(study, tmp_path), tmp_path / "out"
    words = ["-m", "siteless", *RENDER, str(data), str(out), "--to", "b"]
    words += ["--model", str(study / "m.safetensors"), "--nprocs", "2"]
    run = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
    _wait_for(lambda: list(out.rglob("*harmonized_dwi.nii.gz")))
    run.send_signal(signal.SIGTERM)
    _, output = run.communicate(timeout=PATIENCE)  # waits for all that hold its stderr
    assert run.returncode == 130
    assert output.splitlines()[-1] == "siteless: interrupted; run it again to go on"


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    study: Path, tmp_path: Path
) -> None:
    """A limit on the size of files stands in for the disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    words = ["-m", "siteless", *RENDER, str(study / "data"), str(tmp_path), "--to", "b"]
    words += ["--model", str(study / "m.safetensors"), "--nprocs", "1"]
    run = subprocess.run(
        [sys.executable, *words], preexec_fn=limit, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    [line] = run.stderr.splitlines()
    assert "cannot write here (File too large); check space and permissions" in line
    assert not list(tmp_path.rglob("sub-*/**/*.*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_is_one_line(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    words = [*RENDER, str(study / "data"), str(tmp_path / "out"), "--to", "b"]
    assert main([*words, "--model", str(study / "m.safetensors")]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "cannot write here (Permission denied)" in line
