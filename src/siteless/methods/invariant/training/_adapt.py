"""Add a site to a trained network, without changing its other weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from siteless.methods.invariant.network import Autoencoder
from siteless.methods.invariant.training._align import align_last
from siteless.methods.invariant.training._batch import Sampler
from siteless.methods.invariant.training._objective import Objective
from siteless.methods.invariant.training._settings import TrainingSettings
from siteless.methods.invariant.training._units import units_beside
from siteless.methods.training import TrainingSet, one_cycle

_UPDATES, _LEARNING_RATE = 400, 0.02


def adapt(
    network: Autoencoder,
    training_set: TrainingSet,
    settings: TrainingSettings,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Autoencoder:
    """Train a network on a new site, which gets the next index.

    Existing weights are unchanged. The parameters of a site are a column of the decoder's first
    layer, units, and the alignment of its codes. The training set has scans of the new site only,
    corrected by its profile and in parts, as in the training of the network.
    """
    torch.manual_seed(seed)
    scans = training_set.scans
    larger = _with_a_site(network, units_beside(network, scans, of_sites=settings.site_units))
    number = network.settings.sites
    objective = Objective(larger, settings, shells=int(scans[0].shell.max())).train()
    objective.requires_grad_(False)  # noqa: FBT003
    first_layer = larger.decoder.hidden[0].weight
    assert isinstance(first_layer, Tensor)
    learned = [first_layer, objective.log_signal_noise]
    for parameter in learned:
        parameter.requires_grad_(True)  # noqa: FBT003
    last_column = torch.arange(first_layer.shape[1]) == first_layer.shape[1] - 1
    first_layer.register_hook(lambda gradient: gradient.where(last_column, 0))
    optimiser = torch.optim.Adam(learned, lr=_LEARNING_RATE)
    sampler = Sampler(scans, training_set.sites, units=network.settings.code, device="cpu")
    for update in range(_UPDATES):
        optimiser.param_groups[0]["lr"] = _LEARNING_RATE * one_cycle(update, _UPDATES)
        batch = sampler.draw(settings.batch, seed=(seed, 3, update))
        here = torch.full_like(batch.site, number)
        terms, _ = objective(replace(batch, site=here, elsewhere=here))
        optimiser.zero_grad()
        terms.projection.backward()
        optimiser.step()
        if progress:
            progress(update + 1, _UPDATES)
    if settings.aligned:  # last, as the decoder is trained on codes that are not aligned
        align_last(larger, training_set.whole or scans)
    return larger.requires_grad_(False).eval()  # noqa: FBT003


def _with_a_site(network: Autoencoder, units: tuple[Tensor, Tensor]) -> Autoencoder:
    """Return a network with one more site, initialized as the average of the others."""
    larger = Autoencoder(replace(network.settings, sites=network.settings.sites + 1))
    weights = {name: weight.clone() for name, weight in network.state_dict().items()}
    name, sites = "decoder.hidden.0.weight", network.settings.sites
    mean = weights[name][:, -sites:].mean(dim=1, keepdim=True)
    weights[name] = torch.cat([weights[name], mean], dim=1)
    for unit in ("offset", "scale", "code_shift", "code_mixing", "gain"):
        weights[unit] = torch.cat([weights[unit], getattr(larger, unit)[-1:]])
    larger.load_state_dict(weights)
    larger.offset[-1], larger.scale[-1] = units
    return larger
