"""Fit a model to a dataset, and adapt a model to another site."""

from siteless.pipelines.fit._adapt import adapt_model
from siteless.pipelines.fit._fit import fit_model
from siteless.pipelines.fit._workspace import FitFiles

__all__ = ["FitFiles", "adapt_model", "fit_model"]
