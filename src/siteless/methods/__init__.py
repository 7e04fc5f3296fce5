"""A scan and a target site to a scan: a file for each method, and one way to use them."""

from siteless.methods._catalogue import METHODS, Method, load_model
from siteless.methods._invariant import Codes, InvariantModel
from siteless.methods._paired import PairedModel
from siteless.methods._render import Outside, Rendering, harmonize, render
from siteless.methods._rish import (
    CLIP,
    SMOOTHING,
    Energies,
    RishModel,
    energies_of,
    site_weights,
    smooth_on_template,
)
from siteless.methods._scaled import ScaledModel, mean_attenuation
from siteless.methods._template import (
    BrainMaps,
    Likeness,
    align,
    likeness,
    mean_maps,
    typical_likeness,
)
from siteless.methods._unchanged import UnchangedModel

__all__ = [
    "CLIP",
    "METHODS",
    "SMOOTHING",
    "BrainMaps",
    "Codes",
    "Energies",
    "InvariantModel",
    "Likeness",
    "Method",
    "Outside",
    "PairedModel",
    "Rendering",
    "RishModel",
    "ScaledModel",
    "UnchangedModel",
    "align",
    "energies_of",
    "harmonize",
    "likeness",
    "load_model",
    "mean_attenuation",
    "mean_maps",
    "render",
    "site_weights",
    "smooth_on_template",
    "typical_likeness",
]
