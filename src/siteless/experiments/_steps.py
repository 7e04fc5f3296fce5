"""Resumable steps of long computations."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from siteless.bids import write_json
from siteless.pipelines import Progress, Run, Stages
from siteless.storage import cache_key


@dataclass(frozen=True)
class Step:
    """A step of a long computation.

    Attributes
    ----------
    name
        Unique name of the step.
    run
        Function of the step, which may use results of an interrupted run.
    makes
        Files or folders that exist after the step.
    settings
        Settings that the step depends on, serializable as JSON.
    needs
        Names of required steps.
    """

    name: str
    run: Callable[[Run], object]
    makes: tuple[Path, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


def run_steps(steps: Sequence[Step], records: Path, run: Run) -> dict[str, float]:
    """Run the steps that are not finished.

    A step is finished if its outputs exist, with a record of the same settings for it and for the
    required steps.

    Parameters
    ----------
    steps
        Steps, each after those that it requires.
    records
        Folder for records of finished steps.
    run
        Processes and progress of the work. Titles of stages start with the name of the step.

    Returns
    -------
    dict
        Duration of each step, now or earlier, seconds.
    """
    keys: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for step in steps:
        keys[step.name] = _key(step, [keys[name] for name in step.needs])
        record = records / f"{step.name}.json"
        is_made = all(path.exists() for path in step.makes)
        taken = _taken(record, keys[step.name]) if is_made else None
        if taken is None:
            start = time.monotonic()
            step.run(_named(run, step.name))
            taken = time.monotonic() - start
            write_json(record, {"key": keys[step.name], "seconds": round(taken, 1)})
        seconds[step.name] = taken
    return seconds


def _named(run: Run, name: str) -> Run:
    return replace(run, progress=run.progress and partial(_prefixed, run.progress, name))


def _prefixed(progress: Stages, name: str, title: str) -> Progress:
    return progress(f"{name}: {title[0].lower()}{title[1:]}")


def _key(step: Step, needs: Sequence[str]) -> str:
    return cache_key(step.name, step.settings, needs)


def _taken(record: Path, key: str) -> float | None:
    """Return the duration of a finished step, seconds; None if unfinished or changed."""
    try:
        finished = json.loads(record.read_text(encoding="utf-8"))
        return float(finished["seconds"]) if finished["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
