"""The files of a fit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FitFiles:
    """The model file, and files beside it."""

    model: Path

    @property
    def log(self) -> Path:
        """Training log, tab-separated."""
        return self.model.with_name(f"{self.model.stem}_log.tsv")

    @property
    def picture(self) -> Path:
        """Plot of the terms of the loss."""
        return self.model.with_name(f"{self.model.stem}_losses.png")

    @property
    def profiles(self) -> Path:
        """Plot of the fields of sites."""
        return self.model.with_name(f"{self.model.stem}_profiles.png")

    @property
    def work(self) -> Path:
        """Folder of derived data of scans."""
        return self.model.with_name(f"{self.model.stem}_work")

    @property
    def state(self) -> Path:
        """State of an interrupted fit."""
        return self.model.with_name(f"{self.model.stem}_state")
