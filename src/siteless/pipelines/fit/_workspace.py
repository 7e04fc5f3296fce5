"""The storage and the processes of a fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from siteless.acquisition import Scan
from siteless.bids import ScanFiles
from siteless.distributed import raise_everywhere, rank
from siteless.errors import SitelessError
from siteless.methods.patches import TrainingScan, open_scan
from siteless.methods.store import ScanStore
from siteless.pipelines._run import Progress, Run

if TYPE_CHECKING:
    from siteless.methods.base import Feature

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class FitWorkspace:
    """An implementation of `siteless.methods.base.Workspace`."""

    store: ScanStore
    run: Run
    log: Path
    checkpoint: Path

    @property
    def seed(self) -> int:
        """Random seed."""
        return self.run.seed

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
        self._on_first(self.map, "Reading scans", make, scans)

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
        self._on_first(self.map, title, derive, scans)
        return [list(map(open_scan, self.store.derived(scan, key, count))) for scan in scans]

    def forget_checkpoint(self) -> None:
        """Delete the state of an interrupted training."""
        self._on_first(partial(self.checkpoint.unlink, missing_ok=True))

    def _on_first(self, work: Callable[..., object], *arguments: object) -> None:
        """Do work in the first of several processes; the others wait."""
        error = None
        try:
            if rank() == 0:
                work(*arguments)
        except SitelessError as caught:
            error = caught
        raise_everywhere(error)
