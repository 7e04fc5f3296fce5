"""Measure how much values reveal about their site, by a post hoc adversary.

As in Moyer et al. (2020), a small classifier learns to predict the site from latent codes, or from
coefficients of harmonized voxels. Residual site effects are measured by its accuracy on held-out
people, and by the bound of its cross-entropy on the mutual information of value and site.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from siteless.acquisition import Array
from siteless.errors import DatasetError
from siteless.evaluation._signal import evenly_spaced

# Largest number of voxels of a sample.
_VOXELS = 2000
_FOLDS = 5
# Width of the hidden layers of an adversary.
_WIDTH = 32
_BATCH, _RATE, _EPOCHS = 1024, 5e-3, 30
# With few voxels batches are smaller, so that an epoch has enough updates.
_SMALLEST, _UPDATES = 64, 64
# Epochs to wait for an improvement by as many nats.
_PATIENCE, _WORTHWHILE = 3, 1e-3
# Epochs if nobody can be held out for early stopping.
_EPOCHS_WITHOUT_VALIDATION = 3
_DRAWS = 2000


@dataclass(frozen=True, eq=False)
class Sample:
    """Codes or coefficients of a scan's voxels, shape (voxel, feature), float32, finite."""

    subject: str
    site: str
    values: Array

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=np.float32)
        object.__setattr__(self, "values", values)
        if values.ndim != 2 or not values.size or not np.isfinite(values).all():
            raise DatasetError(
                f"subject {self.subject} at site {self.site}: expected finite values of shape "
                f"(voxel, feature), got shape {values.shape}",
                remedy="leave the scan out, or repair what left NaN in it",
            )


@dataclass(frozen=True)
class Leakage:
    """How much values reveal about the site.

    Intervals are 95 %, by the Bayesian bootstrap over tested people, in which no draw lacks a
    site. They are NaN if a site has only one tested person, and too narrow by about a fifth with
    five people.

    Attributes
    ----------
    accuracy, accuracy_low, accuracy_high
        Fraction of voxels whose site is predicted correctly, with equal weights of sites.
    chance
        One over the number of sites.
    nats, nats_low, nats_high
        H(site) minus the adversary's cross-entropy: a lower bound on the mutual information of
        value and site. It is negative if the adversary does worse than chance; the information is
        at least max(0, nats). With few voxels the bound on nonlinear effects is loose: for a tenth
        more noise in 32 features (0.068 nats), 30 people of two sites give 0.03.
    people, voxels
        Number of tested people and voxels.
    """

    accuracy: float
    accuracy_low: float
    accuracy_high: float
    chance: float
    nats: float
    nats_low: float
    nats_high: float
    people: int
    voxels: int


def measure_leakage(
    samples: Sequence[Sample], *, training: Collection[str] | None = None, seed: int = 0
) -> Leakage:
    """Train adversaries to predict the site of values, and test them on other people.

    A person's voxels are never divided between training and testing. At most 2000 evenly spaced
    voxels of each sample are used. About a fifth of the training people are held out, for early
    stopping and calibration of confidence. If a site has too few of them, the adversary is trained
    for three epochs without calibration: the bound still holds, but may be lower.

    Parameters
    ----------
    samples
        At least one sample of each site among training people, and among tested people.
    training
        Training people; all others are tested. None for cross-validation over people in at most
        five folds.
    seed
        Random seed of folds, weights and batches.

    Raises
    ------
    DatasetError
        When there are fewer than two sites, too few people, or incompatible values.
    """
    samples = _in_order(samples)
    sites = _require_sites(samples)
    tested: list[Sample] = []
    scores: list[tuple[float, float]] = []
    with _reproducible():
        for adversary, others in _adversaries(samples, training, seed):
            tested += others
            scores += [adversary.score(sample, sites.index(sample.site)) for sample in others]
    return _summarise(tested, np.array(scores), sites, seed)


def _in_order(samples: Sequence[Sample]) -> list[Sample]:
    """Subsample voxels, and sort samples so that their original order does not matter."""
    thin = [replace(sample, values=evenly_spaced(sample.values, _VOXELS)) for sample in samples]
    return sorted(thin, key=lambda sample: (sample.subject, sample.site, sample.values.tobytes()))


def _require_sites(samples: Sequence[Sample]) -> list[str]:
    sites = sorted({sample.site for sample in samples})
    if len(sites) < 2:
        raise DatasetError(
            f"leakage needs at least two sites, found {len(sites)}",
            remedy="give scans of other sites too",
        )
    features = sorted({sample.values.shape[1] for sample in samples})
    if len(features) > 1:
        raise DatasetError(
            f"all samples must have as many features, found {', '.join(map(str, features))}",
            remedy="give values of one kind",
        )
    return sites


@contextmanager
def _reproducible() -> Iterator[None]:
    """Use one torch thread for reproducible rounding, and restore torch's random state."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)


def _adversaries(
    samples: Sequence[Sample], training: Collection[str] | None, seed: int
) -> Iterator[tuple[_Trained, list[Sample]]]:
    """Yield adversaries, each with its test samples."""
    people, seen = _visits(samples)
    sites = sorted({sample.site for sample in samples})
    if training is not None:
        folds = [~np.isin(people, sorted(training))]
        _require_every_site(seen[folds[0]], sites, "tested")
    else:
        if len(people) < 3:
            raise DatasetError(
                f"cross-validation needs at least 3 people, found {len(people)}",
                remedy="give more people, or say whom to learn from",
            )
        fold = _deal(seen, min(_FOLDS, len(people)), np.random.default_rng(seed))
        folds = [fold == number for number in range(fold.max() + 1)]
    for tested in folds:
        _require_every_site(seen[~tested], sites, "learned from")
    for number, tested in enumerate(folds):
        others = set(people[tested])
        training_samples = [sample for sample in samples if sample.subject not in others]
        trained = _learn(training_samples, sites, np.random.default_rng([seed, number]))
        yield trained, [sample for sample in samples if sample.subject in others]


def _visits(samples: Sequence[Sample]) -> tuple[Array, Array]:
    """Return the people, and the sites where they were scanned, shape (person, site), bool."""
    people, person = np.unique([sample.subject for sample in samples], return_inverse=True)
    sites, site = np.unique([sample.site for sample in samples], return_inverse=True)
    seen = np.zeros((len(people), len(sites)), dtype=bool)
    seen[person, site] = True
    return people, seen


def _require_every_site(seen: Array, sites: Sequence[str], role: str) -> None:
    lacking = [site for number, site in enumerate(sites) if not seen[:, number].any()]
    if lacking:
        raise DatasetError(
            f"nobody among the people {role} was scanned at {', '.join(lacking)}",
            remedy="give at least two people of each site, some to learn from and some to test",
        )


def _rarest_first(seen: Array, rng: np.random.Generator) -> Array:
    """Shuffle people, those of the smallest sites first."""
    shuffled = rng.permutation(len(seen))
    fewest = np.where(seen, seen.sum(axis=0), len(seen)).min(axis=1)
    return shuffled[np.argsort(fewest[shuffled], kind="stable")]


def _deal(seen: Array, folds: int, rng: np.random.Generator) -> Array:
    """Assign people to folds, balanced over sites; return folds, shape (person,).

    Two people of a site do not share a fold while another fold has nobody of that site, unless
    their other sites prevent it.
    """
    counts, size = np.zeros((folds, seen.shape[1])), np.zeros(folds, dtype=int)
    fold = np.zeros(len(seen), dtype=int)
    for person in _rarest_first(seen, rng):
        crowd = (counts / seen.sum(axis=0))[:, seen[person]].sum(axis=1)
        chosen = np.lexsort((size, crowd))[0]
        counts[chosen] += seen[person]
        size[chosen] += 1
        fold[person] = chosen
    return fold


def _hold_out(seen: Array, rng: np.random.Generator) -> Array:
    """Choose about a fifth of each site's people, at least one, shape (person,), bool.

    Nobody is chosen if a site would have nobody on either side.
    """
    total = seen.sum(axis=0)
    wanted, held = np.maximum(1, total // 5), np.zeros_like(total)
    chosen = np.zeros(len(seen), dtype=bool)
    for person in _rarest_first(seen, rng):
        sites = seen[person]
        if (held < wanted)[sites].any() and (held + 1 < total)[sites].all():
            chosen[person] = True
            held += sites
    return chosen & held.all()


@dataclass(frozen=True, eq=False)
class _Voxels:
    """Values as tensors; weights are equal for sites and sum to the number of voxels."""

    values: Tensor
    site: Tensor
    weight: Tensor


@dataclass(frozen=True, eq=False)
class _Trained:
    """A trained adversary with the units of its features, and the confidence of its logits."""

    network: nn.Module
    centre: Array
    gain: Array
    confidence: float

    def score(self, sample: Sample, site: int) -> tuple[float, float]:
        """Return the mean cross-entropy, nats, and the accuracy."""
        guess = _guess(self.network, _standardised(sample.values, self.centre, self.gain))
        right = (guess.argmax(dim=1) == site).double().mean()
        named = torch.log_softmax(self.confidence * guess, dim=1)[:, site]
        return -float(named.mean()), float(right)


def _learn(samples: Sequence[Sample], sites: Sequence[str], rng: np.random.Generator) -> _Trained:
    people, seen = _visits(samples)
    held = set(people[_hold_out(seen, rng)])
    training_samples = [sample for sample in samples if sample.subject not in held]
    held_out = [sample for sample in samples if sample.subject in held]
    centre, gain = _units(np.concatenate([sample.values for sample in training_samples]))
    torch.manual_seed(int(rng.integers(2**31)))
    network = nn.Sequential(
        *(nn.Linear(len(centre), _WIDTH), nn.Tanh()),
        *(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()),
        nn.Linear(_WIDTH, len(sites)),
    )
    training = _stack(training_samples, sites, centre, gain)
    validation = _stack(held_out, sites, centre, gain) if held_out else None
    return _Trained(network, centre, gain, _train(network, training, validation, rng))


def _units(values: Array) -> tuple[Array, Array]:
    """Return the means and inverse standard deviations of features; 0 if constant."""
    centre, deviation = values.mean(axis=0, dtype=float), values.std(axis=0, dtype=float)
    varies = deviation > np.finfo(np.float32).eps * np.abs(centre)
    return centre, np.divide(1, deviation, out=np.zeros_like(deviation), where=varies)


def _standardised(values: Array, centre: Array, gain: Array) -> Tensor:
    return torch.from_numpy(((values - centre) * gain).astype(np.float32))


def _stack(samples: Sequence[Sample], sites: Sequence[str], centre: Array, gain: Array) -> _Voxels:
    """Concatenate samples; those of a site share its weight, as do voxels of a sample."""
    lengths = np.array([len(sample.values) for sample in samples])
    label = np.array([sites.index(sample.site) for sample in samples])
    weight = 1 / (np.bincount(label, minlength=len(sites))[label] * lengths)
    weight *= lengths.sum() / len(sites)
    values = np.concatenate([sample.values for sample in samples])
    return _Voxels(
        _standardised(values, centre, gain),
        torch.from_numpy(np.repeat(label, lengths)),
        torch.from_numpy(np.repeat(weight, lengths).astype(np.float32)),
    )


def _train(
    network: nn.Module, training: _Voxels, validation: _Voxels | None, rng: np.random.Generator
) -> float:
    """Train a network, and return the confidence of its logits.

    Training ends when the validation loss no longer improves, and the best weights are kept. The
    confidence is calibrated in every validation, as with few people a network may be accurate but
    overconfident from the first epoch.
    """
    optimiser = torch.optim.Adam(network.parameters(), lr=_RATE)
    if validation is None:
        for _ in range(_EPOCHS_WITHOUT_VALIDATION):
            _pass_over(training, network, optimiser, rng)
        return 1.0
    best, kept, waited = _validate(network, validation), deepcopy(network.state_dict()), 0
    for _ in range(_EPOCHS):
        _pass_over(training, network, optimiser, rng)
        score, waited = _validate(network, validation), waited + 1
        if score[0] < best[0] - _WORTHWHILE:
            best, kept, waited = score, deepcopy(network.state_dict()), 0
        if waited == _PATIENCE:
            break
    network.load_state_dict(kept)
    return best[1]


def _pass_over(
    training: _Voxels,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    rng: np.random.Generator,
) -> None:
    order = torch.from_numpy(rng.permutation(len(training.site)))
    size = min(_BATCH, max(_SMALLEST, len(order) // _UPDATES))
    for batch in order.split(size):
        optimiser.zero_grad()
        guess = network(training.values[batch])
        losses = cross_entropy(guess, training.site[batch], reduction="none")
        (training.weight[batch] * losses).mean().backward()
        optimiser.step()


def _guess(network: nn.Module, values: Tensor) -> Tensor:
    """Return logits, shape (voxel, site), float64."""
    with torch.inference_mode():
        guess: Tensor = network(values).double()
    return guess


def _validate(network: nn.Module, validation: _Voxels) -> tuple[float, float]:
    """Return the validation loss with the best confidence, and that confidence.

    The confidence is a factor of the logits, from 0 (chance) to 1. More than 1 would be
    overconfident with few held-out people.
    """
    guess = _guess(network, validation.values)

    def loss(confidence: float) -> float:
        losses = cross_entropy(confidence * guess, validation.site, reduction="none")
        return float((validation.weight * losses).mean())

    optimum = minimize_scalar(loss, bounds=(0.0, 1.0))
    return float(optimum.fun), float(optimum.x)


def _summarise(
    tested: Sequence[Sample], scores: Array, sites: Sequence[str], seed: int
) -> Leakage:
    people, person = np.unique([sample.subject for sample in tested], return_inverse=True)
    site = np.array([sites.index(sample.site) for sample in tested])
    scans = np.zeros((len(people), len(sites)))
    sums = np.zeros((len(people), len(sites), 2))
    np.add.at(scans, (person, site), 1)
    np.add.at(sums, (person, site), scores)
    value = _mean_over_sites(np.ones((1, len(people))), scans, sums)[0]
    low, high = _interval(scans, sums, seed)
    entropy = float(np.log(len(sites)))
    return Leakage(
        accuracy=float(value[1]),
        accuracy_low=float(low[1]),
        accuracy_high=float(high[1]),
        chance=1 / len(sites),
        nats=entropy - float(value[0]),
        nats_low=entropy - float(high[0]),
        nats_high=entropy - float(low[0]),
        people=len(people),
        voxels=sum(len(sample.values) for sample in tested),
    )


def _mean_over_sites(weights: Array, scans: Array, sums: Array) -> Array:
    """Return means of scores, (draw, score), from weights of people, (draw, person).

    The rounding of BLAS depends on its number of threads, that of einsum does not.
    """
    totals = np.einsum("dp,psk->dsk", weights, sums)
    return (totals / np.einsum("dp,ps->ds", weights, scans)[..., None]).mean(axis=1)


def _interval(scans: Array, sums: Array, seed: int) -> tuple[Array, Array]:
    if np.count_nonzero(scans, axis=0).min() < 2:
        return np.full(2, np.nan), np.full(2, np.nan)
    weights = np.random.default_rng(seed).exponential(size=(_DRAWS, len(scans)))
    low, high = np.quantile(_mean_over_sites(weights, scans, sums), [0.025, 0.975], axis=0)
    return low, high
