"""The networks (torch only): the invariant representation, and one that learns from pairs."""

from siteless.network._frames import fibre_frames, rotate
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
from siteless.network._translator import Translator, TranslatorSettings

__all__ = [
    "Adversary",
    "Autoencoder",
    "Decoder",
    "Encoder",
    "NetworkSettings",
    "Posterior",
    "Translator",
    "TranslatorSettings",
    "adversarial_loss",
    "fibre_frames",
    "kl_to_marginal",
    "kl_to_prior",
    "leave_one_out_kl",
    "mean_pairwise_kl",
    "pairwise_kl",
    "projection_loss",
    "reconstruction_loss",
    "rotate",
]
