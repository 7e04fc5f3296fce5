"""Lazy imports of a package's names, so that help and workers start fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, given the names that its modules export."""

    def __getattr__(name: str) -> Any:  # noqa: N807
        for home, names in homes.items():
            if name in names:
                return getattr(import_module(f"{package}.{home}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
