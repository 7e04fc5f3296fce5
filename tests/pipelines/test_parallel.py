import multiprocessing
import os
from functools import partial

import pytest

from killed_processes import double_or_die, process_of
from siteless.errors import SitelessError
from siteless.pipelines import Run, _parallel
from siteless.pipelines._parallel import run_all


@pytest.mark.parametrize("nprocs", [1, 2])
def test_every_item_is_done_once(nprocs: int) -> None:
    results = list(run_all(partial(double_or_die, -1), range(5), nprocs=nprocs))
    assert sorted(results) == [(n, 2 * n) for n in range(5)]


@pytest.mark.parametrize("cores", [1, 2])
def test_there_is_a_process_a_core_by_default(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(_parallel, "available_cpus", lambda: cores)
    processes = {process for _, process in run_all(process_of, range(4), nprocs=None)}
    assert (processes == {os.getpid()}) == (cores == 1)


def test_an_item_that_kills_its_process_is_lost_and_the_others_are_done() -> None:
    work = partial(double_or_die, 1)
    results = dict(run_all(work, range(4), nprocs=2, lost=lambda item: -item))
    assert results == {0: 0, 1: -1, 2: 4, 3: 6}
    with pytest.raises(SitelessError, match="a worker process could not start or was ended"):
        list(run_all(work, range(4), nprocs=2))


def test_an_interrupt_while_progress_is_shown_ends_all_processes_at_once() -> None:
    def interrupt(done: int, _total: int, _name: str) -> None:
        if done:
            raise KeyboardInterrupt

    before = set(multiprocessing.active_children())
    run = Run(nprocs=2, progress=lambda _title: interrupt)
    with pytest.raises(KeyboardInterrupt) as held:  # as notebooks hold the last error
        run.map("Working", process_of, range(8))
    assert held.value
    assert set(multiprocessing.active_children()) <= before
