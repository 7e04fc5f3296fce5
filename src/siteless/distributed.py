"""Train in several processes, started by ``torchrun``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from siteless.errors import SitelessError, TrainingError

# Groups in a batch, which processes share.
GROUPS = 16
# Other processes wait while the first one reads a large cohort.
_PATIENCE = timedelta(days=2)


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the other processes of torchrun, if there are any."""
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
    """Return the rank of this process, 0 for the one that writes."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world() -> int:
    """Return the number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def raise_everywhere(error: SitelessError | None) -> None:
    """Wait for the first process, and raise its error, if any, in all processes."""
    errors = [error]
    if world() > 1:
        distributed.broadcast_object_list(errors, src=0)
    if errors[0] is not None:
        raise errors[0]


def gathered(rows: Tensor) -> Tensor:
    """Return the rows of all processes, differentiably."""
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
        distributed.all_reduce(gradient)  # gradients from the losses of all processes
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
