"""Run work in processes or on a cluster, with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from siteless.pipelines._parallel import Item, Result, connected, run_all, run_on_cluster

# Called with the number of finished items, their total, and the name of the last item.
Progress = Callable[[int, int, str], None]
# Returns the progress callback of a stage, given its title.
Stages = Callable[[str], Progress]


@dataclass(frozen=True)
class Run:
    """Processes, progress and random seed of the work.

    Attributes
    ----------
    nprocs
        Number of processes; None for one per available core.
    cluster
        Address of a Dask scheduler to use instead, or a file with its address.
    progress
        Called with the title of each stage; returns a callback for the number of finished items,
        their total, and the name of the last item.
    seed
        Random seed.
    client
        Open connection to the cluster.
    """

    nprocs: int | None = None
    cluster: str | None = None
    progress: Stages | None = None
    seed: int = 0
    client: Any = field(default=None, repr=False)

    def stage(self, title: str) -> Progress:
        """Begin a stage, and return its progress callback."""
        return self.progress(title) if self.progress else lambda *_: None

    def map(
        self,
        title: str,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        *,
        name: Callable[[Item], str] = lambda item: str(getattr(item, "name", item)),
        lost: Callable[[Item], Result] | None = None,
    ) -> list[Result]:
        """Apply a function to every item in a stage of that title; return the results in order.

        Other processes must be able to import the function by name and to read the pickled items.
        `name` makes the name of an item for progress, `lost` the result of an item whose process
        dies; without it an error is raised.
        """
        show = self.stage(title)
        with self.connected() as run:
            if run.client is None:
                waiting = False
                finished = run_all(function, items, nprocs=run.nprocs, lost=lost)
            else:
                waiting = not run.client.scheduler_info()["workers"]
                finished = run_on_cluster(function, items, run.client, lost=lost)
            results: dict[int, Result] = {}
            with closing(finished):  # ends other processes, also after an interrupt
                show(0, len(items), "waiting for workers" if waiting else "")
                for position, result in finished:
                    results[position] = result
                    show(len(results), len(items), name(items[position]))
        return [results[position] for position in range(len(items))]

    @contextmanager
    def connected(self) -> Iterator[Run]:
        """Provide the same run, connected to its cluster if it has one."""
        if self.client is not None or self.cluster is None:
            yield self
            return
        with connected(self.cluster) as client:
            yield replace(self, client=client)
