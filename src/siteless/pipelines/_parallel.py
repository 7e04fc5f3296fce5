"""One function over many items, in this process or in several, with the same body."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from threadpoolctl import threadpool_limits

from siteless.errors import SitelessError

# Called with how many are done, of how many, and the name of the last.
Progress = Callable[[int, int, str], None]
Item = TypeVar("Item")
Result = TypeVar("Result")


def run_all(
    function: Callable[[Item], Result], items: Sequence[Item], *, nprocs: int | None
) -> Iterator[tuple[int, Result]]:
    """Apply a function to every item; yield each item's position and result as it is done.

    Parameters
    ----------
    function
        Importable by name, so that other processes can call it.
    items
        Picklable.
    nprocs
        Processes; None for one a core. With 1 nothing is started.

    Raises
    ------
    SitelessError
        When a process dies, as it does when memory runs out.
    """
    nprocs = min(nprocs or available_cpus(), len(items))
    if nprocs <= 1:
        yield from ((position, function(item)) for position, item in enumerate(items))
        return
    # Forking a process that has threads, as BLAS does, can hang it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(nprocs, context, _limit_threads, (nprocs,)) as pool:
        with _interrupts_ignored():
            futures = {
                pool.submit(function, item): position for position, item in enumerate(items)
            }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise SitelessError(
                "a worker process could not start or was ended from outside, often for lack of "
                "memory",
                remedy="run again with a smaller --nprocs; a script of your own needs an "
                "`if __name__ == '__main__'` guard",
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let processes started inside ignore Ctrl-C, which reaches them too: the parent ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def available_cpus() -> int:
    """Count the cores that this process may use; on a cluster, those that it was given."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _limit_threads(nprocs: int) -> None:
    # Each process would otherwise start a BLAS thread a core, and all of them would wait.
    threadpool_limits(max(1, available_cpus() // nprocs))
