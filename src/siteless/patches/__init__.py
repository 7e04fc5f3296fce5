"""Coefficients to patches and back: neighbours by an index table, never copied ahead of time."""

from siteless.patches._neighbourhood import (
    FACES,
    channel_blocks,
    cut,
    index_neighbours,
    neighbour_means,
    stitch,
    surrounded,
)

__all__ = [
    "FACES",
    "channel_blocks",
    "cut",
    "index_neighbours",
    "neighbour_means",
    "stitch",
    "surrounded",
]
