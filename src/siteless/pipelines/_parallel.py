"""One function over many items: in this process, in several, or on a cluster; the same body."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from siteless.errors import SitelessError

# Called with how many are done, of how many, and the name of the last.
Progress = Callable[[int, int, str], None]
Item = TypeVar("Item")
Result = TypeVar("Result")
# Seconds that a scheduler has to answer in.
_PATIENCE = 10


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


def run_on_cluster(
    function: Callable[[Item], Result], items: Sequence[Item], client: Any
) -> Iterator[tuple[int, Result | SitelessError]]:
    """Do what `run_all` does on the workers of a cluster.

    When a worker dies, its items go to others. An item that several workers have died of has an
    error for its result.

    Parameters
    ----------
    function, items
        As for `run_all`. Workers must see the same files by the same paths.
    client
        Of `connected`.
    """
    from distributed import KilledWorker
    from distributed import as_completed as as_done

    futures = client.map(function, items, pure=False)
    positions = {future.key: position for position, future in enumerate(futures)}
    for future in as_done(futures, loop=client.loop):
        if future.cancelled():
            raise SitelessError(
                "the Dask scheduler is gone", remedy="run again: what is done is kept"
            )
        if isinstance(future.exception(), KilledWorker):
            yield positions[future.key], _WORKERS_DIED
        else:
            yield positions[future.key], future.result()


_WORKERS_DIED = SitelessError(
    "every worker that was given the scan died, often for lack of memory",
    remedy="give workers more memory, or let each do one scan at a time (--nthreads 1)",
)


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Give a Dask client, or None where there is no address.

    Parameters
    ----------
    address
        Of a scheduler, or the file that it has written its address to.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        raise SitelessError(
            "--dask needs Dask, which is not installed", remedy="pip install 'siteless[dask]'"
        ) from None
    told = {"scheduler_file": address} if Path(address).is_file() else {"address": address}
    try:
        client = Client(**told, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError):
        raise SitelessError(
            f"no Dask scheduler answers at {address}",
            remedy="start one (`dask scheduler`), and give its address, such as tcp://node1:8786",
        ) from None
    with client:
        yield client


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
