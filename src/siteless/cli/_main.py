"""The command line: the parser of all commands, and the conversion of errors to exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, or 1 on an error."""
    options = make_parser().parse_args(arguments)
    _end_like_an_interrupt(signal.SIGTERM)  # sent by batch systems before they kill
    hint = "; go on with --resume" if hasattr(options, "resume") else ""
    hint = "; run it again to go on" if getattr(options, "goes_on", False) else hint
    with errors_as_a_line(hint) as outcome:
        outcome.code = options.run(options)
    return outcome.code


def _end_like_an_interrupt(number: int) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(number, interrupt)


@dataclass
class Outcome:
    """The exit code of a command."""

    code: int = 0


@contextmanager
def errors_as_a_line(hint: str = "") -> Iterator[Outcome]:
    """Turn errors raised inside into one line and an exit code."""
    outcome = Outcome()
    try:
        yield outcome
    except SitelessError as error:
        outcome.code = 1
        among_others = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK") != "0"
        if not among_others:  # only one process of torchrun prints
            print(f"siteless: {error}", file=sys.stderr)  # noqa: T201
    except KeyboardInterrupt:
        outcome.code = 130
        print(f"siteless: interrupted{hint}", file=sys.stderr)  # noqa: T201
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe; this avoids a second error at exit.
        outcome.code = 1
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_parser() -> argparse.ArgumentParser:
    """Make the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="siteless",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"siteless {version('siteless')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _demo.add_parser(commands)
    _check.add_parser(commands)
    _fit.add_parser(commands)
    _methods.add_parser(commands)
    _harmonize.add_parser(commands)
    _evaluate.add_parser(commands)
    _report.add_parser(commands)
    _info.add_parser(commands)
    _adapt.add_parser(commands)
    _encode.add_parser(commands)
    _simulate.add_parser(commands)
    _reproduce.add_parser(commands)
    _completion.add_parser(commands)
    return parser
