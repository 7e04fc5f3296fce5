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
    """Draw the populations of a coronal slice as sticks, and where they cross, larger."""
    folder = dataset / "derivatives" / "truth" / f"sub-{subject}" / "dwi"
    tissue, fractions, directions = (
        nib.load(folder / f"sub-{subject}_desc-{name}.nii.gz").get_fdata()
        for name in ("tissue_probseg", "fibrefractions_dwimap", "fibredirections_dwimap")
    )
    # World to image axes, so that sticks lie in the picture, which shows the image mirrored.
    axes_in_world = scan.affine[:3, :3] / np.linalg.norm(scan.affine[:3, :3], axis=0)
    in_image = directions.reshape(*scan.mask.shape, 3, 3) @ axes_in_world * [-1, 1, 1]
    y = scan.mask.shape[1] // 2
    slices = [volume[::-1, y] for volume in (tissue[..., 0], fractions, in_image)]
    figure, (whole, part) = plt.subplots(1, 2, figsize=(13, 6.6), facecolor="white")
    draw_sticks(whole, *slices, width=0.0022)
    draw_sticks(part, *slices, width=0.005)
    x, z = np.nonzero(slices[0] > 0.4)
    whole.set(xlim=(x.min() - 2, x.max() + 2), ylim=(z.min() - 2, z.max() + 2))
    part.set(xlim=(35, 51), ylim=(40, 56))
    whole.set_title("Fibre populations in a coronal slice; dots run front-back")
    part.set_title("Where they cross")
    whole.add_patch(plt.Rectangle((35, 40), 16, 16, fill=False, edgecolor="white", linewidth=1.2))
    whole.legend(loc="lower right", framealpha=0.9)
    figure.tight_layout()
    figure.savefig(IMAGES / "fibres.png")


def draw_sticks(axis, white, fractions, directions, *, width):
    """Draw every population of white matter, the longer the more of the voxel it holds."""
    axis.imshow(white.T, origin="lower", cmap="gray", vmin=0, vmax=2.4)
    axis.set(xticks=[], yticks=[])
    x, z = np.nonzero(white > 0.4)
    names = ("commissural", "projection", "association")
    for system, (name, colour) in enumerate(zip(names, POPULATIONS, strict=True)):
        fraction = fractions[x, z, system, None]
        stick = directions[x, z, system] * np.where(fraction > 0, 0.35 + 0.65 * fraction, 0)
        axis.scatter(x, z, s=9 * stick[:, 1] ** 2, color=colour, linewidths=0)
        axis.quiver(
            *(x, z, stick[:, 0], stick[:, 2]),
            color=colour,
            label=name,
            pivot="mid",
            headwidth=0,
            headlength=0,
            headaxislength=0,
            angles="xy",
            scale_units="xy",
            scale=0.95,
            width=width,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
