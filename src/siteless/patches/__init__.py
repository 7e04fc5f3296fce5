"""Coefficients to patches and back: neighbours by an index table, never copied ahead of time."""

from siteless.patches._neighbourhood import FACES, cut, index_neighbours, stitch, surrounded

__all__ = ["FACES", "cut", "index_neighbours", "stitch", "surrounded"]
