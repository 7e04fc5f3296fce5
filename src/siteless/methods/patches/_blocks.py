"""Convert networks to arrays, and process blocks of voxels on all cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import nn

from siteless.acquisition import Array

_BLOCK = 4096
Result = TypeVar("Result")
Network = TypeVar("Network", bound=nn.Module)


def over_blocks(function: Callable[[slice], Result], voxels: int) -> list[Result]:
    """Apply a torch function to blocks of voxels, and return the results in order.

    The rounding of a multi-threaded torch product depends on the number of threads. So each block
    uses one thread, and blocks run in parallel.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            blocks = (slice(start, start + _BLOCK) for start in range(0, voxels, _BLOCK))
            return list(pool.map(torch.inference_mode()(function), blocks))
    finally:
        torch.set_num_threads(threads)


def weights_of(network: nn.Module) -> dict[str, Array]:
    """Return the weights of a network."""
    return {name: weight.cpu().numpy() for name, weight in network.state_dict().items()}


def with_weights(network: Network, arrays: Mapping[str, Array]) -> Network:
    """Load the weights of a network, and return it in evaluation mode."""
    network.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    return network.eval()
