"""The invariant representation: encoder, decoder, adversary and losses (torch only)."""

from siteless.network._losses import (
    adversarial_loss,
    kl_to_marginal,
    kl_to_prior,
    leave_one_out_kl,
    mean_pairwise_kl,
    pairwise_kl,
    projection_loss,
    reconstruction_loss,
)
from siteless.network._model import (
    Adversary,
    Autoencoder,
    Decoder,
    Encoder,
    NetworkSettings,
    Posterior,
)

__all__ = [
    "Adversary",
    "Autoencoder",
    "Decoder",
    "Encoder",
    "NetworkSettings",
    "Posterior",
    "adversarial_loss",
    "kl_to_marginal",
    "kl_to_prior",
    "leave_one_out_kl",
    "mean_pairwise_kl",
    "pairwise_kl",
    "projection_loss",
    "reconstruction_loss",
]
