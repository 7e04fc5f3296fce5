"""Every method from the command line: fitted, used, refused."""

from functools import partial

import nibabel as nib
import numpy as np
import pytest

from lessons import SHELLS
from phantoms import make_gradients, make_scan, write_mask, write_raw, write_table
from siteless.cli import main
from siteless.harmonics import fit_coefficients, project
from siteless.methods import load_model, render
from siteless.pipelines import FitFiles, _learn
from siteless.training import PairedSettings

GAIN = {"a": 1.0, "b": 1.7}
OPTIONS = {
    "unchanged": [],
    "scaled": [],
    "rish": ["--same-space"],
    "rish --travelling": ["--same-space", "--travelling"],
    "rish-glm": ["--same-space"],
    "paired": [],
}


def _write(root, people=4, sites="ab", columns=(), only=None):
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
            rows.append(row | {name: values[person] for name, values in dict(columns).items()})
    return write_table(root / "scans.tsv", rows)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    ages = {"age": [20, 50, 30, 70], "sex": list("FMMF")}
    return _write(tmp_path_factory.mktemp("some data v1.0"), columns=ages)


@pytest.fixture(autouse=True)
def _brief_training(monkeypatch):
    brief = partial(_learn.Paired, PairedSettings(updates=60, batch=256))
    monkeypatch.setattr(_learn, "Paired", brief)


def _fit(manifest, out, name, *more):
    method = name.split()[0]
    words = ["fit", str(manifest), "--model", str(out), "--method", method, "--nprocs", "1"]
    return main([*words, *OPTIONS[name], *more])


@pytest.mark.parametrize("name", OPTIONS)
def test_a_method_is_fitted_shown_and_used(manifest, tmp_path, capsys, name):
    out = tmp_path / "a model.safetensors"
    assert _fit(manifest, out, name) == 0
    assert main(["info", str(out)]) == 0
    assert f"method      {name.split()[0]}" in capsys.readouterr().out
    words = ["harmonize", str(manifest), str(tmp_path / "out"), "--model", str(out), "--to", "b"]
    assert main([*words, "--site", "a", "--nprocs", "1"]) == 0
    images = sorted((tmp_path / "out").rglob("*desc-harmonized_dwi.nii.gz"))
    assert len(images) == 4
    white = nib.load(manifest.parent / "s0a_wm.nii.gz").get_fdata() > 0
    before = nib.load(manifest.parent / "s0a.nii.gz").get_fdata()[white].mean()
    after = nib.load(images[0]).get_fdata()[white].mean()
    expected = 1.0 if name == "unchanged" else GAIN["b"]
    assert after / before == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_command_twice_gives_the_same_bytes(manifest, tmp_path, name):
    for place in ("first", "second"):
        assert _fit(manifest, tmp_path / place / "m.safetensors", name) == 0
    first, second = ((tmp_path / p / "m.safetensors").read_bytes() for p in ("first", "second"))
    assert first == second


@pytest.mark.parametrize("name", ["scaled", "rish", "paired"])
def test_a_finished_fit_is_kept_and_another_is_refused(manifest, tmp_path, capsys, name):
    out = tmp_path / "m.safetensors"
    assert _fit(manifest, out, name) == 0
    content = out.read_bytes()
    assert _fit(manifest, out, name, "--resume") == 0
    assert out.read_bytes() == content
    capsys.readouterr()
    assert _fit(manifest, out, "unchanged", "--resume") == 1
    assert "differs from what is asked for in method" in capsys.readouterr().err


def test_denoising_is_part_of_the_model(manifest, tmp_path, monkeypatch):
    """A scan is denoised as training scans were, before anything else."""
    monkeypatch.setenv("PATH", "")  # so that DIPY's is used, which is everywhere
    out = tmp_path / "m.safetensors"
    assert _fit(manifest, out, "unchanged", "--denoise") == 0
    model = load_model(out)
    assert model.card.denoiser.startswith("DIPY mppca")
    scan = make_scan(make_gradients(SHELLS, seed=10), seed=5)
    clean = make_scan(make_gradients(SHELLS, seed=10), snr=np.inf)
    made = render(model, scan, "b").scan.signal[scan.white_matter]
    plain = project(fit_coefficients(scan, order=model.card.order), scan.gradients)
    plain = plain[scan.white_matter.T[scan.mask.T]]
    truth = clean.signal.T[:, clean.white_matter.T].T
    made = render(model, scan, "b").scan.signal.T[:, scan.white_matter.T].T
    assert np.square(made - truth).mean() < 0.8 * np.square(plain - truth).mean()


def test_covariates_that_do_not_matter_change_little(manifest, tmp_path):
    for name in ("rish", "rish-glm"):
        assert _fit(manifest, tmp_path / f"{name}.safetensors", name) == 0
    plain, glm = (load_model(tmp_path / f"{n}.safetensors") for n in ("rish", "rish-glm"))
    assert list(glm.card.settings["covariates"]) == ["age", "sex"]
    # Everybody is at both sites, so that age and sex cannot differ between them.
    np.testing.assert_allclose(glm.scales(0, [1]), plain.scales(0, [1]), rtol=1e-3)


def test_scans_are_registered_and_one_that_cannot_be_is_named(tmp_path, capsys):
    manifest = _write(tmp_path / "data", people=4)
    image = nib.load(tmp_path / "data" / "s3b.nii.gz")
    shuffled = np.random.default_rng(0).permutation(image.get_fdata(dtype=np.float32).ravel())
    white = nib.load(tmp_path / "data" / "s3b_mask.nii.gz").get_fdata() > 0
    broken = shuffled.reshape(image.shape) * white[..., None]
    nib.Nifti1Image(broken, image.affine).to_filename(tmp_path / "data" / "s3b.nii.gz")
    out = tmp_path / "m.safetensors"
    words = ["fit", str(manifest), "--model", str(out), "--method", "rish", "--nprocs", "1"]
    assert main(words) == 0
    assert "warning: s3b could not be registered" in capsys.readouterr().err
    again = tmp_path / "again.safetensors"
    assert main([*words[:3], str(again), *words[4:-1], "2"]) == 0
    assert again.read_bytes() == out.read_bytes()
    capsys.readouterr()
    model = load_model(out)
    assert model.card.summary["not_registered"] == ["s3b"]
    header, *rows = [line.split("\t") for line in FitFiles(out).log.read_text().splitlines()]
    registered = {row[0]: row[header.index("registered")] for row in rows}
    assert registered == {f"s{p}{s}": "yes" for p in range(4) for s in "ab"} | {"s3b": "no"}
    words = ["harmonize", str(manifest), str(tmp_path / "out"), "--model", str(out), "--to", "a"]
    assert main([*words, "--site", "b", "--nprocs", "1"]) == 1
    told = capsys.readouterr().err
    assert "s3b.nii.gz: the scan could not be registered to the template" in told
    assert len(list((tmp_path / "out").rglob("*desc-harmonized_dwi.nii.gz"))) == 3


def _few(root):
    return _write(root, people=2), "rish", "expected at least 3 training people of site a"


def _one_site(root):
    return _write(root, sites="a"), "scaled", "expected scans of at least two sites, found a only"


def _no_pairs(root):
    split = _write(root, only=["a", "b", "a", "b"])
    return split, "paired", "expected people who were scanned at two or more sites, found none"


def _nobody_travels(root):
    split = _write(root, only=["a", "b", "a", "b"])
    return split, "rish --travelling", "expected people who were scanned at two or more sites"


def _confounded(root):
    columns = {"age": [20, 20, 20, 50, 50, 50]}
    manifest = _write(root, people=6, only=["a"] * 3 + ["b"] * 3, columns=columns)
    return manifest, "rish-glm", "the sites' effects cannot be told from those of the covariates"


def _other_shells(root):
    manifest = _write(root)
    write_raw(make_scan(make_gradients({1000: 20}), seed=3), root, "s3b")
    return manifest, "rish", "expected shells of b=1200, b=3000 as in s0a, found b=1000"


@pytest.mark.parametrize(
    "make", [_few, _one_site, _no_pairs, _nobody_travels, _confounded, _other_shells]
)
def test_what_a_method_cannot_do_is_one_line(make, tmp_path, capsys):
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
        (["--method", "scaled", "--preset", "paper"], "the method scaled has no --preset paper"),
        (["--method", "rish-glm", "--covariates", "iq"], "nothing tells the iq of s0a"),
    ],
)
def test_an_option_of_another_method_is_refused(manifest, tmp_path, capsys, words, message):
    out = tmp_path / "m.safetensors"
    assert main(["fit", str(manifest), "--model", str(out), *words]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


def test_methods_are_listed_a_line_each(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names[0] == "invariant"
    assert {"rish", "rish-glm", "paired", "scaled", "unchanged"} <= set(names)


def test_only_codes_can_be_encoded(manifest, tmp_path, capsys):
    out = tmp_path / "m.safetensors"
    assert _fit(manifest, out, "scaled") == 0
    capsys.readouterr()
    assert main(["encode", str(manifest), str(tmp_path / "codes"), "--model", str(out)]) == 1
    told = capsys.readouterr().err
    assert "expected a model of the method invariant, found one of scaled" in told
