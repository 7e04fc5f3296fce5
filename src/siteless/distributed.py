"""Training in several processes, as ``torchrun`` starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from siteless.errors import SitelessError, TrainingError

# Of a batch: processes share them.
GROUPS = 16
# The others wait while the first process reads a large cohort.
_PATIENCE = timedelta(days=2)


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the other processes that torchrun started, if it did."""
    if not distributed.is_torchelastic_launched():
        yield
        return
    if GROUPS % int(os.environ["WORLD_SIZE"]):
        raise TrainingError(
            f"expected a number of processes that divides {GROUPS}, found "
            f"{os.environ['WORLD_SIZE']}",
            remedy="start 2, 4, 8 or 16",
        )
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if device.startswith("cuda") else "gloo"
    distributed.init_process_group(backend, timeout=_PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def rank() -> int:
    """Return the number of this process, 0 for the one that writes."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world() -> int:
    """Return how many processes train together."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def raise_everywhere(error: SitelessError | None) -> None:
    """Wait for the first process, and raise its error, if it has one, in all of them."""
    told = [error]
    if world() > 1:
        distributed.broadcast_object_list(told, src=0)
    if told[0] is not None:
        raise told[0]


def gathered(rows: Tensor) -> Tensor:
    """Return the rows of all processes; gradients find their way back."""
    if world() == 1:
        return rows
    collected: Tensor = _Gather.apply(rows)  # type: ignore[no-untyped-call]
    return collected


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor) -> Tensor:
        context.count = len(rows)
        parts = [torch.empty_like(rows) for _ in range(world())]
        distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        distributed.all_reduce(gradient)  # what every process's loss asks of every row
        return gradient.split(context.count)[rank()]


def averaged(value: Tensor) -> float:
    """Return the mean of a value over all processes."""
    value = value.detach().clone()
    if world() > 1:
        distributed.all_reduce(value)
    return float(value) / world()


def agreed(value: float) -> float:
    """Return the value of the first process."""
    if world() == 1:
        return value
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    distributed.broadcast(shared, 0)
    return float(shared)
