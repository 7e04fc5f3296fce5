import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from phantoms import load_image, make_gradients, make_scan, write_raw, write_table
from siteless.acquisition import show_bs
from siteless.bids import ScanSelection, find_scans, read_scan
from siteless.cli import main
from siteless.errors import OutputError, TrainingError
from siteless.methods import Invariant, Rish, Scaled, harmonize, load_model, render
from siteless.pipelines import FitFiles, Run, check_dataset, encode_dataset, fit_model
from siteless.pipelines.fit._cohort import _split
from training_scans import QUICK, write_study


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = ["train", "train", "val", "test"]
    return write_study(tmp_path_factory.mktemp("some data v1.0"), split=splits)


@pytest.fixture(scope="module")
def fitted(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fit") / "a model.safetensors"
    fit_model(manifest, out, Invariant(training=QUICK), run=Run(nprocs=1))
    return out


def test_a_fit_leaves_the_model_its_log_and_a_picture(fitted: Path) -> None:
    files = FitFiles(fitted)
    assert sorted(path.name for path in fitted.parent.iterdir()) == [
        "a model.safetensors",
        "a model_log.tsv",
        "a model_losses.png",
        "a model_profiles.png",
        "a model_work",
    ]
    rows = files.log.read_text().splitlines()
    assert rows[0].split("\t")[:3] == ["update", "epoch", "train_loss"]
    assert [row.split("\t")[0] for row in rows[1:]] == ["20", "40", "60"]
    card = load_model(fitted).card
    assert set(card.sites) == {"a", "b"}
    assert card.preparation.shells == (1200.0, 3000.0)
    assert card.preparation.order == 6
    assert card.summary["training_people"] == ["0", "1"]
    assert card.summary["validation_people"] == ["2"]
    assert card.sites["a"].level == pytest.approx(1200, rel=0.05)


def test_the_same_fit_gives_the_same_bytes(fitted: Path, manifest: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.safetensors"
    fit_model(manifest, again, Invariant(training=QUICK), run=Run(nprocs=2))
    assert again.read_bytes() == fitted.read_bytes()


def test_coefficients_are_used_again(fitted: Path, manifest: Path, tmp_path: Path) -> None:
    work = FitFiles(fitted).work
    before = {path: path.stat().st_mtime_ns for path in work.rglob("patches/*")}
    assert before
    settings = replace(QUICK, updates=20)
    fit_model(
        manifest,
        tmp_path / "m.safetensors",
        Invariant(training=settings),
        work=work,
        run=Run(nprocs=1),
    )
    assert {path: path.stat().st_mtime_ns for path in work.rglob("patches/*")} == before


def test_a_finished_fit_is_resumed_at_once_and_not_overwritten(
    fitted: Path, manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fitted.read_bytes()
    again = fit_model(manifest, fitted, Invariant(training=QUICK), resume=True)
    assert again.identity == load_model(fitted).identity
    quick = Invariant(training=QUICK)
    for name, method, seed in (
        ("seed", quick, 1),
        ("tissue", replace(quick, tissue="brain"), 0),
        ("settings", Invariant(training=replace(QUICK, prior=0.7)), 0),
    ):
        with pytest.raises(OutputError, match=f"differs from what is asked for in {name}"):
            fit_model(manifest, fitted, method, resume=True, run=Run(seed=seed))
    assert main(["fit", str(manifest), "--model", str(fitted)]) == 1
    assert "the model is there already; choose another name" in capsys.readouterr().err
    assert fitted.read_bytes() == before


def test_info_is_for_people_and_machines(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(fitted)]) == 0
    output = capsys.readouterr().out
    identity = load_model(fitted).identity
    for text in (identity, "a: level ", "b0, b=1200, b=3000", "order 6", "laplace beltrami"):
        assert text in output
    assert main(["info", str(fitted), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["identity"] == identity


def test_encode_writes_images_and_a_table(
    fitted: Path, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "codes of scans"
    words = ["encode", str(manifest), str(out), "--model", str(fitted), "--nprocs", "1"]
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == str(out / "codes.tsv")
    rows = [line.split("\t") for line in (out / "codes.tsv").read_text().splitlines()]
    assert len(rows) == 1 + 8
    first = dict(zip(rows[0], rows[1], strict=True))
    image = load_image(out / first["image"]).get_fdata()
    white = load_image(manifest.parent / "s0a_wm.nii.gz").get_fdata() > 0
    assert image.shape == (*white.shape, 8)
    assert int(first["voxels"]) == white.sum()
    sidecar = json.loads((out / first["image"].replace(".nii.gz", ".json")).read_text())
    assert sidecar["Model"] == first["model"] == load_model(fitted).identity
    assert float(first["mean_3"]) == pytest.approx(image[white][:, 3].mean(), rel=1e-4, abs=1e-5)
    assert float(first["sd_0"]) == pytest.approx(image[white][:, 0].std(), rel=1e-3, abs=1e-5)


def test_rows_of_earlier_runs_are_kept_and_other_models_refused(
    fitted: Path, manifest: Path, tmp_path: Path
) -> None:
    out = tmp_path / "codes"
    for person in ("1", "0", "1"):
        table = encode_dataset(
            fitted, ScanSelection(manifest, filters={"sub": [person]}), out, run=Run(nprocs=1)
        )
    rows = table.read_text().splitlines()
    assert sorted(row.split("\t")[0] for row in rows[1:]) == ["sub-0"] * 2 + ["sub-1"] * 2
    other = tmp_path / "m.safetensors"
    fit_model(manifest, other, Invariant(training=replace(QUICK, updates=20)), run=Run(nprocs=1))
    with pytest.raises(OutputError, match="holds codes of another model"):
        encode_dataset(other, manifest, out, run=Run(nprocs=1))


def test_encode_names_what_it_cannot_encode_before_it_writes(
    fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    three = write_study(tmp_path / "three", people=1, sites="abc")
    out = tmp_path / "codes"
    words = ["encode", str(three), str(out), "--model", str(fitted), "--nprocs", "1"]
    assert main(words) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "s0c.nii.gz: the model has not learned the scan's site, c; expected one of a, b" in line
    assert not out.exists()
    assert main([*words, "--sites", "a", "b"]) == 0
    assert len((out / "codes.tsv").read_text().splitlines()) == 3


def test_scans_of_b0_only_are_left_out(fitted: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_study(root, people=2)
    write_raw(make_scan(make_gradients({})), root, "s9a")
    rows = [line.split("\t") for line in (root / "scans.tsv").read_text().splitlines()]
    records = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    more = {"subject": "9", "site": "a", "dwi": "s9a.nii.gz", "mask": "n/a", "wm_mask": "n/a"}
    manifest = write_table(root / "scans.tsv", [*records, more])
    settings = replace(QUICK, updates=20)
    model = fit_model(
        manifest, tmp_path / "m.safetensors", Invariant(training=settings), run=Run(nprocs=1)
    )
    assert model.card.summary["left_out"] == ["s9a"]
    table = encode_dataset(fitted, manifest, tmp_path / "codes", run=Run(nprocs=1))
    assert len(table.read_text().splitlines()) == 5


def test_a_model_that_was_fitted_again_is_read_again(manifest: Path, tmp_path: Path) -> None:
    tables = []
    for seed in (0, 1):
        out = tmp_path / "m.safetensors"
        out.unlink(missing_ok=True)
        fit_model(
            manifest,
            out,
            Invariant(training=replace(QUICK, updates=20)),
            run=Run(seed=seed, nprocs=1),
        )
        codes = tmp_path / f"codes {seed}"
        tables.append(encode_dataset(out, manifest, codes, run=Run(nprocs=1)).read_text())
    assert tables[0] != tables[1]


def _words(manifest: Path, out: Path, *words: str) -> list[str]:
    return ["fit", str(manifest), "--model", str(out), "--epochs", "6", "--nprocs", "1", *words]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute as a program whose environment has OMP_NUM_THREADS=1."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a fit that nothing has ended."""
    out = tmp_path_factory.mktemp("whole") / "model.safetensors"
    with _one_thread():
        assert main(_words(manifest, out)) == 0
    return out


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Let programs that a test starts heed SIGINT, which shells let background jobs ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_fit_goes_on_to_the_same_bytes(
    manifest: Path, whole: Path, tmp_path: Path, how: signal.Signals
) -> None:
    out = tmp_path / "out" / "model.safetensors"
    state = FitFiles(out).state
    process = subprocess.Popen(
        [sys.executable, "-m", "siteless", *_words(manifest, out)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not state.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(how)
    _, output = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -how)
    assert not out.exists()
    if how == signal.SIGINT:
        assert output.splitlines()[-1] == "siteless: interrupted; go on with --resume"
    with _one_thread():
        assert main(_words(manifest, out, "--resume")) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert not state.exists()


def test_another_fit_is_not_resumed(manifest: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"

    def interrupt(title: str) -> Callable[..., None]:
        def show(done: int, *_: object) -> None:
            if (title, done) == ("Training", 25):
                raise KeyboardInterrupt

        return show

    with pytest.raises(KeyboardInterrupt):
        fit_model(manifest, out, Invariant(training=QUICK), run=Run(nprocs=1, progress=interrupt))
    with pytest.raises(OutputError, match="an interrupted fit is there"):
        fit_model(manifest, out, Invariant(training=QUICK), run=Run(nprocs=1))
    with pytest.raises(TrainingError, match="other settings or other scans"):
        fit_model(
            manifest,
            out,
            Invariant(training=QUICK, tissue="brain"),
            resume=True,
            run=Run(nprocs=1),
        )


def test_splits_come_from_the_table_or_from_the_seed(manifest: Path) -> None:
    scans = find_scans(manifest).scans
    learning, validating = _split(scans, validate=True, seed=0)
    assert {scan.subject for scan in learning} == {"0", "1"}
    assert {scan.subject for scan in validating} == {"2"}
    bare = [replace(scan, attributes={}) for scan in scans]
    draws = {}
    for seed in range(8):
        learning, validating = _split(bare, validate=True, seed=seed)
        assert len(learning) == 6
        assert len(validating) == 2
        draws[seed] = validating[0].subject
        assert _split(bare, validate=True, seed=seed) == (learning, validating)
    assert len(set(draws.values())) > 1
    single = [scan for scan in bare if (scan.subject, str(scan.site)) in {("0", "a"), ("1", "b")}]
    assert _split(single, validate=True, seed=0) == (single, [])
    assert _split(bare, validate=False, seed=0) == (bare, [])
    learning, validating = _split(scans, validate=False, seed=0)
    assert ({scan.subject for scan in learning}, validating) == ({"0", "1"}, [])


def test_only_the_sites_that_are_named_are_learned(tmp_path: Path) -> None:
    root = tmp_path / "three"
    three = write_study(root, people=2, sites="abc")
    out = tmp_path / "m.safetensors"
    settings = replace(QUICK, updates=20)
    model = fit_model(
        ScanSelection(three, sites=["a", "c"]),
        out,
        Invariant(training=settings),
        run=Run(nprocs=1),
    )
    assert list(model.card.sites) == ["a", "c"]


def test_sites_of_other_shells_are_learned_and_rendered_at_common_b_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "study", people=3, shells={"b": {1000: 30, 2000: 30}})
    model = tmp_path / "m.safetensors"
    fitted = fit_model(study, model, Invariant(training=QUICK), run=Run(nprocs=1))
    assert fitted.preparation.shells == (1000.0, 2000.0)
    assert fitted.card.summary["interpolated"] == ["s0a", "s1a", "s2a"]
    out = tmp_path / "out"
    words = [str(w) for w in (study, out, "--model", model, "--to", "b", "--nprocs", "1")]
    assert main(["harmonize", *words, "--no-report"]) == 0
    assert "3 scans had no b=1000, b=2000" in capsys.readouterr().err
    for sidecar in out.rglob("*_dwi.json"):
        metadata = json.loads(sidecar.read_text())
        at_home = metadata["Siteless"]["SourceSite"] == "b"
        interpolated = metadata["SitelessFound"]["InterpolatedShells"]
        assert interpolated == ([] if at_home else [1000.0, 2000.0])
        bvals = np.loadtxt(sidecar.with_suffix(".bval"))
        assert set(np.unique(bvals)) == {0.0, 1000.0, 2000.0}
        assert len(bvals) == 2 + (60 if at_home else 40)


def test_shells_that_all_sites_have_are_taken_as_they_are(tmp_path: Path) -> None:
    shells = {"a": {700: 12, 1000: 20, 2000: 20}, "b": {1000: 20, 2010: 20, 3000: 12}}
    study = write_study(tmp_path / "study", people=3, shells=shells)
    fitted = fit_model(study, tmp_path / "m.safetensors", Scaled(), run=Run(nprocs=1))
    assert fitted.preparation.shells == (1000.0, 2005.0)
    rendering = render(fitted, read_scan(find_scans(study).scans[1]), "a")
    assert (rendering.interpolated, rendering.left_out) == ((), (3000.0,))
    assert len(rendering.scan.gradients) == 42


def test_a_fit_takes_the_shells_that_a_check_announces(tmp_path: Path) -> None:
    shells = {"a": {1000: 20, 3000: 20}, "b": {2000: 20, 3000: 20}}  # either would do for both
    study = write_study(tmp_path / "study", people=3, shells=shells)
    report = check_dataset(study, order=4, run=Run(nprocs=1))
    [problem] = [noted for noted in report.problems if noted.code == "differing-shells"]
    fitted = fit_model(study, tmp_path / "m.safetensors", Scaled(), run=Run(nprocs=1))
    assert f"interpolated at {show_bs(fitted.preparation.shells)};" in problem.remedy


@pytest.mark.parametrize(
    "method", [Scaled(), Rish(same_space=True)], ids=lambda method: method.name
)
def test_other_methods_take_other_shells_alike(tmp_path: Path, method: Rish | Scaled) -> None:
    study = write_study(tmp_path / "study", people=3, shells={"b": {1000: 30, 2000: 30}})
    fitted = fit_model(study, tmp_path / "m.safetensors", method, run=Run(nprocs=1))
    scan = read_scan(find_scans(study).scans[0])
    rendered = harmonize(fitted, scan, "b")
    assert [shell.b for shell in rendered.gradients.shells] == [1000.0, 2000.0]
    there = read_scan(find_scans(study).scans[1])
    for shell, b in zip(there.gradients.shells, (1000.0, 2000.0), strict=True):
        ours = next(s.volumes for s in rendered.gradients.shells if s.b == b)
        means = [
            scan.signal[scan.white_matter][:, volumes].mean()
            for scan, volumes in ((rendered, ours), (there, shell.volumes))
        ]
        assert means[0] == pytest.approx(means[1], rel=0.05)


def _one_site(root: Path) -> tuple[Path, str]:
    return write_study(
        root, people=2, sites="a"
    ), "expected scans of at least two sites, found a only"


def _other_shells(root: Path) -> tuple[Path, str]:
    manifest = write_study(root, people=2)
    write_raw(make_scan(make_gradients({1000: 20})), root, "s1b")
    return manifest, "expected shells of b=1200, b=3000 as in s0a, found b=1000"


def _no_white_matter(root: Path) -> tuple[Path, str]:
    manifest = write_study(root, people=2)
    path = root / "s1a_wm.nii.gz"
    image = load_image(path)
    nib.Nifti1Image(np.zeros(image.shape, np.uint8), image.affine).to_filename(path)
    return manifest, "s1a_wm.nii.gz: the mask is empty"


def _no_usable_voxel(root: Path) -> tuple[Path, str]:
    manifest = write_study(root, people=2)
    image = load_image(root / "s1a.nii.gz")
    white = load_image(root / "s1a_wm.nii.gz").get_fdata() > 0
    signal_ = np.where(white[..., None], 0, image.get_fdata(dtype=np.float32))
    nib.Nifti1Image(signal_, image.affine).to_filename(root / "s1a.nii.gz")
    return manifest, "s1a.nii.gz: expected white matter with a b0 above zero"


def _no_training_people(root: Path) -> tuple[Path, str]:
    return write_study(
        root, people=2, split=["val", "test"]
    ), "no scan of site a is there to train on"


def _misspelled_split(root: Path) -> tuple[Path, str]:
    manifest = write_study(root, people=2, split=["train", "validation"])
    return manifest, "expected train, val or test in the split column, found 'validation'"


@pytest.mark.parametrize(
    "make",
    [
        _one_site,
        _other_shells,
        _no_white_matter,
        _no_usable_voxel,
        _no_training_people,
        _misspelled_split,
    ],
)
def test_data_that_cannot_be_learned_from_are_one_line(
    make: Callable[[Path], tuple[Path, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, message = make(tmp_path / "data")
    out = tmp_path / "m.safetensors"
    assert main(["fit", str(manifest), "--model", str(out), "--nprocs", "1"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert message in lines[-1]
    assert not out.exists()
    assert not FitFiles(out).work.exists() or "s1a" in message
    assert not any("Traceback" in line for line in lines)


def test_a_scan_without_shells_of_its_b_values_is_named(
    tmp_path: Path, fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = write_study(tmp_path / "data", people=2)
    path = tmp_path / "data" / "s1b.bval"
    bvals = np.loadtxt(path)
    bvals[bvals > 50] = np.linspace(300, 4000, np.count_nonzero(bvals > 50))
    np.savetxt(path, bvals[None], fmt="%.0f")
    commands = (
        ["fit", str(manifest), "--model", str(tmp_path / "m.safetensors")],
        ["encode", str(manifest), str(tmp_path / "out"), "--model", str(fitted)],
        [
            "evaluate",
            str(manifest),
            "--harmonized",
            str(tmp_path / "made"),
            "--out",
            str(tmp_path / "s"),
        ],
    )
    for command in commands:
        assert main([*command, "--nprocs", "1"]) == 1
        last_line = capsys.readouterr().err.splitlines()[-1]
        assert "s1b.nii.gz: expected b-values on a few shells" in last_line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "m.pt"], "expected a name that ends in .safetensors"),
        (["--model", "m.safetensors", "--device", "cuda"], "the device 'cuda' cannot be used"),
        (["--model", "m.safetensors", "--device", "xyz"], "the device 'xyz' cannot be used"),
        (
            ["--model", "m.safetensors", "--sites", "a", "z"],
            "no scan is of site 'z'; choose from a",
        ),
        (["--model", "m.safetensors", "--work-dir", "file"], "file: cannot write here"),
        (["--model", "file/m.safetensors"], "file: cannot write here"),
    ],
)
def test_mistaken_words_are_one_line(
    manifest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    assert main(["fit", str(manifest), *words]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_nothing_is_written_into_a_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    assert main(["fit", str(tmp_path / "data"), "--model", str(tmp_path / "data/m.safetensors")])
    assert "the output is inside the dataset" in capsys.readouterr().err
