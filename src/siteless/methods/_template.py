"""A space that people share: the mean of their brains, and how a scan lies on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.errors import SignalError
from siteless.harmonics import Coefficients
from siteless.registration import Alignment, Grid, correlation, overlap, place, register
from siteless.tissue import fit_tensor

# Overlap of white matter and correlation of FA below which a registration has failed.
_LEAST_OVERLAP, _LEAST_CORRELATION = 0.4, 0.3


@dataclass(frozen=True, eq=False)
class BrainMaps:
    """What registration sees of a scan.

    Attributes
    ----------
    image
        FA plus the mean of the weakest shell over b0, shape (x, y, z): bright in white matter,
        half as bright in grey matter, dark in fluid, zero outside the brain.
    fa
        Fractional anisotropy.
    white_matter
        Between 0 and 1.
    grid
        Where the voxels are.
    """

    image: Array
    fa: Array
    white_matter: Array
    grid: Grid

    @classmethod
    def of(cls, scan: Scan, own: Coefficients) -> Self:
        """Make the maps of a scan from its signal and its coefficients."""
        fa = fit_tensor(scan.volumes, scan.voxels, scan.gradients).fa.astype(np.float32)
        isotropic = own.shell(0)[:, 0] / np.sqrt(4 * np.pi)
        attenuation = np.divide(isotropic, own.b0, out=np.zeros_like(own.b0), where=own.b0 > 0)
        return cls(
            image=own.on_grid(fa + attenuation.clip(0, 1).astype(np.float32)),
            fa=own.on_grid(fa),
            white_matter=scan.white_matter.astype(np.float32),
            grid=Grid(scan.mask.shape, scan.affine),
        )

    def on_static(self, alignment: Alignment) -> BrainMaps:
        """Bring the maps to the static grid of an alignment."""
        stacked = np.stack([self.image, self.fa, self.white_matter], axis=-1)
        image, fa, white = np.moveaxis(alignment.to_static(stacked), -1, 0)
        return BrainMaps(image, fa, white, alignment.static)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """All that the maps are, for a file."""
        maps = {"image": self.image, "fa": self.fa, "white_matter": self.white_matter}
        return maps | {"affine": self.grid.affine}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Make maps of what a file holds."""
        maps = {name: arrays[name] for name in ("image", "fa", "white_matter")}
        x, y, z = maps["image"].shape
        return cls(**maps, grid=Grid((x, y, z), arrays["affine"]))


@dataclass(frozen=True)
class Likeness:
    """How well a scan lies on a template, before and after registration.

    Attributes
    ----------
    overlap_before, overlap
        Dice coefficient of the white-matter masks.
    correlation_before, correlation
        Of FA, in the template's brain.
    """

    overlap_before: float
    overlap: float
    correlation_before: float
    correlation: float

    @property
    def failed(self) -> bool:
        """Whether the scan does not lie on the template."""
        worse = self.overlap < self.overlap_before and self.correlation < self.correlation_before
        return worse or self.overlap < _LEAST_OVERLAP or self.correlation < _LEAST_CORRELATION

    def __str__(self) -> str:
        return (
            f"white matter overlaps by {self.overlap_before:.2f} before and {self.overlap:.2f} "
            f"after, FA correlates by {self.correlation_before:.2f} and {self.correlation:.2f}"
        )

    @property
    def row(self) -> dict[str, float]:
        """The figures, as a row of a table has them."""
        return asdict(self)


def align(maps: BrainMaps, template: BrainMaps, *, same_space: bool) -> tuple[Alignment, Likeness]:
    """Register a scan to a template, unless it is in its space; and tell how well it lies."""
    found = placed = place(maps.grid, template.grid)
    if not same_space:
        found = register(maps.image, maps.grid, template.image, template.grid)
    before = _alike(maps.on_static(placed), template)
    after = _alike(maps.on_static(found), template)
    return found, Likeness(before[0], after[0], before[1], after[1])


def require_aligned(likeness: Likeness) -> None:
    """Refuse a scan that does not lie on the template."""
    if likeness.failed:
        raise SignalError(
            f"the scan could not be registered to the template ({likeness})",
            remedy="check its orientation and masks, or leave it out",
        )


def mean_maps(scans: Sequence[BrainMaps]) -> BrainMaps:
    """Return the mean of maps that are on one grid."""
    names = ("image", "fa", "white_matter")
    means = {name: np.mean([getattr(s, name) for s in scans], axis=0) for name in names}
    return BrainMaps(**means, grid=scans[0].grid)


def _alike(maps: BrainMaps, template: BrainMaps) -> tuple[float, float]:
    white = overlap(maps.white_matter > 0.5, template.white_matter > 0.5)
    return white, correlation(maps.fa, template.fa, template.image > 0)
