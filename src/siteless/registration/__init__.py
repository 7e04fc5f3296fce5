"""Register images of different subjects with DIPY: affine, then diffeomorphic."""

from siteless.registration._alignment import Alignment, Grid, resample_grid
from siteless.registration._register import correlation, overlap, register, register_affine

__all__ = [
    "Alignment",
    "Grid",
    "correlation",
    "overlap",
    "register",
    "register_affine",
    "resample_grid",
]
