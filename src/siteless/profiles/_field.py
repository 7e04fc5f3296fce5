"""Smooth fields over scanner coordinates, told from anatomy by regression.

The logarithm of a block's energy is taken to be a sum of

    anatomy in head coordinates, the same for all people,
    what a person has more or less of it, smooth and shrunk,
    how much of the block is white matter, and
    the field of the site in scanner coordinates, smooth and shrunk.

People who were scanned at several sites tell the fields best, as what is theirs is told apart;
where nobody was, fields are what many people of a site have in common. How much fields are shrunk
is chosen for each feature by how well people who were left out are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from operator import add
from typing import Self

import numpy as np

from siteless.acquisition import Array
from siteless.profiles._survey import Survey, at_spread

# Highest sum of the frequencies of cosines along the axes.
_DEGREE = 4
_FREQUENCIES = np.array([f for f in product(range(_DEGREE + 1), repeat=3) if sum(f) <= _DEGREE])
_SQUARED_FREQUENCIES = np.square(_FREQUENCIES).sum(axis=1)
_COSINES = len(_FREQUENCIES)
# mm beyond the outermost blocks, where fields become flat.
_MARGIN = 15.0
# Weights of the penalties of sites' fields that are tried, the flattest first, which wins a draw.
_FIELD_PENALTIES = (1e4, 1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3)
# The penalty of what people have of their own: weak, as it is not to be taken for a field.
_PERSON_PENALTY = 1e-2
# Penalties that are tried of the field of a site of which few people are known.
_FEW_PENALTIES = np.array([1e-1, 1.0, 1e1, 1e2, 1e3, 1e4, 1e6])
# Standard deviations by which the mean of a site's people hardly ever differs from others'.
_FAR_DEVIATIONS = 3.0
# Keep the solution unique: what people share is anatomy's, and what sites share is not a field.
_ANATOMY_PENALTY, _LEAST_PENALTY = 1e-6, 1e-3
# Groups of people that are left out in turn.
_FOLDS = 10
# Voxels that count as one measurement: neighbours are alike.
_VOXELS_PER_MEASUREMENT = 50.0


@dataclass(frozen=True, eq=False)
class Field:
    """Logarithms of what each site multiplies features by, as sums of cosines.

    Attributes
    ----------
    box
        Corners between which the cosines run, shape (2, 3), mm.
    weights
        Shape (site, cosine, feature); the sites' mean is zero.
    common
        Weights of what all sites have: of cosines in head coordinates, of white matter's share,
        and of cosines in scanner coordinates, shape (column, feature).
    penalties
        That were chosen: of sites, and of a site of which few people are known, shape
        (2, feature).
    variances
        Of means over the head: of sites, and of single scans of a site, shape (2, feature).
    """

    box: Array
    weights: Array
    common: Array
    penalties: Array
    variances: Array

    def logarithms(self, world: Array, site: int) -> Array:
        """Return the field of a site at places, shape (place, feature)."""
        waves = cosines(world.astype(np.float32), self.box.astype(np.float32))
        logarithms: Array = waves @ self.weights[site].astype(np.float32)
        return logarithms

    @property
    def variation(self) -> Array:
        """Standard deviation of each site's field of b0 over the middle of the box (log)."""
        middle = self.box.mean(axis=0) + (self.box - self.box.mean(axis=0)) / 2
        grid = np.linspace(middle[0], middle[1], 9)
        places = np.stack(np.meshgrid(*grid.T), axis=-1).reshape(-1, 3)
        fields: Array = cosines(places, self.box) @ self.weights[:, :, 0].T
        return fields.std(axis=0)


def cosines(world: Array, box: Array) -> Array:
    """Return smooth functions of places, shape (place, cosine)."""
    part = ((world - box[0]) / (box[1] - box[0])).clip(0, 1)
    waves = np.cos(part[:, :, None] * (np.pi * np.arange(_DEGREE + 1)).astype(part.dtype))
    x, y, z = _FREQUENCIES.T
    product_of_waves: Array = waves[:, 0, x] * waves[:, 1, y]
    product_of_waves *= waves[:, 2, z]
    return product_of_waves


def fit_fields(surveys: Sequence[Survey], sites: Sequence[str], spreads: Sequence[float]) -> Field:
    """Estimate the fields of sites.

    Parameters
    ----------
    surveys
        Of the training scans.
    sites
        Labels; a site's number is its position.
    spreads
        That scans of each site are blurred by, mm2.
    """
    features = surveys[0].energies.shape[2]
    usable = [one for one in surveys if len(one.count)]
    if not usable:
        return _flat(len(sites), features)
    places = np.concatenate([one.position for one in usable])
    box = np.stack([places.min(axis=0) - _MARGIN, places.max(axis=0) + _MARGIN])
    sums: dict[str, _Sums] = {}
    for one in usable:
        number = list(sites).index(one.site)
        found = _Sums.of(one, box, number, len(sites), at_spread(one.energies, spreads[number]))
        sums[one.person] = sums[one.person] + found if one.person in sums else found
    weights, penalties = _choose([sums[person] for person in sorted(sums)], len(sites))
    anatomy, fields = np.split(weights, [-len(sites) * _COSINES])
    fields = fields.reshape(len(sites), _COSINES, features)
    mean = fields.mean(axis=0)
    common, fields = np.concatenate([anatomy, mean]), fields - mean
    numbers = [list(sites).index(one.site) for one in usable]
    few, squares = _choose_for_few(
        usable, [spreads[n] for n in numbers], box, common, fields[numbers]
    )
    of_scans = squares / max(1, len(usable) - len(sites))
    of_sites = (cosines(places, box).mean(axis=0) @ fields).var(axis=0, ddof=1)
    if len(sums) == len(usable):  # nobody travelled: a site's mean is that of its people too
        _, people = np.unique(numbers, return_counts=True)
        of_sites = (of_sites - of_scans * np.mean(1 / people)).clip(min=0)
    variances = np.stack([of_sites, of_scans])
    return Field(box, fields, common, np.stack([penalties, few]), variances)


def extend_fields(field: Field, surveys: Sequence[Survey], spread: float) -> Field:
    """Estimate the field of a new site beside those that are known, which stay.

    Anatomy is known already; what is left over is parted between people and the site. Of its mean
    the site gets as much as the variance among sites has of the sum of this and of people's, and
    nearly all where people alone hardly ever explain it.

    Parameters
    ----------
    field
        Of the sites that are known.
    surveys
        Of scans of the new site.
    spread
        That they are blurred by, mm2.
    """
    usable = [one for one in surveys if len(one.count)]
    weights = np.zeros(field.weights.shape[1:])
    if usable:
        left = _total([_left_over(one, spread, field.box, field.common) for one in usable])
        for feature, penalty in enumerate(field.penalties[1]):
            weights[:, feature] = left.solve(_of_fields(penalty))[:, feature]
        # The first cosine is 1, so that the first row of the gram is a sum of cosines.
        mean = left.gram[0] @ weights / left.gram[0, 0]
        of_site, of_people = field.variances / [[1], [len({one.person for one in usable})]]
        far = np.square(mean) > _FAR_DEVIATIONS**2 * of_people
        of_site = np.where(far, np.maximum(of_site, np.square(mean)), of_site)
        weights[0] -= mean * of_people / np.maximum(of_site + of_people, np.finfo(float).tiny)
    return replace(field, weights=np.concatenate([field.weights, weights[None]]))


def _left_over(one: Survey, spread: float, box: Array, common: Array) -> _Sums:
    """Return the sums of what anatomy does not explain, with cosines of the scanner alone."""
    left = at_spread(one.energies, spread) - _columns(one, box, 0, 1) @ common
    sums = _Sums.of(one, box, 0, 1, left)
    here = slice(-_COSINES, None)
    return _Sums(sums.gram[here, here], sums.right[here], sums.square)


def _of_fields(penalty: float) -> Array:
    """Return the penalty of each cosine of a field, shape (cosine,)."""
    return _LEAST_PENALTY + penalty * np.square(_SQUARED_FREQUENCIES)


def _choose_for_few(
    surveys: Sequence[Survey], spreads: Sequence[float], box: Array, common: Array, known: Array
) -> tuple[Array, Array]:
    """Find the penalties with which single scans tell the fields of their sites best.

    What a person has of their own is then part of what a field is told from. Means over the head
    are left out of the comparison; how much they differ is told instead.

    Parameters
    ----------
    surveys, spreads
        Of scans, and what each is blurred by.
    box, common
        As in `Field`.
    known
        Weights of the field of each scan's site, shape (scan, cosine, feature).

    Returns
    -------
    penalties, squares
        The second is the sum of squares of scans' means about those of their sites, (feature,).
    """
    errors, squares = np.zeros((2, len(_FEW_PENALTIES), common.shape[1]))
    for one, spread, weights in zip(surveys, spreads, known, strict=True):
        left, waves = _left_over(one, spread, box, common), cosines(one.position, box)
        for row, penalty in enumerate(_FEW_PENALTIES):
            wrong = waves @ (left.solve(_of_fields(penalty)) - weights)
            errors[row] += wrong.var(axis=0)
            squares[row] += np.square(wrong.mean(axis=0))
    best = errors.argmin(axis=0)
    return _FEW_PENALTIES[best], squares[best, np.arange(len(best))]


def _flat(sites: int, features: int) -> Field:
    """Return fields that change nothing."""
    box = np.array([[-100.0] * 3, [100.0] * 3])
    weights, common = np.zeros((sites, _COSINES, features)), np.zeros((2 * _COSINES + 2, features))
    penalties, variances = np.full((2, features), _FIELD_PENALTIES[0]), np.zeros((2, features))
    return Field(box, weights, common, penalties, variances)


def _choose(people: Sequence[_Sums], sites: int) -> tuple[Array, Array]:
    """Return the weights of columns with the penalties that predict others best.

    Returns
    -------
    weights, penalties
        Shape (column, feature) and (feature,).
    """
    features = people[0].right.shape[1]
    folds = [people[start::_FOLDS] for start in range(min(_FOLDS, len(people)))]
    least = np.full(features, np.inf)
    weights = np.zeros((len(people[0].gram), features))
    penalties = np.zeros(features)
    own = _PERSON_PENALTY * (1 + _SQUARED_FREQUENCIES)
    parts = [_total([one.without_person(own) for one in fold]) for fold in folds]
    whole = _total(parts)
    for penalty in _FIELD_PENALTIES:
        shrunk = np.full(len(whole.gram), _ANATOMY_PENALTY)
        shrunk[-sites * _COSINES :] = np.tile(_of_fields(penalty), sites)
        left_out = (part.errors((whole - part).solve(shrunk)) for part in parts)
        error = np.sum(list(left_out), axis=0)
        better = error < least
        least = np.where(better, error, least)
        weights[:, better] = whole.solve(shrunk)[:, better]
        penalties[better] = penalty
    return weights, penalties


@dataclass(frozen=True, eq=False)
class _Sums:
    """What least squares need of measurements: sums over blocks.

    Columns are cosines in head coordinates, those of white matter's share, and the sites' cosines
    in scanner coordinates.

    Attributes
    ----------
    gram, right, square
        Shape (column, column), (column, feature) and (feature,).
    """

    gram: Array
    right: Array
    square: Array

    @classmethod
    def of(cls, one: Survey, box: Array, site: int, sites: int, energies: Array) -> Self:
        """Add the blocks of a scan up."""
        columns = _columns(one, box, site, sites)
        weighted = columns * (one.count / _VOXELS_PER_MEASUREMENT)[:, None]
        square = (one.count / _VOXELS_PER_MEASUREMENT) @ np.square(energies)
        return cls(weighted.T @ columns, weighted.T @ energies, square)

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(self.gram + other.gram, self.right + other.right, self.square + other.square)

    def __sub__(self, other: _Sums) -> _Sums:
        return _Sums(self.gram - other.gram, self.right - other.right, self.square - other.square)

    def without_person(self, penalty: Array) -> _Sums:
        """Leave out what a person has of their own, in head coordinates, shrunk by a penalty."""
        own = slice(len(penalty))
        inverse = np.linalg.inv(self.gram[own, own] + np.diag(penalty))
        through = self.gram[:, own] @ inverse
        return _Sums(
            self.gram - through @ self.gram[own],
            self.right - through @ self.right[own],
            self.square - (self.right[own] * (inverse @ self.right[own])).sum(axis=0),
        )

    def solve(self, penalty: Array) -> Array:
        """Return the weights of columns, shape (column, feature)."""
        return np.linalg.solve(self.gram + np.diag(penalty), self.right)

    def errors(self, weights: Array) -> Array:
        """Return the sum of squared errors of a prediction, shape (feature,)."""
        explained = 2 * self.right - self.gram @ weights
        return self.square - (weights * explained).sum(axis=0)


def _columns(one: Survey, box: Array, site: int, sites: int) -> Array:
    """Return what a scan's blocks are explained by, shape (block, column)."""
    scanner = cosines(one.position, box)
    fields = np.zeros((len(scanner), sites, _COSINES))
    fields[:, site] = scanner
    share = one.share[:, None] ** [1, 2] - [0.5, 0.25]
    head = cosines(one.head_position, box - box.mean(axis=0))
    return np.hstack([head, share, fields.reshape(len(scanner), -1)])


def _total(parts: Sequence[_Sums]) -> _Sums:
    return reduce(add, parts)
