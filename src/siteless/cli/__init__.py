"""The command line: each command parses its options and calls one pipeline."""

from siteless.cli._bids_app import bids_main
from siteless.cli._main import main

__all__ = ["bids_main", "main"]
