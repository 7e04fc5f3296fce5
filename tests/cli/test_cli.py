import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from phantoms import make_gradients, make_scan, write_raw, write_table
from siteless.cli import main


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six scans of two sites; the second scan's table has its z flipped."""
    root = tmp_path_factory.mktemp("cli data")
    rows = []
    for number in range(6):
        image = write_raw(make_scan(make_gradients(seed=number), seed=number), root, f"s{number}")
        rows.append({"subject": number, "site": "ab"[number % 2], "dwi": image.name})
    bvec = root / "s1.bvec"
    lines = bvec.read_text().splitlines()
    lines[2] = " ".join(str(-float(word)) for word in lines[2].split())
    bvec.write_text("\n".join(lines) + "\n")
    return write_table(root / "scans.tsv", rows)


def _run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "siteless", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_check_reports_in_lines_when_piped(manifest: Path, tmp_path: Path) -> None:
    process = _run("check", manifest, "--json", tmp_path / "out.json")
    assert process.returncode == 1
    [error, *sites, summary] = process.stdout.splitlines()
    assert sites == ["site a: 3 scans, by scans.tsv", "site b: 3 scans, by scans.tsv"]
    assert error.endswith("write lines 1, 2, -3 of the file as x, y, z, then check again")
    assert error.startswith(f"error: {manifest.parent / 's1.bvec'}: the gradient table does not")
    assert "z has the wrong sign" in error
    assert summary == "6 scans of 2 sites: 1 error, 0 warnings"
    assert "6 of 6" in process.stderr
    assert (
        json.loads((tmp_path / "out.json").read_text())["problems"][0]["code"] == "gradient-axes"
    )


def test_exit_code_is_zero_without_errors(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", str(manifest), "--participant-label", "0", "2", "4", "--nprocs", "1"]
    assert main(words) == 0
    assert "3 scans of 1 site: 0 errors, 1 warning" in capsys.readouterr().out


def test_filter_files_choose_scans(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filters = tmp_path / "filters.json"
    filters.write_text(
        json.dumps(
            {"dwi": {"subject": ["0", "2", "4"], "extension": "nii.gz", "acquisition": None}}
        )
    )
    assert main(["check", str(manifest), "--bids-filter-file", str(filters), "--nprocs", "1"]) == 0
    assert "3 scans" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"t1w": {"session": "a"}}, "expected filters under dwi, found none"),
        ({"dwi": {"sesion": "a"}}, "there is no entity 'sesion'; choose from subject, session"),
        ({"dwi": {"subject": ["0", "9"]}}, "no scan has sub-9; choose from 0, 1, 2, 3, 4, 5"),
    ],
)
def test_filters_that_choose_nothing_are_refused(
    manifest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: dict[str, dict[str, list[str] | str]],
    message: str,
) -> None:
    filters = tmp_path / "filters.json"
    filters.write_text(json.dumps(content))
    assert main(["check", str(manifest), "--bids-filter-file", str(filters)]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "nowhere"], "nowhere: there is no such file"),
        (["check", "."], ".: no diffusion scan was found"),
        (["check", ".", "--bids-filter-file", "none.json"], "none.json: the filter file cannot"),
    ],
)
def test_errors_are_one_line_and_exit_code_one(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"siteless: {message}")


def test_an_output_that_cannot_be_written_is_one_line(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("a user's own")
    for out, message in (
        (tmp_path / "file" / "x.json", "expected a file in a folder"),
        (tmp_path, "expected a file in a folder"),
        (tmp_path / "file", "exists and is no report of siteless"),
        (manifest, "exists and is no report of siteless"),
        (manifest.parent / "s0.json", "exists and is no report of siteless"),
    ):
        assert main(["check", str(manifest), "--json", str(out)]) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert message in line
    assert (tmp_path / "file").read_text() == "a user's own"


def test_reports_are_not_written_into_a_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path), "--json", str(tmp_path / "report.json")]) == 1
    assert "inside the dataset" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_gets_a_table(manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(record=True, width=100, force_terminal=True, file=io.StringIO())
    monkeypatch.setattr("siteless.cli._console.stdout", lambda: console)
    assert main(["check", str(manifest), "--nprocs", "1"]) == 1
    text = console.export_text()
    for words in ("Errors", "what is wrong", "s1.bvec", "z has the wrong sign", "site a: 3 scans"):
        assert words in text
    assert "Warnings" not in text


def test_a_reader_that_leaves_early_is_no_error(manifest: Path) -> None:
    command = f"{sys.executable} -m siteless check '{manifest}' --nprocs 1 | true"
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert "Traceback" not in process.stderr
    assert "BrokenPipe" not in process.stderr


@pytest.mark.parametrize("words", [["--help"], ["check", "--help"], ["--version"]])
def test_help_needs_no_heavy_import(words: list[str]) -> None:
    code = f"""
import sys
from siteless.cli import main
try:
    main({words!r})
except SystemExit as stop:
    assert stop.code == 0
heavy = {{"numpy", "scipy", "nibabel", "dipy", "rich", "torch"}} & set(sys.modules)
assert not heavy, heavy
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_interrupted_work_ends_with_a_line(
    manifest: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("siteless.pipelines.check_dataset", interrupted)
    assert main(["check", str(manifest)]) == 130
    assert capsys.readouterr().err.splitlines() == ["siteless: interrupted"]


@pytest.mark.parametrize("module", ["siteless.cli", "siteless.pipelines._check", "siteless.bids"])
def test_torch_is_imported_only_where_it_is_needed(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_simulated_cohort_is_named_with_its_brackets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("siteless.pipelines.simulate_cohort", lambda out, *_, **__: out)
    assert main(["simulate", "cohort[a]", "--preset", "tiny"]) == 0
    assert capsys.readouterr().out == "12 scans of 3 people at 4 sites: cohort[a]\n"


@pytest.mark.parametrize("command", ["adapt m d --site s --out o", "fit d --model m", "demo d"])
def test_seeds_are_natural_numbers(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--seed", "-1"])
    assert "expected a whole number of at least 0" in capsys.readouterr().err
