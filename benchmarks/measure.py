"""Times and memory, taken so that noise on the machine changes ratios little."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np


def best_time(*functions: Callable[[], object], repeats: int = 7) -> list[float]:
    """Return the shortest time of each function, in seconds; they take turns."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, samples in zip(functions, times, strict=True):
            time.sleep(0.1)  # BLAS threads of the last turn spin for a while before they rest
            start = time.perf_counter()
            function()
            samples.append(time.perf_counter() - start)
    return [min(samples) for samples in times]


def matrix_product(size: int = 2048) -> Callable[[], object]:
    """Return a float32 matrix product that does 2 size^3 operations."""
    matrix = np.random.default_rng(0).random((size, size), dtype=np.float32)
    return lambda: matrix @ matrix


def peak_memory(module: str, *words: str) -> int:
    """Return the peak resident memory, in bytes, of ``python -m module words`` (Linux)."""
    # Not getrusage: its peak of a child starts from the memory of the parent.
    code = (
        "import runpy, sys; from pathlib import Path; sys.argv = sys.argv[1:];"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True);"
        "status = Path('/proc/self/status').read_text().split();"
        "print(status[status.index('VmHWM:') + 1])"
    )
    command = [sys.executable, "-c", code, module, *words]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(output.split()[-1]) * 1024


def row(what: str, value: str, aim: str = "") -> None:
    print(f"{what:<62}{value:>14}  {aim}")
