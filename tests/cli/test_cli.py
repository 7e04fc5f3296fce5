import json
import subprocess
import sys

import pytest

from phantoms import make_gradients, make_scan, write_raw, write_table
from siteless.cli import main


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
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


def _run(*words):
    command = [sys.executable, "-m", "siteless", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_check_reports_in_lines_when_piped(manifest, tmp_path):
    shown = _run("check", manifest, "--json", tmp_path / "out.json")
    assert shown.returncode == 1
    [error, summary] = shown.stdout.splitlines()
    assert error.startswith(f"error: {manifest.parent / 's1.bvec'}: the gradient table does not")
    assert "z has the wrong sign" in error
    assert summary == "6 scans of 2 sites: 1 error, 0 warnings"
    assert "6 of 6" in shown.stderr
    assert (
        json.loads((tmp_path / "out.json").read_text())["problems"][0]["code"] == "gradient-axes"
    )


def test_exit_code_is_zero_without_errors(manifest, capsys):
    words = ["check", str(manifest), "--participant-label", "0", "2", "4", "--nprocs", "1"]
    assert main(words) == 0
    assert "3 scans of 1 site: 0 errors, 1 warning" in capsys.readouterr().out


def test_filter_files_choose_scans(manifest, tmp_path, capsys):
    filters = tmp_path / "filters.json"
    filters.write_text(json.dumps({"dwi": {"subject": ["0", "2", "4"], "datatype": "dwi"}}))
    assert main(["check", str(manifest), "--bids-filter-file", str(filters), "--nprocs", "1"]) == 0
    assert "3 scans" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "nowhere"], "nowhere: there is no such file"),
        (["check", ".", "--participant-label", "x"], ".: no diffusion scan was found"),
        (["check", ".", "--bids-filter-file", "none.json"], "none.json: the filter file cannot"),
    ],
)
def test_errors_are_one_line_and_exit_code_one(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"siteless: {message}")


def test_an_output_that_cannot_be_written_is_one_line(manifest, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    words = ["check", str(manifest), "--nprocs", "1", "--json", str(tmp_path / "file" / "x.json")]
    assert main(words) == 1
    assert "cannot write here" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("words", [["--help"], ["check", "--help"], ["--version"]])
def test_help_needs_no_heavy_import(words):
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
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_interrupted_work_ends_with_a_line(manifest, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("siteless.pipelines.check_dataset", interrupted)
    assert main(["check", str(manifest)]) == 130
    assert capsys.readouterr().err.splitlines() == ["siteless: interrupted"]
