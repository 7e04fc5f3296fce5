"""Align the mean and covariance of latent codes across sites.

With few directions the encoder is less certain, and the covariance of codes differs, which would
reveal the site. An affine map for each site removes these differences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from siteless.acquisition import Array
from siteless.methods.invariant.network import Autoencoder
from siteless.methods.patches import TrainingScan
from siteless.neighbourhood import cut
from siteless.population import Design, estimate_site_effects

# Added to variances, so that unused units are unchanged. The prior has variance 1.
_LEAST_VARIANCE = 1e-3
# Weight of the common covariance, in patches per unit.
_PATCHES_A_UNIT = 10
_TINY = np.finfo(float).tiny


def align_codes(network: Autoencoder, scans: Sequence[TrainingScan], design: Design) -> None:
    """Align the codes of all sites to their common mean and covariance.

    Only differences between sites that participants do not explain are removed. Covariances are
    compared by matrix logarithms, in which effects of participants and covariates are additive.
    Scans have as many directions as scans to encode. The network has no alignment yet.
    """
    moments = [
        _moments(network, scan, int(site)) for scan, site in zip(scans, design.sites, strict=True)
    ]
    means = np.stack([codes.mean for codes in moments])
    shifts = estimate_site_effects(means, design, np.zeros(means.shape[1], dtype=int))
    common = np.mean([codes.covariance for codes in moments], axis=0)
    covariances = _site_covariances(moments, common, design)
    mixing = np.stack([_transport(covariance, common) for covariance in covariances])
    site_means = shifts.mean + shifts.raw
    shift = site_means - shifts.sites - np.einsum("si,sij->sj", site_means, mixing)
    network.set_alignment(*map(torch.from_numpy, (shift, mixing, common)))


def _site_covariances(moments: Sequence[_Moments], common: Array, design: Design) -> Array:
    """Return the covariance of each site's codes at mean covariates, shape (site, unit, unit)."""
    root, inverse = (_power(_regular(common), power) for power in (0.5, -0.5))
    rows, columns = np.triu_indices(len(common))
    relative = [inverse @ _regular(codes.shrunk_to(common)) @ inverse for codes in moments]
    logs = np.stack([_of_eigenvalues(m, lambda v: np.log(v.clip(min=_TINY))) for m in relative])
    effects = estimate_site_effects(logs[:, rows, columns], design, np.zeros(len(rows), dtype=int))
    sites = np.zeros((design.count, *common.shape))
    sites[:, rows, columns] = sites[:, columns, rows] = effects.sites
    return np.stack([root @ _of_eigenvalues(effect, np.exp) @ root for effect in sites])


def align_last(network: Autoencoder, scans: Sequence[TrainingScan]) -> None:
    """Align the codes of a network's last site to the common covariance.

    Their mean is preserved, as few participants do not determine that of the site. Codes of the
    other sites are aligned already, and the scans are those of the last site.
    """
    common = network.code_covariance.double().numpy()
    number = network.settings.sites - 1
    moments = [_moments(network, scan, number) for scan in scans]
    patches = np.array([codes.patches for codes in moments])
    covariance = np.average([codes.covariance for codes in moments], axis=0, weights=patches)
    mean = np.mean([codes.mean for codes in moments], axis=0)
    mixing = _transport(_Moments(mean, covariance, int(patches.sum())).shrunk_to(common), common)
    network.code_mixing[-1] = torch.from_numpy(mixing)
    network.code_shift[-1] = torch.from_numpy(mean - mean @ mixing)


class _Moments(NamedTuple):
    """Mean, (unit,), covariance, (unit, unit), and number of a scan's codes before alignment."""

    mean: Array
    covariance: Array
    patches: int

    def shrunk_to(self, common: Array) -> Array:
        """Return the covariance, shrunk towards the common one if there are few patches."""
        prior = _PATCHES_A_UNIT * len(common)
        return (self.patches * self.covariance + prior * common) / (self.patches + prior)


@torch.no_grad()
def _moments(network: Autoencoder, scan: TrainingScan, number: int) -> _Moments:
    """Return the moments of a scan's codes, in the units of a site."""
    patch = torch.from_numpy(cut(scan.values, scan.neighbours)).flatten(1)
    seen = network.standardise(patch, torch.tensor([number]), network.frames(patch))
    codes = network.encoder(seen).mean.double().numpy()
    mean = codes.mean(axis=0)
    return _Moments(mean, (codes - mean).T @ (codes - mean) / len(codes), len(codes))


def _transport(source: Array, target: Array) -> Array:
    """Return the symmetric matrix that maps codes of one covariance to another.

    It changes codes least (optimal transport between normal distributions).
    """
    source, target = _regular(source), _regular(target)
    root, inverse = _power(source, 0.5), _power(source, -0.5)
    return inverse @ _power(root @ target @ root, 0.5) @ inverse


def _regular(covariance: Array) -> Array:
    return covariance + _LEAST_VARIANCE * np.eye(len(covariance))


def _power(matrix: Array, power: float) -> Array:
    return _of_eigenvalues(matrix, lambda values: values.clip(min=_TINY) ** power)


def _of_eigenvalues(matrix: Array, function: Callable[[Array], Array]) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * function(values)) @ vectors.T
