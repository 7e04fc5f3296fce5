"""Self-contained pages."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from siteless.report._summary import SCALES

if TYPE_CHECKING:
    from jinja2 import Environment


def render_page(template: str, **contents: Any) -> str:
    """Render a template of the ``page`` folder."""
    return _environment().get_template(template).render(**contents)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("siteless.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"short": short, "ident": _ident}
    environment.globals |= {
        "inlined": _inlined,
        "version": version("siteless"),
        "scales": SCALES,
        "nan": np.nan,
    }
    return environment


def _inlined(name: str) -> Markup:
    """Return a style or script of the ``page`` folder as it is."""
    return Markup((files("siteless.report") / "page" / name).read_text("utf-8"))


def short(value: float) -> str:
    """Format a number with three significant digits.

    Examples
    --------
    >>> short(0.41362), short(1234.5), short(0.0), short(float("nan"))
    ('0.414', '1234', '0', '-')
    """
    if not np.isfinite(value):
        return "-"
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".") if value else "0"


def _ident(text: str) -> str:
    """Return a valid identifier of an element."""
    return re.sub(r"\W+", "-", text).lower()
