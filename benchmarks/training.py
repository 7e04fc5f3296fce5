"""How fast does training go, against a plain loop and against the machine; and in what memory?

``make bench`` simulates the cdmri2018 cohort first; ``python -m benchmarks.training DATASET`` uses
one that is there already.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import best_time, row
from siteless.acquisition import Array
from siteless.bids import find_scans, read_scan
from siteless.methods.invariant.network import (
    adversarial_loss,
    kl_to_marginal,
    kl_to_prior,
    reconstruction_loss,
)
from siteless.methods.invariant.training import PRESETS, TrainingSettings
from siteless.methods.invariant.training._loop import _Trainer
from siteless.methods.patches import TrainingScan, make_training_scan
from siteless.methods.training import TrainingSet
from siteless.model import Preparation
from siteless.neighbourhood import cut
from siteless.pipelines import simulate_cohort
from siteless.simulation import PRESETS as COHORTS
from siteless.simulation import draw_cohort, read_scanners

BS, ORDER = (1200.0, 3000.0), 8
# Seconds that the paper's preset is given, in the plain loop.
PATIENCE = 120.0


def main(dataset: Path | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if dataset is None:
            print("\nTraining, on the cdmri2018 cohort")
            dataset = Path(folder) / "cohort"
            preset = COHORTS["cdmri2018"]
            known = read_scanners()
            people = draw_cohort(
                tuple(known[site] for site in preset.sites),
                subjects=preset.subjects,
                voxel_size=preset.voxel_size,
            )
            simulate_cohort(dataset, people)
        measure_memory(dataset, Path(folder) / "fit" / "model.safetensors")
        compare_speed(dataset)


def repeat_steps(learner: _Trainer, count: int) -> None:
    for _ in range(count):
        learner.step()


def compare_speed(dataset: Path) -> None:
    settings = PRESETS["siteless"].on("cpu")
    training_set = read_training_set(dataset, settings)
    learner = _Trainer(training_set, settings, seed=0, device="cpu")
    same = PlainLoop(training_set, replace(settings, batch=128))
    papers = PlainLoop(training_set, PRESETS["paper"])
    matrix = torch.randn(2048, 2048)
    ours, same_loss, papers_loss, product = best_time(
        lambda: repeat_steps(learner, 5),
        lambda: same.train(5),
        lambda: papers.train(5),
        lambda: matrix @ matrix,
    )
    speed = 5 * settings.batch / ours
    row("patches a second, default loop", f"{speed:.0f}")
    for name, seconds in (("paper's", papers_loss), ("default's", same_loss)):
        plain = 5 * 128 / seconds
        row(f"patches a second, plain loop with the {name} loss", f"{plain:.0f}")
        row("default over plain", f"{speed / plain:.1f}", "aim: at least 10")
    share = speed * count_operations(learner) * product / (2 * 2048**3)
    row("model FLOP/s over float32 matrix-multiply FLOP/s", f"{share:.2f}", "aim: at least 0.5")
    race(training_set, dataset)


def race(training_set: TrainingSet, dataset: Path) -> None:
    """Time how long the default takes to the best RMSE of the paper's preset in a plain loop."""
    paper = PRESETS["paper"]
    original = read_training_set(dataset, paper)
    plain = PlainLoop(original, paper)
    goal, seconds = plain.best_within(PATIENCE)
    row("plain loop, paper's preset: best validation RMSE, %", f"{goal:.2f}", f"{seconds:.0f} s")
    learner = _Trainer(training_set, PRESETS["siteless"].on("cpu"), seed=0, device="cpu")
    start = time.perf_counter()
    while learner.update < learner.total:
        learner.step()
        if learner.update % 20 == 0:
            learner.evaluate(0.0)
            if learner.log[-1]["val_rmse_percent"] <= goal:
                break
    reached = time.perf_counter() - start
    row("default: seconds to the same", f"{reached:.1f}", f"{seconds / reached:.0f} times as fast")


def read_training_set(dataset: Path, settings: TrainingSettings) -> TrainingSet:
    """Read two training people and the one who validates, at every site."""
    scans = find_scans(dataset).scans
    train = sorted({s.subject for s in scans if s.attributes["split"] == "train"})[:2]
    parts: dict[str, list[TrainingScan]] = {"train": [], "val": []}
    for files in scans:
        split = files.attributes["split"]
        if files.subject in train or split == "val":
            scan = read_scan(files)
            preparation = Preparation(BS, ORDER, settings.fit, "white-matter")
            coefficients = preparation.coefficients(scan)
            parts[split].append(make_training_scan(scan, coefficients, preparation))
    return TrainingSet(parts["train"], parts["val"], sorted({str(s.site) for s in scans}))


def count_operations(learner: _Trainer) -> int:
    """Count floating-point operations of the layers, forwards and backwards, for a patch."""
    settings = learner.settings
    share = settings.adversary_share if settings.adversary else 0
    encoder, decoder = (
        _weights(module) for module in (learner.network.encoder, learner.network.decoder)
    )
    adversary = _weights(learner.adversary)
    first = learner.network.settings.inputs * settings.encoder[0]  # needs no gradient of its input
    products = 3 * encoder - first + 3 * decoder * (1 + share)
    products += share * adversary * (3 * settings.adversary_updates + 2)
    return int(2 * products)


def _weights(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.ndim == 2)


class PlainLoop:
    """What one would write first: patches copied out, a DataLoader, a matrix for each patch."""

    def __init__(self, training_set: TrainingSet, settings: TrainingSettings) -> None:
        self.learner = _Trainer(training_set, settings, seed=0, device="cpu")
        self.settings = settings
        trained = [p for p in self.learner.objective.parameters() if p.requires_grad]
        self.optimiser = torch.optim.Adam(trained, lr=settings.learning_rate)
        self.opponent = torch.optim.Adam(
            self.learner.adversary.parameters(), lr=settings.learning_rate
        )
        volumes = max(scan.signal.shape[1] for scan in training_set.scans)
        parts = [
            self._materialise(number, scan, training_set.sites, volumes)
            for number, scan in enumerate(training_set.scans)
        ]
        patches = TensorDataset(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
        self.mixing = torch.stack([_padded(scan.mixing, volumes) for scan in training_set.scans])
        self.shell = torch.stack(
            [_padded(scan.shell[None], volumes)[0] for scan in training_set.scans]
        )
        self.measured = torch.stack(
            [torch.arange(volumes) < scan.signal.shape[1] for scan in training_set.scans]
        )
        self.batches = _endless(DataLoader(patches, settings.batch, shuffle=True))

    def _materialise(
        self, number: int, scan: TrainingScan, sites: Sequence[str], volumes: int
    ) -> tuple[Tensor, ...]:
        count = len(scan.neighbours)
        patch = torch.from_numpy(cut(scan.values, scan.neighbours).reshape(count, -1))
        return (
            patch,
            _padded(scan.signal, volumes),
            torch.full((count,), sites.index(scan.site)),
            torch.full((count,), number),
        )

    def train(self, updates: int) -> None:
        for _ in range(updates):
            self.step(*next(self.batches))

    def step(self, raw: Tensor, signal: Tensor, site: Tensor, scan: Tensor) -> None:
        learner, settings = self.learner, self.settings
        network, objective = learner.network, learner.objective
        frames = network.frames(raw)
        patch = network.standardise(raw, site, frames)
        posterior = network.encoder(patch)
        code = posterior.sample()
        rendered = network.decoder(code, site)
        centre = rendered[:, : network.settings.channels]
        centre = network.restore(centre, site, frames)
        projected = torch.einsum("pc,pcv->pv", centre, self.mixing[scan])
        noise = objective.log_signal_noise[self.shell[scan]]
        residual = (projected - signal) * torch.exp(-noise)
        loss = settings.prior * kl_to_prior(posterior)
        if settings.reconstruction_share:
            whole = reconstruction_loss(rendered, patch, objective.log_noise.repeat(7))
            loss = loss + (1 + settings.marginal) * settings.reconstruction_share * whole
        if settings.marginal:
            loss = loss + settings.marginal * kl_to_marginal(posterior, settings.bound)
        loss = loss + settings.projection * (
            ((0.5 * residual.square() + noise) * self.measured[scan]).sum(dim=1).mean()
        )
        if settings.adversary:
            loss = loss - settings.adversary * self._doubt(code, site)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def _doubt(self, code: Tensor, site: Tensor) -> Tensor:
        """Train the adversary, and return its loss."""
        learner, settings = self.learner, self.settings
        site, code = site[settings.judged], code[settings.judged]
        somewhere = torch.randint(learner.network.settings.sites, site.shape)
        elsewhere = learner.network.decoder(code, somewhere)
        for _ in range(settings.adversary_updates):
            self.opponent.zero_grad()
            adversarial_loss(learner.adversary(elsewhere.detach()), site).backward()
            self.opponent.step()
        return adversarial_loss(learner.adversary(elsewhere), site)

    def best_within(self, seconds: float) -> tuple[float, float]:
        """Train, and return the best RMSE and when it was reached."""
        best, reached, start = np.inf, 0.0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            self.train(50)
            self.learner.count = 1
            self.learner.evaluate(0.0)
            rmse = self.learner.log[-1]["val_rmse_percent"]
            if rmse < best:
                best, reached = rmse, time.perf_counter() - start
        return best, reached


def _endless(loader: Iterable[list[Tensor]]) -> Iterator[list[Tensor]]:
    while True:
        yield from loader


def _padded(array: Array, volumes: int) -> Tensor:
    lacking = volumes - array.shape[1]
    return torch.from_numpy(np.pad(array, ((0, 0), (0, lacking))))


def measure_memory(dataset: Path, model: Path) -> None:
    """Watch the memory of a fit, without the files that are mapped into it."""
    command = [sys.executable, "-m", "siteless", "fit", dataset, "--model", model]
    process = subprocess.Popen(
        [*map(str, command), "--minutes", "0.5"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, _own_memory(process.pid))
        time.sleep(0.1)
    if process.returncode:
        raise RuntimeError("the fit failed")
    work = model.with_name("model_work")
    store = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
    row("peak memory of a fit, all processes", f"{peak / 1e9:.2f} GB", "aim: below 2 GB")
    row("the store, on disk", f"{store / 1e9:.2f} GB")


def _own_memory(pid: int) -> int:
    """Return the anonymous memory of a process and its children (Linux)."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        )
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    memory = int(status.get("RssAnon", "0 kB").split()[0]) * 1024
    return memory + sum(_own_memory(int(child)) for child in children)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
