"""Diffusion tensors, and masks of the brain and of white matter."""

from siteless.tissue._level import Tissue, tissue_mask, white_matter_level
from siteless.tissue._masks import (
    BRAIN_MASK_METHOD,
    WHITE_MATTER_METHOD,
    brain_mask,
    white_matter_mask,
)
from siteless.tissue._tensor import Tensor, fit_tensor

__all__ = [
    "BRAIN_MASK_METHOD",
    "WHITE_MATTER_METHOD",
    "Tensor",
    "Tissue",
    "brain_mask",
    "fit_tensor",
    "tissue_mask",
    "white_matter_level",
    "white_matter_mask",
]
