"""How far can a rendering be trusted, and does it say so?

``python -m benchmarks.trust DATASET MODEL [DATASET_WITH_LESIONS]``, on simulated cohorts;
``python -m benchmarks.harmonization`` calls it too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import ndimage
from scipy.stats import spearmanr

from benchmarks.measure import row
from benchmarks.scores import noiseless_path
from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, find_scans, read_scan, read_signal
from siteless.methods import Rendering, load_model, render
from siteless.model import Model


def main(dataset: Path, model: Path, lesions: Path | None = None) -> None:
    measure_renderings(dataset, load_model(model))
    if lesions is not None:
        measure_lesions(lesions, load_model(model))


def measure_renderings(dataset: Path, model: Model) -> None:
    """Print how good renderings of the test people's scans are, at home and as every site."""
    scans = [f for f in find_scans(dataset).scans if f.attributes["split"] == "test"]
    by_place = {(files.subject, str(files.site)): files for files in scans}
    for site in model.card.sites:
        at_site = [files for files in scans if str(files.site) == site]
        before, after = np.mean(
            [_errors_at_home(dataset, files, model) for files in at_site], axis=0
        )
        row(
            f"at home, {site}: error of the scan, and of the rendering",
            f"{before:.2f} %",
            f"{after:.2f} %",
        )
    steps, correlations = [], []
    pooled: tuple[list[Array], list[Array]] = ([], [])
    for files in scans:
        scan = read_scan(files)
        for site in model.card.sites:
            goal = by_place[files.subject, site]
            rendering = render(model, scan, site, gradients=read_scan(goal).gradients)
            deviation, error = _deviation_and_error(rendering, _noiseless(dataset, goal))
            correlations.append(
                [spearmanr(s, e)[0] for s, e in zip(deviation.T, error.T, strict=True)]
            )
            weights = [len(group) for group in _groups(rendering.scan)]
            for arrays, quantity in zip(pooled, (deviation, error), strict=True):
                arrays.append(np.sqrt(np.average(np.square(quantity), axis=1, weights=weights)))
            if site != str(files.site):
                steps.append(_steps(scan, render(model, scan, site)))
    for name, values in zip(
        ("b0", *map("b={:.0f}".format, model.preparation.shells)),
        np.transpose(correlations),
        strict=True,
    ):
        row(
            f"uncertainty and true error, rank correlation in a scan: {name}",
            f"{values.mean():.2f}",
            f"(from {values.min():.2f} to {values.max():.2f})",
        )
    deviation, error = (np.concatenate(arrays) for arrays in pooled)
    row(
        "the same of all volumes, over all scans together", f"{spearmanr(deviation, error)[0]:.2f}"
    )
    row(
        "uncertainty as a part of the true error",
        f"{np.sqrt((deviation**2).mean() / (error**2).mean()):.2f}",
    )
    row("largest step of the scale at the boundary", f"{100 * np.abs(steps).max():.2f} %")


def measure_lesions(dataset: Path, model: Model) -> None:
    inside, elsewhere = [], []
    for files in find_scans(dataset).scans:
        masks = (dataset / "derivatives" / "truth" / f"sub-{files.subject}").rglob(
            "*label-lesion_mask.nii.gz"
        )
        for mask in masks:
            lesion = read_signal(mask)[0] > 0
            rendering = render(model, read_scan(files), next(iter(model.card.sites)))
            inside.append(rendering.unfamiliar[lesion & rendering.rendered].mean())
            elsewhere.append(rendering.unfamiliar[rendering.rendered & ~lesion].mean())
    row(
        "lesion voxels that are flagged",
        f"{100 * np.mean(inside):.0f} %",
        f"(at least {100 * np.min(inside):.0f} % of a lesion)",
    )
    row(
        "other voxels that are flagged",
        f"{100 * np.mean(elsewhere):.2f} %",
        "(0.1 % of the training scans')",
    )


def _errors_at_home(dataset: Path, files: ScanFiles, model: Model) -> tuple[float, float]:
    """Return the RMSE of a scan and of its rendering at home, in per cent of its level."""
    scan = read_scan(files)
    rendering = render(model, scan, str(files.site))
    truth, where = _noiseless(dataset, files), rendering.rendered
    errors = (
        np.square(volumes.signal[where] - truth[where]).mean()
        for volumes in (scan, rendering.scan)
    )
    before, after = (100 * float(np.sqrt(error)) / rendering.levels[0] for error in errors)
    return before, after


def _noiseless(dataset: Path, files: ScanFiles) -> Array:
    return read_signal(noiseless_path(dataset, files))[0]


def _groups(scan: Scan) -> Iterator[Array]:
    yield np.flatnonzero(scan.gradients.is_b0)
    yield from (shell.volumes for shell in scan.gradients.shells)


def _deviation_and_error(rendering: Rendering, truth: Array) -> tuple[Array, Array]:
    """Return both for b0 and each shell of the rendered voxels, in units of the level."""
    where, level = rendering.rendered, rendering.levels[1]
    difference = (rendering.scan.signal[where] - truth[where]) / level
    errors = [np.sqrt(np.square(difference[:, g]).mean(axis=1)) for g in _groups(rendering.scan)]
    return rendering.spread[where] / level, np.stack(errors, axis=1)


def _steps(scan: Scan, rendering: Rendering) -> list[float]:
    """Return how the scale of b0 and each shell differs between the two sides of the boundary."""
    where = rendering.rendered
    rims = (
        where & ndimage.binary_dilation(~where),
        scan.mask & ~where & ndimage.binary_dilation(where),
    )
    scales = [
        [
            rendering.scan.signal[rim][:, g].sum() / scan.signal[rim][:, g].sum()
            for g in _groups(scan)
        ]
        for rim in rims
    ]
    return [inner / outer - 1 for inner, outer in zip(*scales, strict=True)]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
