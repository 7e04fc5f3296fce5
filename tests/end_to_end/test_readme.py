"""What the README shows runs as it is written."""

import contextlib
import io
import re
import subprocess
import sys
import zlib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from phantoms import ONE_SHELL, make_gradients, make_scan, write_raw, write_table
from siteless.cli import bids_main, main
from siteless.methods.invariant.training import _adapt

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readme")
    rows = [{"session_id": f"ses-{name}", "site": name} for name in ("berlin", "leeds")]
    for subject in ("sub-01", "sub-02", "sub-03", "sub-04"):
        person = folder / "my_study" / subject
        write_table(person / f"{subject}_sessions.tsv", rows)
        for row in rows:
            stem = f"{subject}_{row['session_id']}_dwi"
            scan = make_scan(make_gradients(ONE_SHELL), seed=zlib.crc32(stem.encode()))
            write_raw(scan, person / row["session_id"] / "dwi", stem)
    new = write_raw(make_scan(make_gradients(ONE_SHELL), seed=9), folder / "new", "new")
    scan_of_new = {"subject": "05", "site": "leipzig", "dwi": new.relative_to(folder)}
    write_table(folder / "new_scans.tsv", [scan_of_new])
    return folder


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[tuple[str, int | str | None, str, str]]:
    """Run every command as it is written, but for less time.

    The experiment takes a quarter of an hour and the demo some minutes: slow tests run them.
    """
    lines = [line for block in _blocks("console") for line in block.splitlines()]
    commands = [line.split() for line in lines if line.startswith("siteless")]
    assert ["siteless", "check", "my_study"] in commands
    commands = [words for words in commands if words[1] not in ("reproduce", "demo")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_adapt, "_UPDATES", 20)  # for which there is no option
        return [_run(folder, words) for words in commands]


# What makes a command quick.
QUICK = {
    "simulate": ["--nprocs", "1", "--sites", "prisma30", "prisma60"],
    "fit": ["--nprocs", "1", "--epochs", "1"],
    "group": ["--nprocs", "1", "--epochs", "1"],
    "rish": ["--nprocs", "1", "--same-space"],
    "evaluate": ["--nprocs", "1", "--scores", "signal", "maps", "leakage"],
    "as_average": ["--no-report"],
    "rish_as_berlin": ["--no-report"],
    "harmonize": ["--nprocs", "1"],
    "encode": ["--nprocs", "1"],
    "adapt": ["--nprocs", "1"],
    "participant": ["--nprocs", "1"],
}


PROGRAMS = {"siteless": main, "siteless-bids": bids_main}


def _run(folder: Path, words: list[str]) -> tuple[str, int | str | None, str, str]:
    """Return a command, its exit code and what it has printed."""
    program, *given = words
    kinds = set(given) - ({"fit"} if "rish" in given else set())
    more = [option for kind in sorted(kinds & set(QUICK)) for option in QUICK[kind]]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), redirect_stdout(out), redirect_stderr(err):
        try:
            code: int | str | None = PROGRAMS[program]([*given, *more])
        except SystemExit as stop:  # as --help does
            code = stop.code
    return " ".join(words), code, out.getvalue(), err.getvalue()


def test_siteless_commands_run(runs: list[tuple[str, int | str | None, str, str]]) -> None:
    for command, code, out, err in runs:
        assert code == 0, f"{command}\n{out}{err}"
        assert out, command


def test_programs_are_installed() -> None:
    for program in PROGRAMS:
        command: list[str | Path] = [Path(sys.executable).with_name(program), "--version"]
        assert subprocess.run(command, capture_output=True, check=True).stdout


@pytest.mark.usefixtures("runs")
def test_python_runs(folder: Path) -> None:
    [code] = _blocks("python")
    checks = "assert signal.shape == (len(coefficients.values), len(scan.gradients))"
    command = [sys.executable, "-c", f"{code}\n{checks}"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_make_commands_are_there() -> None:
    makefile = (README.parent / "Makefile").read_text()
    targets = re.findall(r"^make (\w+)", README.read_text(), flags=re.MULTILINE)
    assert set(targets) >= {"demo", "test"}
    for target in targets:
        assert re.search(rf"^{target}:.*## ", makefile, flags=re.MULTILINE)
