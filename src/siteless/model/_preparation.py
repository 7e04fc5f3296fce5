"""Process scans before training and harmonization."""

from __future__ import annotations

from dataclasses import dataclass, replace

from siteless.acquisition import Array, Scan
from siteless.denoising import denoise
from siteless.harmonics import Coefficients, FitName, at_shells, fit_coefficients
from siteless.tissue import Tissue, tissue_mask


@dataclass(frozen=True)
class Preparation:
    """Processing of a scan before training or harmonization.

    A scan is denoised, unless the denoiser is empty, and interpolated to the b-values of `shells`,
    s/mm2. Harmonics up to `order` are fitted; methods learn from those in the tissue.
    """

    shells: tuple[float, ...]
    order: int
    fit: FitName
    tissue: Tissue
    denoiser: str = ""
    basis: str = "MRtrix3 (tournier07), scanner axes"

    def denoised(self, scan: Scan) -> Scan:
        """Denoise a scan, if requested."""
        return denoise(scan, self.denoiser) if self.denoiser else scan

    def at_shells(self, scan: Scan) -> Scan:
        """Interpolate a scan to the shells."""
        return at_shells(scan, self.shells)

    def coefficients(self, scan: Scan) -> Coefficients:
        """Return the coefficients of a scan from `at_shells`."""
        coefficients = fit_coefficients(scan, order=self.order, fit=self.fit)
        return replace(coefficients, bs=self.shells)  # nominal rather than measured b-values

    def where(self, scan: Scan) -> Array:
        """Return the mask of the tissue, shape (x, y, z), bool."""
        return tissue_mask(scan, self.tissue)
