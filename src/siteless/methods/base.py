"""What a method is: its settings, how it learns from a cohort, and the model that it gives.

To add a method, write a subclass of `Method` in a module or folder of its own, and add it to
`siteless.methods.registry`. The command line, `siteless methods`, `siteless info`, reports and
citations follow from it. Nothing heavy is imported here, so that help is shown at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import Field, asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from siteless.acquisition import Array, Scan
    from siteless.bids import ScanFiles
    from siteless.harmonics import Coefficients, FitName
    from siteless.methods.cohort import Cohort
    from siteless.methods.patches import Row, TrainingScan
    from siteless.methods.store import ScanStore
    from siteless.model import Model, ModelCard
    from siteless.tissue import Tissue

    # Computes what a method needs of every scan beside its patches.
    Feature = Callable[[Scan, Coefficients], Mapping[str, Array]]
    # Called with how many items are done, of how many, and the name of the last one.
    Progress = Callable[[int, int, str], None]

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Citation:
    """A paper, by what BibTeX needs."""

    key: str
    short: str
    authors: str
    title: str
    journal: str
    year: int
    doi: str = ""

    def bibtex(self) -> str:
        """Return the entry of a bibliography."""
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
    """Return metadata that make a field of a method an option of the command line too.

    Parameters
    ----------
    help
        What the option does.
    argument
        Further words of `argparse.ArgumentParser.add_argument`; ``collect`` is called with what
        argparse returns and gives the value of the field.
    """
    return {"help": help, **argument}


class Workspace(Protocol):
    """The disk and the processes that a method learns with."""

    @property
    def store(self) -> ScanStore:
        """What is kept of each scan; it may be sent to other processes."""

    @property
    def seed(self) -> int:
        """Random seed."""

    @property
    def log(self) -> Path:
        """File for a table that says how learning went."""

    @property
    def checkpoint(self) -> Path:
        """File for the state of an interrupted training."""

    def stage(self, title: str) -> Progress:
        """Begin a stage of the work, and return what shows its progress."""

    def map(
        self, title: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Apply a function to every item in several processes, and return the results in order."""

    def read_scans(
        self, scans: Sequence[ScanFiles], features: Mapping[str, Feature], *, with_signal: bool
    ) -> None:
        """Read every scan once, and store its patches, features and, if asked for, signal."""

    def derive(
        self,
        title: str,
        make: Callable[[Scan], Sequence[TrainingScan]],
        scans: Sequence[ScanFiles],
        *,
        key: str,
        count: int,
    ) -> list[list[TrainingScan]]:
        """Make training scans of every scan, which are stored.

        Parameters
        ----------
        title
            Title of the stage.
        make
            Makes `count` training scans of a scan.
        scans
            Scans of the cohort.
        key
            Hash of what the training scans depend on beside the scan.
        count
            Number of training scans that are made of each scan.
        """


@dataclass(frozen=True, eq=False)
class Learned:
    """What a method has learned.

    Attributes
    ----------
    make
        Makes the model, given its card.
    settings
        How it was learned, for the card.
    summary
        How well, for the card.
    log
        Rows of a training's log that are to be drawn.
    """

    make: Callable[[ModelCard], Model]
    settings: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[Row] = ()


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A way to harmonize scans, with its settings.

    Attributes
    ----------
    name
        As the command line has it.
    summary
        What it does, in a line.
    sentence
        What scans were harmonized by, for the methods section of a paper.
    citations
        Papers to cite.
    validates
        Whether it is trained step by step, and needs people to validate by.
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
        """Return the class of its models."""

    def resolve(self, cohort: Cohort) -> Self:  # noqa: ARG002
        """Return the method with its defaults chosen for a cohort.

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
        """Settings that its models are known by, beside those of all methods."""
        shared = {one.name for one in fields(Method)} | {"reference"}
        return {name: value for name, value in asdict(self).items() if name not in shared}

    @property
    def covariate_names(self) -> Sequence[str]:
        """Columns of the tables that explain people."""
        return ()

    @property
    def features(self) -> Mapping[str, Feature]:
        """What it needs of every scan, by the kind under which it is stored."""
        return {}

    @property
    def needs_signal(self) -> bool:
        """Whether it needs the signal of scans again, after features of all are known."""
        return False

    @abstractmethod
    def learn(self, cohort: Cohort, workspace: Workspace) -> Learned:
        """Learn from scans, whose features and patches are in the workspace."""

    @classmethod
    def extend(
        cls,
        model: Model,  # noqa: ARG003
        site: str,  # noqa: ARG003
        scans: Sequence[ScanFiles],  # noqa: ARG003
        workspace: Workspace,  # noqa: ARG003
    ) -> Model:
        """Return a model that knows one more site, which it has learned from a few scans.

        Raises
        ------
        ModelError
            When the method cannot learn a site alone.
        """
        from siteless.errors import ModelError

        raise ModelError(
            f"a model of the method {cls.name} cannot learn another site alone",
            remedy="fit a model of all sites",
        )

    @classmethod
    def options(cls) -> Mapping[str, Field[Any]]:
        """Return the fields that are options of the command line, by name."""
        return {one.name: one for one in fields(cls) if "help" in one.metadata}


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


@dataclass(frozen=True, kw_only=True)
class ComparesGroups(Method):
    """A method that compares the people of sites, or those of them that are a reference.

    Attributes
    ----------
    reference
        Values by column of the tables, such as ``{"group": ["control"]}``: site effects are
        learned from these people alone, so that others keep what makes them differ.
    """

    reference: Mapping[str, Collection[str]] = field(
        default_factory=dict,
        metadata=option(
            help="learn site effects from these people alone, as group=control; several values "
            "are separated by commas (default: everybody)",
            type=parse_reference,
            nargs="+",
            metavar="COLUMN=VALUE",
            collect=dict,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class HasCovariates(ComparesGroups):
    """A method that explains people by covariates.

    Attributes
    ----------
    covariates
        Columns of the tables; by default age, sex and group where they are known.
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
        """Columns of the tables that explain people."""
        return self.covariates or ()

    def resolve(self, cohort: Cohort) -> Self:
        """Choose the covariates; refuse those that are not known for everybody."""
        from siteless.methods.cohort import choose_covariates

        covariates = choose_covariates(cohort, self.covariates)
        return replace(super().resolve(cohort), covariates=covariates)


@dataclass(frozen=True, kw_only=True)
class UsesTemplate(ComparesGroups):
    """A method that compares people on a template.

    Attributes
    ----------
    same_space
        Whether scans are in a common space already. By default they are when their names have
        the entity ``space`` with a standard template.
    """

    same_space: bool | None = field(
        default=None,
        metadata=option(
            help="scans are in a common space, so register none (default: when their names say "
            "so, as space-MNI152NLin2009cAsym)",
            action="store_true",
        ),
    )
