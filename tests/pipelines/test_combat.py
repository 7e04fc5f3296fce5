"""ComBat from the command line: fitted, used, resumed, refused."""

import contextlib
import io
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from neuroCombat import neuroCombat

from phantoms import (
    ONE_SHELL,
    RENDER,
    load_image,
    make_gradients,
    make_scan,
    write_mask,
    write_raw,
    write_table,
)
from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, find_scans, read_scan
from siteless.cli import _options, main
from siteless.methods import Combat, Rish, Scaled, load_model
from siteless.methods.combat import CombatModel
from siteless.microstructure import MAPS, compute_maps
from siteless.pipelines import Run, fit_model
from training_scans import SHELLS

# Confounded with the site, as it often is.
AGES = {"a": [20, 30, 40, 50, 60], "b": [40, 50, 60, 70, 80]}
# Part of the diffusivity that is left, and what is added to it: MD grows, and FA falls.
SITE_B = 0.8, 0.3e-3
PER_YEAR = 0.004


def _make(site: str, age: int, seed: int, shells: dict[int, int] = SHELLS) -> Scan:
    """Make a phantom whose diffusivity grows with age, at a site that changes all tensors."""
    scan = make_scan(make_gradients(shells, seed=10), snr=np.inf)
    factor, added = SITE_B if site == "b" else (1.0, 0.0)
    random = np.random.default_rng(seed)
    growth = (1 + PER_YEAR * (age - 50)) * (1 + 0.01 * random.normal())
    b0 = scan.signal[..., :1]
    ratio = np.divide(scan.signal, b0, out=np.zeros_like(scan.signal), where=b0 > 0)
    clean = b0 * ratio ** (factor * growth) * np.exp(-scan.gradients.b * added * growth)
    noise = random.normal(scale=15.0, size=(2, *clean.shape))
    return scan.with_signal(np.hypot(clean + noise[0], noise[1]) * scan.mask[..., None])


def _write(
    root: Path,
    ages: dict[str, list[int]] = AGES,
    shells: dict[int, int] = SHELLS,
    **columns: Mapping[str, object],
) -> Path:
    rows = []
    for site, of_site in ages.items():
        for number, age in enumerate(of_site):
            scan = _make(site, age, seed=10 * number + ord(site), shells=shells)
            stem = f"s{site}{number}"
            image = write_raw(scan, root, stem)
            mask = write_mask(scan.mask, scan.affine, root / f"{stem}_mask.nii.gz")
            white = write_mask(scan.white_matter, scan.affine, root / f"{stem}_wm.nii.gz")
            row = {"subject": f"{site}{number}", "site": site, "dwi": image.name, "age": age}
            row |= {"mask": mask.name, "wm_mask": white.name, "split": "train"}
            rows.append(row | columns)
    return write_table(root / "scans.tsv", rows)


def _words(manifest: Path, out: Path, *more: str) -> list[str]:
    start = ["fit", str(manifest), "--model", str(out), "--method", "combat", "--same-space"]
    return [*start, "--nprocs", "1", *more]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("some data v1.0"))


@pytest.fixture(scope="module")
def fitted(manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fit") / "a model.safetensors"
    assert main(_words(manifest, out, "--maps", "fa", "md")) == 0
    return out


@pytest.fixture(scope="module")
def original_maps(manifest: Path) -> list[tuple[ScanFiles, Scan, dict[str, Array]]]:
    """FA and MD of each scan as they are, by site and age."""
    scans = [(files, read_scan(files)) for files in find_scans(manifest).scans]
    return [(files, scan, compute_maps(scan, ["fa", "md"])) for files, scan in scans]


def read_combat(path: Path) -> CombatModel:
    model = load_model(path)
    assert isinstance(model, CombatModel)
    return model


def test_training_scans_become_what_neurocombat_makes_of_them(
    fitted: Path, original_maps: list[tuple[ScanFiles, Scan, dict[str, Array]]]
) -> None:
    model = read_combat(fitted)
    assert model.known.sum() > 0.9 * original_maps[0][1].mask.sum()
    table = pd.DataFrame(
        {
            "batch": [str(files.site) for files, _, _ in original_maps],
            "age": [float(files.attributes["age"]) for files, _, _ in original_maps],
        }
    )
    for name in ("fa", "md"):
        values = np.stack([maps[name][model.known] for _, _, maps in original_maps], axis=1)
        with contextlib.redirect_stdout(io.StringIO()):
            harmonized = neuroCombat(values.astype(float), table, "batch", continuous_cols=["age"])
        expected = harmonized["data"].clip(MAPS[name].lowest, MAPS[name].highest)
        for (files, scan, _), values_of_scan in zip(original_maps, expected.T, strict=True):
            harmonized_map = model.harmonize_maps(scan, "average", files.attributes)[name]
            np.testing.assert_allclose(
                harmonized_map[model.known], values_of_scan, atol=1e-4 * expected.max()
            )


def test_the_offset_of_sites_goes_and_the_effect_of_age_stays(
    fitted: Path, original_maps: list[tuple[ScanFiles, Scan, dict[str, Array]]]
) -> None:
    model = read_combat(fitted)
    white = original_maps[0][1].white_matter
    ages = np.array([float(files.attributes["age"]) for files, _, _ in original_maps])
    is_b = np.array([str(files.site) == "b" for files, _, _ in original_maps])
    design = np.column_stack([np.ones(len(ages)), is_b, ages - 50])
    before = {n: [maps[n][white].mean() for _, _, maps in original_maps] for n in ("fa", "md")}
    after: dict[str, list[float]] = {"fa": [], "md": []}
    for files, scan, _ in original_maps:
        for name, values in model.harmonize_maps(scan, "b", files.attributes).items():
            after[name].append(values[white].mean())
    for name in ("fa", "md"):
        mean, offset, slope = np.linalg.lstsq(design, before[name])[0]
        left, kept = np.linalg.lstsq(design, after[name])[0][1:]
        assert abs(left) < 0.1 * abs(offset), name
        if name == "fa":
            assert offset < -0.1
        else:
            assert slope / mean == pytest.approx(PER_YEAR, rel=0.2)
            assert kept == pytest.approx(slope, rel=0.2)
    at_home = model.harmonize_maps(original_maps[-1][1], "b", original_maps[-1][0].attributes)
    np.testing.assert_array_equal(at_home["fa"], original_maps[-1][2]["fa"])


def test_maps_are_written_described_and_kept(
    fitted: Path, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "maps of scans"
    words = [*RENDER, str(manifest), str(out), "--model", str(fitted), "--to", "b"]
    words += ["--site", "a", "--nprocs", "1"]
    assert main(words) == 0
    assert "5 scans rendered as b" in capsys.readouterr().out
    images = sorted(out.rglob("*.nii.gz"))
    assert len(images) == 10
    name = "sub-a0_ses-a_model-tensor_param-fa_desc-harmonized_dwimap.nii.gz"
    image = out / "sub-a0" / "ses-a" / "dwi" / name
    assert image in images
    sidecar = json.loads(image.with_name(image.name.replace(".nii.gz", ".json")).read_text())
    assert sidecar["Units"] == "1"
    assert sidecar["Sources"] == ["bids:source:sa0.nii.gz"]
    assert sidecar["Siteless"]["Model"] == load_model(fitted).identity
    assert sidecar["Siteless"]["SourceSite"] == "a"
    assert sidecar["Siteless"]["Covariates"] == {"age": "20"}
    assert sidecar["SitelessFound"]["MeanAfter"] < sidecar["SitelessFound"]["MeanBefore"]
    [files] = [scan for scan in find_scans(manifest).scans if scan.dwi.name == "sa0.nii.gz"]
    harmonized_map = read_combat(fitted).harmonize_maps(read_scan(files), "b", files.attributes)[
        "fa"
    ]
    np.testing.assert_array_equal(load_image(image).get_fdata(dtype=np.float32), harmonized_map)

    content = {path: path.read_bytes() for path in images}
    times = {path: path.stat().st_mtime_ns for path in images}
    images[0].unlink()
    assert main(words) == 0
    assert "1 scan rendered as b, 4 there already" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in images} == content
    assert sum(path.stat().st_mtime_ns != times[path] for path in images) == 2


def test_maps_are_made_again_when_a_covariate_changes(
    fitted: Path, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = manifest.read_text().splitlines()
    copy = manifest.with_name("other.tsv")
    copy.write_text("\n".join([rows[0], *rows[1:3]]) + "\n")
    words = [*RENDER, str(copy), str(tmp_path), "--model", str(fitted), "--to", "average"]
    assert main([*words, "--nprocs", "1"]) == 0
    copy.write_text("\n".join([rows[0], rows[1].replace("\t20\t", "\t25\t"), rows[2]]) + "\n")
    capsys.readouterr()
    assert main([*words, "--nprocs", "1"]) == 0
    assert "1 scan rendered as average, 1 there already" in capsys.readouterr().out
    copy.write_text("\n".join([rows[0], rows[1].replace("\t20\t", "\tn/a\t"), rows[2]]) + "\n")
    assert main([*words, "--nprocs", "1"]) == 1
    output = capsys.readouterr()
    assert "sa0.nii.gz: the age of the scan is unknown" in output.err
    assert "1 there already, 1 failed" in output.out


@pytest.mark.parametrize("nprocs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_fit_gives_the_same_bytes_and_is_known_again(
    fitted: Path, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], nprocs: int
) -> None:
    """Several processes are slow here; test_fit.py tests them with another method."""
    again = tmp_path / "again.safetensors"
    combat = Combat(same_space=True, maps=["fa", "md"])
    fit_model(manifest, again, combat, run=Run(nprocs=nprocs))
    assert again.read_bytes() == fitted.read_bytes()
    assert main(_words(manifest, again, "--maps", "fa", "md", "--resume")) == 0
    assert main(_words(manifest, again, "--maps", "fa", "--resume")) == 1
    assert "differs from what is asked for in settings" in capsys.readouterr().err


def test_info_and_methods_describe_it(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(fitted)]) == 0
    output = capsys.readouterr().out
    for text in ("method      combat", "fa, md, by neuroCombat", "groups, beside age"):
        assert text in output
    assert main(["methods"]) == 0
    [line] = [row for row in capsys.readouterr().out.splitlines() if row.startswith("combat")]
    assert "gives maps and no scans" in line
    assert tuple(MAPS) == _options.MAPS


def test_kurtosis_is_among_the_maps_by_default(manifest: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    model = fit_model(manifest, out, Combat(same_space=True), run=Run(nprocs=1))
    assert isinstance(model, CombatModel)
    assert list(model.estimates) == ["fa", "md", "mk"]


def test_covariates_can_be_left_out(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.safetensors"
    assert main(_words(manifest, out, "--maps", "md", "--covariates")) == 0
    assert "compared    groups\n" in capsys.readouterr().out
    assert read_combat(out).estimates["md"].effects.shape[0] == 0


@pytest.mark.parametrize("words", [["--gradients", "target"], ["--outside", "unchanged"]])
def test_maps_have_no_gradients_and_no_outside(
    fitted: Path,
    manifest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    start = [*RENDER, str(manifest), str(tmp_path / "out"), "--model", str(fitted)]
    assert main([*start, "--to", "b", *words]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "gives maps, which have no --gradients and no --outside" in line
    assert not (tmp_path / "out").exists()


def test_maps_and_scans_are_not_mixed(
    fitted: Path, manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scaled = tmp_path / "scaled.safetensors"
    fit_model(manifest, scaled, Scaled(), run=Run(nprocs=1))
    start = [*RENDER, str(manifest), str(tmp_path / "out"), "--site", "a", "--nprocs", "1"]
    assert main([*start, "--model", str(scaled), "--to", "b"]) == 0
    assert main([*start, "--model", str(fitted), "--to", "b"]) == 1
    assert "the folder holds another dataset" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--maps", "fa", "ad"], "there is no map 'ad'; choose from fa, md, mk, rtop"),
        (["--covariates", "height"], "no table has the column 'height'"),
        (["--travelling"], "the method combat has no --travelling"),
        (["--sites", "a"], "expected scans of at least two sites"),
    ],
)
def test_mistaken_words_are_one_line(
    manifest: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    message: str,
) -> None:
    assert main(_words(manifest, tmp_path / "m.safetensors", *more)) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert not list(tmp_path.iterdir())


def test_maps_are_an_option_of_no_other_method(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TypeError, match="maps"):
        Rish(maps=["fa"])  # type: ignore[call-arg]
    words = ["fit", str(manifest), "--model", str(tmp_path / "m.safetensors"), "--method", "rish"]
    assert main([*words, "--maps", "fa"]) == 1
    assert "the method rish has no --maps; leave it out, or use combat" in capsys.readouterr().err


def test_too_few_people_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = _write(tmp_path, {"a": [20, 30, 40], "b": [40, 50]})
    assert main(_words(manifest, tmp_path / "fit" / "m.safetensors")) == 1
    assert "at least 3 training people of site b" in capsys.readouterr().err


def test_scans_that_covariates_explain_all_of_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = _write(tmp_path, {"a": [20, 30, 40], "b": [40, 50, 65]})
    rows = [line.split("\t") for line in manifest.read_text().splitlines()]
    words = [["v", "w", "x"], *([str(n**2), str(n**3), "uv"[n % 2]] for n in range(6))]
    lines = ["\t".join([*row, *more]) for row, more in zip(rows, words, strict=True)]
    manifest.write_text("\n".join(lines) + "\n")
    more = ["--covariates", "age", "v", "w", "x"]
    assert main(_words(manifest, tmp_path / "fit" / "m.safetensors", *more)) == 1
    output = capsys.readouterr().err
    assert "expected more training scans than sites and covariates, found 6" in output


def test_kurtosis_of_one_shell_and_a_missing_package_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = _write(tmp_path, {"a": [20, 30, 40], "b": [40, 50, 60]}, ONE_SHELL)
    words = _words(manifest, tmp_path / "fit" / "m.safetensors", "--maps", "mk")
    assert main(words) == 1
    assert "mk needs at least 2 shells, found b=1000" in capsys.readouterr().err
    monkeypatch.setattr("siteless.methods.combat._model.find_spec", lambda _name: None)
    assert main(words) == 1
    assert "needs the package neuroCombat; pip install 'siteless[combat]'" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "fit").exists()
