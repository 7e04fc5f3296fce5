"""The methods RISH and RISH-GLM, which compare energies of sites on a template."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

from siteless.methods.base import Citation, HasCovariates, UsesTemplate, option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from siteless.methods.base import Feature, Learned, Workspace
    from siteless.methods.cohort import Cohort
    from siteless.model import Model

RISH_PAPER = Citation(
    "mirzaalian2016",
    "Mirzaalian et al. 2016",
    "Mirzaalian, Hengameh and Ning, Lipeng and Savadjiev, Peter and Pasternak, Ofer and others",
    "Inter-site and inter-scanner diffusion MRI data harmonization",
    "NeuroImage",
    2016,
    "10.1016/j.neuroimage.2016.04.041",
)
_LINEAR_RISH = Citation(
    "cetinkarayumak2019",
    "Cetin Karayumak et al. 2019",
    "Cetin Karayumak, Suheyla and Bouix, Sylvain and Ning, Lipeng and others",
    "Retrospective harmonization of multi-site diffusion MRI data acquired with different "
    "acquisition parameters",
    "NeuroImage",
    2019,
    "10.1016/j.neuroimage.2018.08.073",
)
_RISH_GLM = Citation(
    "deluca2025",
    "De Luca et al. 2025",
    "De Luca, Alberto and Swartenbroekx, Tine and Seelaar, Harro and van Swieten, John and others",
    "Cross-site harmonization of diffusion MRI data without matched training subjects",
    "Magnetic Resonance in Medicine",
    2025,
)


@dataclass(frozen=True, kw_only=True)
class _ComparesEnergies(UsesTemplate):
    """The base of both methods."""

    @classmethod
    def model_type(cls) -> type[Model]:
        """Return the class of the method's models."""
        from siteless.methods.rish._model import RishModel

        return RishModel

    @property
    def features(self) -> Mapping[str, Feature]:
        """Maps of a scan for registration, and its energies."""
        from siteless.methods.rish._learn import ENERGIES, energy_maps

        return {**super().features, ENERGIES: energy_maps}

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings to record in models."""
        from siteless.methods.rish._model import CLIP, SMOOTHING

        chosen = {"travelling": False, "covariates": (), **super().settings}
        return {**chosen, "smoothing": SMOOTHING, "clip": CLIP}

    def resolve(self, cohort: Cohort) -> Self:
        """Resolve the defaults; raise an error for sites with too few participants."""
        from siteless.methods.rish._learn import require_comparable

        method = super().resolve(cohort)
        require_comparable(method.settings, cohort)
        return method

    def learn(self, cohort: Cohort, workspace: Workspace) -> Learned:
        """Build the template, and estimate the energies of each site on it."""
        from siteless.methods.rish._learn import learn_energies

        return learn_energies(self.settings, cohort, workspace)


@dataclass(frozen=True, kw_only=True)
class Rish(_ComparesEnergies):
    """Compares the energies of sites on a template, between groups or in travelling subjects.

    Attributes
    ----------
    travelling
        Whether to compare travelling subjects with themselves.
    """

    name: ClassVar[str] = "rish"
    summary: ClassVar[str] = (
        "rotation-invariant energies of each shell and degree, brought to the target's by scale "
        "maps on a template (Mirzaalian et al. 2016, Cetin Karayumak et al. 2019)"
    )
    sentence: ClassVar[str] = "rotation-invariant spherical-harmonic features (RISH)"
    citations: ClassVar[tuple[Citation, ...]] = (RISH_PAPER, _LINEAR_RISH)

    travelling: bool = field(
        default=False,
        metadata=option(
            help="compare people with themselves, who were scanned at several sites",
            action="store_true",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class RishGlm(_ComparesEnergies, HasCovariates):
    """RISH with a regression that separates site effects from covariates."""

    name: ClassVar[str] = "rish-glm"
    summary: ClassVar[str] = (
        "the same, where a regression separates the energies of sites from effects of age, sex "
        "or other covariates (De Luca et al. 2025)"
    )
    sentence: ClassVar[str] = (
        "rotation-invariant spherical-harmonic features, separated from covariates by regression "
        "(RISH-GLM)"
    )
    citations: ClassVar[tuple[Citation, ...]] = (RISH_PAPER, _RISH_GLM)
