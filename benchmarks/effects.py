"""Which effects of a site does each method remove?

``python -m benchmarks.effects [FOLDER]`` simulates, for each effect, two sites of one protocol
that differ in nothing else (as prisma30 and connectom60 do), fits RISH and the default to them,
and prints errors to the noiseless target, at its level, before and after: of voxels, of 10 mm
blocks of the signal and of FA, all in per cent. Two sites differ in their shells alone, and the
last pair does not differ at all. The last column is how many scans siteless makes worse in any of
the three. Cohorts and models of an earlier run in the folder are used again.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.scores import read_targets
from siteless.acquisition import Array, same_shells
from siteless.evaluation import Target, maps_within, score_maps, score_signal
from siteless.methods import METHODS as KNOWN
from siteless.methods import load_model, render
from siteless.model import Model
from siteless.pipelines import fit_model, simulate_cohort
from siteless.simulation import EFFECTS, Scanner, draw_cohort, read_scanners

SUBJECTS, VOXEL_SIZE = 10, 3.0
METHODS = {"before": "scaled", "rish": "rish", "siteless": "invariant"}
SCORES = ("rmse_truth_matched_percent", "block_matched_percent", "fa_block_percent")
# Where heads lie, and how b-values scatter, is no difference between sites.
NO_DIFFERENCE = ("position", "b-values")
SHELLS, COMMON = "shells", (1000.0, 2000.0)


def main(folder: Path | None = None) -> None:
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
        return
    heads = "".join(f"{method:>24}" for method in METHODS)
    print(f"{'RMSE, blocks, FA blocks, %':<28}{heads}{'worse':>12}")
    for effect in (*(name for name in EFFECTS if name not in NO_DIFFERENCE), SHELLS, "none"):
        scores = {name: _fit_and_score(folder / effect, effect, m) for name, m in METHODS.items()}
        means = ["  ".join(f"{value:5.2f}" for value in of.mean(axis=0)) for of in scores.values()]
        worse = np.any(scores["siteless"] > scores["before"], axis=1)
        print(
            f"{effect:<28}{''.join(f'{text:>24}' for text in means)}",
            f"{worse.sum():>4} of {len(worse)}",
            flush=True,
        )


def sites_that_differ_in(effect: str) -> tuple[Scanner, Scanner]:
    """Return two sites of one protocol, that have an effect as prisma30 and connectom60 do."""
    known = read_scanners()
    first, other = known["prisma30"], known["connectom60"]
    kept = ("noise", effect, *NO_DIFFERENCE)
    first = first.without(*(name for name in EFFECTS if name not in kept))
    changes = {name: getattr(other, name) for name in EFFECTS.get(effect, ())}
    if effect == "noise":
        changes["snr"] = first.snr / 2  # the two differ too little to see
    if effect == SHELLS:
        first, changes = replace(first, shells=COMMON), {"shells": first.shells}
    return replace(first, site="a"), replace(first, site="b", **changes)


def _fit_and_score(folder: Path, effect: str, method: str) -> Array:
    dataset, path = folder / "cohort", folder / f"{method}.safetensors"
    sites = sites_that_differ_in(effect)
    cohort = draw_cohort(sites, subjects=SUBJECTS, voxel_size=VOXEL_SIZE, seed=5)
    simulate_cohort(dataset, cohort)
    model = load_model(path) if path.exists() else fit_model(dataset, path, KNOWN[method]())
    return _scores(model, read_targets(dataset, split="test"))


def _scores(model: Model, targets: dict[tuple[str, str], Target]) -> Array:
    """Return scores of test scans, in both directions if shells are the same: (scan, score)."""
    rows = []
    for (person, source), scan in targets.items():
        [goal] = [t for (who, site), t in targets.items() if who == person and site != source]
        if not same_shells(
            [shell.b for shell in goal.scan.gradients.shells], model.preparation.shells
        ):
            continue
        rendered_scan = render(
            model, scan.scan, str(goal.scan.site), gradients=goal.scan.gradients
        ).scan
        where = goal.scan.white_matter
        scores = score_signal(rendered_scan, goal, where)
        scores |= score_maps(maps_within(rendered_scan, ["fa"], [where]), goal, where)
        rows.append([scores[name] for name in SCORES])
    return np.array(rows)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
