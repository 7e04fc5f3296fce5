"""Names of all outputs; every output path comes from this table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from siteless.errors import DatasetError

# BIDS's order of the entities that diffusion images can have.
_ENTITY_ORDER = (
    *("sub", "ses", "acq", "ce", "rec", "dir", "run", "part", "space", "split", "chunk"),
    *("seg", "res", "den", "label", "model", "param", "desc", "stat"),
)
_RANKS = {entity: rank for rank, entity in enumerate(_ENTITY_ORDER)}

# Each output: the entities it adds to those of the scan, and the end of the file name.
NAMES: Mapping[str, tuple[Mapping[str, str], str]] = {
    "scan": ({}, "_dwi.nii.gz"),
    "harmonized": ({"desc": "harmonized"}, "_dwi.nii.gz"),
    "harmonized_fa": ({"model": "tensor", "param": "fa", "desc": "harmonized"}, "_dwimap.nii.gz"),
    "harmonized_md": ({"model": "tensor", "param": "md", "desc": "harmonized"}, "_dwimap.nii.gz"),
    "harmonized_mk": ({"model": "dki", "param": "mk", "desc": "harmonized"}, "_dwimap.nii.gz"),
    "harmonized_rtop": (
        {"model": "mapmri", "param": "rtop", "desc": "harmonized"},
        "_dwimap.nii.gz",
    ),
    "spread": ({"desc": "harmonized", "stat": "std"}, "_dwimap.nii.gz"),
    "change": ({"desc": "change"}, "_dwimap.nii.gz"),
    "unfamiliar": ({"desc": "unfamiliar"}, "_mask.nii.gz"),
    "rmse": ({"desc": "rmse"}, "_dwimap.nii.gz"),
    "angle": ({"desc": "angle"}, "_dwimap.nii.gz"),
    "noiseless": ({"desc": "noiseless"}, "_dwi.nii.gz"),
    "brain": ({"desc": "brain"}, "_mask.nii.gz"),
    "white_matter": ({"label": "WM"}, "_mask.nii.gz"),
    "lesion": ({"label": "lesion"}, "_mask.nii.gz"),
    "affected": ({"label": "affected"}, "_mask.nii.gz"),
    "tissue": ({"desc": "tissue"}, "_probseg.nii.gz"),
    "fibre_directions": ({"desc": "fibredirections"}, "_dwimap.nii.gz"),
    "fibre_fractions": ({"desc": "fibrefractions"}, "_dwimap.nii.gz"),
    "dispersion": ({"desc": "dispersion"}, "_dwimap.nii.gz"),
    "code": ({"desc": "code"}, "_dwimap.nii.gz"),
    "intra_axonal": ({"desc": "intraaxonal"}, "_dwimap.nii.gz"),
}


def derivative_path(out: Path, output: str, entities: Mapping[str, str]) -> Path:
    """Return the path of an output, a key of `NAMES`; the scan's `desc` and `label` are replaced.

    Examples
    --------
    >>> entities = {"sub": "01", "ses": "b", "space": "ACPC", "desc": "preproc"}
    >>> derivative_path(Path("out"), "harmonized", entities).as_posix()
    'out/sub-01/ses-b/dwi/sub-01_ses-b_space-ACPC_desc-harmonized_dwi.nii.gz'
    """
    added, ending = NAMES[output]
    kept = {key: value for key, value in entities.items() if key not in ("desc", "label")}
    merged = {key: _label(value) for key, value in {**kept, **added}.items()}
    # Unknown entities come after known ones of the scan, and before those of the output.
    ordered = sorted(merged, key=lambda key: (key in added, _RANKS.get(key, len(_RANKS))))
    stem = "_".join(f"{key}-{merged[key]}" for key in ordered)
    folders = [f"{key}-{merged[key]}" for key in ("sub", "ses") if key in merged]
    return out.joinpath(*folders, "dwi", stem + ending)


def _label(value: str) -> str:
    """Reduce a label to the letters and digits that BIDS allows."""
    label = re.sub(r"[^0-9A-Za-z]", "", value)
    if not label:
        raise DatasetError(
            f"expected a label with letters or digits, found {value!r}",
            remedy="rename the subject or session",
        )
    return label
