"""What training is told: the weights of the loss, and how long and how fast to go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch

from siteless.harmonics import count_coefficients
from siteless.methods.invariant.network import NetworkSettings


@dataclass(frozen=True)
class TrainingSettings:
    """How to train; the defaults are those of the `siteless` preset.

    The encoder and decoder minimise, in nats a patch,

        (1 + marginal) reconstruction_share NLL + prior KL[q(z|x) || N(0, I)]
            + marginal KL[q(z|x) || q(z)] + projection NLL of the signal - adversary L_adv

    Attributes
    ----------
    fit
        How coefficients are fitted.
    profiles
        Whether the point spreads and fields of sites are taken out before patches are cut.
    parts
        That directions are dealt to: the signal of each is rendered from codes of the others. 1
        to render all directions from codes of all.
    surroundings
        Passes of averaging after which means of what surrounds a patch are added to it.
    neighbour_order
        Highest degree of neighbours' harmonics that are encoded; None for all.
    turned
        Whether patches are encoded and rendered in the frame of their own fibres.
    site_units
        Whether each site has units in which its high degrees vary as much as others'.
    aligned
        Whether codes of all sites are brought to one mean and covariance after training.
    prior, marginal, projection, adversary
        Weights of the terms: alpha, lambda, beta and gamma of the paper.
    reconstruction_share
        Part of the log-likelihood of a patch's coefficients that counts; 0 when the signal of
        the centre alone is rendered.
    bound
        On the divergence from the marginal: over all pairs, or leaving out each patch's own.
    noise
        Standard deviation of a channel given its code, in units of the channel's own; learned
        from there on when `learn_noise`.
    batch
        Patches in an update.
    epochs, updates
        Length of training: passes over the training patches, or updates; one of them is None.
    learning_rate
        Of Adam, at its highest.
    one_cycle
        Whether the rate rises over the first tenth of training and falls to zero at its end.
    adversary_updates
        Of the adversary, for each of the encoder and decoder.
    adversary_share
        Part of the batch that the adversary judges.
    patience
        Evaluations without improvement after which training ends.
    precision
        Of the layers' arithmetic, not of the losses; ``fastest`` is bfloat16 where the processor
        has it.
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
        above = ("noise", "batch", "patience", "adversary_updates", "parts")
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
        """Return the settings with the precision that is fastest on a device."""
        if self.precision != "fastest":
            return self
        if device.startswith("cuda"):
            low = torch.cuda.is_bf16_supported()
        else:
            low = device == "cpu" and torch.cpu._is_avx512_bf16_supported()
        return replace(self, precision="bfloat16" if low else "float32")

    def network(self, *, sites: int, neighbours: int, shells: int, order: int) -> NetworkSettings:
        """Return the sizes of the networks for patches of so many neighbours."""
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
    def needs_derived_scans(self) -> bool:
        """Whether patches are made without profiles, in parts or with their surroundings."""
        return self.profiles or self.parts > 1 or bool(self.surroundings)

    @property
    def judged(self) -> slice:
        """The patches of a batch that the adversary judges: none, if it has no weight."""
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
