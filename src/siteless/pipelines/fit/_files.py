"""The files of a fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from siteless.bids import require_outside
from siteless.errors import OutputError
from siteless.model import Model, save_model
from siteless.report import draw_profiles, draw_training
from siteless.storage import require_writable

if TYPE_CHECKING:
    from siteless.methods.base import Learned


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
        """Raise an error for a model that exists."""
        if self.model.exists():
            raise OutputError(
                "the model is there already", remedy="choose another name", path=self.model
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
