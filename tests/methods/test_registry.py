import importlib.util
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from phantoms import load_image
from siteless.cli import main
from siteless.methods import METHODS, Invariant, Method
from siteless.methods.invariant.training import PRESETS
from siteless.model import Model
from training_scans import write_study


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("toy", Path(__file__).with_name("toy.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(METHODS, "toy", module.Toy)


@pytest.mark.usefixtures("toy")
def test_a_method_from_its_own_file_is_fitted_shown_used_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = write_study(tmp_path / "data", people=2)
    model, out = tmp_path / "m.safetensors", tmp_path / "out"
    words = ["fit", manifest, "--model", model, "--method", "toy", "--factor", "1.5"]
    assert main([*map(str, words), "--nprocs", "1"]) == 0
    assert "factor      1.5" in capsys.readouterr().out
    assert main(["methods"]) == 0
    assert "toy         a factor that the user gives" in capsys.readouterr().out
    assert main(["info", str(model)]) == 0
    assert "method      toy: a factor that the user gives" in capsys.readouterr().out
    words = ["harmonize", manifest, out, "--model", model, "--to", "b", "--nprocs", "1"]
    assert main(list(map(str, words))) == 0
    white = load_image(tmp_path / "data" / "s0a_wm.nii.gz").get_fdata() > 0
    before = load_image(tmp_path / "data" / "s0a.nii.gz").get_fdata()[white][:, -20:].mean()
    [image] = out.rglob("sub-0_ses-a_desc-harmonized_dwi.nii.gz")
    after = load_image(image).get_fdata()[white][:, -20:].mean()
    assert after / before == pytest.approx(1.5, rel=0.02)
    page = (out / "report" / "index.html").read_text()
    assert "a factor that was guessed (Toy 2026)" in page
    assert "On guessing" in page


@pytest.mark.usefixtures("toy")
def test_a_setting_of_another_method_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", str(tmp_path), "--model", str(tmp_path / "m.safetensors"), "--factor", "2"]
    assert main([*words, "--method", "scaled"]) == 1
    assert "the method scaled has no --factor; leave it out, or use toy" in capsys.readouterr().err


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is(name: str) -> None:
    method = METHODS[name]
    assert issubclass(method, Method)
    assert issubclass(method.model_type(), Model)
    assert method.name == name
    assert method.summary
    assert method.sentence
    for option in method.options().values():
        assert option.metadata["help"]


def test_options_of_one_name_are_the_same_for_all_methods() -> None:
    for method in METHODS.values():
        for other in METHODS.values():
            for name in method.options().keys() & other.options().keys():
                assert method.options()[name].metadata == other.options()[name].metadata


def test_the_presets_to_choose_are_those_that_exist() -> None:
    assert tuple(PRESETS) == Invariant.options()["preset"].metadata["choices"]


def test_settings_of_a_method_do_not_change() -> None:
    for method in METHODS.values():
        instance = method()
        for setting in fields(method):
            with pytest.raises(AttributeError):
                setattr(instance, setting.name, np.nan)
