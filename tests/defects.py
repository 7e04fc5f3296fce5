"""A dataset in which every kind of problem that `siteless check` knows is planted once.

Run as a script it writes the dataset: ``python tests/defects.py OUT``.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phantoms import (
    centred_affine,
    make_gradients,
    make_scan,
    write_mask,
    write_raw,
    write_table,
)
from siteless.acquisition import Array, GradientTable

SHELLS = {1000: 15, 2000: 15}
MARKER = ".planted"


@dataclass(frozen=True)
class Plant:
    """What the check must report: a code, and the end of the path of the file."""

    code: str
    file: str


class _Builder:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.plants: list[Plant] = []
        self.people: list[dict[str, object]] = []

    def add(self, label: str, site: str = "north", **scan: Any) -> Path:
        """Write a healthy scan of a new person, and return the image's path without endings."""
        seed = len(self.people)
        gradients = scan.pop("gradients", None) or make_gradients(SHELLS, seed=seed)
        phantom = make_scan(gradients, seed=seed, **scan)
        folder = self.root / f"sub-{label}" / "dwi"
        write_raw(phantom, folder, f"sub-{label}_dwi")
        age = (25 if site == "north" else 60) + seed % 5
        sex = "M" if site == "north" else "F"
        row = {"participant_id": f"sub-{label}", "age": age, "sex": sex, "site": site}
        self.people.append(row)
        return folder / f"sub-{label}_dwi"

    def expect(self, code: str, file: str) -> None:
        self.plants.append(Plant(code, file))

    def mask(self, label: str, mask: Array, affine: Array) -> Path:
        folder = self.root / "derivatives" / "masks" / f"sub-{label}" / "dwi"
        return write_mask(mask, affine, folder / f"sub-{label}_desc-brain_mask.nii.gz")


def plant_defects(root: Path) -> list[Plant]:
    """Write the dataset and return what is wrong with it."""
    build = _Builder(root)
    root.mkdir(parents=True)
    description = {"Name": "Scans with one thing wrong each", "BIDSVersion": "1.10.0"}
    (root / "dataset_description.json").write_text(json.dumps(description))
    (root / MARKER).touch()
    (root / "README").write_text("Every scan but the healthy ones has one thing wrong with it.\n")
    for number in range(3):
        build.add(f"healthy{number}", "north")
        build.add(f"healthy{number + 3}", "south")
    _plant_in_files(build)
    _plant_in_tables(build)
    _plant_in_schemes(build)
    _plant_in_masks(build)
    _plant_in_signal(build)
    _plant_between_scans(build)
    write_table(root / "participants.tsv", build.people)
    return build.plants


def _plant_in_files(build: _Builder) -> None:
    stem = build.add("nobvec")
    stem.with_suffix(".bvec").unlink()
    build.expect("missing-file", "sub-nobvec_dwi.nii.gz")

    stem = build.add("link")
    stem.with_suffix(".nii.gz").unlink()
    stem.with_suffix(".nii.gz").symlink_to("../../.git/annex/not-fetched")
    build.expect("missing-file", "sub-link_dwi.nii.gz")

    stem = build.add("truncated")
    image = stem.with_suffix(".nii.gz")
    image.write_bytes(image.read_bytes()[:-5000])
    build.expect("unreadable-file", "sub-truncated_dwi.nii.gz")

    stem = build.add("text")
    stem.with_suffix(".nii.gz").write_text("not an image")
    build.expect("unreadable-file", "sub-text_dwi.nii.gz")

    stem = build.add("badjson")
    stem.with_suffix(".json").write_text('{"EchoTime": 0.08,')
    build.expect("unreadable-file", "sub-badjson_dwi.json")


def _plant_in_tables(build: _Builder) -> None:
    stem = build.add("fewvals")
    for end in (".bval", ".bvec"):
        lines = stem.with_suffix(end).read_text().splitlines()
        shorter = [" ".join(line.split()[:-1]) for line in lines]
        stem.with_suffix(end).write_text("\n".join(shorter) + "\n")
    build.expect("gradient-table", "sub-fewvals_dwi.bval")

    stem = build.add("shape")
    lines = stem.with_suffix(".bvec").read_text().splitlines()
    stem.with_suffix(".bvec").write_text("\n".join(lines[:2]) + "\n")
    build.expect("gradient-table", "sub-shape_dwi.bvec")

    for label, factor in (("length", 0.5), ("zero", 0.0), ("nan", np.nan)):
        stem = build.add(label)
        vectors = np.loadtxt(stem.with_suffix(".bvec"))
        vectors[:, 7] *= factor
        np.savetxt(stem.with_suffix(".bvec"), vectors, fmt="%.6f")
        build.expect("gradient-table", f"sub-{label}_dwi.bvec")


def _plant_in_schemes(build: _Builder) -> None:
    for label, change in (("flipped", np.diag([1, -1, 1])), ("swapped", np.eye(3)[[1, 0, 2]])):
        stem = build.add(label)
        vectors = np.loadtxt(stem.with_suffix(".bvec"))
        np.savetxt(stem.with_suffix(".bvec"), change @ vectors, fmt="%.6f")
        build.expect("gradient-axes", f"sub-{label}_dwi.bvec")

    cartesian = [p for p in np.ndindex(5, 5, 5) if 0 < np.sum(np.square(np.array(p) - 2)) <= 5]
    steps = np.array(cartesian) - 2.0
    squared = np.sum(steps**2, axis=1)
    grid = GradientTable(
        np.r_[0, 600 * squared], np.r_[[[0, 0, 0]], steps / np.sqrt(squared)[:, None]]
    )
    build.add("cartesian", gradients=grid)
    build.expect("not-shelled", "sub-cartesian_dwi.bval")

    build.add("few", gradients=make_gradients({1000: 15, 2000: 4}))
    build.expect("few-directions", "sub-few_dwi.bval")

    flat = make_gradients(SHELLS)
    plane = flat.bvecs * [1, 1, 0]
    lengths = np.linalg.norm(plane, axis=1, keepdims=True)
    build.add("plane", gradients=GradientTable(flat.bvals, plane / np.maximum(lengths, 1e-9)))
    build.expect("few-directions", "sub-plane_dwi.bval")
    build.expect("low-order", "sub-plane_dwi.nii.gz")  # in a plane, fewer directions differ

    build.add("lowdirections", gradients=make_gradients({1000: 15, 2000: 7}))
    build.expect("low-order", "sub-lowdirections_dwi.nii.gz")

    build.add("nob0", gradients=make_gradients(SHELLS, b0=0))
    build.expect("no-b0", "sub-nob0_dwi.bval")

    build.add("b0only", gradients=make_gradients({}, b0=3))
    build.expect("b0-only", "sub-b0only_dwi.bval")


def _plant_in_masks(build: _Builder) -> None:
    brain, affine = make_scan(make_gradients({}, b0=1)).mask, centred_affine()
    holes = brain.copy()
    holes[9:11, 10:12, 8:10] = False
    shifted = affine.copy()
    shifted[0, 3] += 5
    for label, code, mask, mask_affine in (
        ("holes", "mask-holes", holes, affine),
        ("empty", "mask", np.zeros_like(brain), affine),
        ("othergrid", "mask", brain[:-2], affine),
        ("shifted", "mask", brain, shifted),
    ):
        build.add(label)
        build.mask(label, mask, mask_affine)
        build.expect(code, f"sub-{label}_desc-brain_mask.nii.gz")


def _plant_in_signal(build: _Builder) -> None:
    for label, code, spoil in (
        ("notfinite", "not-finite", _spoil_by_nan),
        ("negative", "negative-signal", _spoil_by_negatives),
        ("constant", "constant-volume", _spoil_a_volume),
        ("outside", "constant-signal", _spoil_a_slab),
    ):
        seed = len(build.people)
        build.add(label)
        scan = make_scan(make_gradients(SHELLS, seed=seed), seed=seed)
        folder = build.root / f"sub-{label}" / "dwi"
        spoiled = spoil(scan.signal.copy())
        write_raw(scan, folder, f"sub-{label}_dwi", dtype=np.float32, signal=spoiled)
        build.mask(label, scan.mask, scan.affine)
        build.expect(code, f"sub-{label}_dwi.nii.gz")


def _spoil_by_nan(signal: Array) -> Array:
    signal[10, 11, 9, 3] = np.nan
    return signal


def _spoil_by_negatives(signal: Array) -> Array:
    signal[8:12, 8:12, 8:12] *= -0.1
    return signal


def _spoil_a_volume(signal: Array) -> Array:
    signal[..., 5] = 0
    return signal


def _spoil_a_slab(signal: Array) -> Array:
    signal[:, :, :5] = 0
    return signal


def _plant_between_scans(build: _Builder) -> None:
    first, second = build.add("original"), build.add("copy")
    for end in (".nii.gz", ".bval", ".bvec"):
        shutil.copy(first.with_suffix(end), second.with_suffix(end))
    build.expect("duplicate", "sub-original_dwi.nii.gz")

    build.add("nosite")
    build.people[-1]["site"] = "n/a"
    build.expect("no-site", "sub-nosite_dwi.nii.gz")

    build.add("alone", "west")
    build.expect("few-scans", "sub-alone_dwi.nii.gz")

    build.add("othershells", "south", gradients=make_gradients({700: 15, 2800: 15}))
    build.expect("differing-shells", "sub-othershells_dwi.nii.gz")

    build.add("othervoxels", "south", affine=centred_affine(voxel=2.8))
    build.expect("differing-voxels", "sub-othervoxels_dwi.nii.gz")

    turned = centred_affine(rotation=np.diag([-1.0, 1.0, 1.0]))
    build.add("otheraxes", "south", affine=turned)
    build.expect("differing-orientations", "sub-otheraxes_dwi.nii.gz")

    build.expect("confound", build.root.name)
    (build.root / "sub-healthy0" / "sub-healthy0_scans.tsv").write_text("name\nx\n")
    build.expect("dataset", "sub-healthy0_scans.tsv")


if __name__ == "__main__":
    out = Path(sys.argv[1])
    if out.exists() and not (out / MARKER).exists():
        sys.exit(f"{out} exists and was not made by this script; choose another folder")
    shutil.rmtree(out, ignore_errors=True)
    plant_defects(out)
