"""The files, the storage and the processes of a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from siteless.acquisition import Scan
from siteless.bids import ScanFiles, require_outside
from siteless.distributed import raise_everywhere, rank
from siteless.errors import OutputError, SitelessError
from siteless.methods.patches import TrainingScan, open_scan
from siteless.methods.store import ScanStore
from siteless.model import Model, save_model
from siteless.pipelines._run import Run
from siteless.report import draw_profiles, draw_training
from siteless.storage import require_writable

if TYPE_CHECKING:
    from siteless.methods.base import Feature, Learned
    from siteless.pipelines._run import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")


class FitFiles:
    """The model file, files beside it, and the folder of derived data of scans."""

    def __init__(self, model: Path, work: Path | None = None) -> None:
        self.model = model
        self.log = self._beside("_log.tsv")  # tab-separated
        self.picture = self._beside("_losses.png")  # plot of the terms of the loss
        self.profiles = self._beside("_profiles.png")  # plot of the fields of sites
        self.work = work or self._beside("_work")
        self.state = self._beside("_state")  # of an interrupted fit

    def _beside(self, ending: str) -> Path:
        return self.model.with_name(f"{self.model.stem}{ending}")

    def require_new(self) -> None:
        """Raise an error for a model that exists, or that was begun."""
        if self.model.exists():
            raise OutputError(
                "the model is there already", remedy="choose another name", path=self.model
            )
        if self.state.exists():
            raise OutputError(
                "an interrupted fit is there",
                remedy="continue it with --resume, or delete this file",
                path=self.state,
            )

    def require_outside(self, dataset: Path) -> None:
        """Raise an error for files among those of the dataset."""
        for folder in (self.model.parent, self.work):
            require_outside(folder, dataset)

    def require_writable(self) -> None:
        """Raise an error for folders that cannot be written to, before long computations."""
        for folder in (self.model.parent, self.work):
            require_writable(folder)

    def save(self, model: Model, learned: Learned | None = None) -> None:
        """Plot the training log and the fields of sites, and write the model."""
        if learned and learned.log:
            draw_training(learned.log, self.picture)
        if model.site_fields:
            draw_profiles(model.site_fields, model.preparation.shells, self.profiles)
        save_model(model, self.model)


class FitWorkspace:
    """An implementation of `siteless.methods.base.Workspace`."""

    def __init__(self, store: ScanStore, files: FitFiles, run: Run) -> None:
        self.store, self.seed = store, run.seed
        self.log, self.checkpoint = files.log, files.state
        self.run = run

    def stage(self, title: str) -> Progress:
        """Begin a stage of the work, and return its progress callback."""
        return self.run.stage(title)

    def map(
        self, title: str, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> list[Result]:
        """Apply a function to every item in several processes, and return the results in order."""
        return self.run.map(title, function, items)

    def read_scans(
        self, scans: Sequence[ScanFiles], features: Mapping[str, Feature], *, with_signal: bool
    ) -> None:
        """Read every scan once, and store training data."""
        make = partial(self.store.make, features=features, with_signal=with_signal)
        self._on_first(partial(self.map, "Reading scans", make, scans))

    def derive(
        self,
        title: str,
        make: Callable[[Scan], Sequence[TrainingScan]],
        scans: Sequence[ScanFiles],
        *,
        key: str,
        count: int,
    ) -> list[list[TrainingScan]]:
        """Make and store training scans derived from every scan, and map them into memory."""
        derive = partial(self.store.derive, make=make, key=key, count=count)
        self._on_first(partial(self.map, title, derive, scans))
        return [list(map(open_scan, self.store.derived(scan, key, count))) for scan in scans]

    def _on_first(self, work: Callable[[], object]) -> None:
        """Do work in the first of several processes; the others wait."""
        error = None
        try:
            if rank() == 0:
                work()
        except SitelessError as caught:
            error = caught
        raise_everywhere(error)
