"""A space that people share: the mean of their brains, and how a scan lies on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Self

import numpy as np

from siteless.acquisition import Array, Scan
from siteless.errors import SignalError
from siteless.harmonics import Coefficients
from siteless.model import ModelCard
from siteless.registration import (
    Alignment,
    Grid,
    correlation,
    overlap,
    place,
    register,
    register_affine,
)
from siteless.tissue import fit_tensor

# Overlap of white matter and correlation of FA that noise reaches when it is deformed; and the
# part of what scans typically reach that a scan must.
_LEAST_OVERLAP, _LEAST_CORRELATION, _TYPICAL_PART = 0.45, 0.3, 0.75
# Heads of grown people differ less.
_STRETCH = (0.72, 1.38)


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
    shrunk, stretched
        The least and the greatest change of length by the affine part of the registration.
    """

    overlap_before: float
    overlap: float
    correlation_before: float
    correlation: float
    shrunk: float = 1.0
    stretched: float = 1.0

    def is_poor(self, typical: Likeness) -> bool:
        """Whether the scan lies on the template much worse than scans typically do.

        Deformation makes any two brains somewhat alike, so that a scan that is upside down is
        known by comparison with others, and a part of a brain by how it was stretched.
        """
        least_overlap = max(_LEAST_OVERLAP, _TYPICAL_PART * typical.overlap)
        least_correlation = max(_LEAST_CORRELATION, _TYPICAL_PART * typical.correlation)
        return (
            self.overlap < least_overlap
            or self.correlation < least_correlation
            or self.shrunk < _STRETCH[0]
            or self.stretched > _STRETCH[1]
        )

    def __str__(self) -> str:
        return (
            f"white matter overlaps by {self.overlap_before:.2f} before and {self.overlap:.2f} "
            f"after, FA correlates by {self.correlation_before:.2f} and {self.correlation:.2f}, "
            f"lengths change by {self.shrunk:.2f} to {self.stretched:.2f}"
        )


def _likeness(maps: BrainMaps, template: BrainMaps, alignment: Alignment) -> Likeness:
    """Tell how well a scan lies on a template by an alignment, and by none."""
    before = _alike(maps.on_static(place(maps.grid, template.grid)), template)
    after = _alike(maps.on_static(alignment), template)
    lengths = 1 / np.linalg.svd(alignment.affine[:3, :3], compute_uv=False)
    return Likeness(
        overlap_before=before[0],
        overlap=after[0],
        correlation_before=before[1],
        correlation=after[1],
        shrunk=float(lengths.min()),
        stretched=float(lengths.max()),
    )


def lay(
    maps: BrainMaps, template: BrainMaps, *, same_space: bool, deform: bool = True
) -> tuple[Alignment, Likeness]:
    """Bring a scan to a template, and tell how well it lies there.

    It is registered, with deformation or without, or left as it is when both share a space.
    """
    find = register if deform else register_affine
    if same_space:
        alignment = place(maps.grid, template.grid)
    else:
        alignment = find(maps.image, maps.grid, template.image, template.grid)
    return alignment, _likeness(maps, template, alignment)


def lay_well(
    maps: BrainMaps, template: BrainMaps, *, same_space: bool, typical: Likeness
) -> Alignment:
    """Bring a scan to a template, and refuse it when it lies there worse than scans do.

    Raises
    ------
    SignalError
        When it does.
    """
    alignment, found = lay(maps, template, same_space=same_space)
    if found.is_poor(typical):
        raise SignalError(
            f"the scan could not be registered to the template ({found})",
            remedy="check its orientation and masks, or leave it out",
        )
    return alignment


def typical_likeness(scans: Sequence[Likeness]) -> Likeness:
    """Return the median of each figure."""
    return Likeness(*np.median([astuple(one) for one in scans], axis=0).tolist())


def mean_maps(scans: Iterable[BrainMaps]) -> BrainMaps:
    """Return the mean of maps that are on one grid, which need not be in memory together."""
    total, count = np.zeros(1), 0
    for maps in scans:
        total, count = total + np.stack([maps.image, maps.fa, maps.white_matter]), count + 1
    image, fa, white = (total / count).astype(np.float32)
    return BrainMaps(image, fa, white, maps.grid)


def _alike(maps: BrainMaps, template: BrainMaps) -> tuple[float, float]:
    white = overlap(maps.white_matter > 0.5, template.white_matter > 0.5)
    return white, correlation(maps.fa, template.fa, template.image > 0)


def describe_template(card: ModelCard) -> list[tuple[str, str]]:
    """Say what was compared on a template, and how well scans lie on it."""
    settings, summary = card.settings, card.summary
    travelling = settings.get("travelling", False)
    compared = "travelling people with themselves" if travelling else "groups"
    beside = f", beside {', '.join(settings['covariates'])}" if settings["covariates"] else ""
    how = "in a common space" if settings["same_space"] else "registered"
    lost = [("left out", ", ".join(summary["not_registered"]) + ": not registered")]
    return [
        ("compared", compared + beside),
        ("template", f"scans {how}, typically: {Likeness(**summary['likeness'])}"),
        *(lost if summary["not_registered"] else []),
    ]
