"""Plots of the training log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from siteless.report._style import save_figure

_PANELS = {
    "objective (validation: without adversary)": ("loss", "nats a patch"),
    "reconstruction": ("reconstruction", "negative log-likelihood, nats a patch"),
    "projection": ("projection", "negative log-likelihood, nats a voxel"),
    "divergence from the prior": ("prior", "nats a patch"),
    "divergence from the marginal": ("marginal", "nats a patch"),
    "adversary": ("adversary", "cross-entropy, nats"),
}


def draw_training(log: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw each term of the loss against updates, for training and validation scans."""
    from matplotlib.figure import Figure

    updates = [row["update"] for row in log]
    shown = {k: v for k, v in _PANELS.items() if any(row.get(f"train_{v[0]}") for row in log)}
    rows = math.ceil(len(shown) / 3)
    figure = Figure(figsize=(11, 3 * rows), layout="constrained")
    axes = figure.subplots(rows, 3, squeeze=False)
    for panel in axes.flat[len(shown) :]:
        panel.remove()
    for panel, (title, (term, unit)) in zip(axes.flat, shown.items(), strict=False):
        for part, colour in (("train", "0.6"), ("val", "C0")):
            if f"{part}_{term}" in log[0]:
                values = [row[f"{part}_{term}"] for row in log]
                label = "training" if part == "train" else "validation"
                panel.plot(updates, values, color=colour, label=label)
        panel.set_title(title, loc="left", fontsize=10)
        panel.set_ylabel(unit, fontsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_xlabel("updates")
    axes[0, 0].legend(frameon=False, fontsize=8)
    save_figure(figure, path, dpi=120)
