import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Distribution, Independent, Normal, kl_divergence

from siteless.methods.invariant.network import (
    Posterior,
    adversarial_loss,
    kl_to_marginal,
    kl_to_prior,
    leave_one_out_kl,
    mean_pairwise_kl,
    pairwise_kl,
    projection_loss,
    reconstruction_loss,
)
from strategies import seeds

batches = st.tuples(st.integers(2, 20), st.integers(1, 8), seeds)


def _posterior(patches: int, size: int, seed: int, offset: float = 0.0) -> Posterior:
    rng = np.random.default_rng(seed)
    mean = torch.tensor(rng.normal(size=(patches, size)) + offset)
    return Posterior(mean, torch.tensor(rng.uniform(0.01, 1, size=(patches, size))))


def _normal(posterior: Posterior, index: int | None = None) -> Distribution:
    rows = slice(None) if index is None else index
    return Independent(Normal(posterior.mean[rows], posterior.variance[rows].sqrt()), 1)


@given(batches)
def test_pairwise_divergence_is_that_of_a_double_loop(batch: tuple[int, int, int]) -> None:
    posterior = _posterior(*batch)
    mean, variance = posterior.mean.numpy(), posterior.variance.numpy()
    fast = pairwise_kl(posterior).numpy()
    for i in range(len(mean)):
        for j in range(len(mean)):
            ratio = variance[i] / variance[j]
            apart = (mean[i] - mean[j]) ** 2 / variance[j]
            assert fast[i, j] == pytest.approx(
                0.5 * np.sum(ratio + apart - 1 - np.log(ratio)), abs=1e-8
            )


@given(batches)
def test_pairwise_divergence_is_that_of_torch(batch: tuple[int, int, int]) -> None:
    posterior = _posterior(*batch)
    fast = pairwise_kl(posterior)
    for j in range(len(fast)):
        expected = kl_divergence(_normal(posterior), _normal(posterior, j).expand((len(fast),)))
        torch.testing.assert_close(fast[:, j], expected, atol=1e-8, rtol=1e-8)


@given(batches, st.floats(-1e3, 1e3))
def test_divergences_are_not_negative_and_zero_from_themselves(
    batch: tuple[int, int, int], offset: float
) -> None:
    fast = pairwise_kl(_posterior(*batch, offset=offset))
    assert (fast >= 0).all()
    torch.testing.assert_close(
        fast.diagonal(), torch.zeros(len(fast), dtype=fast.dtype), atol=1e-7, rtol=0
    )


@given(batches)
def test_leave_one_out_is_at_most_the_mean_over_others(batch: tuple[int, int, int]) -> None:
    posterior = _posterior(*batch)
    others = len(posterior.mean) - 1
    over_others = pairwise_kl(posterior).sum(dim=1) / others
    assert leave_one_out_kl(posterior) <= over_others.mean() + 1e-9


def test_leave_one_out_passes_the_log_of_the_batch_and_keeps_its_gradient() -> None:
    mean = torch.arange(8, dtype=torch.float64)[:, None] * 100
    mean.requires_grad_()
    bound = leave_one_out_kl(Posterior(mean, torch.ones_like(mean)))
    assert bound > 10 * math.log(8)
    bound.backward()
    assert mean.grad is not None
    assert mean.grad.abs().max() > 1


def test_bounds_bound_the_information_of_two_known_codes() -> None:
    """Two equally likely, far apart codes hold one bit; the bounds must not promise less."""
    torch.manual_seed(0)
    mean = torch.tensor([[-3.0], [3.0]]).repeat(50, 1)
    posterior = Posterior(mean, torch.full_like(mean, 0.1))
    for bound in ("pairwise", "leave-one-out"):
        assert kl_to_marginal(posterior, bound) >= math.log(2) - 0.02
    assert kl_to_marginal(posterior, "leave-one-out") == pytest.approx(math.log(2), abs=0.02)
    assert mean_pairwise_kl(posterior) > 10


def test_divergence_from_the_prior_is_what_sampling_gives() -> None:
    posterior = _posterior(4, 3, seed=1)
    codes = _normal(posterior).sample((200_000,))
    prior = Independent(Normal(torch.zeros(3, dtype=codes.dtype), 1.0), 1)
    sampled = (_normal(posterior).log_prob(codes) - prior.log_prob(codes)).mean()
    assert kl_to_prior(posterior) == pytest.approx(sampled.item(), rel=0.01)


def test_reconstruction_is_the_normal_log_likelihood_summed_over_inputs() -> None:
    torch.manual_seed(0)
    rendered, patch, log_noise = torch.randn(6, 5), torch.randn(6, 5), torch.randn(5)
    expected = -Normal(rendered, log_noise.exp()).log_prob(patch).sum(dim=1).mean()
    torch.testing.assert_close(reconstruction_loss(rendered, patch, log_noise), expected)
    alike = reconstruction_loss(rendered, patch, torch.tensor(0.3))
    torch.testing.assert_close(alike, reconstruction_loss(rendered, patch, torch.full((5,), 0.3)))


def test_learned_noise_settles_at_the_residuals() -> None:
    torch.manual_seed(0)
    residual = torch.randn(4000, 2) * torch.tensor([0.1, 3.0])
    log_noise = torch.zeros(2, requires_grad=True)
    optimiser = torch.optim.Adam([log_noise], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        reconstruction_loss(torch.zeros_like(residual), residual, log_noise).backward()
        optimiser.step()
    torch.testing.assert_close(log_noise.exp(), torch.tensor([0.1, 3.0]), rtol=0.05, atol=0)


def test_adversary_at_chance_loses_the_log_of_the_sites() -> None:
    guess = torch.zeros(10, 4)
    assert adversarial_loss(guess, torch.arange(10) % 4) == pytest.approx(math.log(4))


def test_projection_compares_in_the_scans_own_volumes() -> None:
    torch.manual_seed(0)
    centre, mixing = torch.randn(2, 5, 7), torch.randn(2, 7, 9)
    signal, log_noise = torch.randn(2, 5, 9), torch.randn(2, 9)
    measured = torch.ones(2, 9, dtype=torch.bool)
    measured[1, 6:] = False
    expected = [
        -Normal(centre[scan, patch] @ mixing[scan], log_noise[scan].exp())
        .log_prob(signal[scan, patch])[measured[scan]]
        .sum()
        for scan in range(2)
        for patch in range(5)
    ]
    loss = projection_loss(centre, mixing, signal, log_noise, measured)
    torch.testing.assert_close(loss, torch.stack(expected).mean())
