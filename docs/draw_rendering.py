"""Draw docs/images/rendering.png: a person with a lesion, rendered as another site.

``python docs/draw_rendering.py DATASET MODEL`` with a simulated dataset that has lesions, and a
model of its sites.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from siteless.bids import find_scans, read_scan, read_signal
from siteless.methods import load_model, render

SOURCE, TARGET = "prisma30", "connectom60"
OUT = Path(__file__).parent / "images" / "rendering.png"


def main(dataset: Path, model: Path) -> None:
    """Draw the slice that has most of the lesion, at the strongest shell."""
    files = next(files for files in find_scans(dataset).scans if str(files.site) == SOURCE)
    truth = dataset / "derivatives" / "truth" / f"sub-{files.subject}"
    lesion = read_signal(next(truth.rglob("*label-lesion_mask.nii.gz")))[0] > 0
    scan = read_scan(files)
    made = render(load_model(model), scan, TARGET)
    height = int(lesion.sum(axis=(0, 1)).argmax())
    volume = scan.gradients.shells[-1].volumes[0]
    percent = 100 / made.levels[1]
    before = scan.signal[..., volume] * (made.levels[1] / made.levels[0])
    panels = [
        (f"{SOURCE}, b=3000", before, "gray", np.quantile(before[scan.mask], 0.995)),
        (
            f"as {TARGET}",
            made.scan.signal[..., volume],
            "gray",
            np.quantile(before[scan.mask], 0.995),
        ),
        ("change at b=3000, %", percent * made.change[..., -1], "magma", 6),
        ("uncertainty at b=3000, %", percent * made.spread[..., -1], "magma", 4),
        ("unfamiliar (lesion outlined)", None, "gray", None),
    ]
    figure, axes = plt.subplots(1, len(panels), figsize=(15, 4.2), layout="constrained")
    box = _bounds(scan.mask[:, :, height])
    for axis, (title, image, colours, top) in zip(axes, panels, strict=True):
        axis.set_title(title, fontsize=11)
        axis.axis("off")
        if image is None:
            b0 = made.scan.signal[..., int(np.flatnonzero(scan.gradients.is_b0)[0])]
            axis.imshow(b0[:, :, height][box].T, cmap="gray", origin="lower", vmin=0)
            flagged = np.ma.masked_equal(made.unfamiliar[:, :, height][box], 0)
            axis.imshow(flagged.T, cmap="autumn", origin="lower", interpolation="nearest")
            axis.contour(lesion[:, :, height][box].T, [0.5], colors="cyan", linewidths=1.2)
            continue
        shown = axis.imshow(
            image[:, :, height][box].T, cmap=colours, origin="lower", vmin=0, vmax=top
        )
        if colours != "gray":
            figure.colorbar(shown, ax=axis, shrink=0.7)
    figure.savefig(OUT, dpi=110)


def _bounds(mask: np.ndarray) -> tuple[slice, slice]:
    """Return the part of a slice that holds the brain, with a margin of two voxels."""
    spans = (np.flatnonzero(mask.any(axis=1 - axis)) for axis in range(2))
    x, y = (slice(max(0, span[0] - 2), span[-1] + 3) for span in spans)
    return x, y


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
