"""Voxels a block at a time, on all cores, with bytes that do not depend on their number."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

_BLOCK = 4096
Result = TypeVar("Result")


def over_blocks(function: Callable[[slice], Result], voxels: int) -> list[Result]:
    """Apply a function of torch to blocks of voxels, and return the results in order.

    A product that torch divides between threads is not the same, to the last bit, for every
    number of them. So each block has one thread, and blocks run side by side.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            blocks = (slice(start, start + _BLOCK) for start in range(0, voxels, _BLOCK))
            return list(pool.map(torch.inference_mode()(function), blocks))
    finally:
        torch.set_num_threads(threads)
