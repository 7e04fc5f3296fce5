"""Process scans before training and harmonization."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from siteless.acquisition import Array, Scan
from siteless.denoising import denoise
from siteless.harmonics import Coefficients, FitName, at_shells, fit_coefficients
from siteless.noise import ExpectedMagnitudes, estimate_noise, is_magnitude, remove_floor
from siteless.tissue import Tissue, tissue_mask

NoiseFloor = Literal["remove", "keep"]
NOISE_FLOORS: tuple[NoiseFloor, ...] = get_args(NoiseFloor)


@dataclass(frozen=True)
class Preparation:
    """Processing of a scan before training or harmonization.

    A scan is denoised, unless the denoiser is empty, its noise floor is removed or kept, and it is
    interpolated to the b-values of `shells`, s/mm2. Harmonics up to `order` are fitted; methods
    learn from those in the tissue. Magnitudes combine
    effectively so many `coils` by their sum of squares.
    """

    shells: tuple[float, ...]
    order: int
    fit: FitName
    tissue: Tissue
    denoiser: str = ""
    noise_floor: NoiseFloor = "keep"
    coils: int = 1
    basis: str = "MRtrix3 (tournier07), scanner axes"

    def cleaned(self, scan: Scan) -> Scan:
        """Denoise a scan and remove its noise floor, if requested.

        The noise is estimated before denoising, which leaves the floor where it is. A real-valued
        scan has no floor.
        """
        expected = sigma = None
        if self.noise_floor == "remove" and is_magnitude(scan):
            coefficients = fit_coefficients(scan)
            expected = ExpectedMagnitudes.of(scan, coefficients)
            sigma = estimate_noise(scan, coefficients, expected, coils=self.coils)
            del coefficients
        if self.denoiser:
            scan, expected = denoise(scan, self.denoiser), None
        if sigma is None:
            return scan
        expected = expected or ExpectedMagnitudes.of(scan, fit_coefficients(scan))
        return remove_floor(scan, expected, sigma, coils=self.coils)

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
