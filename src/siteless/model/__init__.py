"""What was learned: the network with all that it needs to be used, in one file."""

from siteless.model._file import load_model, save_model
from siteless.model._model import (
    AVERAGE,
    Codes,
    LearnedSite,
    Model,
    ModelCard,
    same_shells,
    show_bs,
)
from siteless.model._typical import RARE, Typical

__all__ = [
    "AVERAGE",
    "RARE",
    "Codes",
    "LearnedSite",
    "Model",
    "ModelCard",
    "Typical",
    "load_model",
    "same_shells",
    "save_model",
    "show_bs",
]
