"""Settings of the training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch

from siteless.harmonics import count_coefficients
from siteless.methods.invariant.network import NetworkSettings


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of the training; the defaults are those of the `siteless` preset.

    The encoder and decoder minimise, in nats per patch,

        (1 + marginal) reconstruction_share NLL + prior KL[q(z|x) || N(0, I)]
            + marginal KL[q(z|x) || q(z)] + projection NLL of the signal - adversary L_adv

    Attributes
    ----------
    fit
        How coefficients are fitted.
    profiles
        Whether scans are corrected for point-spread functions and fields before patches are cut.
    parts
        Number of parts of directions: the signal of each is rendered from codes of the others.
        With 1, all directions are rendered from codes of all.
    surroundings
        Passes of averaging after which means of the surroundings are added to a patch.
    neighbour_order
        Highest encoded degree of neighbours' harmonics; None for all.
    turned
        Whether patches are encoded and rendered in the frame of their fibres.
    site_units
        Whether units are scaled so that high degrees have equal variance at all sites.
    aligned
        Whether codes of all sites are aligned after training.
    prior, marginal, projection, adversary
        Weights of the terms: alpha, lambda, beta and gamma of the paper.
    reconstruction_share
        Weight of the log-likelihood of a patch's coefficients; 0 to render only the signal of the
        centre.
    bound
        Bound on the divergence from the marginal: over all pairs, or leaving out each patch.
    noise
        Standard deviation of a channel given its code, in units of the channel; the initial value
        if `learn_noise`.
    batch
        Patches per update.
    epochs, updates
        Length of training: passes over the training patches, or updates; one of them is None.
    learning_rate
        Highest learning rate of Adam.
    one_cycle
        Whether the rate rises over the first tenth of training and falls to zero at its end.
    adversary_updates
        Updates of the adversary per update of the encoder and decoder.
    adversary_share
        Fraction of the batch that the adversary judges.
    patience
        Evaluations without improvement after which training ends.
    precision
        Precision of layers, not of losses; ``fastest`` is bfloat16 if the processor supports it.
    code, encoder, decoder, adversary_widths, activation
        As in `siteless.methods.invariant.network.NetworkSettings`.
    """

    fit: Literal["laplace-beltrami", "pseudo-inverse"] = "laplace-beltrami"
    profiles: bool = True
    parts: int = 3
    surroundings: tuple[int, ...] = (2, 6)
    neighbour_order: int | None = 4
    turned: bool = True
    site_units: bool = True
    aligned: bool = True
    prior: float = 1.5e-3
    marginal: float = 0.0
    projection: float = 1.0
    adversary: float = 0.0
    reconstruction_share: float = 0.0
    bound: Literal["pairwise", "leave-one-out"] = "leave-one-out"
    noise: float = 0.5
    learn_noise: bool = True
    batch: int = 2048
    epochs: int | None = None
    updates: int | None = 2500
    learning_rate: float = 4e-3
    one_cycle: bool = True
    adversary_updates: int = 1
    adversary_share: float = 0.125
    patience: int = 20
    precision: Literal["fastest", "float32", "bfloat16"] = "fastest"
    code: int = 64
    encoder: tuple[int, ...] = (512, 256)
    decoder: tuple[int, ...] = (256, 512)
    adversary_widths: tuple[int, ...] = (32, 32)
    activation: Literal["tanh", "silu", "relu"] = "silu"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.updates is None):
            raise ValueError(
                "expected either epochs or updates, and None for the other, got "
                f"{self.epochs} and {self.updates}"
            )
        length = "updates" if self.epochs is None else "epochs"
        above = ("noise", "batch", length, "patience", "adversary_updates", "parts")
        wrong = [name for name in above if not getattr(self, name) > 0]
        if wrong:
            raise ValueError(f"{wrong[0]} must be above 0, got {getattr(self, wrong[0])}")
        if self.neighbour_order is not None and self.neighbour_order % 2:
            raise ValueError(f"neighbour_order must be even, got {self.neighbour_order}")
        if any(before >= after for before, after in pairwise((0, *self.surroundings))):
            raise ValueError(f"surroundings must be above 0 and rise, got {self.surroundings}")
        if self.reconstruction_share and (self.turned or self.neighbour_order is not None):
            raise ValueError(
                "with a reconstruction_share patches are rendered whole: expected turned=False "
                f"and neighbour_order=None, got {self.turned} and {self.neighbour_order}"
            )
        if not 0 < self.adversary_share <= 1:
            raise ValueError(f"adversary_share must be in (0, 1], got {self.adversary_share}")

    def on(self, device: str) -> TrainingSettings:
        """Resolve the fastest precision on a device."""
        if self.precision != "fastest":
            return self
        if device.startswith("cuda"):
            low = torch.cuda.is_bf16_supported()
        else:
            low = device == "cpu" and torch.cpu._is_avx512_bf16_supported()
        return replace(self, precision="bfloat16" if low else "float32")

    def network(self, *, sites: int, neighbours: int, shells: int, order: int) -> NetworkSettings:
        """Return the sizes of the networks."""
        kept = self.neighbour_order
        return NetworkSettings(
            channels=1 + shells * count_coefficients(order),
            sites=sites,
            neighbours=neighbours,
            rendered=neighbours if self.reconstruction_share else 1,
            shells=shells,
            kept=None if kept is None else count_coefficients(min(order, kept)),
            turned=self.turned,
            code=self.code,
            encoder=self.encoder,
            decoder=self.decoder,
            adversary=self.adversary_widths,
            activation=self.activation,
        )

    @property
    def judged(self) -> slice:
        """Patches of a batch that the adversary judges: none if it has no weight."""
        return slice(0, None if self.adversary else 0, round(1 / self.adversary_share))


PRESETS = {
    "siteless": TrainingSettings(),
    "paper": TrainingSettings(
        fit="pseudo-inverse",
        profiles=False,
        parts=1,
        surroundings=(),
        neighbour_order=None,
        turned=False,
        site_units=False,
        aligned=False,
        prior=1.0,
        marginal=0.01,
        adversary=10.0,
        reconstruction_share=1.0,
        bound="pairwise",
        noise=1.0,
        learn_noise=False,
        batch=128,
        epochs=1000,
        updates=None,
        learning_rate=1e-4,
        one_cycle=False,
        adversary_updates=10,
        adversary_share=1.0,
        precision="float32",
        code=32,
        encoder=(256, 128, 64),
        decoder=(64, 128, 256),
        activation="tanh",
    ),
}
