from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from siteless.acquisition import Array
from siteless.methods.invariant.profiles import SiteProfiles, flat_fields
from siteless.report import draw_profiles


def _draw(path: Path, strength: float) -> Array:
    weights = np.zeros((2, 35, 3))
    weights[:, -1, 0] = strength, -strength  # the last cosine runs along x
    field = replace(flat_fields(2, 3), weights=weights)
    profiles = SiteProfiles(("here", "there"), np.array([0.0, 1.2]), field, 8, np.zeros((2, 3)))
    draw_profiles(profiles, (1000.0,), path)
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


def test_a_field_is_seen(tmp_path: Path) -> None:
    flat, tilted = (_draw(tmp_path / f"{s}.png", s) for s in (0.0, 0.1))
    assert flat.shape == tilted.shape
    coloured = [(np.ptp(image, axis=2) > 60).sum() for image in (flat, tilted)]
    assert coloured[1] > coloured[0] + 10_000  # the scale itself is coloured
