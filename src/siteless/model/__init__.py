"""What was learned: the network with all that it needs to be used, in one file."""

from siteless.model._file import load_model, save_model
from siteless.model._model import Codes, Model, ModelCard, same_shells, show_bs

__all__ = ["Codes", "Model", "ModelCard", "load_model", "same_shells", "save_model", "show_bs"]
