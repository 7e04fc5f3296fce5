"""The method that learns from travelling subjects."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from siteless.methods.base import Method

if TYPE_CHECKING:
    from collections.abc import Mapping

    from siteless.harmonics import FitName
    from siteless.methods.base import Learned, Workspace
    from siteless.methods.cohort import Cohort
    from siteless.methods.paired._training import PairedSettings
    from siteless.model import Model


@dataclass(frozen=True, kw_only=True)
class Paired(Method):
    """Trains a network on travelling subjects.

    Attributes
    ----------
    training
        Settings of the training; None for the defaults.
    """

    name: ClassVar[str] = "paired"
    summary: ClassVar[str] = (
        "a network that learns from people who were scanned at several sites: what unpaired "
        "methods give up"
    )
    sentence: ClassVar[str] = "a network that was trained on people scanned at several sites"
    validates: ClassVar[bool] = True

    training: PairedSettings | None = field(default=None)

    @classmethod
    def model_type(cls) -> type[Model]:
        """Return the class of the method's models."""
        from siteless.methods.paired._model import PairedModel

        return PairedModel

    @property
    def _training(self) -> PairedSettings:
        from siteless.methods.paired._training import PairedSettings

        return self.training or PairedSettings()

    @property
    def fit(self) -> FitName:
        """How coefficients are fitted, according to the training settings."""
        return self._training.fit

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings to record in models."""
        return {"training": asdict(self._training)}

    def resolve(self, cohort: Cohort) -> Self:
        """Raise an error for a site without travelling subjects."""
        from siteless.methods.paired._learn import travelled_pairs

        travelled_pairs(cohort)
        return self

    def learn(self, cohort: Cohort, workspace: Workspace) -> Learned:
        """Train the network, and write a log."""
        from siteless.methods.paired._learn import learn_translator

        return learn_translator(self._training, cohort, workspace)
