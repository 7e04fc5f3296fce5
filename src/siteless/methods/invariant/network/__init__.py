"""The networks of the invariant representation (torch only)."""

from siteless.methods.invariant.network._frames import fibre_frames, rotate
from siteless.methods.invariant.network._losses import (
    adversarial_loss,
    kl_to_marginal,
    kl_to_prior,
    leave_one_out_kl,
    mean_pairwise_kl,
    pairwise_kl,
    projection_loss,
    reconstruction_loss,
)
from siteless.methods.invariant.network._model import (
    Adversary,
    Autoencoder,
    Decoder,
    Encoder,
    NetworkSettings,
    Posterior,
    layers,
)

__all__ = [
    "Adversary",
    "Autoencoder",
    "Decoder",
    "Encoder",
    "NetworkSettings",
    "Posterior",
    "adversarial_loss",
    "fibre_frames",
    "kl_to_marginal",
    "kl_to_prior",
    "layers",
    "leave_one_out_kl",
    "mean_pairwise_kl",
    "pairwise_kl",
    "projection_loss",
    "reconstruction_loss",
    "rotate",
]
