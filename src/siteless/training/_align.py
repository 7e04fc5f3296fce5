"""One mean and one covariance of codes for all sites.

An encoder is less sure of patches of few directions, so that their codes vary less, and in other
ways; that tells the site. An affine map for each site takes it away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from siteless.acquisition import Array
from siteless.network import Autoencoder
from siteless.patches import cut
from siteless.training._scan import TrainingScan

# Added to variances, of which the prior's is one: units that are not used stay as they are.
_LEAST_VARIANCE = 1e-3
# Patches for each unit that the covariance of other sites counts as, beside a site's own.
_PATCHES_A_UNIT = 10


def align_codes(network: Autoencoder, scans: Sequence[TrainingScan], sites: Sequence[str]) -> None:
    """Let a network bring the codes of all sites to their common mean and covariance.

    Of the differences between sites' means, only what their people do not explain is taken away.

    Parameters
    ----------
    network
        Trained, whose codes are not aligned yet.
    scans
        Of all sites, with as many directions as scans that are to be encoded.
    sites
        Labels, in the order of the network's numbers.
    """
    found = [_moments(network, scans, number, site) for number, site in enumerate(sites)]
    own = np.stack([one.mean for one in found])
    goal = own + _part_of_sites([one.people for one in found]) * (own.mean(axis=0) - own)
    common = np.mean([one.covariance for one in found], axis=0)
    mixing = np.stack([_transport(one.shrunk_to(common), common) for one in found])
    shift = goal - np.einsum("si,sij->sj", own, mixing)
    network.set_alignment(*map(torch.from_numpy, (shift, mixing, common)))


def align_last(network: Autoencoder, scans: Sequence[TrainingScan], site: str) -> None:
    """Bring the codes of a network's last site to the covariance that the others have.

    Their mean, which of few people is that of these people, stays.

    Parameters
    ----------
    network
        Whose other sites are aligned.
    scans, site
        Of the last site, and its label.
    """
    common = network.code_covariance.double().numpy()
    found = _moments(network, scans, network.settings.sites - 1, site)
    mixing = _transport(found.shrunk_to(common), common)
    network.code_mixing[-1] = torch.from_numpy(mixing)
    network.code_shift[-1] = torch.from_numpy(found.mean - found.mean @ mixing)


@dataclass(frozen=True, eq=False)
class _Moments:
    """What the codes of a site are like, before they are aligned.

    Attributes
    ----------
    people
        Mean of each person's codes, shape (unit,).
    covariance
        Within scans, shape (unit, unit).
    patches
        That tell it.
    """

    people: Mapping[str, Array]
    covariance: Array
    patches: int

    @property
    def mean(self) -> Array:
        """Of all people, shape (unit,)."""
        return np.mean(list(self.people.values()), axis=0)

    def shrunk_to(self, common: Array) -> Array:
        """Return a covariance that is the common one where few patches tell another."""
        prior = _PATCHES_A_UNIT * len(common)
        return (self.patches * self.covariance + prior * common) / (self.patches + prior)


@torch.no_grad()
def _moments(
    network: Autoencoder, scans: Sequence[TrainingScan], number: int, site: str
) -> _Moments:
    """Return the moments of a site's codes; whoever was scanned there twice counts once."""
    means: dict[str, list[Array]] = {}
    squares, patches = np.zeros((network.settings.code,) * 2), 0
    for scan in (one for one in scans if one.site == site):
        patch = torch.from_numpy(cut(scan.values, scan.neighbours)).flatten(1)
        seen = network.standardise(patch, torch.tensor([number]), network.frames(patch))
        codes = network.encoder(seen).mean.double().numpy()
        mean = codes.mean(axis=0)
        means.setdefault(scan.subject or scan.name, []).append(mean)
        squares += (codes - mean).T @ (codes - mean)
        patches += len(codes)
    people = {person: np.mean(own, axis=0) for person, own in means.items()}
    return _Moments(people, squares / patches, patches)


def _part_of_sites(people: Sequence[Mapping[str, Array]]) -> Array:
    """Return the part of each site's difference from others that its people do not explain.

    Parameters
    ----------
    people
        Of each site, the mean codes of its people.

    Returns
    -------
    Array
        Shape (site, 1). All of it, if most were scanned at several sites: they are on both sides
        of a difference.
    """
    visits = Counter(person for own in people for person in own)
    count = np.array([[len(own)] for own in people])
    if sum(seen for seen in visits.values() if seen > 1) > count.sum() / 2:
        return np.ones(count.shape)
    if count.sum() == len(people):  # nothing tells how much people differ
        return np.zeros(count.shape)
    means = [np.stack(list(own.values())) for own in people]
    inner = sum(np.square(own - own.mean(axis=0)).sum() for own in means)
    of_people = inner / (count.sum() - len(people))
    among = np.stack([own.mean(axis=0) for own in means]).var(axis=0, ddof=1).sum()
    of_sites = max(0.0, among - of_people * np.mean(1 / count))
    return of_sites / np.maximum(of_sites + of_people / count, np.finfo(float).tiny)


def _transport(own: Array, goal: Array) -> Array:
    """Return the symmetric matrix that takes codes of one covariance to another.

    Of all that do it is the one that changes codes least (optimal transport of normals).
    """
    own, goal = (one + _LEAST_VARIANCE * np.eye(len(one)) for one in (own, goal))
    root, inverse = _power(own, 0.5), _power(own, -0.5)
    transport: Array = inverse @ _power(root @ goal @ root, 0.5) @ inverse
    return transport


def _power(matrix: Array, power: float) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    raised: Array = (vectors * values.clip(min=np.finfo(float).tiny) ** power) @ vectors.T
    return raised
