"""The method ComBat, which compares maps of sites on a template."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from siteless.methods.base import Citation, HasCovariates, UsesTemplate, option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from siteless.methods.base import Feature, Learned, Workspace
    from siteless.methods.cohort import Cohort
    from siteless.model import Model

# Maps of `siteless.microstructure`, whose import is slow.
_MAPS = ("fa", "md", "mk", "rtop")


@dataclass(frozen=True, kw_only=True)
class Combat(UsesTemplate, HasCovariates):
    """Harmonizes maps with ComBat at each voxel of a template.

    Attributes
    ----------
    maps
        Keys of `siteless.microstructure.MAPS`; by default FA, MD and, with two shells, MK.
    """

    name: ClassVar[str] = "combat"
    summary: ClassVar[str] = (
        "maps of FA, MD, MK or RTOP, shifted and scaled at each voxel of a template; gives maps "
        "and no scans (Johnson et al. 2007, Fortin et al. 2017)"
    )
    sentence: ClassVar[str] = "ComBat of maps at each voxel of a template"
    citations: ClassVar[tuple[Citation, ...]] = (
        Citation(
            "fortin2017",
            "Fortin et al. 2017",
            "Fortin, Jean-Philippe and Parker, Drew and Tun\\c{c}, Birkan and others",
            "Harmonization of multi-site diffusion tensor imaging data",
            "NeuroImage",
            2017,
            "10.1016/j.neuroimage.2017.08.047",
        ),
    )

    maps: Sequence[str] | None = field(
        default=None,
        metadata=option(
            help=f"of {', '.join(_MAPS)} (default: fa, md, and with two shells mk)",
            nargs="+",
            metavar="MAP",
            collect=tuple,
        ),
    )

    @classmethod
    def model_type(cls) -> type[Model]:
        """Return the class of the method's models."""
        from siteless.methods.combat._model import CombatModel

        return CombatModel

    @property
    def features(self) -> Mapping[str, Feature]:
        """Maps of a scan for registration, and its microstructure maps."""
        from siteless.methods.combat._learn import microstructure

        return {**super().features, **microstructure(self.maps or ())}

    def resolve(self, cohort: Cohort) -> Self:
        """Choose maps and covariates; raise an error for too few or unsuitable scans."""
        from siteless.methods.combat._learn import choose_maps, require_enough

        maps = choose_maps(cohort, self.maps)
        method = replace(super().resolve(cohort), maps=maps)
        require_enough(cohort.learning, cohort, method.covariate_names)
        return method

    def learn(self, cohort: Cohort, workspace: Workspace) -> Learned:
        """Build the template, then run ComBat on each map."""
        from siteless.methods.combat._learn import learn_estimates

        return learn_estimates(self.settings, cohort, workspace)
