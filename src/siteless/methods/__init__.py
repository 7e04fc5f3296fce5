"""A scan and a target site to a scan, or to maps: a file for each method."""

from siteless.methods._catalogue import METHODS, Method, load_model
from siteless.methods._combat import (
    CombatModel,
    Estimates,
    HarmonizedMaps,
    estimate,
    require_neurocombat,
)
from siteless.methods._invariant import Codes, InvariantModel
from siteless.methods._paired import PairedModel
from siteless.methods._render import Outside, Rendering, harmonize, render
from siteless.methods._rish import (
    CLIP,
    SMOOTHING,
    Energies,
    RishModel,
    energies_of,
    site_energies,
    site_weights,
    smooth_on_template,
)
from siteless.methods._scaled import ScaledModel, mean_attenuation
from siteless.methods._template import (
    BrainMaps,
    Likeness,
    lay,
    lay_well,
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
    "CombatModel",
    "Energies",
    "Estimates",
    "HarmonizedMaps",
    "InvariantModel",
    "Likeness",
    "Method",
    "Outside",
    "PairedModel",
    "Rendering",
    "RishModel",
    "ScaledModel",
    "UnchangedModel",
    "energies_of",
    "estimate",
    "harmonize",
    "lay",
    "lay_well",
    "load_model",
    "mean_attenuation",
    "mean_maps",
    "render",
    "require_neurocombat",
    "site_energies",
    "site_weights",
    "smooth_on_template",
    "typical_likeness",
]
