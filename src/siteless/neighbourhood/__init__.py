"""Neighbours of the voxels of a mask, and blur among them."""

from siteless.neighbourhood._blur import diffuse
from siteless.neighbourhood._neighbours import (
    FACES,
    channel_blocks,
    cut,
    index_neighbours,
    neighbour_means,
    surrounded,
)

__all__ = [
    "FACES",
    "channel_blocks",
    "cut",
    "diffuse",
    "index_neighbours",
    "neighbour_means",
    "surrounded",
]
