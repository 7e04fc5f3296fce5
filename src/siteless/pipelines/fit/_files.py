"""Where a fit writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FitFiles:
    """The model, and beside it what says how it came to be."""

    model: Path

    @property
    def log(self) -> Path:
        """A row for each evaluation, tab-separated."""
        return self.model.with_name(f"{self.model.stem}_log.tsv")

    @property
    def picture(self) -> Path:
        """The terms of the loss as curves."""
        return self.model.with_name(f"{self.model.stem}_losses.png")

    @property
    def profiles(self) -> Path:
        """Fields of the sites."""
        return self.model.with_name(f"{self.model.stem}_profiles.png")

    @property
    def work(self) -> Path:
        """Folder of what is made of each scan."""
        return self.model.with_name(f"{self.model.stem}_work")

    @property
    def state(self) -> Path:
        """What an interrupted fit goes on from."""
        return self.model.with_name(f"{self.model.stem}_state")
