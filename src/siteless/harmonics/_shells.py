"""Scans at other b-values than they were acquired with.

Along a direction the rate log(S0 / S) / b falls slowly with b: linearly, if diffusion has a
kurtosis and no more. Between two shells, and between b0 and the first, it is taken to be linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from siteless.acquisition import Array, GradientTable, Scan, same_b, same_shells, show_bs
from siteless.errors import GradientTableError
from siteless.harmonics._basis import sh_basis
from siteless.harmonics._fit import fit_coefficients

# Part of b0 below which signal is noise, and its logarithm without meaning.
_DARKEST = 1e-3


def common_bs(given: Iterable[Sequence[float]]) -> tuple[float, ...] | None:
    """Return the b-values that scans of all given ones can be brought to.

    Those that all have, if they are two or more; or else those of one of them, of most shells and
    of the highest, or a single one that all have. None when there are none.

    Examples
    --------
    >>> common_bs([(1000, 2000), (1200, 3000)])
    (1000, 2000)
    >>> common_bs([(700, 1000, 2000), (1000, 2000, 3000)])
    (1000, 2000)
    >>> common_bs([(1000,), (3000,)]) is None
    True
    """
    known = list(dict.fromkeys(map(tuple, given)))
    first = known[0] if known else ()
    shared = tuple(b for b in first if all(same_b(b, own).any() for own in known))
    if len(shared) > 1:
        return shared
    choice = [bs for bs in (shared, *known) if bs]
    fit = [bs for bs in choice if all(shells_for(own, bs) is not None for own in known)]
    return max(fit, key=lambda bs: (len(bs), bs[-1]), default=None)


def shells_for(found: Sequence[float], wanted: Sequence[float]) -> list[int] | None:
    """Return which shells get which b-values, or None where they cannot tell the signal there.

    A shell has its own b-value. Others lie between b0 and the highest, and need two shells.

    Examples
    --------
    >>> shells_for([700, 1200, 3000], [1000, 2000])
    [1, 2]
    """
    if not wanted or len(found) < len(wanted):
        return None
    beyond = wanted[-1] > found[-1] and not same_b(wanted[-1], found[-1])
    if beyond or (len(found) < 2 and not same_b(wanted[0], found[0])):
        return None
    distance = np.abs(np.log(np.divide.outer(wanted, found)))
    return sorted(linear_sum_assignment(distance)[1].tolist())


def interpolated_bs(found: Sequence[float], wanted: Sequence[float]) -> tuple[float, ...]:
    """Return the b-values whose volumes are of shells with others."""
    taken = shells_for(found, wanted) or ()
    pairs = zip(wanted, taken, strict=True)
    return tuple(b for b, position in pairs if not same_b(b, found[position]))


def unused_bs(found: Sequence[float], wanted: Sequence[float]) -> tuple[float, ...]:
    """Return the b-values of shells whose volumes are left out."""
    taken = shells_for(found, wanted) or ()
    return tuple(b for position, b in enumerate(found) if position not in taken)


def at_shells(scan: Scan, bs: Sequence[float]) -> Scan:
    """Return a scan as it would be at other b-values, along the same directions.

    A scan that has them is returned as it is. Volumes of shells that are not needed are left out,
    and signal outside of the brain is as it was measured.

    Raises
    ------
    GradientTableError
        When its shells do not tell the signal at these b-values.
    """
    shells = scan.gradients.shells
    found = tuple(shell.b for shell in shells)
    if same_shells(found, bs):
        return scan
    table, kept = table_at_shells(scan.gradients, bs)
    own, volumes = fit_coefficients(scan), scan.volumes.copy()
    bright = own.b0 > 0
    inside, level = scan.voxels[bright], own.b0[bright]
    for b, position in zip(bs, shells_for(found, bs) or (), strict=True):
        if same_b(b, found[position]):
            continue
        chosen = shells[position].volumes
        basis = sh_basis(scan.gradients.directions[chosen], own.order).astype(np.float32)
        rate = np.zeros((len(chosen), len(inside)), dtype=np.float32)
        for near, weight in _weights(found, b):
            signal = (
                volumes[np.ix_(chosen, inside)]
                if near == position
                else basis @ own.shell(near)[bright].T
            )
            rate += np.float32(weight / found[near]) * np.log(np.maximum(signal / level, _DARKEST))
        volumes[np.ix_(chosen, inside)] = level * np.exp(np.float32(b) * rate)
    signal = volumes[kept].T.reshape((*scan.mask.shape, len(kept)), order="F")
    return scan.with_signal(signal, gradients=table)


def table_at_shells(gradients: GradientTable, bs: Sequence[float]) -> tuple[GradientTable, Array]:
    """Return the table of `at_shells`, and which volumes it has."""
    shells = gradients.shells
    found = tuple(shell.b for shell in shells)
    if same_shells(found, bs):
        return gradients, np.arange(len(gradients))
    taken = shells_for(found, bs)
    if taken is None:
        raise GradientTableError(
            f"expected shells that tell the signal at {show_bs(bs)}, found {show_bs(found)}",
            remedy="leave the scan out, or fit a model to scans like it",
        )
    b = gradients.b.copy()
    for wanted_b, position in zip(bs, taken, strict=True):
        if not same_b(wanted_b, found[position]):
            b[shells[position].volumes] *= wanted_b / found[position]
    kept = np.sort(
        np.concatenate(
            [np.flatnonzero(gradients.is_b0), *(shells[position].volumes for position in taken)]
        )
    )
    return GradientTable(b[kept], gradients.directions[kept]), kept


def _weights(found: Sequence[float], b: float) -> list[tuple[int, float]]:
    """Return the two shells nearest to a b-value on either side, and what each counts."""
    high = int(np.clip(np.searchsorted(found, b), 1, len(found) - 1))
    share = (b - found[high - 1]) / (found[high] - found[high - 1])
    return [(high - 1, 1 - share), (high, share)]
