"""The terms of the loss, in nats per patch, averaged over the batch.

The encoder and decoder minimise

    (1 + lambda) NLL(x | z, s) + alpha KL[q(z|x) || N(0, I)] + lambda KL[q(z|x) || q(z)]
        + beta projection - gamma adversary

and the adversary minimises its term. The bound on the information of codes about the site enters
with a plus sign, as in the paper's derivation; its summary has a minus sign.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from siteless.methods.invariant.network._model import Posterior

LOG_2_PI = math.log(2 * math.pi)


def reconstruction_loss(rendered: Tensor, patch: Tensor, log_noise: Tensor) -> Tensor:
    """Negative log-likelihood of patches under normal noise of a given level.

    A mean of squares without units would imply noise that grows with the number of inputs, and let
    the code collapse. Patches have the shape (patch, input); the logarithm of the noise's standard
    deviation is scalar, or has the shape (input,), and may be learned.
    """
    squares = (rendered - patch).square().mean(dim=0)  # noise is the same for all patches
    log_noise = log_noise.expand(len(squares))
    return (0.5 * (squares * torch.exp(-2 * log_noise) + LOG_2_PI) + log_noise).sum()


def kl_to_prior(posterior: Posterior) -> Tensor:
    """KL divergence of codes from the standard normal, in closed form."""
    mean, variance = posterior.mean, posterior.variance
    return 0.5 * (variance + mean.square() - 1 - variance.log()).sum(dim=1).mean()


def pairwise_kl(posterior: Posterior) -> Tensor:
    """KL divergence between the posteriors of patches i and j, shape (..., i, j).

    It is computed by matrix products: with V the variances, M the means and W = 1 / V,
    2 KL = V W' + (M M) W' - 2 M (M W)' + 1 rowsum(M M W)' + 1 L' - L 1' - D.
    """
    mean, variance = posterior.mean, posterior.variance
    # The divergence depends only on differences of means; centring reduces rounding errors.
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
    """Bound KL[q(z|x) || q(z)] as Kolchinsky and Tracey do, leaving out each patch's posterior.

    If included, the bound could not exceed log(batch), and its gradient would vanish for the most
    informative codes.
    """
    divergence = pairwise_kl(posterior)
    count = divergence.shape[-1]
    itself = torch.eye(count, dtype=torch.bool, device=divergence.device)
    mixture = torch.logsumexp((-divergence).masked_fill(itself, -torch.inf), dim=-1)
    return (math.log(count - 1) - mixture).mean()


def kl_to_marginal(posterior: Posterior, bound: Literal["pairwise", "leave-one-out"]) -> Tensor:
    """Bound the information of codes about patches, and thus about the site."""
    return mean_pairwise_kl(posterior) if bound == "pairwise" else leave_one_out_kl(posterior)


def projection_loss(
    centre: Tensor, mixing: Tensor, signal: Tensor, log_noise: Tensor, measured: Tensor
) -> Tensor:
    """Negative log-likelihood of the measured signal of patch centres, by scan.

    Coefficients of centres, (scan, patch, channel), are projected by the matrices of each scan,
    (scan, channel, volume), and compared to the signal, (scan, patch, volume). The logarithm of
    the noise's standard deviation has the shape (scan, volume), as has `measured`: volumes that
    exist in each scan; others are ignored.
    """
    squares = (centre @ mixing - signal).square().mean(dim=1)
    density = 0.5 * (squares * torch.exp(-2 * log_noise) + LOG_2_PI) + log_noise
    return (density * measured).sum(dim=1).mean()


def adversarial_loss(guess: Tensor, site: Tensor) -> Tensor:
    """Cross-entropy of the adversary's guess, shape (patch, site), of the original site."""
    return nn.functional.cross_entropy(guess, site)
