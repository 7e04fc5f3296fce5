"""Training scans, training sets and models of phantoms at two sites."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from phantoms import make_gradients, make_scan, write_mask, write_raw, write_table
from siteless.acquisition import Scan, Site
from siteless.harmonics import fit_coefficients
from siteless.methods.invariant.training import TrainingSettings
from siteless.methods.patches import TrainingScan, make_training_scan
from siteless.methods.training import TrainingSet
from siteless.model import LearnedSite, ModelCard, Preparation, Typical

SHELLS = {1200: 20, 3000: 20}
ORDER, BS = 4, (1200.0, 3000.0)
PREPARATION = Preparation(BS, ORDER, "laplace-beltrami", "white-matter")
SMALL: dict[str, Any] = {"encoder": (64, 32), "decoder": (32, 64), "code": 8, "neighbour_order": 2}
QUICK = TrainingSettings(batch=256, updates=60, **SMALL)


def learned_site(level: float) -> LearnedSite:
    """Make what a model knows of a site whose scans look like the phantom's."""
    scan = make_scan(make_gradients(SHELLS))
    values = fit_coefficients(scan, order=ORDER).values[scan.white_matter.T[scan.mask.T]]
    return LearnedSite(
        level=level,
        bvals=tuple(scan.gradients.bvals.tolist()),
        bvecs=tuple(map(tuple, scan.gradients.bvecs.tolist())),
        typical=Typical.of([values / np.float32(1200)], ORDER),
    )


def make_card(levels: dict[str, float], *, method: str = "invariant", **fields: Any) -> ModelCard:
    """Make the card of a model of sites with some levels."""
    defaults: dict[str, Any] = {
        "method": method,
        "sites": {site: learned_site(level) for site, level in levels.items()},
        "preparation": PREPARATION,
        "seed": 0,
        "settings": {"training": {"surroundings": []}},
        "summary": {},
        "versions": {},
    }
    return ModelCard(**(defaults | fields))


def training_scan(site: str, seed: int) -> TrainingScan:
    """Make a scan whose directions are the site's, and whose gain is the scan's own."""
    more = {"a": 0, "b": 10}[site]  # site b has more directions
    gradients = make_gradients({b: n + more for b, n in SHELLS.items()}, seed=10 + more)
    scan = make_scan(gradients, seed=seed, site=Site(site), name=f"{site}{seed}")
    scan = scan.with_signal(scan.signal * np.float32(1 + 0.1 * seed))
    return fitted_scan(scan)


def fitted_scan(
    scan: Scan, preparation: Preparation = PREPARATION, subject: str = ""
) -> TrainingScan:
    """Fit a scan, and gather what training needs of it."""
    fitted = make_training_scan(scan, preparation.coefficients(scan), preparation)
    return replace(fitted, subject=subject)


def make_training_set() -> TrainingSet:
    """Make a training set of two people at two sites, with a third to validate."""
    scans = [training_scan(site, seed) for seed in range(3) for site in "ab"]
    return TrainingSet(scans[:4], scans[4:], ("a", "b"))


def write_study(
    root: Path,
    people: int = 4,
    sites: str = "ab",
    shells: dict[str, dict[int, int]] | None = None,
    **columns: Sequence[object],
) -> Path:
    """Write phantoms of people at sites, with masks, and a manifest that lists them.

    Some sites may have other shells.
    """
    rows = []
    for person in range(people):
        for site in sites:
            of_site = (shells or {}).get(site, SHELLS)
            gradients = make_gradients(of_site, seed=10 * (1 + sites.index(site)))
            scan = make_scan(gradients, seed=person)
            stem = f"s{person}{site}"
            image = write_raw(scan, root, stem)
            mask = write_mask(scan.mask, scan.affine, root / f"{stem}_mask.nii.gz")
            white = write_mask(scan.white_matter, scan.affine, root / f"{stem}_wm.nii.gz")
            row = {"subject": person, "site": site, "dwi": image.name}
            more = {name: values[person] for name, values in columns.items()}
            rows.append(row | {"mask": mask.name, "wm_mask": white.name} | more)
    return write_table(root / "scans.tsv", rows)
