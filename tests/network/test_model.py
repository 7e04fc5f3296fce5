import pytest
import torch

from siteless.network import Adversary, Decoder, Encoder, NetworkSettings

SETTINGS = NetworkSettings(channels=91, sites=4)


@pytest.fixture
def networks():
    torch.manual_seed(0)
    return Encoder(SETTINGS), Decoder(SETTINGS), Adversary(SETTINGS)


def test_layers_are_the_papers(networks):
    widths = [
        [tuple(weight.shape) for name, weight in network.named_parameters() if "weight" in name]
        for network in networks
    ]
    assert widths == [
        [(256, 637), (128, 256), (64, 128), (32, 64), (32, 64)],
        [(64, 36), (128, 64), (256, 128), (637, 256)],
        [(32, 637), (32, 32), (4, 32)],
    ]


def test_the_encoder_cannot_see_the_site(networks):
    encoder, decoder, _ = networks
    patch = torch.randn(3, 637)
    site = torch.eye(4)[[0, 1, 2]].requires_grad_()
    posterior = encoder(patch)
    code = posterior.mean + 0 * site.sum()  # connected, so that a gradient exists to be zero
    (gradient,) = torch.autograd.grad(code.sum(), site)
    assert (gradient == 0).all()
    rendered = [decoder(posterior.mean, torch.full((3,), target)) for target in range(4)]
    again = encoder(patch)
    assert torch.equal(again.mean, posterior.mean)
    assert not torch.allclose(rendered[0], rendered[1])


def test_variances_lie_between_zero_and_one(networks):
    encoder, _, _ = networks
    for scale in (1.0, 1e6):
        variance = encoder(scale * torch.randn(50, 637)).variance
        assert (variance > 0).all()
        assert (variance <= 1 + 1e-5).all()


def test_samples_have_the_posteriors_moments(networks):
    encoder, _, _ = networks
    posterior = encoder(torch.randn(2, 637))
    generator = torch.Generator().manual_seed(0)
    samples = torch.stack([posterior.sample(generator) for _ in range(20_000)])
    torch.testing.assert_close(samples.mean(dim=0), posterior.mean, atol=0.03, rtol=0)
    torch.testing.assert_close(samples.var(dim=0), posterior.variance, atol=0.03, rtol=0.05)
