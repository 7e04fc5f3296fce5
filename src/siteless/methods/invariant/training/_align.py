"""One mean and one covariance of codes for all sites.

An encoder is less sure of patches of few directions, so that their codes vary less, and in other
ways; that tells the site. An affine map for each site takes it away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from siteless.acquisition import Array
from siteless.methods.invariant.network import Autoencoder
from siteless.methods.patches import TrainingScan, cut
from siteless.population import Design, estimate_site_effects

# Added to variances, of which the prior's is one: units that are not used stay as they are.
_LEAST_VARIANCE = 1e-3
# Patches for each unit that the covariance of other sites counts as, beside a site's own.
_PATCHES_A_UNIT = 10
_TINY = np.finfo(float).tiny


def align_codes(network: Autoencoder, scans: Sequence[TrainingScan], design: Design) -> None:
    """Let a network bring the codes of all sites to their common mean and covariance.

    Only differences between sites that people do not explain are removed. Covariances are
    compared by their matrix logarithms, in which people and covariates add up.

    Parameters
    ----------
    network
        Trained, whose codes are not aligned yet.
    scans
        Scans of all sites, with as many directions as scans that are to be encoded.
    design
        Who was scanned where.
    """
    found = [
        _moments(network, scan, int(site)) for scan, site in zip(scans, design.sites, strict=True)
    ]
    means = np.stack([one.mean for one in found])
    units = np.zeros(means.shape[1], dtype=int)
    shifts = estimate_site_effects(means, design, units)
    common = np.mean([one.covariance for one in found], axis=0)
    covariances = _site_covariances(found, common, design)
    mixing = np.stack([_transport(own, common) for own in covariances])
    own = shifts.mean + shifts.raw
    shift = own - shifts.sites - np.einsum("si,sij->sj", own, mixing)
    network.set_alignment(*map(torch.from_numpy, (shift, mixing, common)))


def _site_covariances(found: Sequence[_Moments], common: Array, design: Design) -> Array:
    """Return the covariance of each site's codes at mean covariates, shape (site, unit, unit)."""
    root, inverse = (_power(_regular(common), power) for power in (0.5, -0.5))
    rows, columns = np.triu_indices(len(common))
    logs = np.stack(
        [_logarithm(inverse @ _regular(one.shrunk_to(common)) @ inverse) for one in found]
    )
    effects = estimate_site_effects(logs[:, rows, columns], design, np.zeros(len(rows), dtype=int))
    sites = np.zeros((design.count, *common.shape))
    sites[:, rows, columns] = sites[:, columns, rows] = effects.sites
    return np.stack([root @ _exponential(own) @ root for own in sites])


def align_last(network: Autoencoder, scans: Sequence[TrainingScan]) -> None:
    """Bring the codes of a network's last site to the covariance that the others have.

    Their mean, which of few people is that of these people, stays.

    Parameters
    ----------
    network
        Whose other sites are aligned.
    scans
        Scans of the last site.
    """
    common = network.code_covariance.double().numpy()
    number = network.settings.sites - 1
    found = [_moments(network, scan, number) for scan in scans]
    patches = np.array([one.patches for one in found])
    covariance = np.average([one.covariance for one in found], axis=0, weights=patches)
    mean = np.mean([one.mean for one in found], axis=0)
    mixing = _transport(_Moments(mean, covariance, int(patches.sum())).shrunk_to(common), common)
    network.code_mixing[-1] = torch.from_numpy(mixing)
    network.code_shift[-1] = torch.from_numpy(mean - mean @ mixing)


@dataclass(frozen=True, eq=False)
class _Moments:
    """The codes of a scan, before they are aligned.

    Attributes
    ----------
    mean, covariance
        Shape (unit,) and (unit, unit).
    patches
        Number of patches that they were computed from.
    """

    mean: Array
    covariance: Array
    patches: int

    def shrunk_to(self, common: Array) -> Array:
        """Return a covariance that is the common one where few patches show another."""
        prior = _PATCHES_A_UNIT * len(common)
        return (self.patches * self.covariance + prior * common) / (self.patches + prior)


@torch.no_grad()
def _moments(network: Autoencoder, scan: TrainingScan, number: int) -> _Moments:
    """Return the moments of a scan's codes, encoded with the units of a site."""
    patch = torch.from_numpy(cut(scan.values, scan.neighbours)).flatten(1)
    seen = network.standardise(patch, torch.tensor([number]), network.frames(patch))
    codes = network.encoder(seen).mean.double().numpy()
    mean = codes.mean(axis=0)
    return _Moments(mean, (codes - mean).T @ (codes - mean) / len(codes), len(codes))


def _transport(own: Array, goal: Array) -> Array:
    """Return the symmetric matrix that takes codes of one covariance to another.

    Among all such matrices it changes codes least (optimal transport of normals).
    """
    own, goal = _regular(own), _regular(goal)
    root, inverse = _power(own, 0.5), _power(own, -0.5)
    transport: Array = inverse @ _power(root @ goal @ root, 0.5) @ inverse
    return transport


def _regular(covariance: Array) -> Array:
    regular: Array = covariance + _LEAST_VARIANCE * np.eye(len(covariance))
    return regular


def _power(matrix: Array, power: float) -> Array:
    return _of_eigenvalues(matrix, lambda values: values.clip(min=_TINY) ** power)


def _logarithm(matrix: Array) -> Array:
    return _of_eigenvalues(matrix, lambda values: np.log(values.clip(min=_TINY)))


def _exponential(matrix: Array) -> Array:
    return _of_eigenvalues(matrix, np.exp)


def _of_eigenvalues(matrix: Array, function: Callable[[Array], Array]) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    changed: Array = (vectors * function(values)) @ vectors.T
    return changed
