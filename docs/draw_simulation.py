"""Draw the pictures of docs/simulation.md from a simulated cohort.

``python docs/draw_simulation.py DATASET``, where DATASET is the cdmri2018 preset.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import nibabel as nib
import numpy as np

from siteless.bids import find_scans, read_scan
from siteless.tissue import fit_tensor

mpl.use("Agg")
import matplotlib.pyplot as plt

IMAGES = Path(__file__).parent / "images"
SITES = ("prisma30", "prisma60", "connectom30", "connectom60")
POPULATIONS = ("#d62728", "#1f5fd6", "#1a9850")


def main(dataset: Path, subject: str = "01") -> None:
    """Draw all pictures."""
    IMAGES.mkdir(exist_ok=True)
    plt.rcParams.update({"font.size": 11, "figure.dpi": 110, "savefig.bbox": "tight"})
    found = find_scans(dataset, filters={"sub": [subject]}).scans
    scans = {str(files.site): read_scan(files) for files in found}
    maps = {site: tensor_maps(scans[site]) for site in SITES}
    draw_colour_fa(maps)
    draw_differences(maps)
    draw_fibres(dataset, subject, scans[SITES[0]])


def tensor_maps(scan):
    """Return FA, MD in 1e-3 mm2/s, and the principal direction as a colour, on the grid."""
    tensor = fit_tensor(scan.volumes, scan.voxels, scan.gradients)
    colours = np.abs(tensor.principal) * tensor.fa[:, None]
    packed = np.column_stack([tensor.fa, 1e3 * tensor.md, colours])
    grid = np.zeros((*scan.mask.shape[::-1], 5))
    grid[scan.mask.T] = packed
    grid = grid.swapaxes(0, 2)
    return {"FA": grid[..., 0], "MD": grid[..., 1], "colour": grid[..., 2:]}


def views(shape):
    """Return an axial, a coronal and a sagittal slice, as functions of a volume."""
    x, y, z = (size // 2 for size in shape[:3])
    return {
        "axial": lambda v: np.swapaxes(v[::-1, :, z + 6], 0, 1),
        "coronal": lambda v: np.swapaxes(v[::-1, y], 0, 1),
        "sagittal": lambda v: np.swapaxes(v[x, ::-1], 0, 1),
    }


def draw_colour_fa(maps):
    """Draw three views at each site."""
    figure, axes = plt.subplots(3, 4, figsize=(11, 8.4), facecolor="white")
    for column, (site, own) in enumerate(maps.items()):
        for line, (view, cut) in enumerate(views(own["FA"].shape).items()):
            axes[line, column].imshow((cut(own["colour"]) * 1.3).clip(0, 1), origin="lower")
            axes[line, column].set(xticks=[], yticks=[])
            axes[0, column].set_title(site)
            axes[line, 0].set_ylabel(view)
    figure.suptitle("One person at four sites: red left-right, green front-back, blue up-down")
    figure.tight_layout()
    figure.savefig(IMAGES / "colour-fa.png")


def draw_differences(maps):
    """Draw FA and MD at each site, less those at the first."""
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 7.6), facecolor="white")
    limits = {"FA": (0.2, "difference of FA"), "MD": (0.15, "difference of MD, 1e-3 mm2/s")}
    for line, (name, (limit, label)) in enumerate(limits.items()):
        reference = maps[SITES[0]][name]
        cut = views(reference.shape)["axial"]
        for column, site in enumerate(SITES[1:]):
            shown = axes[line, column].imshow(
                cut(maps[site][name] - reference),
                origin="lower",
                cmap="RdBu_r",
                vmin=-limit,
                vmax=limit,
            )
            axes[line, column].set(xticks=[], yticks=[])
            axes[0, column].set_title(f"{site}\n- {SITES[0]}")
        figure.colorbar(shown, ax=axes[line], shrink=0.8, label=label)
    figure.savefig(IMAGES / "site-differences.png")


def draw_fibres(dataset, subject, scan):
    """Draw the populations of a coronal slice as sticks, as long as their part of the voxel."""
    folder = dataset / "derivatives" / "truth" / f"sub-{subject}" / "dwi"
    read = lambda name: nib.load(folder / f"sub-{subject}_desc-{name}.nii.gz").get_fdata()  # noqa: E731
    fractions, white = read("fibrefractions_dwimap"), read("tissue_probseg")[..., 0]
    directions = read("fibredirections_dwimap").reshape(*scan.mask.shape, 3, 3)
    # World to image axes, so that sticks lie in the picture.
    axes_in_world = scan.affine[:3, :3] / np.linalg.norm(scan.affine[:3, :3], axis=0)
    in_image = directions @ axes_in_world
    y = scan.mask.shape[1] // 2
    figure, axis = plt.subplots(figsize=(9, 8.4), facecolor="white")
    axis.imshow(white[::-1, y].T, origin="lower", cmap="gray", vmin=0, vmax=2.2)
    x, z = np.nonzero(white[::-1, y] > 0.4)
    names = ("commissural", "projection", "association")
    for system, colour in enumerate(POPULATIONS):
        stick = in_image[::-1, y][x, z, system] * [-1, 1, 1]
        length = fractions[::-1, y][x, z, system, None]
        shown = stick * length
        through = np.abs(shown[:, 1])
        axis.scatter(x, z, s=14 * through**2, color=colour, linewidths=0)
        axis.quiver(
            *(x, z, shown[:, 0], shown[:, 2]),
            color=colour,
            label=names[system],
            pivot="mid",
            headwidth=0,
            headlength=0,
            headaxislength=0,
            angles="xy",
            scale_units="xy",
            scale=0.8,
            width=0.0028,
        )
    axis.set(
        xticks=[], yticks=[], title="Fibre populations in a coronal slice (dots run front-back)"
    )
    axis.legend(loc="lower right", framealpha=0.9)
    figure.tight_layout()
    figure.savefig(IMAGES / "fibres.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
