"""Save a model as one safetensors file, which can be loaded without executing code."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from siteless.acquisition import Array
from siteless.errors import MissingFileError, ModelError, UnreadableFileError
from siteless.model._card import LearnedSite, ModelCard
from siteless.model._model import Model
from siteless.model._preparation import Preparation
from siteless.model._typical import Typical
from siteless.storage import write_whole

_FORMAT = 11


def save_model(model: Model, path: Path) -> None:
    """Write a model, completely or not at all; equal models give equal bytes."""
    metadata = {"format": _FORMAT, "identity": model.identity, **asdict(model.card)}
    arrays = {name: np.asarray(array, order="C") for name, array in model.arrays.items()}
    # A single key, as safetensors does not preserve the order of keys.
    content = save(arrays, metadata={"siteless": json.dumps(metadata)})
    write_whole(path, content)


def read_model_file(path: Path) -> tuple[ModelCard, dict[str, Array], str]:
    """Read the card, the arrays and the stored identity of a model.

    Raises
    ------
    ModelError
        When the file is not a siteless model, or is truncated.
    """
    if not path.is_file():
        raise MissingFileError("the model is not there", remedy="correct the path", path=path)
    try:
        path.open("rb").close()
    except OSError as error:
        raise UnreadableFileError(
            f"the model cannot be read ({error.strerror})", remedy="check permissions", path=path
        ) from None
    metadata, arrays = _read(path)
    identity = metadata.pop("identity", None)
    if metadata.pop("format", None) != _FORMAT:
        raise ModelError(
            "the model is of another version of siteless", remedy="fit it again", path=path
        )
    try:
        return _card(metadata), arrays, str(identity)
    except (AttributeError, KeyError, TypeError):
        raise damaged(path) from None


def damaged(path: Path) -> ModelError:
    """Return the error for a file that has changed since it was written."""
    return ModelError(
        "the model has changed since it was written", remedy="copy it again", path=path
    )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        with safe_open(path, framework="np") as stored:
            metadata = json.loads((stored.metadata() or {})["siteless"])
            if not isinstance(metadata, dict):
                raise KeyError("siteless")
            return metadata, {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (KeyError, json.JSONDecodeError):
        raise ModelError(
            "expected a model of siteless, but the file is of another program",
            remedy="give a file that `siteless fit` wrote",
            path=path,
        ) from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(
            f"expected a model of siteless, but the file is another, or truncated ({error})",
            remedy="give a file that `siteless fit` wrote, or copy it again",
            path=path,
        ) from None


def _card(metadata: dict[str, Any]) -> ModelCard:
    """Make a card from JSON."""
    sites = {}
    for label, site in _as_tuples(metadata.pop("sites")).items():
        sites[label] = LearnedSite(typical=Typical(**site.pop("typical")), **site)
    settings = _as_tuples(metadata.pop("settings"))
    preparation = Preparation(**_as_tuples(metadata.pop("preparation")))
    return ModelCard(sites=sites, settings=settings, preparation=preparation, **metadata)


def _as_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_tuples(item) for key, item in value.items()}
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
