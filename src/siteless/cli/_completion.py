"""`siteless completion`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from siteless.cli._options import add_command

_HELP = """\
print what a shell needs to complete commands

Print a script that lets a shell complete the commands, options and files of siteless.

examples:
  siteless completion bash > ~/.local/share/bash-completion/completions/siteless
  siteless completion zsh > ~/.zfunc/_siteless     with ~/.zfunc in fpath, before compinit
  siteless completion fish > ~/.config/fish/completions/siteless.fish
  siteless completion tcsh > ~/.siteless.csh       and `source ~/.siteless.csh` in ~/.tcshrc
"""
SHELLS = ("bash", "zsh", "tcsh", "fish")


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "completion", run, _HELP)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(options: argparse.Namespace) -> None:
    import shtab

    from siteless.cli._main import make_parser

    parser = make_parser()
    _complete_files(parser, shtab.FILE)
    print(shtab.complete(parser, shell=options.shell))  # noqa: T201


def _complete_files(parser: argparse.ArgumentParser, how: Any) -> None:
    """Mark the arguments of all commands that are paths."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command, how)
        elif action.type is Path or str(action.metavar).endswith("DIR"):
            action.complete = how  # type: ignore[attr-defined]
