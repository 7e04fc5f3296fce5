"""Every method from the command line: fitted, used, refused."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from phantoms import (
    RENDER,
    load_image,
    make_gradients,
    make_scan,
    write_mask,
    write_raw,
    write_table,
)
from siteless.acquisition import Array, Scan
from siteless.bids import find_scans, read_scan
from siteless.cli import main
from siteless.harmonics import fit_coefficients, project
from siteless.methods import load_model, render
from siteless.methods.paired import PairedSettings
from siteless.methods.rish import RishModel
from siteless.methods.template import _likeness
from siteless.pipelines import FitFiles
from training_scans import SHELLS, write_study

GAIN = {"a": 1.0, "b": 1.7}
OPTIONS = {
    "unchanged": [],
    "scaled": [],
    "rish": ["--same-space"],
    "rish --travelling": ["--same-space", "--travelling"],
    "rish-glm": ["--same-space"],
    "paired": [],
}


def _write(
    root: Path,
    people: int = 4,
    sites: str = "ab",
    columns: Mapping[str, Sequence[object]] | None = None,
    only: list[str] | None = None,
) -> Path:
    """Write phantoms of people at sites that differ in gain, and a manifest that lists them."""
    rows = []
    for person in range(people):
        for site in sites if only is None else only[person]:
            scan = make_scan(make_gradients(SHELLS, seed=10), seed=10 * person + ord(site))
            scan = scan.with_signal(scan.signal * np.float32(GAIN.get(site, 1.0)))
            stem = f"s{person}{site}"
            image = write_raw(scan, root, stem)
            mask = write_mask(scan.mask, scan.affine, root / f"{stem}_mask.nii.gz")
            white = write_mask(scan.white_matter, scan.affine, root / f"{stem}_wm.nii.gz")
            row = {"subject": person, "site": site, "dwi": image.name, "mask": mask.name}
            row |= {"wm_mask": white.name, "split": "train"}
            rows.append(row | {name: values[person] for name, values in (columns or {}).items()})
    return write_table(root / "scans.tsv", rows)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ages: dict[str, Sequence[object]] = {"age": [20, 50, 30, 70], "sex": list("FMMF")}
    return _write(tmp_path_factory.mktemp("some data v1.0"), columns=ages)


@pytest.fixture(autouse=True)
def _brief_training(monkeypatch: pytest.MonkeyPatch) -> None:
    brief = partial(PairedSettings, updates=60, batch=256)
    monkeypatch.setattr("siteless.methods.paired._training.PairedSettings", brief)


def _fit(manifest: Path, out: Path, name: str, *more: str) -> int:
    method = name.split()[0]
    words = ["fit", str(manifest), "--model", str(out), "--method", method, "--nprocs", "1"]
    return main([*words, *OPTIONS[name], *more])


@pytest.mark.parametrize("name", OPTIONS)
def test_a_method_is_fitted_shown_and_used(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = tmp_path / "a model.safetensors"
    assert _fit(manifest, out, name) == 0
    assert main(["info", str(out)]) == 0
    assert f"method      {name.split()[0]}" in capsys.readouterr().out
    words = [*RENDER, str(manifest), str(tmp_path / "out"), "--model", str(out), "--to", "b"]
    assert main([*words, "--site", "a", "--nprocs", "1"]) == 0
    images = sorted((tmp_path / "out").rglob("*desc-harmonized_dwi.nii.gz"))
    assert len(images) == 4
    white = load_image(manifest.parent / "s0a_wm.nii.gz").get_fdata() > 0
    before = load_image(manifest.parent / "s0a.nii.gz").get_fdata()[white].mean()
    after = load_image(images[0]).get_fdata()[white].mean()
    expected = 1.0 if name == "unchanged" else GAIN["b"]
    assert after / before == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_command_twice_gives_the_same_bytes(
    manifest: Path, tmp_path: Path, name: str
) -> None:
    for folder in ("first", "second"):
        assert _fit(manifest, tmp_path / folder / "m.safetensors", name) == 0
    first, second = ((tmp_path / p / "m.safetensors").read_bytes() for p in ("first", "second"))
    assert first == second


@pytest.mark.parametrize("name", ["scaled", "rish", "paired"])
def test_a_finished_fit_is_kept_and_another_is_refused(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = tmp_path / "m.safetensors"
    assert _fit(manifest, out, name) == 0
    content = out.read_bytes()
    assert _fit(manifest, out, name, "--resume") == 0
    assert out.read_bytes() == content
    capsys.readouterr()
    assert _fit(manifest, out, "unchanged", "--resume") == 1
    assert "differs from what is asked for in method" in capsys.readouterr().err


def test_denoising_is_part_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan is denoised as training scans were, before anything else."""
    monkeypatch.setenv("PATH", "")  # so that DIPY's is used, which is everywhere
    manifest = _write(tmp_path / "data", people=1)
    out = tmp_path / "m.safetensors"
    assert _fit(manifest, out, "unchanged", "--denoise") == 0
    model = load_model(out)
    assert model.preparation.denoiser.startswith("DIPY mppca")
    scan = make_scan(make_gradients(SHELLS, seed=10), seed=5)
    clean = make_scan(make_gradients(SHELLS, seed=10), snr=np.inf)
    plain = project(fit_coefficients(scan, order=model.preparation.order), scan.gradients)
    plain = plain[scan.white_matter.T[scan.mask.T]]
    truth = clean.signal.T[:, clean.white_matter.T].T
    signal = render(model, scan, "b").scan.signal.T[:, scan.white_matter.T].T
    assert np.square(signal - truth).mean() < 0.8 * np.square(plain - truth).mean()


def test_the_noise_floor_is_removed_by_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = _write(tmp_path / "data", people=1)
    scan = make_scan(make_gradients(SHELLS, seed=10), snr=12, seed=5)
    clean = make_scan(make_gradients(SHELLS, seed=10), snr=np.inf)
    strong = scan.gradients.b > 2000
    ratios = {}
    for choice in ("keep", "remove"):
        out = tmp_path / f"{choice}.safetensors"
        assert _fit(manifest, out, "unchanged", "--noise-floor", choice) == 0
        rendered = render(load_model(out), scan, "b").scan.signal
        ratios[choice] = rendered[..., strong][scan.white_matter].mean()
        ratios[choice] /= clean.signal[..., strong][scan.white_matter].mean()
    assert ratios["keep"] > 1.15
    assert ratios["remove"] == pytest.approx(1, abs=0.05)
    assert main(["info", str(out)]) == 0
    assert "the floor of magnitudes is removed" in capsys.readouterr().out
    words = [*RENDER, str(manifest), str(tmp_path / "out"), "--model", str(out), "--to", "b"]
    assert main([*words, "--nprocs", "1"]) == 0
    sidecar = next((tmp_path / "out").rglob("*desc-harmonized_dwi.json"))
    assert json.loads(sidecar.read_text())["Siteless"]["NoiseFloor"] == "remove"


def _weakened(scan: Scan, factor: float) -> Scan:
    """Multiply the weighted volumes, which RISH sees as a factor of all energies' roots."""
    factors = np.where(scan.gradients.is_b0, 1, factor).astype(np.float32)
    return scan.with_signal(scan.signal * factors)


def _write_people(root: Path, people: list[tuple[str, str, int, float]]) -> Path:
    """Write scans of (person, site, age, factor of the weighted volumes), and a manifest."""
    rows: list[dict[str, object]] = []
    for person, site, age, factor in people:
        scan = make_scan(make_gradients(SHELLS, seed=10), seed=len(rows), snr=60)
        image = write_raw(_weakened(scan, factor), root, f"{person}{site}")
        masks = {"mask": scan.mask, "wm_mask": scan.white_matter}
        for name, mask in masks.items():
            write_mask(mask, scan.affine, root / f"{person}{site}_{name}.nii.gz")
        row = {"subject": person, "site": site, "age": age, "split": "train", "dwi": image.name}
        rows.append(row | {name: f"{person}{site}_{name}.nii.gz" for name in masks})
    return write_table(root / "scans.tsv", rows)


def test_ages_that_differ_between_sites_are_separated_from_them(tmp_path: Path) -> None:
    """Site b shows 0.9 of the signal, and people lose some with age; they are older at b."""
    ages = {"a": (20, 30, 40, 50, 60), "b": (40, 50, 60, 70, 80)}
    people = [
        (f"p{site}{age}", site, age, (0.9 if site == "b" else 1.0) * (1.1 - 0.002 * age))
        for site, all_ages in ages.items()
        for age in all_ages
    ]
    manifest = _write_people(tmp_path / "data", people)
    scales = {}
    for name in ("rish", "rish-glm"):
        assert _fit(manifest, tmp_path / f"{name}.safetensors", name) == 0
        model = load_model(tmp_path / f"{name}.safetensors")
        assert isinstance(model, RishModel)
        scales[name] = np.median(model.scales(0, [1])[..., 1][model.template.white_matter > 0.5])
    assert scales["rish-glm"] == pytest.approx(0.9, rel=0.01)
    assert scales["rish"] < 0.9 * 0.975  # the difference of 20 years is taken for the site's


def test_travelling_people_are_separated_from_sites(tmp_path: Path) -> None:
    """Each person shows another part of the signal; few were at both sites."""
    gains = {"v": 0.80, "w": 0.85, "x": 1.0, "y": 1.1, "z": 1.15}
    visits = [("v", "a"), ("w", "a"), ("x", "a"), ("x", "b"), ("y", "a"), ("y", "b"), ("z", "b")]
    visits += [("u", "b")]
    gains["u"] = 1.2
    people = [(who, at, 40, gains[who] * (0.9 if at == "b" else 1.0)) for who, at in visits]
    manifest = _write_people(tmp_path / "data", people)
    scales = {}
    for name in ("rish", "rish --travelling"):
        out = tmp_path / f"{name.replace(' ', '')}.safetensors"
        assert _fit(manifest, out, name) == 0
        model = load_model(out)
        assert isinstance(model, RishModel)
        scales[name] = np.median(model.scales(0, [1])[..., 1][model.template.white_matter > 0.5])
    assert scales["rish --travelling"] == pytest.approx(0.9, rel=0.01)
    assert abs(scales["rish"] - 0.9) > 0.05


def test_scales_follow_a_person_who_lies_elsewhere(tmp_path: Path) -> None:
    """Heads lie at other places; the site's effect lies at a place of the head."""
    rows, root = [], tmp_path / "data"
    for person, shift in enumerate([(0, 0, 0), (25, -10, 5), (-12, 18, -20)]):
        for site in "ab":
            scan = make_scan(make_gradients(SHELLS, seed=10), seed=10 * person + ord(site), snr=60)
            if site == "b":
                scan = scan.with_signal(scan.signal * _across(scan))
            affine = scan.affine.copy()
            affine[:3, 3] += shift
            moved = replace(scan, affine=affine)
            stem = f"s{person}{site}"
            row = {"subject": person, "site": site, "dwi": write_raw(moved, root, stem).name}
            for name, mask in {"mask": scan.mask, "wm_mask": scan.white_matter}.items():
                row[name] = write_mask(mask, moved.affine, root / f"{stem}_{name}.nii.gz").name
            rows.append(row | {"split": "train"})
    out = tmp_path / "m.safetensors"
    manifest = write_table(root / "scans.tsv", rows)
    words = ["fit", str(manifest), "--model", str(out), "--method", "rish", "--nprocs", "1"]
    assert main(words) == 0
    model = load_model(out)
    assert isinstance(model, RishModel)
    for files in find_scans(manifest).scans:
        if str(files.site) == "a":
            scan = read_scan(files)
            white = scan.white_matter.T[scan.mask.T]
            gains = model.gains(scan, model.preparation.coefficients(scan), "b")[white, 1]
            known = np.broadcast_to(_across(scan)[..., -1], scan.mask.shape).T[scan.white_matter.T]
            assert np.corrcoef(gains, known)[0, 1] > 0.95
            assert np.median(np.abs(gains / known - 1)) < 0.02


def _across(scan: Scan) -> Array:
    """Return a factor of the weighted volumes that changes across the head."""
    x = np.linspace(-1, 1, scan.mask.shape[0])[:, None, None, None]
    return np.where(scan.gradients.is_b0, 1, np.exp(0.2 * x)).astype(np.float32)


def _write_with_a_broken_scan(root: Path) -> Path:
    """Write people of whom the last was at site b only, in a scan of shuffled voxels."""
    manifest = _write(root, only=["ab", "ab", "ab", "b"])
    image = load_image(root / "s3b.nii.gz")
    shuffled = np.random.default_rng(0).permutation(image.get_fdata(dtype=np.float32).ravel())
    brain = load_image(root / "s3b_mask.nii.gz").get_fdata() > 0
    broken = shuffled.reshape(image.shape) * brain[..., None]
    nib.Nifti1Image(broken, image.affine).to_filename(root / "s3b.nii.gz")
    return manifest


def test_scans_are_registered_and_one_that_cannot_be_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = _write_with_a_broken_scan(tmp_path / "data")
    out = tmp_path / "m.safetensors"
    words = ["fit", str(manifest), "--model", str(out), "--method", "rish", "--nprocs", "1"]
    assert main(words) == 0
    assert "warning: s3b could not be registered" in capsys.readouterr().err
    monkeypatch.setattr(_likeness, "register", None)  # registrations are kept for other methods
    work = ["--work-dir", str(FitFiles(out).work)]
    combat = [*words[:3], str(tmp_path / "combat.safetensors"), "--method", "combat", *work]
    assert main([*combat, "--maps", "fa", "--nprocs", "1"]) == 0
    monkeypatch.undo()
    capsys.readouterr()
    model = load_model(out)
    assert model.card.summary["not_registered"] == ["s3b"]
    assert model.card.summary["training_scans"] == {"a": 3, "b": 3}
    header, *rows = [line.split("\t") for line in FitFiles(out).log.read_text().splitlines()]
    registered = {row[0]: row[header.index("registered")] for row in rows}
    assert registered == {f"s{p}{s}": "yes" for p in range(3) for s in "ab"} | {"s3b": "no"}
    words = [*RENDER, str(manifest), str(tmp_path / "out"), "--model", str(out), "--to", "a"]
    assert main([*words, "--site", "b", "--nprocs", "1"]) == 1
    errors = capsys.readouterr().err
    assert "s3b.nii.gz: the scan could not be registered to the template" in errors
    assert len(list((tmp_path / "out").rglob("*desc-harmonized_dwi.nii.gz"))) == 3


@pytest.mark.slow
def test_registrations_in_two_processes_give_the_same_bytes(tmp_path: Path) -> None:
    """Slow; test_fit.py tests another method quickly, and test_register.py registration."""
    manifest = _write_with_a_broken_scan(tmp_path / "data")
    outs = {number: tmp_path / number / "m.safetensors" for number in ("1", "2")}
    for number, out in outs.items():
        words = ["fit", str(manifest), "--model", str(out), "--method", "rish"]
        assert main([*words, "--nprocs", number]) == 0
    assert outs["1"].read_bytes() == outs["2"].read_bytes()


def _few(root: Path) -> tuple[Path, str, str]:
    return _write(root, people=2), "rish", "expected at least 3 training people of site a"


def _one_site(root: Path) -> tuple[Path, str, str]:
    return _write(root, sites="a"), "scaled", "expected scans of at least two sites, found a only"


def _site_without_pairs(root: Path) -> tuple[Path, str, str]:
    manifest = _write(root, sites="abc", only=["ab", "ab", "c", "c"])
    return manifest, "paired", "two or more sites, found none for site c"


def _mixed_ages(root: Path) -> tuple[Path, str, str]:
    columns = {"age": [20, 30, 40, "89+"]}
    return _write(root, columns=columns), "rish-glm", "expected numbers only, or words only"


def _age_of_some(root: Path) -> tuple[Path, str, str]:
    columns = {"age": [20, 30, "n/a", 50]}
    return _write(root, columns=columns), "rish-glm", "the age of sub-2 is unknown"


def _no_pairs(root: Path) -> tuple[Path, str, str]:
    split = _write(root, only=["a", "b", "a", "b"])
    return split, "paired", "expected people who were scanned at two or more sites, found none"


def _nobody_travels(root: Path) -> tuple[Path, str, str]:
    split = _write(root, only=["a", "b", "a", "b"])
    return split, "rish --travelling", "expected people who were scanned at two or more sites"


def _confounded(root: Path) -> tuple[Path, str, str]:
    columns = {"age": [20, 20, 20, 50, 50, 50]}
    manifest = _write(root, people=6, only=["a"] * 3 + ["b"] * 3, columns=columns)
    return manifest, "rish-glm", "the sites' effects cannot be told from those of the covariates"


def _other_shells(root: Path) -> tuple[Path, str, str]:
    manifest = _write(root)
    write_raw(make_scan(make_gradients({1000: 20}), seed=3), root, "s3b")
    return manifest, "rish", "expected shells of b=1200, b=3000 as in s0a, found b=1000"


@pytest.mark.parametrize(
    "make",
    [
        _few,
        _one_site,
        _site_without_pairs,
        _mixed_ages,
        _age_of_some,
        _no_pairs,
        _nobody_travels,
        _confounded,
        _other_shells,
    ],
)
def test_what_a_method_cannot_do_is_one_line(
    make: Callable[[Path], tuple[Path, str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    manifest, name, message = make(tmp_path / "data")
    out = tmp_path / "m.safetensors"
    assert _fit(manifest, out, name) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "scaled", "--travelling"], "the method scaled has no --travelling"),
        (["--method", "rish", "--covariates", "age"], "the method rish has no --covariates"),
        (["--method", "paired", "--same-space"], "the method paired has no --same-space"),
        (["--method", "rish", "--minutes", "3"], "the method rish has no --minutes"),
        (["--method", "rish", "--epochs", "3"], "the method rish has no --epochs"),
        (["--method", "scaled", "--preset", "paper"], "the method scaled has no --preset"),
        (
            ["--method", "rish-glm", "--covariates", "iq"],
            "no table has the column 'iq'; choose --covariates of age, sex",
        ),
    ],
)
def test_an_option_of_another_method_is_refused(
    manifest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    out = tmp_path / "m.safetensors"
    assert main(["fit", str(manifest), "--model", str(out), *words]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


def test_a_damaged_work_folder_is_made_again(manifest: Path, tmp_path: Path) -> None:
    first, again = tmp_path / "first.safetensors", tmp_path / "again.safetensors"
    work = ["--work-dir", str(tmp_path / "work")]
    assert _fit(manifest, first, "rish", *work) == 0
    stored = list((tmp_path / "work").rglob("*.safetensors"))
    assert stored
    for path in stored:
        path.write_bytes(path.read_bytes()[:-100])
    assert _fit(manifest, again, "rish", *work) == 0
    assert again.read_bytes() == first.read_bytes()


def test_pairs_that_nobody_travelled_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = _write(tmp_path / "data", sites="abc", only=["ab", "bc", "ab", "bc"])
    out = tmp_path / "m.safetensors"
    assert _fit(manifest, out, "paired") == 0
    capsys.readouterr()
    words = [*RENDER, str(manifest), str(tmp_path / "out"), "--model", str(out), "--to", "c"]
    assert main([*words, "--site", "a", "--nprocs", "1"]) == 1
    assert "the model has seen nobody at both a and c" in capsys.readouterr().err


def test_methods_are_listed_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names[0] == "invariant"
    assert {"rish", "rish-glm", "paired", "scaled", "unchanged"} <= set(names)


def test_only_codes_can_be_encoded(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.safetensors"
    assert _fit(manifest, out, "scaled") == 0
    capsys.readouterr()
    assert main(["encode", str(manifest), str(tmp_path / "codes"), "--model", str(out)]) == 1
    errors = capsys.readouterr().err
    assert "a model of the method scaled has no latent code" in errors


@pytest.mark.parametrize(("people", "expected"), [(2, ["a, b"]), (3, [])])
def test_sites_of_few_scans_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], people: int, expected: list[str]
) -> None:
    study = write_study(tmp_path / "study", people=people)
    words = [str(study), "--model", str(tmp_path / "m.safetensors"), "--method", "scaled"]
    assert main(["fit", *words, "--nprocs", "1"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert [line.split("found fewer of ")[1].split(";")[0] for line in lines] == expected
