"""Random worlds: brains and scanners unlike those that anything was tuned to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from siteless.simulation._biology import USUAL_BIOLOGY, Biology
from siteless.simulation._random_scanners import draw_scanners
from siteless.simulation._scanner import Scanner

# b-values of the shells that a world's scanners share, s/mm2.
_SHELLS = (
    (1000.0,),
    (1000.0, 2000.0),
    (1200.0, 3000.0),
    (700.0, 2800.0),
    (1000.0, 2000.0, 3000.0),
)
_DIRECTIONS = (12, 20, 30, 32, 45, 60, 64, 90)
# Random streams, separate from those of people and scanners.
_BIOLOGY, _SCANNERS = 2, 3


@dataclass(frozen=True)
class World:
    """The tissue of people, and the scanners that they meet."""

    biology: Biology
    scanners: tuple[Scanner, ...]


def draw_world(number: int, *, sites: int = 4) -> World:
    """Draw a world at random; its number is the seed, and fewer sites are the first of more.

    Scanners are those of `draw_scanners` with harder settings, drawn uniformly unless stated
    otherwise:

    - the same shells for all: one to three between 700 and 3000 s/mm2
    - directions per shell, 12 to 90 (at least 20 with several shells), and 1 to 8 b0 volumes
    - signal-to-noise ratio, 10 to 40, log-uniform; one coil, or four at every fourth scanner
    - width of the spatial correlation of noise, 0 to 5 mm, at half of the scanners; its rise
      towards the isocentre, -0.2 to 0.8 (log, from 100 mm)
    - acquired part of spatial frequencies, 0.75 to 1; partial Fourier, 0.75, 0.875 or 1
    - diffusion time, 0.02 to 0.06 s
    - motion left in volumes, 0 to 0.25 mm; distortion by eddy currents, 0 to 0.4 mm

    Tissue differs from the defaults of `Biology` by up to 15 % in diffusivities, relaxation times
    and dispersion, and by up to a third in how much people change with age, a half in how much
    they and parts of the brain differ. The intra-axonal fraction is 0.45 to 0.62, the fast
    fraction of grey matter 0.5 to 0.75; the latter varies, and there are cortical sticks.
    """
    rng = np.random.default_rng((number, 0, _SCANNERS))
    shells = _SHELLS[rng.integers(len(_SHELLS))]
    scanners = tuple(
        _Draw(rng).harder(scanner, shells) for scanner in draw_scanners(sites, number)
    )
    return World(_Draw(np.random.default_rng((number, 0, _BIOLOGY))).biology(), scanners)


@dataclass(frozen=True)
class _Draw:
    """Draws settings."""

    rng: np.random.Generator

    def between(self, low: float, high: float) -> float:
        return round(float(self.rng.uniform(low, high)), 4)

    def harder(self, scanner: Scanner, shells: tuple[float, ...]) -> Scanner:
        """Return a random scanner with the difficulties of real ones."""
        fewest = 0 if len(shells) == 1 else _DIRECTIONS.index(20)
        return replace(
            scanner,
            shells=shells,
            directions=_DIRECTIONS[self.rng.integers(fewest, len(_DIRECTIONS))],
            b0=int(self.rng.integers(1, 9)),
            snr=round(float(np.exp(self.rng.uniform(*np.log([10.0, 40.0])))), 4),
            coils=4 if self.rng.random() < 0.25 else 1,
            noise_correlation=self.between(0.0, 5.0) if self.rng.random() < 0.5 else 0.0,
            noise_rise=self.between(-0.2, 0.8),
            acquired=self.between(0.75, 1.0),
            partial_fourier=(0.75, 0.875, 1.0)[self.rng.integers(3)],
            diffusion_time=self.between(0.02, 0.06),
            motion=self.between(0.0, 0.25),
            eddy=self.between(0.0, 0.4),
        )

    def biology(self) -> Biology:
        """Return the tissue of a world."""
        usual = USUAL_BIOLOGY
        names = (
            *("dispersion", "along_axon", "grey_fast", "grey_slow", "free"),
            *("t2_intra", "t2_extra", "t2_grey", "t2_fluid"),
        )
        factors = {name: getattr(usual, name) * self.between(0.85, 1.15) for name in names}
        people = ("intra_axonal_per_year", "intra_axonal_scatter", "deformation")
        factors |= {name: getattr(usual, name) * self.between(0.67, 1.33) for name in people}
        return replace(
            usual,
            **factors,
            intra_axonal=self.between(0.45, 0.62),
            intra_axonal_variation=(self.between(0.02, 0.06), self.between(0.01, 0.03)),
            dispersion_variation=(self.between(0.02, 0.05), self.between(0.01, 0.025)),
            grey_fast_part=self.between(0.5, 0.75),
            grey_variation=self.between(0.02, 0.08),
            cortical_sticks=self.between(0.05, 0.25),
            t2_variation=self.between(0.02, 0.08),
        )
