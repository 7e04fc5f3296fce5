"""The command line: the parser of all commands, and the conversion of errors to exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import version

from siteless.cli import (
    _adapt,
    _check,
    _completion,
    _demo,
    _encode,
    _evaluate,
    _fit,
    _harmonize,
    _info,
    _methods,
    _report,
    _reproduce,
    _simulate,
)
from siteless.cli._options import Command
from siteless.errors import SitelessError

_DESCRIPTION = """\
Remove what a scanner adds to a diffusion MRI scan.

siteless reads scans from many sites (BIDS datasets, QSIPrep output, or a table of paths).
Start by checking yours, or with a demo on simulated ones; then learn a model,
render scans as one site, score them, and look at the report:

  siteless demo OUT
  siteless check DATASET
  siteless fit DATASET --model FILE
  siteless harmonize DATASET OUT --model FILE --to SITE
  siteless evaluate DATASET --harmonized OUT --out SCORES
"""
# In the order of the help.
_COMMANDS = (
    *(_demo, _check, _fit, _methods, _harmonize, _evaluate, _report),
    *(_info, _adapt, _encode, _simulate, _reproduce, _completion),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or 1 on an error."""
    options = make_parser().parse_args(arguments)
    _end_like_an_interrupt()
    hint = "; go on with --resume" if hasattr(options, "resume") else ""
    hint = "; run it again to go on" if getattr(options, "goes_on", False) else hint
    return exit_code(lambda: options.run(options), hint)


def _end_like_an_interrupt() -> None:
    """Treat the signal that batch systems send before they kill like an interrupt."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def exit_code(work: Callable[[], int | None], hint: str = "") -> int:
    """Do the work, print its error as one line, and return the exit code."""
    try:
        return work() or 0
    except SitelessError as error:
        among_others = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") != "0"
        if not among_others:  # only one process of torchrun prints
            print(f"siteless: {error}", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        print(f"siteless: interrupted{hint}", file=sys.stderr)  # noqa: T201
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe; this avoids a second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="siteless",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"siteless {version('siteless')}")
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=Command
    )
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser
