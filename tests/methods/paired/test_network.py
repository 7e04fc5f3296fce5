import pytest
import torch

from siteless.methods.paired._network import Translator, TranslatorSettings

SETTINGS = TranslatorSettings(channels=31, sites=3, hidden=(16, 16))


@pytest.fixture
def network() -> Translator:
    torch.manual_seed(0)
    translator = Translator(SETTINGS)
    translator.set_units(torch.randn(31), torch.rand(31) + 0.5)
    return translator


def _train_a_little(network: Translator) -> None:
    with torch.no_grad():
        network.correction.weight.normal_()


def test_a_new_network_is_the_identity(network: Translator) -> None:
    patch = torch.randn(5, 7 * 31)
    translated = network(
        patch, torch.zeros(5, dtype=torch.int64), torch.ones(5, dtype=torch.int64)
    )
    assert torch.equal(translated, patch[:, :31])


def test_a_new_network_has_gradients(network: Translator) -> None:
    patch, site = torch.randn(5, 7 * 31), torch.zeros(5, dtype=torch.int64)
    network(patch, site, site).square().sum().backward()
    assert network.correction.weight.grad is not None
    assert network.correction.weight.grad.abs().min() > 0


@pytest.mark.parametrize("changed", ["patch", "source", "target"])
def test_neighbours_and_both_sites_matter(network: Translator, changed: str) -> None:
    _train_a_little(network)
    given = {"patch": torch.randn(5, 7 * 31)} | {
        name: torch.zeros(5, dtype=torch.int64) for name in ("source", "target")
    }
    other = dict(given)
    other[changed] = given[changed].clone()
    if changed == "patch":
        other["patch"][:, -31:] += 1  # the last neighbour
    else:
        other[changed] += 1
    assert not torch.allclose(network(**given), network(**other))


def test_corrections_are_in_the_units_of_the_channels() -> None:
    """A patch in other units, with the network's to match, is translated to those units."""
    torch.manual_seed(0)
    plain, scaled = Translator(SETTINGS), Translator(SETTINGS)
    _train_a_little(plain)
    scaled.load_state_dict(plain.state_dict())
    unit, shift = torch.rand(31) + 0.5, torch.randn(31)
    scaled.set_units(shift, unit)
    voxels, site = torch.randn(5, 7, 31), torch.ones(5, dtype=torch.int64)
    expected = plain(voxels.flatten(1), site, site) * unit + shift
    ours = scaled((voxels * unit + shift).flatten(1), site, site)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


def test_patches_of_several_sites_are_translated_as_each_alone(network: Translator) -> None:
    _train_a_little(network)
    with torch.no_grad():
        network.linear.normal_()
    patch = torch.randn(9, 7 * 31)
    source, target = torch.arange(9) // 3, torch.arange(9) % 3
    alone = [network(patch[i : i + 1], source[i : i + 1], target[i : i + 1]) for i in range(9)]
    torch.testing.assert_close(
        network(patch, source, target), torch.cat(alone), atol=1e-3, rtol=1e-4
    )
