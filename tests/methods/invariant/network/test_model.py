import pytest
import torch
from scipy.spatial.transform import Rotation

from siteless.methods.invariant.network import (
    Adversary,
    Autoencoder,
    Decoder,
    Encoder,
    NetworkSettings,
    rotate,
)

SETTINGS = NetworkSettings(channels=91, sites=4)


@pytest.fixture
def networks() -> tuple[Encoder, Decoder, Adversary]:
    torch.manual_seed(0)
    return Encoder(SETTINGS), Decoder(SETTINGS), Adversary(SETTINGS)


def test_layers_are_the_papers(networks: tuple[Encoder, Decoder, Adversary]) -> None:
    widths = [
        [tuple(weight.shape) for name, weight in network.named_parameters() if "weight" in name]
        for network in networks
    ]
    assert widths == [
        [(256, 637), (128, 256), (64, 128), (32, 64), (32, 64)],
        [(64, 36), (128, 64), (256, 128), (637, 256)],
        [(32, 637), (32, 32), (4, 32)],
    ]


def test_the_encoder_cannot_see_the_site() -> None:
    """Patches that are equal in their sites' units have equal codes, wherever they are from."""
    torch.manual_seed(0)
    network = Autoencoder(SETTINGS)
    network.set_units(torch.randn(4, 91), torch.rand(4, 91) + 0.5)
    seen = torch.randn(3, 7, 91)
    codes = []
    for number in range(4):
        patch = (seen * network.scale[number] + network.offset[number]).flatten(1)
        codes.append(network.encode(patch, torch.full((3,), number), None))
    for code in codes[1:]:
        torch.testing.assert_close(code.mean, codes[0].mean, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(code.variance, codes[0].variance, atol=1e-4, rtol=1e-4)


def test_codes_have_no_gradient_with_respect_to_the_site(
    networks: tuple[Encoder, Decoder, Adversary],
) -> None:
    """The encoder sees its site through units alone: with those fixed, nothing of it is left."""
    encoder, decoder, _ = networks
    site = torch.zeros(3, 4, requires_grad=True)
    code = encoder(torch.randn(3, 637)).mean
    rendered = decoder.patch(decoder.hidden(torch.cat([code, site], dim=1)))
    (unused,) = torch.autograd.grad(code.sum(), site, allow_unused=True, retain_graph=True)
    (used,) = torch.autograd.grad(rendered.sum(), site)
    assert unused is None
    assert (used != 0).any()


def test_variances_lie_between_zero_and_one(networks: tuple[Encoder, Decoder, Adversary]) -> None:
    encoder, _, _ = networks
    for scale in (1.0, 1e6):
        variance = encoder(scale * torch.randn(50, 637)).variance
        assert (variance > 0).all()
        assert (variance <= 1 + 1e-5).all()


def test_samples_have_the_posteriors_moments(networks: tuple[Encoder, Decoder, Adversary]) -> None:
    encoder, _, _ = networks
    posterior = encoder(torch.randn(2, 637))
    generator = torch.Generator().manual_seed(0)
    samples = torch.stack([posterior.sample(generator) for _ in range(20_000)])
    torch.testing.assert_close(samples.mean(dim=0), posterior.mean, atol=0.03, rtol=0)
    torch.testing.assert_close(samples.var(dim=0), posterior.variance, atol=0.03, rtol=0.05)


def test_turning_the_head_turns_what_is_rendered_and_leaves_codes_alone() -> None:
    """All neighbours of a patch are its centre, as neighbours do not turn with the head."""
    torch.manual_seed(0)
    settings = NetworkSettings(
        channels=91, sites=2, neighbours=9, rendered=1, kept=15, turned=True
    )
    network = Autoencoder(settings).double()
    network.set_units(torch.zeros(2, 91), torch.rand(2, 1).expand(2, 91) + 0.5)
    site = torch.tensor([0, 1, 0])
    shells = torch.randn(3, 2, 45, dtype=torch.float64)
    # So little that the senses of axes stay.
    rotation = torch.from_numpy(Rotation.from_rotvec([0.004, 0.01, -0.007]).as_matrix())
    rendered, codes = [], []
    for turn in (torch.eye(3).double(), rotation):
        turned = rotate(shells, turn.expand(3, 3, 3)).flatten(1)
        voxel = torch.cat([torch.ones(3, 1), turned], dim=1)
        patch = voxel.repeat(1, 9)
        frames = network.frames(patch)
        codes.append(network.encode(patch, site, frames).mean)
        rendered.append(network.decode(codes[-1], site, frames)[:, 1:].unflatten(1, (2, 45)))
    torch.testing.assert_close(codes[0], codes[1])
    expected = rotate(rendered[0], rotation.expand(3, 3, 3))
    torch.testing.assert_close(rendered[1], expected)


def test_the_encoder_sees_low_degrees_of_neighbours_alone() -> None:
    settings = NetworkSettings(channels=91, sites=2, neighbours=3, kept=6)
    network = Autoencoder(settings)
    patch = torch.arange(3 * 91.0)[None]
    seen = network.standardise(patch, torch.tensor([0]), None)
    low = [0, *range(1, 7), *range(46, 52)]
    expected = [*range(91), *(91 + n for n in low), *(182 + n for n in low)]
    assert seen.tolist() == [[float(n) for n in expected]]
    assert settings.inputs == len(expected)
