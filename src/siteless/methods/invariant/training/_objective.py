"""The loss of the encoder and decoder, term by term."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from siteless.distributed import gathered, world
from siteless.methods.invariant.network import (
    Autoencoder,
    Posterior,
    kl_to_marginal,
    kl_to_prior,
    projection_loss,
    reconstruction_loss,
)
from siteless.methods.invariant.training._batch import Batch
from siteless.methods.invariant.training._settings import TrainingSettings

# Number of posteriors to compare pairwise: the cost is quadratic.
_COMPARED = 128


@dataclass(frozen=True, eq=False)
class Terms:
    """Terms of the loss that do not involve the adversary, in nats per patch."""

    reconstruction: Tensor
    prior: Tensor
    marginal: Tensor
    projection: Tensor

    def total(self, settings: TrainingSettings) -> Tensor:
        """Return the weighted sum of the terms."""
        return (
            (1 + settings.marginal) * settings.reconstruction_share * self.reconstruction
            + settings.prior * self.prior
            + settings.marginal * self.marginal
            + settings.projection * self.projection
        )


class Objective(nn.Module):
    """Encodes patches, renders them as their site and as others, and evaluates the loss.

    It has noise levels for channels (in units of the networks), and for b0 and the shells (in
    units of the scan's level).
    """

    def __init__(self, network: Autoencoder, settings: TrainingSettings, shells: int) -> None:
        super().__init__()
        self.network = network
        self.settings = settings
        start = torch.tensor(settings.noise).log().repeat(network.settings.channels)
        learned = settings.learn_noise and bool(settings.reconstruction_share)
        self.log_noise = nn.Parameter(start, requires_grad=learned)
        start = torch.full((1 + shells,), 0.1).log()
        self.log_signal_noise = nn.Parameter(start, requires_grad=settings.learn_noise)

    def forward(self, batch: Batch) -> tuple[Terms, Tensor]:
        """Return the terms, and patches rendered as other sites, for the adversary.

        Without weights, the marginal term is zero and no patches are rendered as other sites.
        """
        network, judged = self.network, self.settings.judged
        frames = network.frames(batch.patch)
        patch = network.standardise(batch.patch, batch.site, frames)
        low = self.settings.precision == "bfloat16"
        with torch.autocast(batch.patch.device.type, torch.bfloat16, enabled=low):
            posterior = network.encoder(patch).float()
            code = posterior.mean + posterior.variance.sqrt() * batch.noise
            rendered = network.decoder(code, batch.site).float()
            elsewhere = network.decoder(code[judged], batch.elsewhere[judged]).float()
        reconstruction = rendered.new_zeros(())
        if self.settings.reconstruction_share:  # otherwise only the centre's signal counts
            noise = self.log_noise.repeat(network.settings.neighbours)
            reconstruction = reconstruction_loss(rendered, patch, noise)
        terms = Terms(
            reconstruction=reconstruction,
            prior=kl_to_prior(posterior),
            marginal=self._marginal(posterior, len(batch.signal)),
            projection=self._projection(rendered, batch, frames),
        )
        return terms, elsewhere

    def noise_levels(self) -> dict[str, float]:
        """Return the noise levels: the median over channels, and those of b0 and the shells."""
        levels = {"noise_coefficients": self.log_noise.detach().exp().median().item()}
        for number, level in enumerate(self.log_signal_noise.detach().exp().tolist()):
            levels[f"noise_shell{number}" if number else "noise_b0"] = level
        return levels

    def _marginal(self, posterior: Posterior, groups: int) -> Tensor:
        if not self.settings.marginal:
            return posterior.mean.new_zeros(())
        if self.training:  # over the batch of all processes
            posterior = Posterior(gathered(posterior.mean), gathered(posterior.variance))
            groups *= world()
        return kl_to_marginal(_interleaved(posterior, groups), self.settings.bound)

    def _projection(self, rendered: Tensor, batch: Batch, frames: Tensor | None) -> Tensor:
        centre = rendered[:, : self.network.settings.channels]
        restored = self.network.restore(centre, batch.site, frames)
        groups, size, _ = batch.signal.shape
        return projection_loss(
            restored.view(groups, size, -1),
            batch.mixing,
            batch.signal,
            self.log_signal_noise[batch.shell],
            measured=batch.shell >= 0,
        )


def _interleaved(posterior: Posterior, groups: int) -> Posterior:
    """Divide a batch into sets with patches from every group, shape (set, patch, unit)."""
    size = len(posterior.mean) // groups
    sets = max(1, len(posterior.mean) // _COMPARED)
    while size % sets:
        sets -= 1
    # (group set patch) unit -> set (group patch) unit
    parts = (
        part.view(groups, sets, size // sets, -1).transpose(0, 1).flatten(1, 2)
        for part in (posterior.mean, posterior.variance)
    )
    return Posterior(*parts)
