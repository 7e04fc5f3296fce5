"""What a user sees: a moving bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Seconds between two lines of a log.
_LOG_INTERVAL = 10.0


def count(number: int, thing: str) -> str:
    """Say how many there are of a thing."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def stdout() -> Console:
    """Return the console that results go to."""
    return Console(soft_wrap=not sys.stdout.isatty())


@contextmanager
def shown_progress(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Give a function that shows progress when called with done, total and a name."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _LogLines(title)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, _name: bar.update(task, completed=done, total=total)


@contextmanager
def shown_training() -> Iterator[Callable[[int, int, Sequence[Mapping[str, float]]], None]]:
    """Give a function that shows training when called with done, total and the log."""
    console = Console(stderr=True)
    if not console.is_terminal:
        lines = _LogLines("Training")
        yield lambda done, total, log: lines(done, total, _terms(log))
        return
    columns = (TextColumn("Training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as bar:
        task = bar.add_task("", total=None, visible=False)
        yield lambda done, total, log: bar.update(
            task, completed=done, total=total, description=_terms(log), visible=True
        )


def _terms(log: Sequence[Mapping[str, float]]) -> str:
    """Say what the last row of a log tells."""
    if not log:
        return "the first figures come soon"
    row = log[-1]
    return (
        f"loss {row['val_loss']:.1f}, reconstruction {row['val_reconstruction']:.1f}, "
        f"prior {row['val_prior']:.1f}, marginal {row['val_marginal']:.1f}, "
        f"projection {row['val_projection']:.1f}, adversary {row['train_adversary']:.2f}; "
        f"RMSE {row['val_rmse_percent']:.2f} %, {row['patches_per_second']:.0f} patches/s"
    )


class _LogLines:
    """Says how far the work is, at most every few seconds, and when it is done."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.last = time.monotonic()
        self.start: tuple[float, int] | None = None

    def __call__(self, done: int, total: int, name: str) -> None:
        now = time.monotonic()
        start, first = self.start = self.start or (now, done)
        if done == total or now - self.last >= _LOG_INTERVAL:
            self.last = now
            left = (now - start) / max(1, done - first) * (total - done)
            when = "" if done in (first, total) else f", {left / 60:.1f} min left"
            print(f"{self.title}: {done} of {total}{when} ({name})", file=sys.stderr)  # noqa: T201
