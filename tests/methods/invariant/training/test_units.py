from dataclasses import replace

import numpy as np
import pytest
import torch

from siteless.harmonics import coefficient_orders
from siteless.methods.invariant.training._units import channel_units
from siteless.methods.patches import TrainingScan
from siteless.methods.training import TrainingSet
from siteless.population import Design


def _travelled(*scans: TrainingScan) -> Design:
    return Design.of([scan.site for scan in scans], ["p"] * len(scans), ("a", "b"))


@pytest.mark.parametrize("of_sites", [False, True])
def test_in_their_units_channels_have_mean_zero_and_variance_one(
    training_set: TrainingSet, of_sites: bool
) -> None:
    design = training_set.design(training_set.scans) if of_sites else None
    offset, scale = channel_units(training_set.scans, design)
    offset, scale = (unit.expand(len(training_set.sites), -1) for unit in (offset, scale))
    site_numbers = [training_set.sites.index(scan.site) for scan in training_set.scans]
    centres = [torch.from_numpy(s.values[s.neighbours[:, 0]]) for s in training_set.scans]
    less = [c - offset[u] for c, u in zip(centres, site_numbers, strict=True)]
    seen = [values / scale[u] for values, u in zip(less, site_numbers, strict=True)]
    mean = torch.stack([values.mean(dim=0) for values in less]).mean(dim=0)
    square = torch.stack([values.square().mean(dim=0) for values in seen]).mean(dim=0)
    torch.testing.assert_close(mean, torch.zeros_like(mean), atol=1e-4, rtol=0)
    torch.testing.assert_close(square, torch.ones_like(square), atol=1e-3, rtol=0)


def test_a_site_that_shows_more_of_a_degree_has_a_larger_unit_for_it(
    training_set: TrainingSet,
) -> None:
    first = training_set.scans[0]
    degrees = np.concatenate([[0], *[coefficient_orders(first.order)] * 2])
    more = np.where(degrees == 4, 1.2, 1).astype(np.float32)
    mean = first.values[first.neighbours[:, 0]].mean(axis=0)
    louder = replace(first, site="b", values=mean + (first.values - mean) * more)
    offset, scale = channel_units([first, louder], _travelled(first, louder))
    torch.testing.assert_close(scale[1] / scale[0], torch.from_numpy(more), atol=1e-4, rtol=0)
    torch.testing.assert_close(offset[0], offset[1])  # means are signal
    centres = [torch.from_numpy(s.values[s.neighbours[:, 0]]) for s in (first, louder)]
    seen = [(values - offset[site]) / scale[site] for site, values in enumerate(centres)]
    torch.testing.assert_close(seen[0], seen[1], atol=1e-3, rtol=1e-3)


def test_degrees_that_fields_have_get_the_same_units_at_all_sites(
    training_set: TrainingSet,
) -> None:
    first = training_set.scans[0]
    degrees = np.concatenate([[0], *[coefficient_orders(first.order)] * 2])
    louder = replace(first, site="b", values=first.values * np.where(degrees <= 2, 1.2, 1))
    _, scale = channel_units([first, louder], _travelled(first, louder))
    torch.testing.assert_close(scale[1], scale[0])


def test_without_units_of_their_own_sites_share_them(training_set: TrainingSet) -> None:
    offset, scale = channel_units(training_set.scans, None)
    assert len(offset) == len(scale) == 1
