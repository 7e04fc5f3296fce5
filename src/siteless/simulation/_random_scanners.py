"""Random scanners."""

from __future__ import annotations

import numpy as np

from siteless.simulation._scanner import Scanner

_SHELLS = ((1000.0, 2000.0), (1200.0, 3000.0))
_DIRECTIONS = (24, 30, 45, 60, 64)
_MODELS = (("Siemens", "Prisma"), ("GE", "Premier"), ("Philips", "Ingenia"))


def draw_scanners(count: int, seed: int = 0) -> tuple[Scanner, ...]:
    """Draw random scanners, each with different directions.

    All have one receive coil, four b0 volumes, and the same random shells: 1000 and 2000, or 1200
    and 3000 s/mm2. Other settings are drawn for each scanner, uniformly unless stated otherwise:

    - echo time, 0.06 to 0.1 s
    - directions per shell, 24, 30, 45, 60 or 64
    - gain, 0.4 to 2.5, log-uniform
    - receive field, 0.05 to 0.35 at 100 mm (log); its tilt, -0.08 to 0.08 along each axis
    - gradient nonlinearity, 0.002 to 0.035 at 100 mm
    - width (FWHM) of the point-spread function, 1.2 to 3.4 mm
    - signal-to-noise ratio of white-matter b0, 18 to 35 at an echo time of 89 ms
    - manufacturer, Siemens, GE or Philips

    Parameters
    ----------
    count
        Number of scanners; they are named site01, site02 and so on.
    seed
        Random seed; the same seed gives the same scanners, and a smaller count the first of them.

    Examples
    --------
    >>> [scanner.site for scanner in draw_scanners(2)]
    ['site01', 'site02']
    """
    rng = np.random.default_rng((seed, 0, 1))  # participants have another random stream
    shells = _SHELLS[rng.integers(len(_SHELLS))]
    digits = max(2, len(str(count)))
    names = [f"site{number:0{digits}d}" for number in range(1, count + 1)]
    return tuple(_draw_scanner(rng, site, shells) for site in names)


def _draw_scanner(rng: np.random.Generator, site: str, shells: tuple[float, ...]) -> Scanner:
    def between(low: float, high: float) -> float:
        return round(float(rng.uniform(low, high)), 4)

    manufacturer, model = _MODELS[rng.integers(len(_MODELS))]
    return Scanner(
        site=site,
        manufacturer=manufacturer,
        model=model,
        serial=str(rng.integers(10_000, 100_000)),
        echo_time=between(0.06, 0.1),
        shells=shells,
        directions=_DIRECTIONS[rng.integers(len(_DIRECTIONS))],
        b0=4,
        scheme=int(rng.integers(1000, 1_000_000)),
        gain=round(float(np.exp(rng.uniform(*np.log([0.4, 2.5])))), 4),
        receive=between(0.05, 0.35),
        receive_tilt=tuple(between(-0.08, 0.08) for _ in range(3)),
        nonlinearity=between(0.002, 0.035),
        blur=between(1.2, 3.4),
        snr=between(18, 35),
        coils=1,
    )
