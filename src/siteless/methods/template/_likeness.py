"""A study template, and how well scans match it."""

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
    register,
    register_affine,
)
from siteless.tissue import fit_tensor

# Overlap of white matter and correlation of FA that deformed noise can reach; and the fraction of
# typical values that a scan must reach.
_LEAST_OVERLAP, _LEAST_CORRELATION, _TYPICAL_PART = 0.45, 0.3, 0.75
# Changes of length between adult heads are smaller.
_STRETCH = (0.72, 1.38)
_MAPS = ("image", "fa", "white_matter")


@dataclass(frozen=True, eq=False)
class BrainMaps:
    """Maps of a scan for registration.

    Attributes
    ----------
    image
        FA plus the mean of the weakest shell over b0, shape (x, y, z): bright in white matter,
        half as bright in grey matter, dark in fluid, zero outside the brain.
    fa, white_matter
        Fractional anisotropy, and white-matter fraction, between 0 and 1.
    """

    image: Array
    fa: Array
    white_matter: Array
    grid: Grid

    @classmethod
    def of(cls, scan: Scan, coefficients: Coefficients) -> Self:
        """Make the maps of a scan from its signal and coefficients."""
        fa = fit_tensor(scan.volumes, scan.voxels, scan.gradients).fa.astype(np.float32)
        isotropic = coefficients.shell(0)[:, 0] / np.sqrt(4 * np.pi)
        b0 = coefficients.b0
        attenuation = np.divide(isotropic, b0, out=np.zeros_like(b0), where=b0 > 0)
        return cls(
            image=coefficients.on_grid(fa + attenuation.clip(0, 1).astype(np.float32)),
            fa=coefficients.on_grid(fa),
            white_matter=scan.white_matter.astype(np.float32),
            grid=Grid(scan.mask.shape, scan.affine),
        )

    def on_static(self, alignment: Alignment) -> BrainMaps:
        """Resample the maps to the static grid of an alignment."""
        stacked = np.stack([self.image, self.fa, self.white_matter], axis=-1)
        image, fa, white = np.moveaxis(alignment.to_static(stacked), -1, 0)
        return BrainMaps(image, fa, white, alignment.static)

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Arrays to store."""
        return {**{name: getattr(self, name) for name in _MAPS}, "affine": self.grid.affine}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Self:
        """Make maps from stored arrays."""
        x, y, z = arrays["image"].shape
        maps = {name: arrays[name] for name in _MAPS}
        return cls(**maps, grid=Grid((x, y, z), arrays["affine"]))


@dataclass(frozen=True)
class Likeness:
    """How well a scan matches a template, before and after registration.

    Overlap is the Dice coefficient of the white-matter masks, correlation that of FA in the
    template's brain. The affine registration scales lengths from `shrunk` to `stretched`.
    """

    overlap_before: float
    overlap: float
    correlation_before: float
    correlation: float
    shrunk: float = 1.0
    stretched: float = 1.0

    def is_poor(self, typical: Likeness) -> bool:
        """Whether the scan matches the template much worse than scans typically do.

        Deformation makes any two brains somewhat alike. So an inverted scan is detected by
        comparison with others, and a partial brain by its scale factors.
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
    """Compare a scan with a template, with and without an alignment."""
    before = maps.on_static(Alignment(maps.grid, template.grid))
    after = maps.on_static(alignment)
    white, brain = template.white_matter > 0.5, template.image > 0
    lengths = 1 / np.linalg.svd(alignment.affine[:3, :3], compute_uv=False)
    return Likeness(
        overlap_before=overlap(before.white_matter > 0.5, white),
        overlap=overlap(after.white_matter > 0.5, white),
        correlation_before=correlation(before.fa, template.fa, brain),
        correlation=correlation(after.fa, template.fa, brain),
        shrunk=float(lengths.min()),
        stretched=float(lengths.max()),
    )


def lay(
    maps: BrainMaps, template: BrainMaps, *, same_space: bool, deform: bool = True
) -> tuple[Alignment, Likeness]:
    """Register a scan to a template, unless both share a space, and compare them."""
    find = register if deform else register_affine
    if same_space:
        alignment = Alignment(maps.grid, template.grid)
    else:
        alignment = find(maps.image, maps.grid, template.image, template.grid)
    return alignment, _likeness(maps, template, alignment)


def lay_well(maps: BrainMaps, template: BrainMaps, card: ModelCard) -> Alignment:
    """Align a scan with a model's template; raise an error if it matches badly."""
    alignment, likeness = lay(maps, template, same_space=card.settings["same_space"])
    if likeness.is_poor(Likeness(**card.summary["likeness"])):
        raise SignalError(
            f"the scan could not be registered to the template ({likeness})",
            remedy="check its orientation and masks, or leave it out",
        )
    return alignment


def typical_likeness(likenesses: Sequence[Likeness]) -> Likeness:
    """Return the median of each field."""
    return Likeness(*np.median([astuple(likeness) for likeness in likenesses], axis=0).tolist())


def mean_maps(scans: Iterable[BrainMaps]) -> BrainMaps:
    """Return the mean of maps on one grid; an iterator keeps few of them in memory."""
    total, count = np.zeros(1), 0
    for maps in scans:
        total, count = total + np.stack([maps.image, maps.fa, maps.white_matter]), count + 1
    image, fa, white = (total / count).astype(np.float32)
    return BrainMaps(image, fa, white, maps.grid)


def describe_template(card: ModelCard) -> list[tuple[str, str]]:
    """Describe what was compared on a template, and how well scans match it."""
    settings, summary = card.settings, card.summary
    travelling = settings.get("travelling", False)
    compared = "travelling people with themselves" if travelling else "groups"
    beside = f", beside {', '.join(settings['covariates'])}" if settings["covariates"] else ""
    how = "in a common space" if settings["same_space"] else "registered"
    lines = [
        ("compared", compared + beside),
        ("template", f"scans {how}, typically: {Likeness(**summary['likeness'])}"),
    ]
    if summary["not_registered"]:
        lines.append(("left out", ", ".join(summary["not_registered"]) + ": not registered"))
    return lines
