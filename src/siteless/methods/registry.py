"""The methods there are, and their models' files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from siteless.errors import ModelError
from siteless.methods.combat import CombatModel
from siteless.methods.invariant import InvariantModel
from siteless.methods.paired import PairedModel
from siteless.methods.rish import RishModel
from siteless.methods.scaled import ScaledModel
from siteless.methods.unchanged import UnchangedModel
from siteless.model import Model, damaged, read_model_file


@dataclass(frozen=True)
class Method:
    """A way to harmonize scans.

    Attributes
    ----------
    name
        As the command line has it.
    told
        What it does, in a line.
    model
        The class of its models.
    trained
        Whether it is trained step by step, and needs people to validate by.
    """

    name: str
    told: str
    model: type[Model]
    trained: bool = False


METHODS = {
    method.name: method
    for method in (
        Method(
            "invariant",
            "a code of the signal that does not tell the site, rendered as any site; learns "
            "from unpaired scans (Moyer et al. 2020)",
            InvariantModel,
            trained=True,
        ),
        Method(
            "rish",
            "rotation-invariant energies of each shell and degree, brought to the target's by "
            "scale maps on a template (Mirzaalian et al. 2016, Cetin Karayumak et al. 2019)",
            RishModel,
        ),
        Method(
            "rish-glm",
            "the same, with the energies of sites told from age, sex or other covariates by "
            "regression (De Luca et al. 2025)",
            RishModel,
        ),
        Method(
            "paired",
            "a network that learns from people who were scanned at several sites: what unpaired "
            "methods give up",
            PairedModel,
            trained=True,
        ),
        Method(
            "combat",
            "maps of FA, MD, MK or RTOP, shifted and scaled at each voxel of a template; gives "
            "maps and no scans (Johnson et al. 2007, Fortin et al. 2017)",
            CombatModel,
        ),
        Method(
            "scaled",
            "the level of b0, and one factor for each shell and site",
            ScaledModel,
        ),
        Method(
            "unchanged",
            "nothing but harmonics: the scan's own signal, at any b-vectors",
            UnchangedModel,
        ),
    )
}


def load_model(path: Path | str) -> Model:
    """Read a model of any method, and make sure that it is what was written.

    Raises
    ------
    ModelError
        When the file is none of siteless's, truncated, or changed since it was written.
    """
    path = Path(path)
    card, arrays, identity = read_model_file(path)
    if card.method not in METHODS:
        raise ModelError(
            f"the model is of a method that this siteless does not have, {card.method!r}",
            remedy="use a newer version",
            path=path,
        )
    try:
        model = METHODS[card.method].model.from_arrays(card, arrays)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        raise damaged(path) from None
    if model.identity != identity:
        raise damaged(path)
    return model
