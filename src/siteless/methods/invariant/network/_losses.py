"""The terms of the loss, each in nats a patch, averaged over the batch.

The encoder and decoder minimise

    (1 + lambda) NLL(x | z, s) + alpha KL[q(z|x) || N(0, I)] + lambda KL[q(z|x) || q(z)]
        + beta projection - gamma adversary

and the adversary minimises its own term. The bound on the information that codes hold of the site
enters with a plus: the paper's summary prints a minus, its derivation does not.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from siteless.methods.invariant.network._model import Posterior

LOG_2_PI = math.log(2 * math.pi)


def reconstruction_loss(rendered: Tensor, patch: Tensor, log_noise: Tensor) -> Tensor:
    """Negative log-likelihood of patches under normal noise of a stated level.

    A mean of squares without units would be a likelihood whose noise grows with the number of
    inputs, and let the code collapse.

    Parameters
    ----------
    rendered, patch
        Shape (patch, input).
    log_noise
        Logarithm of the noise's standard deviation, of shape (input,) or one for all; fixed or
        learned.
    """
    squares = (rendered - patch).square().mean(dim=0)  # first, as noise is the same for patches
    log_noise = log_noise.expand(len(squares))
    return (0.5 * (squares * torch.exp(-2 * log_noise) + LOG_2_PI) + log_noise).sum()


def kl_to_prior(posterior: Posterior) -> Tensor:
    """Divergence of codes from the standard normal, in closed form."""
    mean, variance = posterior.mean, posterior.variance
    return 0.5 * (variance + mean.square() - 1 - variance.log()).sum(dim=1).mean()


def pairwise_kl(posterior: Posterior) -> Tensor:
    """Divergence of every patch's posterior i from every other's j, shape (..., i, j).

    A few matrix products instead of a loop: with V the variances, M the means and W = 1 / V,
    2 KL = V W' + (M M) W' - 2 M (M W)' + 1 rowsum(M M W)' + 1 L' - L 1' - D.
    """
    mean, variance = posterior.mean, posterior.variance
    # The divergence depends on differences of means only; small means lose fewer digits.
    mean = mean - mean.mean(dim=-2, keepdim=True)
    precision = 1 / variance
    log_volume = variance.log().sum(dim=-1)
    doubled = (
        (variance + mean.square()) @ precision.mT
        - 2 * mean @ (mean * precision).mT
        + (mean.square() * precision).sum(dim=-1).unsqueeze(-2)
        + log_volume.unsqueeze(-2)
        - log_volume.unsqueeze(-1)
        - mean.shape[-1]
    )
    return 0.5 * doubled.clamp(min=0)  # rounding can leave the diagonal below zero


def mean_pairwise_kl(posterior: Posterior) -> Tensor:
    """Bound KL[q(z|x) || q(z)] as the paper does, by the mean over all pairs."""
    return pairwise_kl(posterior).mean()


def leave_one_out_kl(posterior: Posterior) -> Tensor:
    """Bound KL[q(z|x) || q(z)] as Kolchinsky and Tracey do, without a patch's own posterior.

    With it, the bound could not pass log(batch), and its gradient would vanish just where codes
    hold most.
    """
    divergence = pairwise_kl(posterior)
    count = divergence.shape[-1]
    itself = torch.eye(count, dtype=torch.bool, device=divergence.device)
    mixture = torch.logsumexp((-divergence).masked_fill(itself, -torch.inf), dim=-1)
    return (math.log(count - 1) - mixture).mean()


def kl_to_marginal(posterior: Posterior, bound: Literal["pairwise", "leave-one-out"]) -> Tensor:
    """Bound the information that codes hold of patches, and so of the site."""
    return mean_pairwise_kl(posterior) if bound == "pairwise" else leave_one_out_kl(posterior)


def projection_loss(
    centre: Tensor, mixing: Tensor, signal: Tensor, log_noise: Tensor, measured: Tensor
) -> Tensor:
    """Negative log-likelihood of the measured signal of patches' centres, scan by scan.

    Parameters
    ----------
    centre
        Coefficients of the centre voxels, shape (scan, patch, channel), b0 first.
    mixing
        From coefficients to each scan's volumes, shape (scan, channel, volume); passes b0 through.
    signal
        As measured, shape (scan, patch, volume).
    log_noise
        Logarithm of the noise's standard deviation, shape (scan, volume).
    measured
        Which volumes a scan has, shape (scan, volume), bool: the others do not count.
    """
    squares = (centre @ mixing - signal).square().mean(dim=1)
    density = 0.5 * (squares * torch.exp(-2 * log_noise) + LOG_2_PI) + log_noise
    return (density * measured).sum(dim=1).mean()


def adversarial_loss(guess: Tensor, site: Tensor) -> Tensor:
    """Cross-entropy of the adversary's guess, shape (patch, site), of the original site."""
    return nn.functional.cross_entropy(guess, site)
