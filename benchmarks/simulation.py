"""Does the simulated cohort look like one to a diffusion researcher, and how fast is it made?

``make bench`` simulates two people; ``python -m benchmarks.simulation DATASET`` measures a cohort
that is there already.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import nibabel as nib
import numpy as np

from benchmarks.measure import row
from siteless.acquisition import Array, Scan
from siteless.bids import ScanFiles, find_scans, read_scan
from siteless.pipelines import Run, simulate_cohort
from siteless.simulation import PRESETS, draw_cohort, read_scanners
from siteless.tissue import fit_tensor

# Parts of white matter from which a voxel counts as such.
PURE = 0.7


def main(dataset: Path | None = None) -> None:
    if dataset is not None:
        measure_cohort(dataset)
        return
    print("\nTwo people of the cdmri2018 preset at four sites, test scans repeated")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cohort"
        measure_making(out)
        measure_cohort(out)


def measure_making(out: Path) -> None:
    preset = PRESETS["cdmri2018"]
    known = read_scanners()
    cohort = draw_cohort(
        tuple(known[site] for site in preset.sites),
        subjects=2,
        voxel_size=preset.voxel_size,
        rescans=True,
    )
    start = time.perf_counter()
    with watched_memory() as peak:
        simulate_cohort(out, cohort, run=Run(nprocs=2))
    seconds = time.perf_counter() - start
    scans = len(list(out.glob("sub-*/ses-*/dwi/*.nii.gz")))
    row("scans a minute, two processes", f"{60 * scans / seconds:.0f}", "aim: at least 5")
    row("peak memory of all processes", f"{peak[0] / 1e9:.1f} GB", "aim: at most 4 GB")


class watched_memory:  # noqa: N801 - used as a function
    """Watches the resident memory of this process and its children (Linux)."""

    def __enter__(self) -> list[float]:
        self.peak, self.done = [0.0], threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self.peak

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(0.2):
            process = subprocess.run(
                ["ps", "-eo", "pid,ppid,rss"], capture_output=True, text=True, check=True
            )
            processes = [tuple(map(int, line.split())) for line in process.stdout.splitlines()[1:]]
            family = {threading.main_thread().native_id}
            for pid, parent, _ in sorted(processes):
                if parent in family:
                    family.add(pid)
            used = sum(rss for pid, _, rss in processes if pid in family) * 1024
            self.peak[0] = max(self.peak[0], used)


def measure_cohort(dataset: Path) -> None:
    by_site: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    scans = find_scans(dataset).scans
    for files in scans:
        by_site[str(files.site)].append(describe(dataset, files))
    names = list(next(iter(by_site.values()))[0])
    means = {
        site: {name: float(np.nanmean([scan[name] for scan in group])) for name in names}
        for site, group in by_site.items()
    }
    for name in names:
        values = [means[site][name] for site in means]
        of_sites = "  ".join(f"{site} {means[site][name]:.3g}" for site in means)
        row(f"{name}", f"{np.mean(values):.3g}", of_sites)
    fa = [means[site]["FA"] for site in means]
    row("largest difference of mean FA between sites", f"{np.ptp(fa) / np.mean(fa):.1%}")
    print("Difference of a white-matter voxel between two scans (median), and of the means:")
    print_differences(scans)
    if shutil.which("dwi2response"):
        print_responses(scans[0])


def describe(dataset: Path, files: ScanFiles) -> dict[str, float]:
    scan = read_scan(files)
    tissue, populations, directions = _truth(dataset, files, scan)
    white = np.flatnonzero((tissue[..., 0] > PURE).T)
    tensor = fit_tensor(scan.volumes, white, scan.gradients)
    b0 = np.ix_(np.flatnonzero(scan.gradients.is_b0), white)
    clean = _noiseless(dataset, files)[b0]
    single = populations.max(axis=-1).T.ravel()[white] > 0.9
    strongest = np.take_along_axis(
        directions, populations.argmax(axis=-1)[..., None, None], axis=-2
    )[..., 0, :]
    truth = strongest.swapaxes(0, 2).reshape(-1, 3)[white][single]
    cosine = np.abs(np.sum(tensor.principal[single] * truth, axis=1)).clip(0, 1)
    return {
        "FA": float(tensor.fa.mean()),
        "MD, 1e-3 mm2/s": float(1e3 * tensor.md.mean()),
        "MK": _mean_kurtosis(scan, white),
        "SNR of b0": float(clean.mean() / (scan.volumes[b0] - clean).std()),
        "angle to single fibres, degrees (median)": float(
            np.median(np.rad2deg(np.arccos(cosine)))
        ),
    }


def _truth(dataset: Path, files: ScanFiles, scan: Scan) -> tuple[Array, Array, Array]:
    folder = dataset / "derivatives" / "truth" / f"sub-{files.subject}" / "dwi"
    stem = f"sub-{files.subject}_desc-"
    read = [
        nib.Nifti1Image.from_filename(folder / f"{stem}{name}.nii.gz").get_fdata(dtype=np.float32)
        for name in ("tissue_probseg", "fibrefractions_dwimap", "fibredirections_dwimap")
    ]
    return read[0], read[1], read[2].reshape(*scan.mask.shape, 3, 3)


def _noiseless(dataset: Path, files: ScanFiles) -> Array:
    folder = dataset / "derivatives" / "truth" / files.dwi.parent.relative_to(dataset)
    name = files.name.replace("_dwi", "_desc-noiseless_dwi.nii.gz")
    signal = nib.Nifti1Image.from_filename(folder / name).get_fdata(dtype=np.float32)
    return signal.T.reshape(signal.shape[3], -1)


def _mean_kurtosis(scan: Scan, white: Array) -> float:
    from dipy.core.gradients import gradient_table
    from dipy.reconst.dki import DiffusionKurtosisModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = gradient_table(scan.gradients.b, bvecs=scan.gradients.directions)
        some = scan.volumes[:, white[:: max(1, len(white) // 500)]].T.astype(float)
        fit = DiffusionKurtosisModel(table, fit_method="WLS").fit(some)
        return float(np.median(fit.mk(min_kurtosis=0, max_kurtosis=3)))


def _fa(files: ScanFiles) -> Array:
    scan = read_scan(files)
    voxels = np.flatnonzero(scan.white_matter.T)
    return fit_tensor(scan.volumes, voxels, scan.gradients).fa


def print_differences(scans: tuple[ScanFiles, ...]) -> None:
    """Compare the last person's scans: sites with each other, and with their rescans."""
    last = [files for files in scans if files.subject == scans[-1].subject]
    maps = {(str(files.site), files.entities.get("run", "1")): _maps(files) for files in last}
    for (site, run), (other, again) in combinations(maps, 2):
        same_site = site == other
        if same_site or (run == again == "1"):
            pair = f"{site} and its rescan" if same_site else f"{site} and {other}"
            first, second = maps[site, run], maps[other, again]
            differences = [
                f"{name} {np.median(2 * np.abs(a - b) / (a + b)):.1%} "
                f"(mean {2 * abs(a.mean() - b.mean()) / (a.mean() + b.mean()):.1%})"
                for name, a, b in zip(("FA", "MD", "b0"), first, second, strict=True)
            ]
            print(f"  {pair:<30}" + "  ".join(differences))


def _maps(files: ScanFiles) -> tuple[Array, Array, Array]:
    """Return FA, MD, and b0 less its own mean, which is but a gain, of white matter."""
    scan = read_scan(files)
    voxels = np.flatnonzero(scan.white_matter.T)
    tensor = fit_tensor(scan.volumes, voxels, scan.gradients)
    b0 = scan.volumes[np.ix_(np.flatnonzero(scan.gradients.is_b0), voxels)].mean(axis=0)
    return tensor.fa, tensor.md, b0 / b0.mean()


def print_responses(files: ScanFiles) -> None:
    """Let MRtrix3 find the three tissues' responses: b0 rises from white matter to fluid."""
    with tempfile.TemporaryDirectory() as folder:
        names = ["white.txt", "grey.txt", "fluid.txt"]
        gradients = ["-fslgrad", str(files.bvec), str(files.bval)]
        command = ["dwi2response", "dhollander", str(files.dwi), *names, *gradients]
        mask = ["-mask", str(files.mask), "-quiet", "-nthreads", "2"]
        subprocess.run([*command, *mask], cwd=folder, check=True, capture_output=True)
        for name in names:
            response = np.loadtxt(Path(folder) / name, ndmin=2)
            zero, strong = response[0], response[-1]
            anisotropy = -strong[1] / strong[0] if len(strong) > 1 else 0.0
            row(
                f"dwi2response dhollander, {name.removesuffix('.txt')}",
                f"b0 {zero[0]:.0f}",
                f"decay to the strongest shell {strong[0] / zero[0]:.3f}, l=2 {anisotropy:.2f}",
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
