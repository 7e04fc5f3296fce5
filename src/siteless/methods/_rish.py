"""Linear RISH: rotation-invariant energies of two sites, compared where brains are compared.

Per shell and degree, on the b0-normalised signal, a scan's harmonics are multiplied by
sqrt(E_target / E_source), where E is the energy that people of a site have at the same place of
a template. The energies are those of groups, so that what is special to a person stays. b0 has a
scale of its own, so that diffusivities stay right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import ndimage

from siteless.acquisition import Array, Scan
from siteless.errors import DatasetError
from siteless.harmonics import Coefficients, fit_noise, rish
from siteless.methods._scaling import ScalingModel
from siteless.methods._template import BrainMaps, Likeness, lay_well
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
# Where fewer of the scans' voxels than this are near, the mean over the brain takes over.
_NEAR = 0.01


@dataclass(frozen=True, eq=False)
class Energies:
    """What RISH compares, on the voxels of a grid.

    Attributes
    ----------
    signal
        b0 in units of the scan's level; then, over b0 squared, the energy of each degree of each
        shell without the noise's and as a fit without penalty would have it; shape
        (..., 1 + shell * degree), float32.
    noise
        Standard deviation of b0 (zero: it is small) and the energies of noise, likewise.
    """

    signal: Array
    noise: Array


def energies_of(scan: Scan, own: Coefficients, level: float) -> tuple[Energies, Array]:
    """Return the energies of a scan's brain voxels, and which of them are bright enough."""
    noise = fit_noise(scan, own)
    bright = own.b0 > _DARK * level
    square = np.square(np.where(bright, own.b0, 1))[:, None, None]
    of_noise = noise.energies / noise.kept / square
    of_signal = rish(own) / noise.kept / square - of_noise
    b0 = own.b0[:, None] / np.float32(level)
    rows = len(b0)
    return Energies(
        np.hstack([b0, of_signal.reshape(rows, -1)]) * bright[:, None],
        np.hstack([0 * b0, of_noise.reshape(rows, -1)]) * bright[:, None],
    ), bright


def smooth_on_template(energies: Energies, bright: Array, alignment: Alignment) -> Energies:
    """Bring energies on a scan's grid to the template, and average them over near voxels.

    Parameters
    ----------
    energies
        On the scan's grid, zero where it is not bright.
    bright
        Voxels that count, shape (x, y, z), bool.
    alignment
        Of the scan to the template.
    """
    sigma = SMOOTHING / alignment.static.voxel_size
    weight = _smooth(alignment.to_static(bright.astype(np.float32))[..., None], sigma) + _NEAR

    def average(values: Array) -> Array:
        mean = values.sum(axis=(0, 1, 2), dtype=float) / bright.sum()
        near = _smooth(alignment.to_static(values), sigma)
        return np.asarray((near + _NEAR * mean) / weight, dtype=np.float32)

    return Energies(average(energies.signal), average(energies.noise))


def _smooth(values: Array, sigma: Array) -> Array:
    return ndimage.gaussian_filter(values, (*sigma, 0), mode="constant")


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
        scales[inside] = ratio.clip(*CLIP)
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
    sites: Sequence[int], covariates: Array, people: Sequence[str] | None = None
) -> Array:
    """Return the weights by which scans' energies add up to those of each site.

    They are the least-squares fit of site effects beside those of covariates, and where people
    are given beside those of each person. Without either they are means.

    Parameters
    ----------
    sites
        Number of each scan's site.
    covariates
        Of each scan, shape (scan, covariate).
    people
        Who was scanned, for travelling people; None otherwise.

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
    _, numbers = np.unique(
        people if people is not None else [""] * len(sites), return_inverse=True
    )
    person_columns = np.eye(numbers.max() + 1)[numbers]
    others = np.hstack([covariates, person_columns])
    others = others - others.mean(axis=0)
    design = np.hstack([site_columns, others])
    free = site_columns.shape[1] + covariates.shape[1] + person_columns.shape[1] - 1
    if np.linalg.matrix_rank(design) < free:
        raise DatasetError(
            "the sites' effects cannot be told from those of "
            + ("people" if people is not None else "the covariates"),
            remedy="name fewer covariates, or give more scans of each site",
        )
    return np.linalg.pinv(design)[: site_columns.shape[1]]
