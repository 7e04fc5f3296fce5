"""Apply a function to many items: in this process, in several, or on a cluster."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
# Seconds to wait for a scheduler.
_PATIENCE = 10


def run_all(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    nprocs: int | None,
    lost: Callable[[Item], Result] | None = None,
) -> Generator[tuple[int, Result], None, None]:
    """Apply a function to every item; yield positions and results as they are completed.

    Other processes must be able to import the function by name and to read the pickled items. With
    one process none is started; None is one per core. `lost` makes the result of an item that
    kills its process, for example by lack of memory; without it an error is raised. After a death,
    remaining items run one by one in separate processes.
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
    # Forking a process with threads, such as those of BLAS, can deadlock.
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
) -> Generator[tuple[int, Result], None, None]:
    """Apply a function to every item on the workers of a cluster, like `run_all`.

    Workers must see the same files by the same paths. When one dies, its items are moved to
    others; `lost` makes the result of an item that has killed several.
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
        position = positions[future.key]
        if lost and isinstance(future.exception(), KilledWorker):
            yield position, lost(items[position])
        else:
            yield position, future.result()


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Provide a Dask client of the scheduler at an address, or in the file that has it."""
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


def _address(address: str) -> str:
    """Return a scheduler's address, which may be read from its file."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        address = json.loads(Path(address).read_text(encoding="utf-8"))["address"]
    if not re.fullmatch(r"(\w+://)?[^/:]+:\d+", address):
        raise SitelessError(
            f"expected the address of a Dask scheduler or its file, found {address!r}",
            remedy="give one such as tcp://node1:8786",
        )
    return address


def _require_siteless(client: Any) -> None:
    """Raise an error for workers without this version of siteless."""
    workers = client.get_versions(packages=["siteless"])["workers"]
    for address, versions in workers.items():
        installed = versions["packages"].get("siteless")
        if installed != version("siteless"):
            raise SitelessError(
                f"the Dask worker {address} has siteless {installed or 'not installed'}, expected "
                f"{version('siteless')}",
                remedy="start workers in the environment of this command",
            )


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let processes started inside ignore Ctrl-C: their parent terminates them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def available_cpus() -> int:
    """Count the cores that this process may use; on a cluster, those allocated to it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start(nprocs: int) -> None:
    # Limits BLAS threads, which would otherwise oversubscribe cores. Most libraries are not loaded
    # yet and will read the environment.
    threads = max(1, available_cpus() // nprocs)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    threadpool_limits(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit this process when its parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
