"""Divide scans into parts, so that codes of some directions predict the signal of others.

A network can lower its loss on directions that it has encoded by rendering their noise. On
held-out directions only the signal helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from siteless.acquisition import MIN_DIRECTIONS, Array, GradientTable, Scan
from siteless.harmonics import Coefficients, at_shells
from siteless.methods.invariant.profiles import SiteProfiles
from siteless.methods.patches import TrainingScan, evenly_spaced, gather_patches
from siteless.model import Preparation
from siteless.tissue import white_matter_level

# Index of volumes that belong to all parts.
WHOLE = -1
# Number of patches for the covariance of a scan's codes.
_PATCHES_OF_WHOLE = 4096


def make_parts(
    scan: Scan,
    profiles: SiteProfiles | None,
    preparation: Preparation,
    *,
    parts: int,
    surroundings: Sequence[int] = (),
) -> list[TrainingScan]:
    """Make training scans from a scan, each without some directions, and one of the whole scan.

    Each training scan has held-out directions as its signal to render, corrected for the field of
    the site but not blurred. Its patches have the other directions, corrected for the profile of
    the site. With one part, or for a shell of few directions, both have all directions. They are
    interpolated to the b-values separately, so that they do not share noise.

    The last training scan has some patches of all directions, for the statistics of their codes.
    It is not for training: its signal is not corrected for the field.
    """
    profile = profiles.of(scan) if profiles else None

    def without(fitted: Coefficients) -> Array:
        return fitted.values if profile is None else profile.blurred(profile.without_field(fitted))

    gather = partial(
        gather_patches,
        preparation=preparation,
        level=white_matter_level(scan),
        surroundings=surroundings,
    )
    whole = at_shells(scan, preparation.shells)
    coefficients, correction = preparation.coefficients(whole), None
    if profile:
        correction = coefficients.values / profile.gains - coefficients.values
    number = part_volumes(scan.gradients, parts)
    training_scans = []
    for part in range(parts):
        held_out = (number == part) | (number == WHOLE)
        seen = number != part if parts > 1 else held_out
        shown = at_shells(_with_volumes(scan, seen), preparation.shells)
        values = without(preparation.coefficients(shown))
        rendered = at_shells(_with_volumes(scan, held_out), preparation.shells)
        training_scans.append(gather(rendered, values, correction=correction))
    few = partial(evenly_spaced, most=_PATCHES_OF_WHOLE)
    return [*training_scans, gather(whole, without(coefficients), choose=few)]


def part_volumes(gradients: GradientTable, parts: int) -> Array:
    """Divide the volumes of b0 and of each shell, similar directions into different parts.

    Return the index of the part of each volume, shape (volume,); `WHOLE` for b0 volumes and shells
    that are too few to divide.
    """
    number = np.full(len(gradients), WHOLE)
    if gradients.is_b0.sum() >= parts:
        number[gradients.is_b0] = np.arange(gradients.is_b0.sum()) % parts
    for shell in gradients.shells:
        if len(shell.volumes) < parts * MIN_DIRECTIONS:
            continue
        directions = gradients.directions[shell.volumes]
        likeness = np.abs(directions @ directions.T)
        members: list[list[int]] = [[] for _ in range(parts)]
        for direction in range(len(directions)):
            smallest = min(map(len, members))
            free = [group for group in members if len(group) == smallest]
            nearest = [likeness[direction, group].max(initial=0) for group in free]
            free[int(np.argmin(nearest))].append(direction)
        for part, group in enumerate(members):
            number[shell.volumes[group]] = part
    return number


def _with_volumes(scan: Scan, kept: Array) -> Scan:
    gradients = GradientTable(scan.gradients.b[kept], scan.gradients.directions[kept])
    return replace(scan, signal=scan.signal[..., kept], gradients=gradients)
