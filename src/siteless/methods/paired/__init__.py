"""A network that learns from people who were scanned at several sites."""

from siteless.methods.paired._model import PairedModel
from siteless.methods.paired._network import Translator, TranslatorSettings
from siteless.methods.paired._training import (
    Pair,
    PairedSettings,
    PairedTraining,
    find_pairs,
    train_paired,
)

__all__ = [
    "Pair",
    "PairedModel",
    "PairedSettings",
    "PairedTraining",
    "Translator",
    "TranslatorSettings",
    "find_pairs",
    "train_paired",
]
