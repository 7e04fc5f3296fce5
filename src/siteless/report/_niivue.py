"""NiiVue, the viewer, as one module of JavaScript from the package that carries it."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution

PACKAGE = "ipyniivue"
# A name is looked for no further back: the file has words of a million letters, and a search that
# starts anew at each of them takes minutes.
_ATTACHES = re.compile(r"(?<![\w$])([\w$]{1,20})\.attachToCanvas\(")
# A copy of NiiVue as text, for pages that it saves: more than a half of the file.
_COPY = re.compile(r'="var%20[^"]{100000,}"')


def find_niivue() -> str | None:
    """Return the source of a module that exports `Niivue`, with its licence at the top.

    The file is read where it is installed, and nothing of the package is imported: it would bring
    Jupyter along.

    Returns
    -------
    str or None
        None when the package is not installed, or is not as expected.
    """
    try:
        package = distribution(PACKAGE)
        source = _read(package, "static/widget.js")
    except (PackageNotFoundError, OSError):
        return None
    name = find_class(source)
    if name is None:
        return None
    licence = _read(package, "LICENSE").replace("*/", "")
    source = _COPY.sub('=""', source)
    return f"/*!\n{licence}*/\n{source}\nexport{{{name} as Niivue}};\n"


def find_class(source: str) -> str | None:
    """Return what the class of NiiVue is called in a bundle; None when that is not to be seen.

    Examples
    --------
    >>> find_class("class t2{};var v=new t2(c);v.attachToCanvas(g);")
    't2'
    """
    holders = [name for name in _ATTACHES.findall(source) if name != "this"]
    for holder in reversed(holders):
        made = re.findall(rf"(?<![\w$.]){re.escape(holder)}=new ([\w$]+)\(", source)
        if made:
            return str(made[-1])
    return None


def _read(package: Distribution, ending: str) -> str:
    for file in package.files or ():
        if file.as_posix().endswith(ending):
            return file.read_text(encoding="utf-8")
    raise FileNotFoundError(ending)
