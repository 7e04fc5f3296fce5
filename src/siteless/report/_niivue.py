"""Extract NiiVue as a JavaScript module from the package that bundles it."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution

PACKAGE = "ipyniivue"
# The length of names is limited: the file has words of a million letters, in which an unlimited
# search takes minutes.
_ATTACHES = re.compile(r"(?<![\w$])([\w$]{1,20})\.attachToCanvas\(")
# A copy of NiiVue as text, for saved pages: more than half of the file.
_COPY = re.compile(r'="var%20[^"]{100000,}"')


def find_niivue() -> str | None:
    """Return the source of a module that exports `Niivue`, with its licence at the top.

    The installed file is read without importing the package, which would import Jupyter. None is
    returned if the package is not installed, or is not as expected.
    """
    try:
        package = distribution(PACKAGE)
        source = _read(package, "static/widget.js")
        licence = _read(package, "LICENSE").replace("*/", "")
    except (PackageNotFoundError, OSError):
        return None
    name = find_class(source)
    if name is None:
        return None
    source = _COPY.sub('=""', source)
    return f"/*!\n{licence}*/\n{source}\nexport{{{name} as Niivue}};\n"


def find_class(source: str) -> str | None:
    """Return the name of NiiVue's class in a bundle; None if it cannot be found.

    Examples
    --------
    >>> find_class("class t2{};var v=new t2(c);v.attachToCanvas(g);")
    't2'
    """
    holders = [name for name in _ATTACHES.findall(source) if name != "this"]
    for holder in reversed(holders):
        classes = re.findall(rf"(?<![\w$.]){re.escape(holder)}=new ([\w$]+)\(", source)
        if classes:
            return str(classes[-1])
    return None


def _read(package: Distribution, ending: str) -> str:
    for file in package.files or ():
        if file.as_posix().endswith(ending):
            return file.read_text(encoding="utf-8")
    raise FileNotFoundError(ending)
