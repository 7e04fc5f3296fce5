"""From a scan to what a method sees of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from siteless.acquisition import Array, Scan
from siteless.denoising import denoise
from siteless.harmonics import Coefficients, FitName, at_shells, fit_coefficients
from siteless.tissue import Tissue, tissue_mask


@dataclass(frozen=True)
class Preparation:
    """What is done to a scan before a method learns from it or harmonizes it.

    Attributes
    ----------
    shells
        b-values that scans are brought to, s/mm2.
    order, basis
        Of the spherical harmonics.
    fit
        How coefficients are fitted.
    tissue
        What is learned from.
    denoiser
        That scans go through first; empty for none.
    """

    shells: tuple[float, ...]
    order: int
    fit: FitName
    tissue: Tissue
    denoiser: str = ""
    basis: str = "MRtrix3 (tournier07), scanner axes"

    def prepare(self, scan: Scan) -> Scan:
        """Return a scan denoised and at the shells."""
        return self.at_shells(self.denoised(scan))

    def denoised(self, scan: Scan) -> Scan:
        """Return a scan denoised, if that is asked for."""
        return denoise(scan, self.denoiser) if self.denoiser else scan

    def at_shells(self, scan: Scan) -> Scan:
        """Return a scan at the shells."""
        return at_shells(scan, self.shells)

    def coefficients(self, scan: Scan) -> Coefficients:
        """Return the coefficients of a scan that `prepare` has given."""
        found = fit_coefficients(scan, order=self.order, fit=self.fit)
        return replace(found, bs=self.shells)  # the same shells, if not to the digit

    def where(self, scan: Scan) -> Array:
        """Return the voxels of the tissue, shape (x, y, z), bool."""
        return tissue_mask(scan, self.tissue)
