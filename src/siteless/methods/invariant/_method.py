"""The learned method: an invariant conditional autoencoder of spherical-harmonic patches."""

from __future__ import annotations

from argparse import ArgumentTypeError
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from siteless.errors import DatasetError
from siteless.methods.base import NOISE_FLOOR_OPTION, Citation, HasCovariates, option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from siteless.bids import ScanFiles
    from siteless.harmonics import FitName
    from siteless.methods.base import Feature, Learned, Workspace
    from siteless.methods.cohort import Cohort
    from siteless.methods.invariant._model import InvariantModel
    from siteless.methods.invariant.training import TrainingSettings
    from siteless.model import Model, NoiseFloor


def _parse_epochs(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _parse_minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < 1e5:
        raise ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return minutes


@dataclass(frozen=True, kw_only=True)
class Invariant(HasCovariates):
    """Trains the networks of Moyer et al. 2020, with extensions.

    Attributes
    ----------
    preset
        ``siteless`` or ``paper``.
    epochs
        Passes over the training patches, in place of the preset's.
    minutes
        Approximate duration of training, in place of the settings'.
    device
        Name of a torch device: ``cpu``, ``cuda``.
    training
        Settings to use in place of the preset.
    """

    name: ClassVar[str] = "invariant"
    summary: ClassVar[str] = (
        "a latent code of the signal that does not reveal the site, rendered as any site; learns "
        "from unpaired scans (Moyer et al. 2020)"
    )
    sentence: ClassVar[str] = (
        "an invariant conditional variational autoencoder of spherical-harmonic patches, which "
        "learns without paired scans a latent code of the signal that does not reveal the site"
    )
    citations: ClassVar[tuple[Citation, ...]] = (
        Citation(
            "moyer2020",
            "Moyer et al. 2020",
            "Moyer, Daniel and Ver Steeg, Greg and Tax, Chantal M. W. and Thompson, Paul M.",
            "Scanner invariant representations for diffusion MRI harmonization",
            "Magnetic Resonance in Medicine",
            2020,
            "10.1002/mrm.28243",
        ),
    )
    validates: ClassVar[bool] = True
    distributed: ClassVar[bool] = True

    noise_floor: NoiseFloor = field(default="remove", metadata=NOISE_FLOOR_OPTION)
    preset: Literal["siteless", "paper"] = field(
        default="siteless",
        metadata=option(
            help="what measures best (siteless), or as in Moyer et al. 2020 (paper; "
            "default: siteless)",
            choices=("siteless", "paper"),
        ),
    )
    epochs: int | None = field(
        default=None,
        metadata=option(help="passes over the training patches", type=_parse_epochs, metavar="N"),
    )
    minutes: float | None = field(
        default=None,
        metadata=option(
            help="train for about as long, after reading", type=_parse_minutes, metavar="M"
        ),
    )
    device: str = field(default="cpu", metadata=option(help="cpu, cuda, ... (default: cpu)"))
    training: TrainingSettings | None = field(default=None)

    def __post_init__(self) -> None:
        if self.epochs and self.minutes:
            raise DatasetError(
                "epochs and minutes both say how long to train", remedy="give one of them"
            )

    @classmethod
    def model_type(cls) -> type[Model]:
        """Return the class of the method's models."""
        from siteless.methods.invariant._model import InvariantModel

        return InvariantModel

    @property
    def _training(self) -> TrainingSettings:
        from siteless.methods.invariant.training import PRESETS

        chosen = self.training or PRESETS[self.preset]
        return replace(chosen, epochs=self.epochs, updates=None) if self.epochs else chosen

    @property
    def fit(self) -> FitName:
        """How coefficients are fitted, according to the training settings."""
        return self._training.fit

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings to record in models: all except the precision of arithmetic."""
        training = {k: v for k, v in asdict(self._training).items() if k != "precision"}
        return {"training": training, "covariates": list(self.covariate_names)}

    @property
    def features(self) -> Mapping[str, Feature]:
        """A survey of the scan, if profiles of sites are learned."""
        if not self._training.profiles:
            return {}
        from siteless.methods.invariant._learn import SURVEYS, survey_arrays

        return {SURVEYS: survey_arrays}

    @property
    def needs_signal(self) -> bool:
        """Whether patches are derived again from corrected scans."""
        training = self._training
        return training.profiles or training.parts > 1 or bool(training.surroundings)

    def resolve(self, cohort: Cohort) -> Self:
        """Choose the covariates; raise an error if scans cannot identify site effects."""
        from siteless.methods.cohort import columns_of
        from siteless.methods.invariant._learn import require_device
        from siteless.population import require_identifiable

        require_device(self.device)
        if not self._training.profiles:
            return replace(self, covariates=())
        method = super().resolve(cohort)
        columns = {name: columns_of(cohort.learning, [name]) for name in method.covariate_names}
        require_identifiable(cohort.design(), columns, cohort.sites)
        return method

    def learn(self, cohort: Cohort, workspace: Workspace) -> Learned:
        """Learn the profiles of sites, then train the networks."""
        from siteless.methods.invariant._learn import learn_network

        return learn_network(self, self._training, cohort, workspace)

    @classmethod
    def extend(
        cls, model: Model, site: str, scans: Sequence[ScanFiles], workspace: Workspace
    ) -> Model:
        """Return a model with one more site, learned from a few scans."""
        from siteless.methods.invariant._extend import extend_model

        return extend_model(cast("InvariantModel", model), site, scans, workspace)
