"""Training in several processes, as ``torchrun`` starts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, distributed
from torch.distributed.nn.functional import all_gather


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the other processes that torchrun started, if it did."""
    if "WORLD_SIZE" not in os.environ:
        yield
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        distributed.init_process_group("nccl")
    else:
        distributed.init_process_group("gloo")
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


def wait() -> None:
    """Wait until every process is here."""
    if distributed.is_initialized():
        distributed.barrier()


def gathered(rows: Tensor) -> Tensor:
    """Return the rows of all processes; gradients find their way back."""
    if world() == 1:
        return rows
    if torch.is_grad_enabled():
        return torch.cat(all_gather(rows))
    parts = [torch.empty_like(rows) for _ in range(world())]
    distributed.all_gather(parts, rows)
    return torch.cat(parts)


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
