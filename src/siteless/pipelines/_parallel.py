"""One function over many items: in this process, in several, or on a cluster; the same body."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from siteless.errors import SitelessError

Item = TypeVar("Item")
Result = TypeVar("Result")
# Seconds that a scheduler has to answer in.
_PATIENCE = 10


def run_all(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    nprocs: int | None,
    lost: Callable[[Item], Result] | None = None,
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
    lost
        Makes the result of an item that kills its process, as one does that needs more memory
        than there is; without it an error is raised. After a death, what is left is done one
        by one, each item in a process of its own.

    Raises
    ------
    SitelessError
        When a process dies.
    """
    nprocs = min(nprocs or available_cpus(), len(items))
    if nprocs <= 1:
        yield from ((position, function(item)) for position, item in enumerate(items))
        return
    left = dict(enumerate(items))
    try:
        for position, result in _run_pool(function, left, nprocs):
            yield position, result
            del left[position]
        return
    except BrokenProcessPool:
        if lost is None:
            raise SitelessError(
                "a worker process could not start or was ended from outside, often for lack of "
                "memory",
                remedy="run again with a smaller --nprocs; a script of your own needs an "
                "`if __name__ == '__main__'` guard",
            ) from None
    for position, item in left.items():
        try:
            [(_, result)] = _run_pool(function, {position: item}, 1)
        except BrokenProcessPool:
            result = lost(item)
        yield position, result


def _run_pool(
    function: Callable[[Item], Result], items: Mapping[int, Item], nprocs: int
) -> Iterator[tuple[int, Result]]:
    # Forking a process that has threads, as BLAS does, can hang it.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(nprocs, context, _start, (nprocs,)) as pool:
        with _interrupts_ignored():
            futures = {pool.submit(function, item): place for place, item in items.items()}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def run_on_cluster(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    client: Any,
    *,
    lost: Callable[[Item], Result] | None = None,
) -> Iterator[tuple[int, Result]]:
    """Do what `run_all` does on the workers of a cluster.

    When a worker dies, its items go to others; `lost` makes the result of an item that several
    have died of.

    Parameters
    ----------
    function, items, lost
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
        if lost and isinstance(future.exception(), KilledWorker):
            yield positions[future.key], lost(items[positions[future.key]])
        else:
            yield positions[future.key], future.result()


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
    try:
        client = Client(_address(address), timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError):
        raise SitelessError(
            f"no Dask scheduler answers at {address}",
            remedy="start one (`dask scheduler`), and give its address, such as tcp://node1:8786",
        ) from None
    with client:
        _require_siteless(client)
        yield client


def _address(told: str) -> str:
    """Return a scheduler's address, which may be in a file that it wrote."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads(Path(told).read_text(encoding="utf-8"))["address"]
    if not re.fullmatch(r"(\w+://)?[^/:]+:\d+", told):
        raise SitelessError(
            f"expected the address of a Dask scheduler or its file, found {told!r}",
            remedy="give one such as tcp://node1:8786",
        )
    return told


def _require_siteless(client: Any) -> None:
    """Refuse workers that have no siteless, or another: they would die of what they are given."""
    workers = client.get_versions(packages=["siteless"])["workers"]
    for address, versions in workers.items():
        found = versions["packages"].get("siteless")
        if found != version("siteless"):
            raise SitelessError(
                f"the Dask worker {address} has siteless {found or 'not installed'}, expected "
                f"{version('siteless')}",
                remedy="start workers in the environment of this command",
            )


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


def _start(nprocs: int) -> None:
    # Each process would otherwise start a BLAS thread a core, and all of them would wait. Most
    # libraries are not loaded yet: they will look at the environment.
    threads = max(1, available_cpus() // nprocs)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    threadpool_limits(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it is killed, which could not end it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
