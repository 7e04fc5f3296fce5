"""Scans in parts: codes of some directions must tell the signal of others.

A network that renders the directions that it has seen can lower its loss by rendering their noise.
One that is judged by directions that it has not seen cannot: all that helps it is signal.
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

# The part of volumes that are in all of them.
WHOLE = -1
# That tell the covariance of a scan's codes.
_PATCHES_OF_WHOLE = 4096


def make_parts(
    scan: Scan,
    profiles: SiteProfiles | None,
    preparation: Preparation,
    *,
    parts: int,
    surroundings: Sequence[int] = (),
) -> list[TrainingScan]:
    """Make as many training scans of a scan, each of which lacks some directions, and the whole.

    Patches are of the other directions, without the profile of the scan's site. The signal to be
    rendered is of those directions, without the field of the site but as sharp as it is. One part
    has all directions in both, and so has a shell of few directions. Each is brought to the
    b-values on its own, so that the noise of one is not in the other.

    The last one has some patches of all directions, as rendering has them, to tell what their
    codes are like. It is not to be trained on: its signal still has the field in it.
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
    own, correction = preparation.coefficients(whole), None
    if profile:
        correction = own.values / profile.gains - own.values
    number = part_volumes(scan.gradients, parts)
    made = []
    for part in range(parts):
        judged = (number == part) | (number == WHOLE)
        seen = (number != part) | (number == WHOLE) if parts > 1 else judged
        shown = at_shells(_with_volumes(scan, seen), preparation.shells)
        values = without(preparation.coefficients(shown))
        rendered = at_shells(_with_volumes(scan, judged), preparation.shells)
        made.append(gather(rendered, values, correction=correction))
    return [
        *made,
        gather(whole, without(own), choose=partial(evenly_spaced, most=_PATCHES_OF_WHOLE)),
    ]


def part_volumes(gradients: GradientTable, parts: int) -> Array:
    """Deal the volumes of b0 and of each shell to parts, near directions to different ones.

    Returns
    -------
    Array
        Number of the part of each volume, shape (volume,); `WHOLE` for b0 volumes and shells
        that are too few to be parted.
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
        for one in range(len(directions)):
            smallest = min(map(len, members))
            free = [own for own in members if len(own) == smallest]
            min(free, key=lambda own: likeness[one, own].max(initial=0)).append(one)
        for part, own in enumerate(members):
            number[shell.volumes[own]] = part
    return number


def _with_volumes(scan: Scan, kept: Array) -> Scan:
    gradients = GradientTable(scan.gradients.b[kept], scan.gradients.directions[kept])
    return replace(scan, signal=scan.signal[..., kept], gradients=gradients)
