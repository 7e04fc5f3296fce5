"""Words in, one pipeline call out."""

from siteless.cli._main import main

__all__ = ["main"]
