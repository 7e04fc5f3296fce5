"""Output for users: a progress bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

if TYPE_CHECKING:
    from siteless.pipelines import Progress as ShowProgress
    from siteless.pipelines import Stages

# Seconds between two lines of a log.
_LOG_INTERVAL = 10.0


def count(number: int, thing: str) -> str:
    """Format a count of things."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def stdout() -> Console:
    """Return the console for results."""
    return Console(soft_wrap=not sys.stdout.isatty())


def say(line: str) -> None:
    """Print a line of a result without formatting."""
    stdout().print(line, soft_wrap=True, markup=False, highlight=False)


def warn(line: str) -> None:
    """Print a line about a result to the error stream."""
    print(f"siteless: {line}", file=sys.stderr)  # noqa: T201


@contextmanager
def shown(*, verbose: bool) -> Iterator[Stages]:
    """Provide a function that begins a stage of the work, and returns its progress callback."""
    console = Console(stderr=True)
    if verbose or not console.is_terminal:
        yield partial(_LogLines, every=0.0 if verbose else _LOG_INTERVAL)
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    bars = Progress(*columns, TimeRemainingColumn(), console=console)
    last = Text(style="dim")
    with Live(Group(bars, last), console=console, transient=True):
        yield partial(_show_bar, bars, last)


def _show_bar(bars: Progress, last: Text, title: str) -> ShowProgress:
    """Show the bar of a stage in place of earlier ones, above the name of the last item."""
    for earlier in bars.task_ids:
        bars.update(earlier, visible=False)
    stage = bars.add_task(title, total=None, start=False)

    def show(done: int, total: int, name: str) -> None:
        if not bars.tasks[stage].started:
            bars.reset(stage, completed=done)  # excludes earlier work from the speed
        bars.update(stage, completed=done, total=total)
        last.plain = name

    return show


class _LogLines:
    """Prints progress at most every few seconds, and at the end."""

    def __init__(self, title: str, every: float) -> None:
        self.title = title
        self.every = every
        self.last = time.monotonic()
        self.start: tuple[float, int] | None = None
        self.name = ""

    def __call__(self, done: int, total: int, name: str) -> None:
        now = time.monotonic()
        if self.start is None or done < self.start[1]:
            self.start = now, done  # at the start, or when work with the same title restarts
        start, first = self.start
        is_news = name != self.name or self.every > 0
        if done == total or (is_news and now - self.last >= self.every) or (done == 0 and name):
            self.last, self.name = now, name
            left = (now - start) / max(1, done - first) * (total - done)
            when = "" if done in (first, total) else f", {left / 60:.1f} min left"
            print(f"{self.title}: {done} of {total}{when} ({name})", file=sys.stderr)  # noqa: T201
