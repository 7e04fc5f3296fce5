"""People who were scanned at two sites, as BIDS datasets."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from phantoms import make_gradients, make_scan, write_mask, write_raw, write_table
from siteless.acquisition import Site
from training_scans import SHELLS

SPLITS = {"01": "train", "02": "train", "03": "train", "04": "val", "05": "test", "06": "test"}
GAINS = {"a": 1.0, "b": 1.3}


def write_travellers(
    root: Path,
    splits: Mapping[str, str] = SPLITS,
    *,
    runs: Sequence[int | None] = (None,),
    sites: dict[str, str] | None = None,
    seed: int = 0,
) -> Path:
    """Write people at two sites; the second is brighter."""
    people = [
        {"participant_id": f"sub-{who}", "age": 30 + 7 * n, "split": split or "n/a"}
        for n, (who, split) in enumerate(splits.items())
    ]
    write_table(root / "participants.tsv", people)
    for number, who in enumerate(splits):
        of_person = (sites or {}).get(who, "ab")
        rows = [{"session_id": f"ses-{site}", "site": site} for site in of_person]
        write_table(root / f"sub-{who}" / f"sub-{who}_sessions.tsv", rows)
        for site in of_person:
            for run in runs:
                write_visit(root, who, site, run, seed=seed + 10 * number + (run or 0))
    return root


def write_visit(root: Path, who: str, site: str, run: int | None, *, seed: int) -> None:
    folder = root / f"sub-{who}" / f"ses-{site}" / "dwi"
    stem = f"sub-{who}_ses-{site}" + (f"_run-{run}" if run else "")
    gradients = make_gradients(SHELLS, seed="ab".index(site))
    scan = make_scan(gradients, seed=seed + 5 * "ab".index(site), site=Site(site))
    signal = GAINS[site] * scan.signal * (1 + 0.01 * int(who))
    write_raw(scan.with_signal(signal), folder, f"{stem}_dwi")
    write_mask(scan.mask, scan.affine, folder / f"{stem}_desc-brain_mask.nii.gz")
    write_mask(scan.white_matter, scan.affine, folder / f"{stem}_label-WM_mask.nii.gz")
