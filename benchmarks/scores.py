"""How far is a harmonized scan from the target? A judge that knows no method.

It scores scans (`score_scan`), or maps of FA and MD where there is no signal (`score_maps`,
`score_lesion`). ``python -m benchmarks.scores`` checks it on a made-up scan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy import ndimage, sparse

from benchmarks.measure import row
from siteless.acquisition import Array, GradientTable, Scan
from siteless.bids import ScanFiles, find_scans, read_scan, read_signal
from siteless.tissue import fit_tensor, white_matter_level

# mm, and voxels of white matter in a block.
BLOCK, LEAST_VOXELS = 10.0, 8
# Voxels. White matter around a lesion is further away than the first, which holds some of it.
NEAR, FAR = 1, 3
# Of each score, its decimals and what it is. All are in the target's white matter.
SCORES = {
    "scan": (2, "RMSE to the target scan, % of the target site's b0 level"),
    "truth": (2, "RMSE to the noiseless target, % of the level"),
    "block": (2, "block means of the signal: RMS error to the noiseless target's, % of the level"),
    "block-fa": (2, "block means of FA: RMS error to the noiseless target's, % of their mean"),
    "block-md": (2, "block means of MD: RMS error to the noiseless target's, % of their mean"),
    "shell": (2, "means of b0 and of each shell: mean error to the noiseless target's, %"),
    "anisotropy": (2, "anisotropy of block means: error to the noiseless target's, %"),
    "cv-fa": (2, "FA of voxels: coefficient of variation to the target scan, %"),
    "cv-md": (2, "MD of voxels: coefficient of variation to the target scan, %"),
    "lesion": (3, "MD in lesions over MD around them, over the noiseless target's; 0.5 if erased"),
}


@dataclass(frozen=True, eq=False)
class Target:
    """What a harmonized scan ought to be.

    Attributes
    ----------
    scan
        Measured at the target site.
    truth
        The same without noise.
    level
        Typical white-matter b0 of the target site.
    lesion
        Shape (x, y, z), bool; empty without lesions.
    """

    scan: Scan
    truth: Scan
    level: float
    lesion: Array

    @cached_property
    def averaging(self) -> sparse.csr_array:
        """Means over blocks of white matter as a matrix, shape (block, voxel)."""
        places = np.argwhere(self.scan.white_matter) * self.scan.voxel_size // BLOCK
        _, block, count = np.unique(places, axis=0, return_inverse=True, return_counts=True)
        block = block.ravel()
        means = sparse.csr_array((1 / count[block], (block, np.arange(len(block)))))
        return means[np.flatnonzero(count >= LEAST_VOXELS)]

    @cached_property
    def measured_maps(self) -> tuple[Array, Array]:
        return tensor_maps(self.scan)

    @cached_property
    def true_maps(self) -> tuple[Array, Array]:
        return tensor_maps(self.truth)

    def white_matter(self, values: Array) -> Array:
        """Return white matter of a map or signal (x, y, z, ...), as (voxel, ...), float64."""
        return values[self.scan.white_matter].astype(float)


def read_targets(
    dataset: Path, levels: Mapping[str, float], *, split: str | None = None
) -> dict[tuple[str, str], Target]:
    """Read a simulated cohort's scans and truth, by person and site; of a split, or all."""
    targets = {}
    for files in find_scans(dataset).scans:
        if split in (None, files.attributes["split"]):
            scan, site = read_scan(files), str(files.site)
            truth = scan.with_signal(_read_noiseless(dataset, files))
            lesion = _read_lesion(dataset, files, scan)
            targets[files.subject, site] = Target(scan, truth, levels[site], lesion)
    return targets


def read_levels(dataset: Path) -> dict[str, float]:
    """Return each site's typical white-matter b0, of the training scans: no model decides it."""
    found: dict[str, list[float]] = {}
    for files in find_scans(dataset).scans:
        if files.attributes["split"] == "train":
            found.setdefault(str(files.site), []).append(white_matter_level(read_scan(files)))
    return {site: float(np.median(levels)) for site, levels in found.items()}


def _read_noiseless(dataset: Path, files: ScanFiles) -> Array:
    folder = dataset / "derivatives" / "truth" / files.dwi.parent.relative_to(dataset)
    return read_signal(folder / files.name.replace("_dwi", "_desc-noiseless_dwi.nii.gz"))[0]


def _read_lesion(dataset: Path, files: ScanFiles, scan: Scan) -> Array:
    person = f"sub-{files.subject}"
    path = (
        dataset / "derivatives" / "truth" / person / "dwi" / f"{person}_label-lesion_mask.nii.gz"
    )
    return read_signal(path)[0] > 0 if path.exists() else np.zeros_like(scan.mask)


def tensor_maps(scan: Scan) -> tuple[Array, Array]:
    """Return FA and MD (mm2/s) of the brain, each of shape (x, y, z), zero elsewhere."""
    tensor = fit_tensor(scan.volumes, scan.voxels, scan.gradients)
    maps = np.zeros((2, *scan.mask.shape))
    for one, values in zip(maps, (tensor.fa, tensor.md), strict=True):
        one.T[scan.mask.T] = values
    return maps[0], maps[1]


def score_scan(given: Scan, target: Target) -> dict[str, float]:
    """Score a scan that is on the target's grid and at its gradients."""
    if given.signal.shape != target.scan.signal.shape:
        raise ValueError(f"expected shape {target.scan.signal.shape}, got {given.signal.shape}")
    fa, md = tensor_maps(given)
    return _score_signal(given.signal, target) | score_maps(fa, md, target)


def _score_signal(given: Array, target: Target) -> dict[str, float]:
    found, scan, truth = (
        target.white_matter(one) for one in (given, target.scan.signal, target.truth.signal)
    )
    blocks, true_blocks = target.averaging @ found, target.averaging @ truth
    groups = list(_groups(target.scan.gradients))
    means, true_means = (np.array([one[:, g].mean() for g in groups]) for one in (found, truth))
    relative = _anisotropy(blocks, groups) / _anisotropy(true_blocks, groups)
    unit = 100 / target.level
    return {
        "scan": unit * _rmse(found, scan),
        "truth": unit * _rmse(found, truth),
        "block": unit * _rms(blocks - true_blocks),
        "shell": 100 * float(np.abs(means / true_means - 1).mean()),
        "anisotropy": 100 * abs(relative - 1),
    }


def score_maps(fa: Array, md: Array, target: Target) -> dict[str, float]:
    """Score maps of FA and MD, each of shape (x, y, z), and the lesions if there are any."""
    scores = {}
    for name, given, measured, true in zip(
        ("fa", "md"), (fa, md), target.measured_maps, target.true_maps, strict=True
    ):
        found, scan, truth = (target.white_matter(one) for one in (given, measured, true))
        blocks, true_blocks = target.averaging @ found, target.averaging @ truth
        scores[f"block-{name}"] = 100 * _rms(blocks - true_blocks) / float(true_blocks.mean())
        scores[f"cv-{name}"] = 100 * _rms(found - scan) / float(scan.mean())
    if target.lesion.any():
        scores["lesion"] = score_lesion(md, target)
    return scores


def score_lesion(md: Array, target: Target) -> float:
    """Return by how much lesions stand out, relative to the noiseless target: 1 is best."""
    near, far = (ndimage.binary_dilation(target.lesion, iterations=n) for n in (NEAR, FAR))
    around = far & ~near & target.scan.white_matter
    contrasts = [
        one[target.lesion].mean() / one[around].mean() for one in (md, target.true_maps[1])
    ]
    return float(contrasts[0] / contrasts[1])


def _groups(gradients: GradientTable) -> Iterator[Array]:
    """Yield the volumes of b0, then those of each shell."""
    yield np.flatnonzero(gradients.is_b0)
    yield from (shell.volumes for shell in gradients.shells)


def _rms(difference: Array) -> float:
    return float(np.sqrt(np.square(difference).mean()))


def _rmse(given: Array, expected: Array) -> float:
    """Root mean square over volumes, then the mean over voxels."""
    return float(np.sqrt(np.square(given - expected).mean(axis=1)).mean())


def _anisotropy(blocks: Array, groups: list[Array]) -> float:
    """Return how much the strongest shell of block means differs between directions, over b0.

    Blocks hold enough voxels for noise to average out of the signal first: the spread of a noisy
    voxel's directions would be that of its noise too.
    """
    return float(blocks[:, groups[-1]].std(axis=1).mean() / blocks[:, groups[0]].mean())


def main() -> None:
    """Check the scores where they are known beforehand."""
    target = _made_up_target()
    truth, level, spread = target.truth, target.level, 20.0
    fa, md = target.true_maps
    perfect = score_scan(truth, target)
    errors = [perfect[name] for name in ("truth", "block", "block-fa", "shell", "anisotropy")]
    _check("the truth is without error", np.array(errors), 0.0)
    _check("its lesions stand out as they do", perfect["lesion"], 1.0)
    _check("it is as far from the scan as noise", perfect["scan"], 100 * spread / level, 0.02)
    shifted = score_scan(truth.with_signal(truth.signal + 0.02 * level), target)
    _check("2 % of the level, added", np.array([shifted["truth"], shifted["block"]]), 2.0)
    scaled = score_scan(truth.with_signal(1.1 * truth.signal), target)
    _check("scaled by 1.1: the means of shells", scaled["shell"], 10.0)
    _check("scaled by 1.1: no tensor changes", np.array([scaled["block-fa"], scaled["block-md"]]))
    itself = score_scan(target.scan, target)
    _check("the scan itself: no error to itself", np.array([itself["scan"], itself["cv-md"]]))
    counts = _block_counts(target)
    expected = 100 * spread / level * np.sqrt((1 / counts).mean())
    _check("noise averages out of blocks", itself["block"], expected, 0.05)
    drawn = np.random.default_rng(1).random(target.scan.mask.shape)
    means = np.sort(target.averaging @ target.white_matter(drawn))
    _check("block means, one by one", means, np.sort(_plain_block_means(drawn, target)))
    wider = score_maps(1.05 * target.measured_maps[0], md, target)
    obs = target.white_matter(target.measured_maps[0])
    _check("CV of FA 5 % too high", wider["cv-fa"], 5 * _rms(obs) / obs.mean())
    healthy = np.where(target.lesion, md / 2, md)
    _check("a lesion of twice the MD, erased", score_lesion(healthy, target), 0.5)
    _check("maps are scored alone", score_maps(fa, md, target)["block-md"], 0.0)


def _check(
    what: str, found: Array | float, expected: Array | float = 0.0, part: float = 0
) -> None:
    np.testing.assert_allclose(found, expected, rtol=part or 1e-5, atol=1e-4, err_msg=what)
    row(what, f"{np.mean(found):.4f}", f"(expected {np.mean(expected):.4f})")


def _made_up_target(level: float = 1000.0, spread: float = 20.0) -> Target:
    """Make tensors of one shape and random directions, a lesion of twice their MD, and noise."""
    random, shape = np.random.default_rng(0), (24, 23, 22)
    vectors, fibres = (_directions(random, size) for size in ((62,), shape))
    gradients = GradientTable(np.repeat([0.0, 1000.0, 2500.0], [2, 30, 30]), vectors)
    cosines = fibres @ gradients.directions.T
    lesion = np.zeros(shape, dtype=bool)
    lesion[8:12, 8:12, 8:12] = True
    diffusivity = (0.3e-3 + 1.2e-3 * cosines**2) * np.where(lesion, 2, 1)[..., None]
    white = random.random(shape) < 0.7
    brain = np.ones(shape, dtype=bool)
    affine = np.diag([3.0, 3.0, 3.0, 1.0])
    truth = Scan(level * np.exp(-gradients.b * diffusivity), affine, gradients, brain, white)
    noisy = truth.signal + random.normal(0, spread, truth.signal.shape)
    return Target(truth.with_signal(noisy), truth, level, lesion)


def _directions(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    drawn = random.normal(size=(*shape, 3))
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def _voxels_of_blocks(target: Target) -> list[list[tuple[int, ...]]]:
    found: dict[tuple[float, ...], list[tuple[int, ...]]] = {}
    for voxel in zip(*map(list, np.nonzero(target.scan.white_matter)), strict=True):
        place = tuple(
            n * size // BLOCK for n, size in zip(voxel, target.scan.voxel_size, strict=True)
        )
        found.setdefault(place, []).append(voxel)
    return [voxels for voxels in found.values() if len(voxels) >= LEAST_VOXELS]


def _block_counts(target: Target) -> Array:
    return np.array([len(voxels) for voxels in _voxels_of_blocks(target)])


def _plain_block_means(values: Array, target: Target) -> Array:
    return np.array([np.mean([values[v] for v in block]) for block in _voxels_of_blocks(target)])


if __name__ == "__main__":
    main()
