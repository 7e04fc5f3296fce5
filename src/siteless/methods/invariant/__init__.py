"""An invariant conditional autoencoder (Moyer et al. 2020)."""

from siteless.methods.invariant._model import Codes, InvariantModel

__all__ = [
    "Codes",
    "InvariantModel",
]
