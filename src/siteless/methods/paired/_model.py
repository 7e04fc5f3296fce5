"""The supervised method: a network trained on travelling subjects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch

from siteless.acquisition import Array, Scan
from siteless.errors import ModelError
from siteless.harmonics import Coefficients
from siteless.methods.paired._network import Translator, TranslatorSettings
from siteless.methods.patches import over_blocks, weights_of, with_weights
from siteless.methods.training import describe_validation
from siteless.model import ModelCard, SignalModel, Translation
from siteless.neighbourhood import cut, index_neighbours


@dataclass(frozen=True, eq=False)
class PairedModel(SignalModel):
    """A trained translator and its card."""

    uncertainty: ClassVar[str] = ""
    network: Translator

    def describe(self) -> Sequence[tuple[str, str]]:
        """Describe the validation of the network."""
        summary = self.card.summary
        people = len(summary["validation_people"]) if summary["validated"] else 0
        return [describe_validation(self.card, people, "at other sites")]

    @classmethod
    def from_arrays(cls, card: ModelCard, arrays: Mapping[str, Array]) -> Self:
        """Make the network described by the card, and load its weights."""
        network = Translator(TranslatorSettings(**card.settings["network"]))
        return cls(card, with_weights(network, arrays))

    @property
    def arrays(self) -> Mapping[str, Array]:
        """Weights of the network."""
        return weights_of(self.network)

    def translate(self, scan: Scan, coefficients: Coefficients, site: str) -> Translation:
        """Translate the voxels of the training tissue; a scan of the target stays unchanged."""
        levels, source = self.levels(scan, site), self.require_known(scan.gradients, scan.site)
        self._require_travelled(str(scan.site), site)
        where = self.preparation.where(scan)
        patches = index_neighbours(scan.mask, scan.affine)[where.T[scan.mask.T]]
        values = coefficients.values / np.float32(levels[0])

        def translate(block: slice) -> Array:
            patch = torch.from_numpy(cut(values, patches[block]))
            own = torch.full((len(patch),), source)
            rendered = [
                patch[:, 0]
                if target == source
                else self.network(patch.flatten(1), own, torch.full_like(own, target))
                for target in self.numbers(site)
            ]
            return (torch.stack(rendered).mean(dim=0) * levels[1]).numpy()

        translated = np.concatenate(over_blocks(translate, len(patches)))
        shape = (len(translated), 1 + len(coefficients.bs))
        deviation = np.zeros(shape, dtype=np.float32)  # not estimated
        return Translation(replace(coefficients, values=translated, mask=where), deviation, levels)

    def _require_travelled(self, source: str, site: str) -> None:
        """Raise an error for a pair of sites without travelling subjects."""
        known = {tuple(pair) for pair in self.card.summary["pairs"]}
        for target in self.labels(site):
            if target != source and (source, target) not in known:
                raise ModelError(
                    f"the model has seen nobody at both {source} and {target}",
                    remedy="choose another target, or use another --method",
                )
