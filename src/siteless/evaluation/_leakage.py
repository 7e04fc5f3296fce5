"""What frozen values tell of their site, by an adversary that comes afterwards.

Moyer et al. (2020): a small classifier learns to tell the site from codes, or from coefficients of
harmonized voxels. Its accuracy on people it has not seen, and the bound that its cross-entropy
puts on the mutual information of value and site, say how much of the site is left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from siteless.acquisition import Array
from siteless.errors import DatasetError
from siteless.evaluation._signal import evenly_spaced

# Of a sample.
_VOXELS = 2000
_FOLDS = 5
# Of the hidden layers of an adversary.
_WIDTH = 32
_BATCH, _RATE, _EPOCHS = 1024, 5e-3, 30
# Few voxels make smaller batches, for an epoch to have enough updates.
_SMALLEST, _UPDATES = 64, 64
# Epochs to wait for a gain of as many nats.
_PATIENCE, _WORTHWHILE = 3, 1e-3
# Epochs when nobody can be held out to tell when to stop.
_UNWATCHED = 3
_DRAWS = 2000


@dataclass(frozen=True, eq=False)
class Sample:
    """Values of the voxels of one scan.

    Attributes
    ----------
    subject
        Who was scanned.
    site
        Where.
    values
        Shape (voxel, feature), float32, finite: codes, or coefficients.
    """

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
    """What values tell of the site.

    Intervals are 95 %, by the Bayesian bootstrap over tested people: everybody's weight is drawn,
    so that no draw lacks a site. They are NaN when a site has only one tested person, and too
    narrow by about a fifth with five people.

    Attributes
    ----------
    accuracy, accuracy_low, accuracy_high
        Share of voxels whose site is named rightly; sites count equally.
    chance
        One over the number of sites.
    nats, nats_low, nats_high
        H(site) less the adversary's cross-entropy: a lower bound on the mutual information of
        value and site. Below zero the adversary was misled; the information is at least
        max(0, nats). Few voxels give a low bound on what is not linear: of a tenth more noise in
        32 features (0.068 nats), 30 people of two sites show 0.03.
    people, voxels
        That were tested.
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
    """Train adversaries to name the site of values, and test them on other people.

    A person's voxels are never divided between learning and testing. Of each sample at most 2000
    voxels are used, evenly spaced. About a fifth of the people learned from are held out, to tell
    when to stop and how confident to be. When a site has too few learning people for that, the
    adversary learns for three epochs and keeps its confidence: the bound still holds, but may be
    lower.

    Parameters
    ----------
    samples
        At least one for each site among the people learned from, and among those tested.
    training
        People to learn from; all others are tested. None: cross-validation over people, in at most
        five folds.
    seed
        Of folds, weights and batches. The same seed gives the same result.

    Raises
    ------
    DatasetError
        When there are fewer than two sites, too few people, or values that do not fit together.
    """
    samples = _in_order(samples)
    sites = _require_sites(samples)
    tested: list[Sample] = []
    scores: list[tuple[float, float]] = []
    with _reproducible():
        for adversary, others in _adversaries(samples, training, seed):
            tested += others
            scores += [adversary.score(one, sites.index(one.site)) for one in others]
    return _summarise(tested, np.array(scores), sites, seed)


def _in_order(samples: Sequence[Sample]) -> list[Sample]:
    """Thin samples, and put them in an order that does not depend on the one given."""
    thin = [Sample(one.subject, one.site, evenly_spaced(one.values, _VOXELS)) for one in samples]
    return sorted(thin, key=lambda one: (one.subject, one.site, one.values.tobytes()))


def _require_sites(samples: Sequence[Sample]) -> list[str]:
    sites = sorted({one.site for one in samples})
    if len(sites) < 2:
        raise DatasetError(
            f"leakage needs at least two sites, found {len(sites)}",
            remedy="give scans of other sites too",
        )
    features = sorted({one.values.shape[1] for one in samples})
    if len(features) > 1:
        raise DatasetError(
            f"all samples must have as many features, found {', '.join(map(str, features))}",
            remedy="give values of one kind",
        )
    return sites


@contextmanager
def _reproducible() -> Iterator[None]:
    """Give torch one thread, as more round otherwise, and keep its random state from changing."""
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
    """Yield adversaries, each with the samples to test it on."""
    people, seen = _visits(samples)
    sites = sorted({one.site for one in samples})
    if training is not None:
        folds = [~np.isin(people, sorted(training))]
        _require_every_site(seen[folds[0]], sites, "tested")
    else:
        _require_three(people)
        fold = _deal(seen, min(_FOLDS, len(people)), np.random.default_rng(seed))
        folds = [fold == number for number in range(fold.max() + 1)]
    for tested in folds:
        _require_every_site(seen[~tested], sites, "learned from")
    for number, tested in enumerate(folds):
        others = set(people[tested])
        learners = [one for one in samples if one.subject not in others]
        trained = _learn(learners, sites, np.random.default_rng([seed, number]))
        yield trained, [one for one in samples if one.subject in others]


def _visits(samples: Sequence[Sample]) -> tuple[Array, Array]:
    """Return the people, and at which sites they were scanned: shape (person, site), bool."""
    people, person = np.unique([one.subject for one in samples], return_inverse=True)
    sites, site = np.unique([one.site for one in samples], return_inverse=True)
    seen = np.zeros((len(people), len(sites)), dtype=bool)
    seen[person, site] = True
    return people, seen


def _require_three(people: Array) -> None:
    if len(people) < 3:
        raise DatasetError(
            f"cross-validation needs at least 3 people, found {len(people)}",
            remedy="give more people, or say whom to learn from",
        )


def _require_every_site(seen: Array, sites: Sequence[str], role: str) -> None:
    lacking = [site for number, site in enumerate(sites) if not seen[:, number].any()]
    if lacking:
        raise DatasetError(
            f"nobody among the people {role} was scanned at {', '.join(lacking)}",
            remedy="give at least two people of each site, some to learn from and some to test",
        )


def _rarest_first(seen: Array, rng: np.random.Generator) -> Array:
    """Shuffle people, those of the site with the fewest first."""
    shuffled = rng.permutation(len(seen))
    fewest = np.where(seen, seen.sum(axis=0), len(seen)).min(axis=1)
    return shuffled[np.argsort(fewest[shuffled], kind="stable")]


def _deal(seen: Array, folds: int, rng: np.random.Generator) -> Array:
    """Deal people to folds so that each site's are spread evenly; return folds, shape (person,).

    Two people of a site never share a fold while there is one without any of that site's, unless
    another site of theirs is in the way.
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
    """Choose about a fifth of each site's people, at least one; shape (person,), bool.

    Nobody is chosen when that would leave a site without anybody, on either side.
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
    """Values as tensors; weights add up to the number of voxels, and sites count equally."""

    values: Tensor
    site: Tensor
    weight: Tensor


@dataclass(frozen=True, eq=False)
class _Trained:
    """An adversary with the units of its features, and how far its log-odds can be trusted."""

    network: nn.Module
    centre: Array
    gain: Array
    confidence: float

    def score(self, sample: Sample, site: int) -> tuple[float, float]:
        """Return the mean cross-entropy, nats, and the share of voxels named rightly."""
        guess = _guess(self.network, _standardised(sample.values, self.centre, self.gain))
        right = (guess.argmax(dim=1) == site).double().mean()
        named = torch.log_softmax(self.confidence * guess, dim=1)[:, site]
        return -float(named.mean()), float(right)


def _classifier(features: int, sites: int) -> nn.Module:
    """Return a network from features to the log-odds of each site."""
    return nn.Sequential(
        *(nn.Linear(features, _WIDTH), nn.Tanh()),
        *(nn.Linear(_WIDTH, _WIDTH), nn.Tanh()),
        nn.Linear(_WIDTH, sites),
    )


def _learn(samples: Sequence[Sample], sites: Sequence[str], rng: np.random.Generator) -> _Trained:
    people, seen = _visits(samples)
    held = set(people[_hold_out(seen, rng)])
    learned = [one for one in samples if one.subject not in held]
    watched = [one for one in samples if one.subject in held]
    centre, gain = _units(np.concatenate([one.values for one in learned]))
    torch.manual_seed(int(rng.integers(2**31)))
    network = _classifier(len(centre), len(sites))
    lesson = _stack(learned, sites, centre, gain)
    if not watched:
        _train_unwatched(network, lesson, rng)
        return _Trained(network, centre, gain, 1.0)
    watch = _stack(watched, sites, centre, gain)
    confidence = _train(network, lesson, watch, rng)
    return _Trained(network, centre, gain, confidence)


def _units(values: Array) -> tuple[Array, Array]:
    """Return the mean of features, and one over their standard deviation; 0 if constant."""
    centre, spread = values.mean(axis=0, dtype=float), values.std(axis=0, dtype=float)
    varies = spread > np.finfo(np.float32).eps * np.abs(centre)
    return centre, np.divide(1, spread, out=np.zeros_like(spread), where=varies)


def _standardised(values: Array, centre: Array, gain: Array) -> Tensor:
    return torch.from_numpy(((values - centre) * gain).astype(np.float32))


def _stack(samples: Sequence[Sample], sites: Sequence[str], centre: Array, gain: Array) -> _Voxels:
    """Put samples together; a site's samples share its weight, and so do a sample's voxels."""
    lengths = np.array([len(one.values) for one in samples])
    label = np.array([sites.index(one.site) for one in samples])
    weight = 1 / (np.bincount(label, minlength=len(sites))[label] * lengths)
    weight *= lengths.sum() / len(sites)
    values = np.concatenate([one.values for one in samples])
    return _Voxels(
        _standardised(values, centre, gain),
        torch.from_numpy(np.repeat(label, lengths)),
        torch.from_numpy(np.repeat(weight, lengths).astype(np.float32)),
    )


def _train(network: nn.Module, lesson: _Voxels, watch: _Voxels, rng: np.random.Generator) -> float:
    """Train until the people held out are named no better; leave the best weights.

    Returns
    -------
    float
        How far the log-odds can be trusted. It is part of what is watched: with few people a
        network may be right more often than by chance, and too sure, from the first epoch on.
    """
    optimiser = torch.optim.Adam(network.parameters(), lr=_RATE)
    best, kept, waited = _judge(network, watch), deepcopy(network.state_dict()), 0
    for _ in range(_EPOCHS):
        _pass_over(lesson, network, optimiser, rng)
        found, waited = _judge(network, watch), waited + 1
        if found[0] < best[0] - _WORTHWHILE:
            best, kept, waited = found, deepcopy(network.state_dict()), 0
        if waited == _PATIENCE:
            break
    network.load_state_dict(kept)
    return best[1]


def _train_unwatched(network: nn.Module, lesson: _Voxels, rng: np.random.Generator) -> None:
    optimiser = torch.optim.Adam(network.parameters(), lr=_RATE)
    for _ in range(_UNWATCHED):
        _pass_over(lesson, network, optimiser, rng)


def _pass_over(
    lesson: _Voxels,
    network: nn.Module,
    optimiser: torch.optim.Optimizer,
    rng: np.random.Generator,
) -> None:
    order = torch.from_numpy(rng.permutation(len(lesson.site)))
    size = min(_BATCH, max(_SMALLEST, len(order) // _UPDATES))
    for batch in order.split(size):
        optimiser.zero_grad()
        guess = network(lesson.values[batch])
        losses = torch.nn.functional.cross_entropy(guess, lesson.site[batch], reduction="none")
        (lesson.weight[batch] * losses).mean().backward()
        optimiser.step()


def _guess(network: nn.Module, values: Tensor) -> Tensor:
    """Return log-odds, shape (voxel, site), float64."""
    with torch.inference_mode():
        guess: Tensor = network(values).double()
    return guess


def _loss(guess: Tensor, voxels: _Voxels) -> float:
    losses = torch.nn.functional.cross_entropy(guess, voxels.site, reduction="none")
    return float((voxels.weight * losses).mean())


def _judge(network: nn.Module, watch: _Voxels) -> tuple[float, float]:
    """Return the least loss by which people held out are named, and the confidence for it.

    The confidence is what log-odds are multiplied by, from 0 to 1. Zero is chance. More than one
    would trust a few people's voxels to be like everybody's.
    """
    guess = _guess(network, watch.values)
    found = minimize_scalar(lambda factor: _loss(factor * guess, watch), bounds=(0.0, 1.0))
    return float(found.fun), float(found.x)


def _summarise(
    tested: Sequence[Sample], scores: Array, sites: Sequence[str], seed: int
) -> Leakage:
    people, person = np.unique([one.subject for one in tested], return_inverse=True)
    site = np.array([sites.index(one.site) for one in tested])
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
        voxels=sum(len(one.values) for one in tested),
    )


def _mean_over_sites(weights: Array, scans: Array, sums: Array) -> Array:
    """Return means of scores, (draw, score), from weights of people, (draw, person).

    einsum, as a product by BLAS is not the same for every number of threads.
    """
    totals = np.einsum("dp,psk->dsk", weights, sums)
    return (totals / np.einsum("dp,ps->ds", weights, scans)[..., None]).mean(axis=1)


def _interval(scans: Array, sums: Array, seed: int) -> tuple[Array, Array]:
    if np.count_nonzero(scans, axis=0).min() < 2:
        return np.full(2, np.nan), np.full(2, np.nan)
    weights = np.random.default_rng(seed).exponential(size=(_DRAWS, len(scans)))
    low, high = np.quantile(_mean_over_sites(weights, scans, sums), [0.025, 0.975], axis=0)
    return low, high
