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
    """A step of a long computation: what it makes, and the names of steps that it needs.

    Its function may use results of an interrupted run. The settings that it depends on can be
    written as JSON.
    """

    name: str
    run: Callable[[Run], object]
    makes: tuple[Path, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


def run_steps(steps: Sequence[Step], records: Path, run: Run) -> dict[str, float]:
    """Run the steps that are not finished, and return the seconds that each took, now or earlier.

    A step comes after those that it needs. It is finished if its outputs exist, with a record, in
    the folder of records, of the same settings for it and for the steps that it needs. Titles of
    stages start with the name of the step.
    """
    keys: dict[str, str] = {}
    seconds: dict[str, float] = {}
    for step in steps:
        key = cache_key(step.name, step.settings, [keys[name] for name in step.needs])
        record = records / f"{step.name}.json"
        is_made = all(path.exists() for path in step.makes)
        taken = _taken(record, key) if is_made else None
        if taken is None:
            progress = run.progress and partial(_prefixed, run.progress, step.name)
            start = time.monotonic()
            step.run(replace(run, progress=progress))
            taken = time.monotonic() - start
            write_json(record, {"key": key, "seconds": round(taken, 1)})
        keys[step.name], seconds[step.name] = key, taken
    return seconds


def _prefixed(progress: Stages, name: str, title: str) -> Progress:
    return progress(f"{name}: {title[0].lower()}{title[1:]}")


def _taken(record: Path, key: str) -> float | None:
    """Return the duration of a finished step, seconds; None if unfinished or changed."""
    try:
        finished = json.loads(record.read_text(encoding="utf-8"))
        return float(finished["seconds"]) if finished["key"] == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
