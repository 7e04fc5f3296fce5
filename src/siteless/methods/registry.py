"""The available methods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from siteless.methods.combat import Combat
from siteless.methods.invariant import Invariant
from siteless.methods.paired import Paired
from siteless.methods.rish import Rish, RishGlm
from siteless.methods.scaled import Scaled
from siteless.methods.unchanged import Unchanged

if TYPE_CHECKING:
    from siteless.methods.base import Method
    from siteless.model import Model

METHODS: dict[str, type[Method]] = {
    method.name: method for method in (Invariant, Rish, RishGlm, Paired, Combat, Scaled, Unchanged)
}


def load_model(path: Path | str) -> Model:
    """Read a model of any method, and verify its integrity.

    Raises
    ------
    ModelError
        When the file is not a siteless model, is truncated, or has changed since it was written.
    """
    from siteless.errors import ModelError
    from siteless.model import damaged, read_model_file

    path = Path(path)
    card, arrays, identity = read_model_file(path)
    if card.method not in METHODS:
        raise ModelError(
            f"the model is of a method that this siteless does not have, {card.method!r}",
            remedy="use a newer version",
            path=path,
        )
    try:
        model = METHODS[card.method].model_type().from_arrays(card, arrays)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        raise damaged(path) from None
    if model.identity != identity:
        raise damaged(path)
    return model
