"""The base classes of methods: their settings, how they learn and the resulting model.

To add a method, write a subclass of `Method` in a new module or folder, and add it to
`siteless.methods.registry`. The command line, `siteless methods`, `siteless info`, reports and
citations are derived from it. This module imports nothing heavy, so that help is fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import Field, asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from siteless.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from siteless.acquisition import Array, Scan
    from siteless.bids import ScanFiles
    from siteless.harmonics import Coefficients, FitName
    from siteless.methods.cohort import Cohort
    from siteless.methods.patches import TrainingScan
    from siteless.methods.store import ScanStore
    from siteless.methods.training import Row
    from siteless.model import Model, ModelCard, NoiseFloor
    from siteless.tissue import Tissue

    # Computes further arrays that a method needs of every scan.
    Feature = Callable[[Scan, Coefficients], Mapping[str, Array]]
    # Called with the number of finished items, their total, and the name of the last item.
    Progress = Callable[[int, int, str], None]

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Citation:
    """A paper, with the fields of its BibTeX entry."""

    key: str
    short: str
    authors: str
    title: str
    journal: str
    year: int
    doi: str = ""

    def bibtex(self) -> str:
        """Return the BibTeX entry."""
        entries = {
            "author": self.authors,
            "title": f"{{{self.title}}}",
            "journal": self.journal,
            "year": str(self.year),
            "doi": self.doi,
        }
        lines = [f"  {name} = {{{value}}}," for name, value in entries.items() if value]
        return "\n".join([f"@article{{{self.key},", *lines, "}"])


def option(*, help: str, **argument: Any) -> Mapping[str, Any]:
    """Return metadata that turn a field of a method into a command-line option.

    Parameters
    ----------
    help
        Help of the option.
    argument
        Further arguments of `argparse.ArgumentParser.add_argument`; ``collect`` converts the
        parsed value to that of the field.
    """
    return {"help": help, **argument}


def _parse_coils(text: str) -> int:
    from argparse import ArgumentTypeError

    from siteless.noise import MOST_COILS

    if not text.isdigit() or not 1 <= int(text) <= MOST_COILS:
        raise ArgumentTypeError(f"expected a whole number from 1 to {MOST_COILS}, got {text!r}")
    return int(text)


NOISE_FLOOR_OPTION = option(
    help="remove the noise floor of magnitude images, here and whenever the model is used, or "
    "keep it (default: remove for invariant, keep for the others, whose maps are noisy)",
    choices=("remove", "keep"),
)


class Workspace(Protocol):
    """The storage and the processes that a method uses for training."""

    @property
    def store(self) -> ScanStore:
        """Stored data of each scan; it can be sent to other processes."""

    @property
    def seed(self) -> int:
        """Random seed."""

    @property
    def log(self) -> Path:
        """File for a log table of the training."""

    @property
    def checkpoint(self) -> Path:
        """File for the state of an interrupted training."""

    def stage(self, title: str) -> Progress:
        """Begin a stage of the work, and return its progress callback."""

    def map(
        self, title: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Apply a function to every item in several processes, and return the results in order."""

    def read_scans(
        self, scans: Sequence[ScanFiles], features: Mapping[str, Feature], *, with_signal: bool
    ) -> None:
        """Read every scan once, and store its patches, features and, if requested, signal."""

    def derive(
        self,
        title: str,
        make: Callable[[Scan], Sequence[TrainingScan]],
        scans: Sequence[ScanFiles],
        *,
        key: str,
        count: int,
    ) -> list[list[TrainingScan]]:
        """Make and store training scans derived from every scan.

        Parameters
        ----------
        title
            Title of the stage.
        make
            Function that makes `count` training scans from a scan.
        scans
            Scans of the cohort.
        key
            Hash of everything else that the training scans depend on.
        count
            Number of training scans per scan.
        """


@dataclass(frozen=True, eq=False)
class Learned:
    """The result of training.

    Attributes
    ----------
    make
        Function that makes the model, given its card.
    settings
        Settings for the card.
    summary
        Summary of the training, for the card.
    log
        Rows of the training log to plot.
    """

    make: Callable[[ModelCard], Model]
    settings: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[Row] = ()


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A harmonization method and its settings.

    Attributes
    ----------
    name
        Name on the command line.
    summary
        One-line description.
    sentence
        Description for the methods section of a paper.
    citations
        Papers to cite.
    validates
        Whether it is trained iteratively and needs held-out participants.
    distributed
        Whether ``torchrun`` can train it in several processes.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    sentence: ClassVar[str]
    citations: ClassVar[tuple[Citation, ...]] = ()
    validates: ClassVar[bool] = False
    distributed: ClassVar[bool] = False

    denoise: bool = field(
        default=False,
        metadata=option(
            help="denoise scans by MP-PCA first (MRtrix3's dwidenoise, or DIPY's), here and "
            "whenever the model is used",
            action="store_true",
        ),
    )
    noise_floor: NoiseFloor = field(default="keep", metadata=NOISE_FLOOR_OPTION)
    coils: int = field(
        default=1,
        metadata=option(
            help="with --noise-floor remove: effective number of receive channels that magnitude "
            "images combine by their sum of squares (default: 1, as scanners combine adaptively)",
            type=_parse_coils,
            metavar="N",
        ),
    )
    tissue: Tissue = field(
        default="white-matter",
        metadata=option(
            help="voxels to learn from (default: white-matter)",
            choices=("white-matter", "brain"),
        ),
    )

    @classmethod
    @abstractmethod
    def model_type(cls) -> type[Model]:
        """Return the class of the method's models."""

    def resolve(self, cohort: Cohort) -> Self:  # noqa: ARG002
        """Return the method with defaults resolved for a cohort.

        Raises
        ------
        SitelessError
            When the method cannot learn from the cohort.
        """
        return self

    @property
    def fit(self) -> FitName:
        """How coefficients are fitted."""
        return "laplace-beltrami"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Settings to record in models, apart from those of all methods."""
        shared = {setting.name for setting in fields(Method)} | {"reference"}
        return {name: value for name, value in asdict(self).items() if name not in shared}

    @property
    def covariate_names(self) -> Sequence[str]:
        """Table columns used as covariates."""
        return ()

    @property
    def features(self) -> Mapping[str, Feature]:
        """Arrays that the method needs of every scan, by the kind under which they are stored."""
        return {}

    @property
    def needs_signal(self) -> bool:
        """Whether the signal of scans is needed again after all features are known."""
        return False

    @abstractmethod
    def learn(self, cohort: Cohort, workspace: Workspace) -> Learned:
        """Learn from scans whose features and patches are in the workspace."""

    @classmethod
    def require_extensible(cls) -> None:
        """Refuse to extend a model.

        Raises
        ------
        ModelError
            When the method cannot learn a single new site.
        """
        if cls.extend.__func__ is Method.extend.__func__:  # type: ignore[attr-defined]
            raise ModelError(
                f"a model of the method {cls.name} cannot learn another site alone",
                remedy="fit a model of all sites",
            )

    @classmethod
    def extend(
        cls, model: Model, site: str, scans: Sequence[ScanFiles], workspace: Workspace
    ) -> Model:
        """Return a model that knows one more site, which it learns from a few scans."""
        raise NotImplementedError

    @classmethod
    def options(cls) -> Mapping[str, Field[Any]]:
        """Return the fields that are command-line options, by name."""
        return {setting.name: setting for setting in fields(cls) if "help" in setting.metadata}


def parse_reference(text: str) -> tuple[str, list[str]]:
    """Parse ``COLUMN=VALUE``, where values are separated by commas.

    Examples
    --------
    >>> parse_reference("group=control,relative")
    ('group', ['control', 'relative'])
    """
    from argparse import ArgumentTypeError

    column, equals, values = text.partition("=")
    if not (column and equals and values):
        raise ArgumentTypeError(f"expected COLUMN=VALUE, got {text!r}")
    return column, values.split(",")


def merge_reference(pairs: Sequence[tuple[str, list[str]]]) -> dict[str, list[str]]:
    """Merge the values of each column.

    Examples
    --------
    >>> merge_reference([("group", ["control"]), ("group", ["relative"]), ("sex", ["F"])])
    {'group': ['control', 'relative'], 'sex': ['F']}
    """
    merged: dict[str, list[str]] = {}
    for column, values in pairs:
        merged.setdefault(column, []).extend(values)
    return merged


@dataclass(frozen=True, kw_only=True)
class ComparesGroups(Method):
    """A method that compares the participants, or a reference group, of each site.

    Attributes
    ----------
    reference
        Values by table column, such as ``{"group": ["control"]}``. Site effects are learned from
        these participants only, so that differences of other groups are preserved.
    """

    reference: Mapping[str, Collection[str]] = field(
        default_factory=dict,
        metadata=option(
            action="extend",
            help="learn site effects from these people alone, as group=control; several values "
            "are separated by commas (default: everybody)",
            type=parse_reference,
            nargs="+",
            metavar="COLUMN=VALUE",
            collect=merge_reference,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class HasCovariates(ComparesGroups):
    """A method that adjusts for covariates of participants.

    Attributes
    ----------
    covariates
        Table columns; by default age, sex and group where they are known.
    """

    covariates: Sequence[str] | None = field(
        default=None,
        metadata=option(
            help="columns of participants.tsv that explain people, or none (default: age, sex and "
            "group, where they are known)",
            nargs="*",
            metavar="COLUMN",
            collect=tuple,
        ),
    )

    @property
    def covariate_names(self) -> Sequence[str]:
        """Table columns used as covariates."""
        return self.covariates or ()

    def resolve(self, cohort: Cohort) -> Self:
        """Choose the covariates; raise an error for one that is not known for everybody."""
        from siteless.methods.cohort import choose_covariates

        covariates = choose_covariates(cohort, self.covariates)
        return replace(super().resolve(cohort), covariates=covariates)


@dataclass(frozen=True, kw_only=True)
class UsesTemplate(ComparesGroups):
    """A method that compares participants on a template.

    Attributes
    ----------
    same_space
        Whether scans are in a common space already. By default this is inferred from an entity
        ``space`` that names a standard template.
    """

    same_space: bool | None = field(
        default=None,
        metadata=option(
            help="scans are in a common space, so register none (default: when their names say "
            "so, as space-MNI152NLin2009cAsym)",
            action="store_true",
        ),
    )

    @property
    def features(self) -> Mapping[str, Feature]:
        """Maps for registration; subclasses add what they compare."""
        from siteless.methods.template import TEMPLATE, template_maps

        return {TEMPLATE: template_maps}

    def resolve(self, cohort: Cohort) -> Self:
        """Detect a common space."""
        from siteless.methods.template import is_common_space

        same_space = is_common_space(cohort.learning, requested=self.same_space)
        return replace(super().resolve(cohort), same_space=same_space)
