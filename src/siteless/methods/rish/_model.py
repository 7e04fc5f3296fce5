"""Linear RISH: rotation-invariant energies of two sites, compared on a template.

Per shell and degree, on the b0-normalised signal, a scan's harmonics are multiplied by
sqrt(E_target / E_source), where E is the energy of a site's participants at the same location of a
template. Energies are group means, so individual differences are preserved. b0 has a separate
scale, so diffusivities remain correct.
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
from siteless.methods.template import BrainMaps, describe_template, lay_well
from siteless.model import ModelCard
from siteless.registration import Alignment

# mm. Energies are averaged over about this distance before they are compared.
SMOOTHING = 4.0
# A scale outside this range indicates an error rather than a scanner effect.
CLIP = (0.5, 2.0)
# Relative error of the noise energy; the scale of a weaker signal is shrunk to 1.
_NOISE_ERROR = 0.1
# Fraction of the scan's level below which energies over b0 squared are unreliable.
_DARK = 0.05
# With less weight nearby than this, the shared pattern of all scans dominates.
_NEAR = 0.01
# Range of a scan's ratio to the shared pattern.
_GUESS = (0.25, 4.0)
# Iterations of estimating the shared pattern and the ratios.
_TURNS = 4


@dataclass(frozen=True, eq=False)
class Energies:
    """Energies of voxels, or their sums over nearby voxels, shape (..., feature), float32.

    Attributes
    ----------
    signal
        b0 in units of the scan's level; then the energy of each degree of each shell over b0
        squared, corrected for noise and for the penalty of the fit.
    noise
        Energies of noise in the same layout; zero for b0, where it is negligible.
    weight
        1 for voxels that are bright enough, 0 for others, which do not add to sums; one feature.
    """

    signal: Array
    noise: Array
    weight: Array


def energies_of(scan: Scan, coefficients: Coefficients, level: float) -> Energies:
    """Return the energies of a scan's brain voxels, shape (voxel, feature)."""
    noise = fit_noise(scan, coefficients)
    bright = coefficients.b0[:, None] > _DARK * level
    square = np.square(np.where(bright, coefficients.b0[:, None], 1))[..., None]
    of_noise = noise.energies / noise.kept / square
    of_signal = rish(coefficients) / noise.kept / square - of_noise
    b0 = coefficients.b0[:, None] / np.float32(level)
    return Energies(
        np.hstack([b0, of_signal.reshape(len(b0), -1)]) * bright,
        np.hstack([0 * b0, of_noise.reshape(len(b0), -1)]) * bright,
        bright.astype(np.float32),
    )


def smooth_on_template(energies: Energies, alignment: Alignment) -> Energies:
    """Resample energies to the template, and sum them over nearby voxels."""
    sigma = (*(SMOOTHING / alignment.static.voxel_size), 0)

    def sums(values: Array) -> Array:
        return ndimage.gaussian_filter(alignment.to_static(values), sigma, mode="constant")

    return Energies(sums(energies.signal), sums(energies.noise), sums(energies.weight))


def site_energies(read: Callable[[int], Energies], weights: Array) -> tuple[Array, Array]:
    """Combine the energies of scans into those of sites.

    Where a scan has no voxels nearby, it is extrapolated from the shared pattern of all scans and
    from the scan's ratio to it elsewhere. So differences in coverage between sites do not bias
    them. The sums of a scan are read by its index, so that few scans are in memory.

    Returns
    -------
    energies, noise
        Site energies, shape (site, voxel, feature), and mean noise over scans, (voxel, feature).
    """
    mean, ratios = _shared_pattern(read, weights.shape[1])
    energies, noise = np.zeros((len(weights), *mean.shape)), np.zeros_like(mean)
    total = np.full_like(mean, np.finfo(np.float32).tiny)
    for number, ratio in enumerate(ratios):
        sums = read(number)
        filled = (sums.signal + _NEAR * ratio * mean) / (sums.weight + _NEAR)
        energies += weights[:, number, None, None] * filled
        noise, total = noise + sums.noise, total + sums.weight
    return energies.astype(np.float32), (noise / total).astype(np.float32)


def _shared_pattern(read: Callable[[int], Energies], scans: int) -> tuple[Array, Array]:
    """Return the shared pattern of scans, (voxel, feature), and their ratios, (scan, feature).

    A scan is modelled as its ratio times the pattern; both are estimated alternately.
    """
    ratios, least = np.ones((scans, read(0).signal.shape[1])), np.finfo(np.float32).tiny
    for _ in range(_TURNS):
        signal, weight = np.zeros(1), np.full(1, float(least))
        for number, ratio in enumerate(ratios):
            sums = read(number)
            signal, weight = signal + sums.signal, weight + sums.weight * ratio
        mean = signal / weight
        for number in range(scans):
            sums = read(number)
            expected = np.maximum((sums.weight * mean).sum(axis=0), least)
            ratios[number] = (sums.signal.sum(axis=0) / expected).clip(*_GUESS)
    return mean, ratios


@dataclass(frozen=True, eq=False)
class RishModel(ScalingModel):
    """Energies of each site on a template.

    Attributes
    ----------
    template
        Mean of the training scans.
    energies
        Site energies in the template's brain, as `Energies.signal`, shape (site, voxel, feature).
    noise
        Mean of `Energies.noise` over scans, shape (voxel, feature).
    """

    template: BrainMaps
    energies: Array
    noise: Array

    @classmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make a model from its card and arrays."""
        return cls(card, BrainMaps.from_arrays(arrays), arrays["energies"], arrays["noise"])

    @property
    def arrays(self) -> Mapping[str, Array]:
        """The template, and energies in its brain."""
        return {**self.template.arrays, "energies": self.energies, "noise": self.noise}

    def describe(self) -> Sequence[tuple[str, str]]:
        """Describe what was compared, and how well scans match the template."""
        return describe_template(self.card)

    def scales(self, source: int, targets: Sequence[int]) -> Array:
        """Return the scale maps from a site to the mean of targets, on the template.

        Returns
        -------
        Array
            Scales of b0, and of each shell's degrees relative to b0, shape (x, y, z, feature); 1
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
        """Return a site's log energies; the error of the noise is added to keep them finite."""
        least = np.maximum(_NOISE_ERROR * self.noise, np.finfo(np.float32).tiny)
        return np.log(np.maximum(self.energies[site], 0) + least)

    def gains(self, scan: Scan, coefficients: Coefficients, site: str) -> Array:
        """Return the scale maps at a scan's voxels, shape (voxel, feature)."""
        source = self.require_known(scan.gradients, scan.site)
        targets = self.numbers(site)
        if targets == [source]:
            return np.ones((1, self.noise.shape[-1]), dtype=np.float32)
        logs = np.log(self.scales(source, targets))
        alignment = lay_well(BrainMaps.of(scan, coefficients), self.template, self.card)
        return np.exp(alignment.to_moving(logs)).swapaxes(0, 2)[scan.mask.T]


def site_weights(
    sites: Sequence[int], people: Sequence[str], covariates: Array, *, travelling: bool
) -> Array:
    """Return the weights of scans in the energies of each site.

    They are the least-squares estimator of site effects in a regression with covariates and, for
    travelling subjects, with effects of participants. Without either they average over
    participants, whose scans at one site share a weight. Energies of a site are those at mean
    covariates. Covariates have shape (scan, covariate), weights (site, scan).
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
