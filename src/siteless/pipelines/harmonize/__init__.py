"""Render scans of a dataset as a site, or encode them."""

from siteless.pipelines.harmonize._encode import encode_dataset
from siteless.pipelines.harmonize._harmonize import HarmonizeReport, harmonize_dataset
from siteless.pipelines.harmonize._job import Gradients, RenderingOptions

__all__ = [
    "Gradients",
    "HarmonizeReport",
    "RenderingOptions",
    "encode_dataset",
    "harmonize_dataset",
]
