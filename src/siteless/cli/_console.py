"""What a user sees: a moving bar on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

ShowProgress = Callable[[int, int, str], None]
ShowStage = Callable[[str], ShowProgress]
ShowTraining = Callable[[int, int, Sequence[Mapping[str, float]]], None]
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
# Seconds between two lines of a log.
_LOG_INTERVAL = 10.0


def count(number: int, thing: str) -> str:
    """Say how many there are of a thing."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def stdout() -> Console:
    """Return the console that results go to."""
    return Console(soft_wrap=not sys.stdout.isatty())


def say(line: str) -> None:
    """Print a line of a result, as it is."""
    stdout().print(line, soft_wrap=True, markup=False, highlight=False)


@contextmanager
def shown_progress(title: str, *, verbose: bool = False) -> Iterator[ShowProgress]:
    """Give a function that shows progress when called with done, total and a name."""
    console = Console(stderr=True)
    if verbose or not console.is_terminal:
        yield _LogLines(title, every=0 if verbose else _LOG_INTERVAL)
        return
    with Progress(*_COLUMNS, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total, _name: bar.update(task, completed=done, total=total)


@contextmanager
def shown_fit(*, verbose: bool = False) -> Iterator[tuple[ShowStage, ShowTraining]]:
    """Give two functions: one shows how a stage of scans goes, the other how training goes."""
    console = Console(stderr=True)
    if verbose or not console.is_terminal:
        every = 0 if verbose else _LOG_INTERVAL
        lines = _LogLines("Training")
        yield (
            lambda title: _LogLines(title, every=every),
            lambda done, total, log: lines(done, total, _terms(log)),
        )
        return
    bars, terms = Progress(*_COLUMNS, TimeRemainingColumn(), console=console), Text(style="dim")
    training = bars.add_task("Training", total=None, visible=False, start=False)

    def show_stage(title: str) -> ShowProgress:
        for earlier in bars.task_ids:
            bars.update(earlier, visible=False)
        stage = bars.add_task(title, total=None)
        return lambda done, total, _name: bars.update(stage, completed=done, total=total)

    def show_training(done: int, total: int, log: Sequence[Mapping[str, float]]) -> None:
        for earlier in bars.task_ids:
            bars.update(earlier, visible=False)
        if done == 0 or not bars.tasks[training].started:
            bars.reset(training)
        bars.update(training, completed=done, total=total, visible=True)
        terms.plain = _terms(log)

    with Live(Group(bars, terms), console=console, transient=True):
        yield show_stage, show_training


def _terms(log: Sequence[Mapping[str, float]]) -> str:
    """Say what the last row of a log tells."""
    if not log:
        return "the first figures come soon"
    row = log[-1]
    speed = f"{row['patches_per_second']:.0f} patches/s"
    return f"loss {row['val_loss']:.4g}, RMSE {row['val_rmse_percent']:.2f} % of b0, {speed}"


class _LogLines:
    """Says how far the work is, at most every few seconds, and when it is done."""

    def __init__(self, title: str, every: float = _LOG_INTERVAL) -> None:
        self.title = title
        self.every = every
        self.last = time.monotonic()
        self.start: tuple[float, int] | None = None

    def __call__(self, done: int, total: int, name: str) -> None:
        now = time.monotonic()
        if self.start is None or done < self.start[1]:
            self.start = now, done  # of the first work, or of the next under the same title
        start, first = self.start
        if done == total or now - self.last >= self.every or (done == 0 and name):
            self.last = now
            left = (now - start) / max(1, done - first) * (total - done)
            when = "" if done in (first, total) else f", {left / 60:.1f} min left"
            print(f"{self.title}: {done} of {total}{when} ({name})", file=sys.stderr)  # noqa: T201
