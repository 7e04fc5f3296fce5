"""Trained models, with everything that is needed to apply them."""

from siteless.model._card import LearnedSite, ModelCard
from siteless.model._file import damaged, read_model_file, save_model
from siteless.model._model import (
    AVERAGE,
    HarmonizedMaps,
    LatentModel,
    MapModel,
    Model,
    SignalModel,
    SiteFields,
    Translation,
)
from siteless.model._preparation import NOISE_FLOORS, NoiseFloor, Preparation
from siteless.model._typical import RARE, Typical

__all__ = [
    "AVERAGE",
    "NOISE_FLOORS",
    "RARE",
    "HarmonizedMaps",
    "LatentModel",
    "LearnedSite",
    "MapModel",
    "Model",
    "ModelCard",
    "NoiseFloor",
    "Preparation",
    "SignalModel",
    "SiteFields",
    "Translation",
    "Typical",
    "damaged",
    "read_model_file",
    "save_model",
]
