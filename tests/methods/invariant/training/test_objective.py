from dataclasses import replace

import pytest
import torch
from dipy.core.sphere import Sphere
from dipy.reconst.shm import sh_to_sf
from torch.distributions import Normal

from phantoms import make_gradients, make_scan
from siteless.harmonics import count_coefficients, fit_coefficients
from siteless.methods.invariant.network import (
    Autoencoder,
    NetworkSettings,
    Posterior,
    leave_one_out_kl,
    reconstruction_loss,
)
from siteless.methods.invariant.training import PRESETS
from siteless.methods.invariant.training._batch import Batch, Sampler
from siteless.methods.invariant.training._objective import Objective, _interleaved
from siteless.methods.training import TrainingSet
from training_scans import ORDER, PREPARATION, QUICK, fitted_scan


@pytest.fixture
def batch(training_set: TrainingSet) -> Batch:
    return Sampler(training_set.scans, training_set.sites, units=32, device="cpu").draw(
        64, seed=(0,)
    )


@pytest.fixture
def objective(training_set: TrainingSet) -> Objective:
    return _objective(training_set, rendered=7, reconstruction_share=1 / 7)


def _objective(
    training_set: TrainingSet, *, rendered: int, reconstruction_share: float
) -> Objective:
    torch.manual_seed(0)
    channels = training_set.scans[0].values.shape[1]
    network = Autoencoder(NetworkSettings(channels=channels, sites=2, rendered=rendered))
    shape = (2, network.settings.channels)
    network.set_units(torch.randn(shape), torch.rand(shape) + 0.5)
    settings = replace(
        PRESETS["siteless"],
        turned=False,
        neighbour_order=None,
        reconstruction_share=reconstruction_share,
        marginal=0.1,
        adversary=0.1,
    )
    return Objective(network, settings, shells=2)


def test_the_terms_are_those_of_a_plain_computation(objective: Objective, batch: Batch) -> None:
    terms, elsewhere = objective(batch)
    network = objective.network
    offset, scale = network.offset[batch.site], network.scale[batch.site]
    patch = (batch.patch - offset.repeat(1, 7)) / scale.repeat(1, 7)
    posterior = network.encoder(patch)
    code = posterior.mean + posterior.variance.sqrt() * batch.noise
    rendered = network.decoder(code, batch.site)
    close = torch.testing.assert_close
    close(
        terms.reconstruction,
        reconstruction_loss(rendered, patch, objective.log_noise.repeat(7)),
    )
    close(terms.marginal, leave_one_out_kl(posterior))
    channels = network.settings.channels
    centre = rendered[:, :channels] * scale + offset
    _, size, _ = batch.signal.shape
    one_by_one = []
    for row in range(len(centre)):
        group, measured = row // size, batch.shell[row // size] >= 0
        noise = objective.log_signal_noise[batch.shell[group][measured]]
        expected = Normal(centre[row] @ batch.mixing[group][:, measured], noise.exp())
        one_by_one.append(-expected.log_prob(batch.signal[group, row % size][measured]).sum())
    close(terms.projection, torch.stack(one_by_one).mean())
    judged = slice(None, None, 8)
    close(elsewhere, network.decoder(code[judged], batch.elsewhere[judged]))


def test_patches_that_are_turned_are_projected_in_scanner_axes(
    training_set: TrainingSet, batch: Batch
) -> None:
    """What is rendered in frames is compared with the signal where it was measured."""
    channels = training_set.scans[0].values.shape[1]
    torch.manual_seed(0)
    network = Autoencoder(NetworkSettings(channels, sites=2, rendered=1, kept=6, turned=True))
    network.set_units(torch.randn(2, channels), torch.rand(2, channels) + 0.5)
    terms, _ = Objective(network, PRESETS["siteless"], shells=2)(batch)
    frames = network.frames(batch.patch)
    posterior = network.encode(batch.patch, batch.site, frames)
    code = posterior.mean + posterior.variance.sqrt() * batch.noise
    centre = network.decode(code, batch.site, frames)
    groups, size, _ = batch.signal.shape
    projected = centre.view(groups, size, -1) @ batch.mixing
    noise = torch.tensor(0.1).log().expand(batch.shell.shape)
    density = -Normal(projected, noise.exp()[:, None]).log_prob(batch.signal)
    expected = (density * (batch.shell >= 0)[:, None]).sum(dim=2).mean()
    torch.testing.assert_close(terms.projection, expected)


def test_centres_alone_have_no_reconstruction_and_the_same_projection(
    training_set: TrainingSet, batch: Batch
) -> None:
    objective = _objective(training_set, rendered=1, reconstruction_share=0.0)
    terms, elsewhere = objective(batch)
    assert terms.reconstruction == 0
    assert elsewhere.shape[1] == objective.network.settings.channels
    whole = _objective(training_set, rendered=7, reconstruction_share=1 / 7)
    weights, more = objective.state_dict(), whole.state_dict()
    for name, weight in weights.items():
        more[name][: len(weight)] = weight  # the centre is the first voxel of a patch
    whole.load_state_dict(more)
    torch.testing.assert_close(whole(batch)[0].projection, terms.projection)


def test_the_weights_are_the_papers_with_its_signs_corrected(
    objective: Objective, batch: Batch
) -> None:
    terms, _ = objective(batch)
    paper = PRESETS["paper"]
    expected = 1.01 * terms.reconstruction + terms.prior + 0.01 * terms.marginal + terms.projection
    torch.testing.assert_close(terms.total(paper), expected)
    assert (paper.adversary, paper.adversary_updates, paper.batch) == (10, 10, 128)


def test_the_projection_is_dipys() -> None:
    gradients = make_gradients({1200: 20, 3000: 20})
    scan = make_scan(gradients)
    training_scan = fitted_scan(scan, replace(PREPARATION, tissue="brain"))
    coefficients = fit_coefficients(scan, order=ORDER)
    values = torch.from_numpy(coefficients.values)
    ours = values @ torch.from_numpy(training_scan.mixing)
    count = count_coefficients(ORDER)
    for index, shell in enumerate(gradients.shells):
        sphere = Sphere(xyz=gradients.directions[shell.volumes])
        of_shell = coefficients.values[:, 1 + index * count : 1 + (index + 1) * count]
        dipys = sh_to_sf(
            of_shell, sphere, sh_order_max=ORDER, basis_type="tournier07", legacy=False
        )
        columns = torch.from_numpy(training_scan.shell == index + 1)
        torch.testing.assert_close(
            ours[:, columns], torch.from_numpy(dipys).float(), rtol=1e-4, atol=0.05
        )
    torch.testing.assert_close(ours[:, 0], values[:, 0])


def test_sets_that_are_compared_hold_patches_of_every_group() -> None:
    groups, size = 16, 128
    group = torch.arange(groups).repeat_interleave(size).float()[:, None]
    row = torch.arange(groups * size).float()[:, None]
    parts = _interleaved(Posterior(group, row), groups)
    assert parts.mean.shape == (16, 128, 1)
    for subset in parts.mean:
        assert torch.bincount(subset[:, 0].long()).tolist() == [8] * groups
    assert sorted(parts.variance.flatten().tolist()) == row.flatten().tolist()


def test_small_batches_are_compared_whole() -> None:
    posterior = Posterior(torch.randn(48, 3), torch.rand(48, 3) + 0.1)
    whole = leave_one_out_kl(posterior)
    torch.testing.assert_close(leave_one_out_kl(_interleaved(posterior, 16)), whole)


def test_fixed_noise_is_not_learned(training_set: TrainingSet) -> None:
    network = Autoencoder(NetworkSettings(channels=training_set.scans[0].values.shape[1], sites=2))
    learned = Objective(network, QUICK, shells=2)
    fixed = Objective(network, PRESETS["paper"], shells=2)
    assert learned.log_signal_noise.requires_grad
    assert not fixed.log_noise.requires_grad
    assert not fixed.log_signal_noise.requires_grad
