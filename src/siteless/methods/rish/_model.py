"""Linear RISH: rotation-invariant energies of two sites, compared where brains are compared.

Per shell and degree, on the b0-normalised signal, a scan's harmonics are multiplied by
sqrt(E_target / E_source), where E is the energy that people of a site have at the same place of
a template. The energies are those of groups, so that what is special to a person stays. b0 has a
scale of its own, so that diffusivities stay right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import ndimage

from siteless.acquisition import Array, Scan
from siteless.errors import DatasetError
from siteless.harmonics import Coefficients, fit_noise, rish
from siteless.methods.scaling import ScalingModel
from siteless.methods.template import BrainMaps, Likeness, describe_template, lay_well
from siteless.model import ModelCard
from siteless.registration import Alignment

# mm. Energies are averaged over about this distance before they are compared.
SMOOTHING = 4.0
# A scale below or above these tells of an error, not of a scanner.
CLIP = (0.5, 2.0)
# Noise is known to about this part of its energy; a signal below that has no scale of its own.
_NOISE_ERROR = 0.1
# Of the scan's level. The energy of darker voxels, over b0 squared, is not known.
_DARK = 0.05
# Where a scan has fewer voxels near than this, what all scans have there takes over.
_NEAR = 0.01
# What a scan may have more or less than others, where it must be guessed.
_GUESS = (0.25, 4.0)
# Of guessing what scans have in common, and how each compares.
_TURNS = 4


@dataclass(frozen=True, eq=False)
class Energies:
    """What RISH compares, of voxels, or as sums over voxels that are near.

    Attributes
    ----------
    signal
        b0 in units of the scan's level; then, over b0 squared, the energy of each degree of each
        shell without the noise's and as a fit without penalty would have it; shape
        (..., 1 + shell * degree), float32.
    noise
        Energies of noise, likewise; zero for b0, which hardly has any.
    weight
        1 for voxels that are bright enough to tell, 0 for others, which add nothing to sums;
        shape (..., 1).
    """

    signal: Array
    noise: Array
    weight: Array


def energies_of(scan: Scan, own: Coefficients, level: float) -> Energies:
    """Return the energies of a scan's brain voxels, each (voxel, feature)."""
    noise = fit_noise(scan, own)
    bright = own.b0[:, None] > _DARK * level
    square = np.square(np.where(bright, own.b0[:, None], 1))[..., None]
    of_noise = noise.energies / noise.kept / square
    of_signal = rish(own) / noise.kept / square - of_noise
    b0 = own.b0[:, None] / np.float32(level)
    return Energies(
        np.hstack([b0, of_signal.reshape(len(b0), -1)]) * bright,
        np.hstack([0 * b0, of_noise.reshape(len(b0), -1)]) * bright,
        bright.astype(np.float32),
    )


def smooth_on_template(energies: Energies, alignment: Alignment) -> Energies:
    """Bring energies on a scan's grid to the template, and sum them over near voxels."""
    sigma = (*(SMOOTHING / alignment.static.voxel_size), 0)

    def sums(values: Array) -> Array:
        return ndimage.gaussian_filter(alignment.to_static(values), sigma, mode="constant")

    return Energies(sums(energies.signal), sums(energies.noise), sums(energies.weight))


def site_energies(read: Callable[[int], Energies], weights: Array) -> tuple[Array, Array]:
    """Add the energies of scans up to those of sites.

    Where a scan has no voxels near, it is guessed from what all scans have there and from how
    the scan compares with them elsewhere. So sites that do not cover the same part of the brain
    are compared there by what they share.

    Parameters
    ----------
    read
        Gives the sums of a scan by its number, each (voxel, feature). Scans need not be in memory
        together.
    weights
        Of `site_weights`, shape (site, scan).

    Returns
    -------
    energies, noise
        Shape (site, voxel, feature), and the mean over scans, (voxel, feature).
    """
    mean, ratios = _shared_pattern(read, weights.shape[1])
    energies, noise = np.zeros((len(weights), *mean.shape)), np.zeros_like(mean)
    total = np.full_like(mean, np.finfo(np.float32).tiny)
    for number, ratio in enumerate(ratios):
        own = read(number)
        filled = (own.signal + _NEAR * ratio * mean) / (own.weight + _NEAR)
        energies += weights[:, number, None, None] * filled
        noise, total = noise + own.noise, total + own.weight
    return energies.astype(np.float32), (noise / total).astype(np.float32)


def _shared_pattern(read: Callable[[int], Energies], scans: int) -> tuple[Array, Array]:
    """Return what scans have in common, (voxel, feature), and how each compares, (scan, feature).

    A scan is its ratio times the pattern, where it has voxels; both are found in turn.
    """
    ratios, least = np.ones((scans, read(0).signal.shape[1])), np.finfo(np.float32).tiny
    for _ in range(_TURNS):
        signal, weight = np.zeros(1), np.full(1, float(least))
        for number, ratio in enumerate(ratios):
            own = read(number)
            signal, weight = signal + own.signal, weight + own.weight * ratio
        mean = signal / weight
        for number in range(scans):
            own = read(number)
            expected = np.maximum((own.weight * mean).sum(axis=0), least)
            ratios[number] = (own.signal.sum(axis=0) / expected).clip(*_GUESS)
    return mean, ratios


@dataclass(frozen=True, eq=False)
class RishModel(ScalingModel):
    """Energies of each site on a template.

    Attributes
    ----------
    template
        Mean of the training scans.
    energies
        Of `Energies.signal` in the template's brain, shape (site, voxel, feature).
    noise
        Mean over the scans of `Energies.noise`, shape (voxel, feature).
    """

    template: BrainMaps
    energies: Array
    noise: Array

    @classmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make a model of what its file holds."""
        return cls(card, BrainMaps.from_arrays(arrays), arrays["energies"], arrays["noise"])

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The template, and energies in its brain."""
        return {**self.template.arrays, "energies": self.energies, "noise": self.noise}

    def describe(self) -> Sequence[tuple[str, str]]:
        """Say what was compared, and how well scans lie on the template."""
        return describe_template(self.card)

    def scales(self, source: int, targets: Sequence[int]) -> Array:
        """Return the scale maps from a site to others' mean, on the template.

        Returns
        -------
        Array
            Shape (x, y, z, feature): of b0, and of each degree of each shell relative to b0; 1
            outside the template's brain.
        """
        logs = np.mean([self._logarithm(target) for target in targets], axis=0)
        ratio = np.exp(logs - self._logarithm(source))
        ratio[:, 1:] = np.sqrt(ratio[:, 1:])
        inside = self.template.image > 0
        scales = np.ones((*inside.shape, ratio.shape[1]), dtype=np.float32)
        scales[inside] = ratio.clip(*self.card.settings["clip"])
        return scales

    def _logarithm(self, site: int) -> Array:
        """Return a site's log energies; as much is added as noise may hide, so that they exist."""
        least = np.maximum(_NOISE_ERROR * self.noise, np.finfo(np.float32).tiny)
        return np.log(np.maximum(self.energies[site], 0) + least)

    def gains(self, scan: Scan, own: Coefficients, site: str) -> Array:
        """Return the scale maps at a scan's voxels, shape (voxel, feature)."""
        source = self.require_known(scan.gradients, scan.site)
        targets = self.numbers(site)
        if targets == [source]:
            return np.ones((1, self.noise.shape[-1]), dtype=np.float32)
        logs = np.log(self.scales(source, targets))
        maps = np.exp(self._alignment(scan, own).to_moving(logs))
        return maps.swapaxes(0, 2)[scan.mask.T]

    def _alignment(self, scan: Scan, own: Coefficients) -> Alignment:
        return lay_well(
            BrainMaps.of(scan, own),
            self.template,
            same_space=self.card.settings["same_space"],
            typical=Likeness(**self.card.summary["likeness"]),
        )


def site_weights(
    sites: Sequence[int], people: Sequence[str], covariates: Array, *, travelling: bool
) -> Array:
    """Return the weights by which scans' energies add up to those of each site.

    They are the least-squares fit of site effects beside those of covariates, and for travelling
    people beside those of each person. Without either they are means over people: scans of one
    person at one site share a weight.

    Parameters
    ----------
    sites, people
        Number of each scan's site, and who was scanned.
    covariates
        Of each scan, shape (scan, covariate).
    travelling
        Whether people are compared with themselves.

    Returns
    -------
    Array
        Shape (site, scan). A site's energies are for people of mean covariates.

    Raises
    ------
    DatasetError
        When sites cannot be told from covariates or people.
    """
    site_columns = np.eye(max(sites) + 1)[list(sites)]
    others = covariates
    free = site_columns.shape[1] + covariates.shape[1]
    if travelling:
        _, numbers = np.unique(people, return_inverse=True)
        others = np.hstack([covariates, np.eye(numbers.max() + 1)[numbers]])
        free += numbers.max()
    design = np.hstack([site_columns, others - others.mean(axis=0)])
    if np.linalg.matrix_rank(design) < free:
        raise DatasetError(
            "the sites' effects cannot be told from those of "
            + ("people" if travelling else "the covariates"),
            remedy="name fewer covariates, or give more scans of each site",
        )
    times = Counter(zip(sites, people, strict=True))
    share = np.sqrt([1 / times[pair] for pair in zip(sites, people, strict=True)])
    return (np.linalg.pinv(share[:, None] * design) * share)[: site_columns.shape[1]]
