"""What shells make of the completion scripts."""

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from siteless.cli._completion import SHELLS
from siteless.cli._main import make_parser


def _script(shell: str) -> str:
    command = [sys.executable, "-m", "siteless", "completion", shell]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., set[str]]:
    """Ask a real bash how the last of some words may go on."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "script").write_text(_script("bash"))
    (folder / "my_study").mkdir()
    ask = (
        'source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
        '_shtab_siteless; printf "%s\\n" "${COMPREPLY[@]}"'
    )

    def complete(*words: str) -> set[str]:
        command = ["bash", "--norc", "-c", ask, "bash", *words]
        process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        return set(process.stdout.split())

    return complete


def _commands() -> dict[str, Any]:
    kind = argparse._SubParsersAction
    [commands] = [action for action in make_parser()._actions if isinstance(action, kind)]
    return commands.choices


def test_commands_are_completed(complete: Callable[..., set[str]]) -> None:
    assert complete("siteless", "") >= set(_commands())
    assert complete("siteless", "har") == {"harmonize"}


@pytest.mark.parametrize("name", sorted(_commands()))
def test_all_options_of_a_command_are_completed(
    complete: Callable[..., set[str]], name: str
) -> None:
    options = {option for action in _commands()[name]._actions for option in action.option_strings}
    assert complete("siteless", name, "--") == {word for word in options if word[:2] == "--"}


def test_choices_and_files_are_completed(complete: Callable[..., set[str]]) -> None:
    assert complete("siteless", "fit", "my_study", "--method", "ri") == {"rish", "rish-glm"}
    assert complete("siteless", "check", "my_") == {"my_study"}
    assert complete("siteless", "evaluate", "my_study", "--harmonized", "my_") == {"my_study"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_that_names_all_commands(shell: str) -> None:
    script = _script(shell)
    assert all(name in script for name in _commands())
