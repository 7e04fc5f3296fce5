"""The magnitude of a complex signal with normal noise in its real and imaginary parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaln, hyp1f1

from siteless.acquisition import Array

# Signals of the tables, in units of the noise, and the step between them. Beyond the last, the
# first terms of the asymptotic series are exact to 1e-4 for one channel, and to 1e-2 for the most.
_LAST, _STEP = 24.0, 0.01
MOST_COILS = 16


@dataclass(frozen=True)
class Magnitude:
    """The distribution of a magnitude, given the signal; both are in units of the noise.

    The noise is that of the real part of one channel. With one channel the distribution is
    Rician; the root sum of squares of several is non-central chi. Mean and variance are
    interpolated in tables of the closed form.

    Attributes
    ----------
    coils
        Effective number of channels that are combined by their sum of squares, at most
        `MOST_COILS`. Correlation between channels makes it smaller than their number.

    Examples
    --------
    >>> Magnitude().mean(np.array([0.0, 3.0])).round(3)
    array([1.253, 3.173])
    """

    coils: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.coils <= MOST_COILS:
            raise ValueError(f"expected 1 to {MOST_COILS} channels, got {self.coils}")

    def mean(self, signal: Array) -> Array:
        """Return the expected magnitude of signals, which are at least 0."""
        return np.asarray(signal + self.floor(signal))

    def floor(self, signal: Array) -> Array:
        """Return by how much the expected magnitude exceeds the signal."""
        beyond = np.float32(self.coils - 0.5) / np.maximum(signal, np.float32(1))
        return np.where(signal < _LAST, _interpolate(self._floors, signal, 0.0), beyond)

    def excess(self, mean: Array) -> Array:
        """Return the floor of the signal whose magnitude has a mean."""
        excess = _interpolate(self._excesses, mean, float(self._floors[0]))
        beyond = np.asarray(mean >= _LAST)
        return np.divide(np.float32(self.coils - 0.5), mean, where=beyond, out=excess)

    def variance(self, signal: Array) -> Array:
        """Return the variance of the magnitude of signals."""
        inside = _interpolate(self._variances, signal, 0.0)
        return np.where(signal < _LAST, inside, np.float32(1))

    def signal(self, mean: Array) -> Array:
        """Return the signal whose magnitude has a mean; 0 if no signal's mean is as small."""
        return np.maximum(mean - self.excess(mean), np.float32(0))

    @cached_property
    def _points(self) -> Array:
        return np.arange(0, _LAST + 2 * _STEP, _STEP)

    @cached_property
    def _means(self) -> Array:
        """Means at all points: root two times the ratio of gammas times a Kummer function."""
        n, half = self.coils, np.square(self._points) / 2
        factor = np.sqrt(2) * np.exp(gammaln(n + 0.5) - gammaln(n))
        return np.asarray(factor * hyp1f1(-0.5, n, -half))

    @cached_property
    def _floors(self) -> Array:
        return (self._means - self._points).astype(np.float32)

    @cached_property
    def _variances(self) -> Array:
        squares = np.square(self._points) + 2 * self.coils
        return (squares - np.square(self._means)).astype(np.float32)

    @cached_property
    def _excesses(self) -> Array:
        """Floors at evenly spaced means, from the smallest."""
        means = self._means[0] + self._points
        return (means - np.interp(means, self._means, self._points)).astype(np.float32)


def _interpolate(table: Array, values: Array, first: float) -> Array:
    """Interpolate a table of evenly spaced points linearly, the first of which is given.

    It is much faster than `numpy.interp`, which searches for every value.
    """
    place = np.asarray(values, dtype=np.float32) - np.float32(first)
    place *= np.float32(1 / _STEP)
    np.clip(place, 0, len(table) - 2, out=place)
    low = place.astype(np.int32)
    place -= low.astype(np.float32)
    below = table.take(low)
    low += 1
    slope = table.take(low)
    slope -= below
    slope *= place
    slope += below
    return slope
