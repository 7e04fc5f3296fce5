"""Print how the source is built: sizes of functions, parameters, names of methods, repeated code.

``python tools/house.py`` reads ``src/siteless`` and imports nothing of it. It exits with 1 when a
rule is broken: no function has more than 7 parameters or 50 lines beside its docstring, and no
method of harmonization is named outside its room.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "siteless"
MOST_PARAMETERS, MOST_LINES, REPEATED = 7, 50, 6
ROOMS = ("invariant", "rish", "combat", "paired", "scaled", "unchanged")
# An import of a room of a method, or its name as a string of its own.
NAMED = re.compile(
    rf"siteless\.methods\.({'|'.join(ROOMS)})\b|[\"'](invariant|rish|rish-glm|combat|paired)[\"']"
)
# The experiments compare methods, the default of an option is one, and rish is an energy too.
FREE = ("methods/", "experiments/", "cli/_fit.py", "__init__.py", "harmonics/__init__.py")


def main() -> int:
    paths = sorted(SOURCE.rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in paths}
    functions = [(path, node) for path, tree in trees.items() for node in _functions(tree)]
    lengths = [_length(node) for _, node in functions]
    long = [_location(p, n) for p, n in functions if _length(n) > MOST_LINES]
    wide = [_location(p, n) for p, n in functions if _count_parameters(n) > MOST_PARAMETERS]
    naming = [location for path in paths for location in _naming_methods(path)]
    lines = sum(len(path.read_text().splitlines()) for path in paths)
    print(f"modules {len(paths)}, lines {lines}, functions {len(functions)}")
    print(f"lines of a function: median {statistics.median(lengths):g}, longest {max(lengths)}")
    print(f"functions over {MOST_LINES} lines: {len(long)}", *long, sep="\n  ")
    print(f"functions of more than {MOST_PARAMETERS} parameters: {len(wide)}", *wide, sep="\n  ")
    print(f"lines that name a method outside methods/: {len(naming)}", *naming, sep="\n  ")
    print(f"runs of {REPEATED} lines that stand twice: {len(_repeated(paths))}")
    return 1 if long or wide or naming else 0


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def _length(node: ast.FunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    docstring = ast.get_docstring(node, clean=False)
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return lines - (len(docstring.splitlines()) if docstring else 0)


def _count_parameters(node: ast.FunctionDef) -> int:
    parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return len([argument for argument in parameters if argument.arg not in ("self", "cls")])


def _location(path: Path, node: ast.FunctionDef) -> str:
    return f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"


def _naming_methods(path: Path) -> Iterator[str]:
    """Yield where a module outside the rooms of methods names one; docstrings do not count."""
    name = path.relative_to(SOURCE).as_posix()
    if name.startswith(FREE):
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if NAMED.search(line) and not line.lstrip().startswith((">>>", "#")):
            yield f"{name}:{number} {line.strip()}"


def _repeated(paths: list[Path]) -> list[tuple[str, ...]]:
    """Return the runs of lines, without imports and blank ones, that stand more than once."""
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    for path in paths:
        code = [line.strip() for line in path.read_text().splitlines()]
        code = [
            line for line in code if len(line) > 3 and not line.startswith(("from ", "import "))
        ]
        for start in range(len(code) - REPEATED + 1):
            counts[tuple(code[start : start + REPEATED])] += 1
    return [run for run, count in counts.items() if count > 1]


if __name__ == "__main__":
    sys.exit(main())
