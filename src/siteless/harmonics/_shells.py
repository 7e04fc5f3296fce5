"""Interpolate scans to other b-values.

Along a direction the rate log(S0 / S) / b decreases slowly with b, and linearly if diffusion has
no cumulants beyond kurtosis. Between two shells, and between b0 and the first, it is taken to be
linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from siteless.acquisition import Array, GradientTable, Scan, same_b, same_shells, show_bs
from siteless.errors import GradientTableError
from siteless.harmonics._basis import sh_basis
from siteless.harmonics._fit import fit_coefficients

# Fraction of b0 below which the signal is noise and its logarithm meaningless.
_DARKEST = 1e-3


def common_bs(protocols: Iterable[Sequence[float]]) -> tuple[float, ...] | None:
    """Return b-values that scans with all these protocols can be interpolated to.

    The b-values shared by all are used if there are at least two. Otherwise the result is a
    feasible protocol, with most shells and then with the highest b-value, the first of equals, or
    a single shared b-value. It is None if nothing is feasible.

    Examples
    --------
    >>> common_bs([(1000, 2000), (1200, 3000)])
    (1000, 2000)
    >>> common_bs([(700, 1000, 2000), (1000, 2000, 3000)])
    (1000, 2000)
    >>> common_bs([(1000,), (3000,)]) is None
    True
    """
    distinct = list(dict.fromkeys(map(tuple, protocols)))
    first = distinct[0] if distinct else ()
    shared = tuple(b for b in first if all(same_b(b, protocol).any() for protocol in distinct))
    if len(shared) > 1:
        return shared
    feasible = [
        bs for bs in (shared, *distinct) if bs and all(shells_for(p, bs) for p in distinct)
    ]
    return max(feasible, key=lambda bs: (len(bs), bs[-1]), default=None)


def shells_for(measured: Sequence[float], wanted: Sequence[float]) -> list[int] | None:
    """Assign shells to the wanted b-values; return their indices, or None if impossible.

    A shell always supports its own b-value. Interpolation to others requires two shells and a
    b-value no higher than the highest shell.

    Examples
    --------
    >>> shells_for([700, 1200, 3000], [1000, 2000])
    [1, 2]
    """
    if not wanted or len(measured) < len(wanted):
        return None
    beyond = wanted[-1] > measured[-1] and not same_b(wanted[-1], measured[-1])
    if beyond or (len(measured) < 2 and not same_b(wanted[0], measured[0])):
        return None
    distance = np.abs(np.log(np.divide.outer(wanted, measured)))
    return sorted(linear_sum_assignment(distance)[1].tolist())


def interpolated_bs(measured: Sequence[float], wanted: Sequence[float]) -> tuple[float, ...]:
    """Return the wanted b-values that no shell has."""
    taken = shells_for(measured, wanted) or ()
    pairs = zip(wanted, taken, strict=True)
    return tuple(b for b, position in pairs if not same_b(b, measured[position]))


def unused_bs(measured: Sequence[float], wanted: Sequence[float]) -> tuple[float, ...]:
    """Return the b-values of the shells that are left out."""
    taken = shells_for(measured, wanted) or ()
    return tuple(b for position, b in enumerate(measured) if position not in taken)


def at_shells(scan: Scan, bs: Sequence[float]) -> Scan:
    """Interpolate a scan to other b-values along the same directions.

    A scan with these b-values is returned unchanged. Volumes of shells that are not needed are
    left out, and signal outside the brain is unchanged.
    """
    shells = scan.gradients.shells
    measured = tuple(shell.b for shell in shells)
    if same_shells(measured, bs):
        return scan
    table, kept = table_at_shells(scan.gradients, bs)
    fitted, volumes = fit_coefficients(scan), scan.volumes.copy()
    bright = fitted.b0 > 0
    inside, level = scan.voxels[bright], fitted.b0[bright]
    for b, position in zip(bs, shells_for(measured, bs) or (), strict=True):
        if same_b(b, measured[position]):
            continue
        chosen = shells[position].volumes
        places = np.ix_(chosen, inside)
        basis = sh_basis(scan.gradients.directions[chosen], fitted.order).astype(np.float32)
        rate = np.zeros((len(chosen), len(inside)), dtype=np.float32)
        for near, weight in _weights(measured, b):
            own = near == position
            signal = volumes[places] if own else basis @ fitted.shell(near)[bright].T
            decay = np.log(np.maximum(signal / level, _DARKEST))
            rate += np.float32(weight / measured[near]) * decay
        volumes[places] = level * np.exp(np.float32(b) * rate)
    signal = volumes[kept].T.reshape((*scan.mask.shape, len(kept)), order="F")
    return scan.with_signal(signal, gradients=table)


def table_at_shells(gradients: GradientTable, bs: Sequence[float]) -> tuple[GradientTable, Array]:
    """Return the gradient table of `at_shells` and the indices of its volumes."""
    shells = gradients.shells
    measured = tuple(shell.b for shell in shells)
    if same_shells(measured, bs):
        return gradients, np.arange(len(gradients))
    taken = shells_for(measured, bs)
    if taken is None:
        raise GradientTableError(
            f"expected shells that tell the signal at {show_bs(bs)}, found {show_bs(measured)}",
            remedy="leave the scan out, or fit a model to scans like it",
        )
    b = gradients.b.copy()
    for wanted_b, position in zip(bs, taken, strict=True):
        if not same_b(wanted_b, measured[position]):
            b[shells[position].volumes] *= wanted_b / measured[position]
    weighted = [shells[position].volumes for position in taken]
    kept = np.sort(np.concatenate([np.flatnonzero(gradients.is_b0), *weighted]))
    return GradientTable(b[kept], gradients.directions[kept]), kept


def _weights(measured: Sequence[float], b: float) -> list[tuple[int, float]]:
    """Return the shells on either side of a b-value with their interpolation weights."""
    high = int(np.clip(np.searchsorted(measured, b), 1, len(measured) - 1))
    share = (b - measured[high - 1]) / (measured[high] - measured[high - 1])
    return [(high - 1, 1 - share), (high, share)]
