"""How noisy a scan is, and the signal under its noise floor."""

from siteless.noise._expected import ExpectedMagnitudes
from siteless.noise._floor import is_magnitude, remove_floor
from siteless.noise._level import estimate_noise
from siteless.noise._magnitude import MOST_COILS, Magnitude

__all__ = [
    "MOST_COILS",
    "ExpectedMagnitudes",
    "Magnitude",
    "estimate_noise",
    "is_magnitude",
    "remove_floor",
]
