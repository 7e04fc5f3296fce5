"""What the pages of the documentation show runs as it is written."""

import re
import shlex
import zlib
from pathlib import Path

import numpy as np
import pytest

import siteless
from phantoms import (
    ONE_SHELL,
    make_gradients,
    make_scan,
    write_mask,
    write_raw,
    write_table,
)
from siteless.cli import bids_main, main
from siteless.cli._bids_app import _parser as bids_parser
from siteless.cli._main import make_parser
from siteless.methods.invariant.training import _adapt

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page.name for page in DOCS.glob("*.md"))
SITES = ("berlin", "leeds")

# Commands that are not run, by words that identify them, and why.
NOT_RUN = {
    "siteless reproduce": "takes a quarter of an hour: a slow test runs it",
    "--dask": "needs a scheduler: tests/pipelines/test_cluster.py starts one",
    "--device cuda": "needs a GPU",
    "--preset small": "takes a minute: the tiny preset of the five-minute start is run",
    "check cohort": "needs the small preset",
    "on_harmony": "needs ds004712, preprocessed",
    "sdsu": "needs ds005664, preprocessed",
    "masivar": "needs ds003416, preprocessed",
}
# What a page takes for granted, made in the quickest way.
SCALED = "siteless fit my_study --model my_study.safetensors --method scaled"
RENDERED = "siteless harmonize my_study {} --model my_study.safetensors --to berlin"
BEFORE = {
    "harmonizing.md": [SCALED],
    "reading_the_report.md": [
        SCALED,
        RENDERED.format("as_berlin"),
        "siteless evaluate my_study --harmonized as_berlin --out scores",
    ],
    "evaluating.md": [SCALED, RENDERED.format("as_berlin"), RENDERED.format("rish_as_berlin")],
}
# What makes a command quick: the last of an option counts.
QUICK = {
    "simulate": ["--nprocs", "1"],
    "check": ["--nprocs", "1"],
    "harmonize": ["--nprocs", "1", "--no-report"],
    "encode": ["--nprocs", "1"],
    "adapt": ["--nprocs", "1"],
    "evaluate": ["--nprocs", "1", "--scores", "signal", "--no-report"],
    "report": ["--nprocs", "1"],
    "group": ["--nprocs", "1", "--epochs", "1"],
    "participant": ["--nprocs", "1"],
}
# The designs as they are shown, of few people and large voxels.
QUICK_DESIGN = ["--preset", "tiny", "--people-per-site", "2", "--test-people", "0"]
QUICK_FIT = {
    "invariant": ["--epochs", "1"],
    "rish": ["--same-space"],
    "combat": ["--same-space"],
    "scaled": [],
}


def _blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def _commands(page: str, language: str = "console") -> list[str]:
    """List what a page shows of siteless, without comments and where output goes."""
    text = "\n".join(_blocks(page, language)).replace("\\\n", " ")
    commands = re.findall(
        r"^(?:.*(?:\|\||exec \S+) )?(siteless(?:-bids)? .*)$", text, re.MULTILINE
    )
    return [re.split(r" +#| >>? ", command)[0].strip() for command in commands]


def _is_run(command: str) -> bool:
    return not any(words in command for words in NOT_RUN)


RUN = [page for page in PAGES if any(map(_is_run, _commands(page)))]


@pytest.fixture(scope="module")
def my_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four people at two sites, raw and as QSIPrep would leave them."""
    root = tmp_path_factory.mktemp("docs") / "my_study"
    rows = [{"session_id": f"ses-{site}", "site": site} for site in SITES]
    for person in ("sub-01", "sub-02", "sub-03", "sub-04"):
        write_table(root / person / f"{person}_sessions.tsv", rows)
        for site in SITES:
            _write_visit(root, person, site)
    new = root.parent / "new_scans"
    write_table(
        new / "sub-05" / "sub-05_sessions.tsv", [{"session_id": "ses-x", "site": "leipzig"}]
    )
    _write_visit(new, "sub-05", "x")
    description = '{"Name": "out", "BIDSVersion": "1.9.0", "GeneratedBy": [{"Name": "QSIPrep"}]}'
    (root / "derivatives" / "qsiprep" / "dataset_description.json").write_text(description)
    return root


def _write_visit(root: Path, person: str, site: str) -> None:
    visit, stem = Path(person, f"ses-{site}", "dwi"), f"{person}_ses-{site}"
    scan = make_scan(make_gradients(ONE_SHELL), seed=zlib.crc32(stem.encode()))
    preprocessed = root / "derivatives" / "qsiprep" / visit
    for folder, name in ((root / visit, ""), (preprocessed, "_space-ACPC_desc-preproc")):
        write_raw(scan, folder, f"{stem}{name}_dwi")
        space = name.partition("_desc")[0]
        write_mask(scan.mask, scan.affine, folder / f"{stem}{space}_desc-brain_mask.nii.gz")
    table = np.column_stack([scan.gradients.bvecs, scan.gradients.bvals])
    np.savetxt(preprocessed / f"{stem}_space-ACPC_desc-preproc_dwi.b", table)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_has_words_that_siteless_knows(page: str) -> None:
    for language in ("console", "bash"):
        for command in _commands(page, language):
            assert _is_known(*shlex.split(command)), command


def _is_known(program: str, *words: str) -> bool:
    try:
        _parse(program, *words)
    except SystemExit as stop:  # as --version does, with 0
        return stop.code == 0
    return True


def _parse(program: str, *words: str) -> None:
    if program == "siteless":
        make_parser().parse_args(words)
        return
    options, others = bids_parser().parse_known_args(words)
    places = {"group": ["fit", "d"], "participant": ["harmonize", "d", "o", "--to", "s"]}
    make_parser().parse_args([*places[options.level], "--model", "m", *others])


@pytest.mark.parametrize("page", RUN)
def test_commands_run(
    page: str,
    my_study: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_adapt, "_UPDATES", 20)  # for which there is no option
    for name in ("my_study", "new_scans"):
        (tmp_path / name).symlink_to(my_study.parent / name)
    for code in _blocks(page, "python") if page == "start.md" else ():
        exec(code, {})
    for command in [*BEFORE.get(page, ()), *filter(_is_run, _commands(page))]:
        ended = _run(*shlex.split(command))
        output = capsys.readouterr()
        assert ended == 0, f"{command}\n{output.out}{output.err}"
        assert output.out, command
    for path in re.findall(r"`(as_\S+\.nii\.gz)`", (DOCS / page).read_text()):
        assert (tmp_path / path).exists()


def _run(program: str, *words: str) -> int | str | None:
    if program == "siteless-bids":
        return bids_main([*words, *QUICK[words[2]]])
    try:
        return main([*words, *_quick(*words)])
    except SystemExit as stop:  # as --version does
        return stop.code


def _quick(name: str, *words: str) -> list[str]:
    if name != "fit":
        return [*QUICK.get(name, []), *(QUICK_DESIGN if "--design" in words else [])]
    method = words[words.index("--method") + 1] if "--method" in words else "invariant"
    return ["--nprocs", "1", *QUICK_FIT[method]]


def test_what_is_not_run_is_still_shown() -> None:
    commands = [command for page in PAGES for command in _commands(page)]
    assert all(any(words in command for command in commands) for words in NOT_RUN)


def test_public_datasets_are_listed_with_their_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    layout = {
        "ds004712/derivatives/qsiprep": {
            "sub-03286": ["OXF1PRI001", "NOT1ACH001"],
            "sub-14482": ["NOT1ACH001", "NOT1ACH002"],
        },
        "ds005664/derivatives/qsiprep": {"sub-ts001": ["cfmri1", "sdsu2"], "sub-ts008": ["sdsu1"]},
        "ds003416/derivatives/prequal-v1.0.0": {"sub-cIIs00": ["s1Bx1", "s2x1"]},
    }
    for folder, people in layout.items():
        for person, sessions in people.items():
            for session in sessions:
                _touch(Path(folder), person, session)
    exec("\n".join(_blocks("openneuro.md", "python")), {})
    listed = {
        table: {(s.subject, s.entities["ses"], str(s.site), s.attributes["split"]) for s in scans}
        for table in ("on_harmony", "sdsu", "masivar")
        if (scans := siteless.find_scans(f"{table}.tsv").scans)
    }
    assert listed == {
        "on_harmony": {
            ("03286", "OXF1PRI001", "OXF1PRI", "train"),
            ("03286", "NOT1ACH001", "NOT1ACH", "train"),
            ("14482", "NOT1ACH001", "NOT1ACH", "test"),
            ("14482", "NOT1ACH002", "NOT1ACH", "test"),
        },
        "sdsu": {
            ("ts001", "cfmri1", "cfmri", "train"),
            ("ts001", "sdsu2", "sdsu", "train"),
            ("ts008", "sdsu1", "sdsu", "test"),
        },
        "masivar": {
            ("cIIs00", "s1Bx1", "scanner1B", "train"),
            ("cIIs00", "s2x1", "scanner2", "train"),
        },
    }
    assert all(s.mask for s in siteless.find_scans("on_harmony.tsv").scans)


def _touch(root: Path, person: str, session: str) -> None:
    folder = root / person / f"ses-{session}" / "dwi"
    folder.mkdir(parents=True)
    stem = f"{person}_ses-{session}"
    if root.name == "qsiprep":
        (folder / f"{stem}_space-ACPC_desc-preproc_dwi.nii.gz").touch()
        (folder / f"{stem}_space-ACPC_desc-brain_mask.nii.gz").touch()
    else:
        (folder / f"{stem}_acq-b1000n32r25x25x25peAPP_run-112_dwi.nii.gz").touch()
        (folder / f"{stem}_acq-b2000n96r25x25x25peAPP_run-115_dwi.nii.gz").touch()


def test_the_interface_lists_every_public_name() -> None:
    documented = re.findall(r"auto\w+:: (\w+)$", (DOCS / "api.md").read_text(), flags=re.MULTILINE)
    assert sorted(documented) == sorted(siteless.__all__)
