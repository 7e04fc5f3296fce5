import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from phantoms import make_gradients, make_scan
from siteless.acquisition import Scan, Site
from siteless.errors import GradientTableError, MissingFileError, ModelError
from siteless.harmonics import count_coefficients, fit_coefficients
from siteless.methods import load_model
from siteless.methods.invariant import InvariantModel
from siteless.methods.invariant.network import Autoencoder, NetworkSettings
from siteless.model import save_model
from siteless.neighbourhood import cut, index_neighbours
from training_scans import BS, ORDER, SHELLS, make_card


@pytest.fixture(scope="module")
def model() -> InvariantModel:
    torch.manual_seed(0)
    channels = 1 + len(BS) * count_coefficients(ORDER)
    settings = NetworkSettings(channels=channels, sites=2, code=5, encoder=(16,), decoder=(16,))
    network = Autoencoder(settings)
    network.set_units(torch.randn(2, channels), torch.rand(2, channels) + 0.5)
    card = make_card(
        {"a": 900.0, "b site": 40.5},
        seed=3,
        settings={"network": asdict(settings), "training": {"surroundings": ()}},
        summary={"patches": 5},
        versions={"siteless": "0"},
    )
    return InvariantModel(card, network.eval())


@pytest.fixture(scope="module")
def scan() -> Scan:
    return make_scan(make_gradients(SHELLS))


def test_a_model_comes_back_as_it_was(model: InvariantModel, tmp_path: Path) -> None:
    path = tmp_path / "a model v1.0.safetensors"
    save_model(model, path)
    back = load_model(path)
    assert back.card == model.card
    assert back.identity == model.identity
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    first = path.read_bytes()
    save_model(back, path)
    assert path.read_bytes() == first


def test_anyone_can_read_the_file(model: InvariantModel, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_model(model, path)
    weights = load_file(path)
    assert torch.equal(weights["offset"], model.network.offset)


def test_the_identity_depends_on_all_of_the_model(model: InvariantModel) -> None:
    assert len(model.identity) == 64
    other = InvariantModel(replace(model.card, seed=4), model.network)
    assert other.identity != model.identity
    changed = Autoencoder(model.network.settings)
    changed.load_state_dict(model.network.state_dict())
    assert InvariantModel(model.card, changed).identity == model.identity
    changed.scale[0, 0] += 1
    assert InvariantModel(model.card, changed).identity != model.identity


def _flip(content: bytes, offset: int) -> bytes:
    return content[:offset] + bytes([content[offset] ^ 1]) + content[offset + 1 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-50], "the file is another, or truncated"),
        (lambda content: content[:5], "the file is another, or truncated"),
        (lambda _: b"", "the file is another, or truncated"),
        (lambda _: b"not a model at all, but some text", "the file is another, or truncated"),
        (lambda content: _flip(content, len(content) - 9), "has changed since it was written"),
        (lambda content: content.replace(b"40.5", b"41.5"), "has changed since it was written"),
        (
            lambda content: content.replace(b"channels", b"chunnels"),
            "changed since it was written",
        ),
    ],
)
def test_damaged_files_are_one_line(
    model: InvariantModel, tmp_path: Path, damage: Callable[[bytes], bytes], message: str
) -> None:
    path = tmp_path / "model.safetensors"
    save_model(model, path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=message) as error:
        load_model(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_files_of_other_programs_and_versions_and_missing_files_are_named(
    model: InvariantModel, tmp_path: Path
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ModelError, match="the file is of another program"):
        load_model(path)
    header = json.dumps({"format": 99, **asdict(model.card)})
    save_file({"weight": torch.zeros(3)}, path, metadata={"siteless": header})
    with pytest.raises(ModelError, match="of another version of siteless"):
        load_model(path)
    for header in ("[]", "null", "3", "{"):
        save_file({"weight": torch.zeros(3)}, path, metadata={"siteless": header})
        with pytest.raises(ModelError, match="the file is of another program"):
            load_model(path)
    with pytest.raises(MissingFileError, match="the model is not there"):
        load_model(tmp_path / "none.safetensors")


def test_codes_are_those_of_the_encoder_voxel_by_voxel(model: InvariantModel, scan: Scan) -> None:
    codes = model.encode(scan)
    np.testing.assert_array_equal(codes.where, scan.white_matter)
    coefficients = fit_coefficients(scan, order=ORDER)
    patches = index_neighbours(scan.mask)[scan.white_matter.T[scan.mask.T]]
    row = len(patches) // 2
    patch = cut(coefficients.values, patches[row : row + 1]).reshape(1, -1) / codes.level
    with torch.no_grad():
        home = torch.zeros(1, dtype=torch.int64)
        expected = model.network.encode(torch.from_numpy(patch.astype(np.float32)), home, None)
    np.testing.assert_allclose(codes.mean[row], expected.mean[0].numpy(), rtol=1e-3, atol=1e-4)
    grid = codes.on_grid()
    assert grid.shape == (*scan.mask.shape, 5)
    np.testing.assert_array_equal(grid.T[:, scan.white_matter.T].T, codes.mean)
    assert not grid[~scan.white_matter].any()


def test_codes_do_not_depend_on_gain(model: InvariantModel, scan: Scan) -> None:
    codes = model.encode(scan)
    louder = model.encode(scan.with_signal(scan.signal * np.float32(8)))
    assert louder.level == pytest.approx(8 * codes.level)
    np.testing.assert_allclose(louder.mean, codes.mean, rtol=1e-3, atol=1e-5)


def test_a_site_that_was_not_learned_is_refused(model: InvariantModel, scan: Scan) -> None:
    for site, description in ((Site("elsewhere"), "elsewhere"), (None, "which is unknown")):
        with pytest.raises(
            ModelError, match=f"not learned the scan's site, {description}; expected"
        ):
            model.encode(replace(scan, site=site))


def test_rendering_is_at_the_level_of_the_target(model: InvariantModel, scan: Scan) -> None:
    codes = model.encode(scan)
    before = codes.mean.copy()
    rendered = model.decode(codes, "b site")
    assert not np.allclose(rendered.values, model.decode(codes, "a").values)
    np.testing.assert_array_equal(codes.mean, before)
    with torch.no_grad():
        expected = model.network.decode(
            torch.from_numpy(codes.mean[:3]), torch.ones(3, dtype=torch.int64), None
        )
    np.testing.assert_allclose(rendered.values[:3], 40.5 * expected.numpy(), rtol=1e-4, atol=1e-4)
    assert rendered.bs == BS
    with pytest.raises(ModelError, match="does not know the site 'c'; choose from a, b site"):
        model.decode(codes, "c")


def test_bytes_do_not_depend_on_the_number_of_threads(model: InvariantModel, scan: Scan) -> None:
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        codes = model.encode(scan)
        rendered = model.decode(codes, "average")
        results.append((codes.mean, rendered.values, model.deviation(codes, "average", rendered)))
        assert torch.get_num_threads() == threads
    torch.set_num_threads(before)
    for other in results[1:]:
        for first, second in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(first, second)


def test_other_shells_are_refused(model: InvariantModel) -> None:
    with pytest.raises(GradientTableError, match="signal at b=1200, b=3000, found b=1000"):
        model.encode(make_scan(make_gradients({1000: 20})))
