"""The page of a person: scans before and after."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from siteless.report._page import render_page
from siteless.report._summary import SCALES, Portrait


def subject_page(portraits: Sequence[Portrait], home: str, viewer: str) -> str:
    """Return the page of a person's scans.

    Parameters
    ----------
    portraits
        Of one person.
    home
        The page of the study.
    viewer
        The scans to look at, as HTML.
    """
    return render_page(
        "subject.html",
        title=f"sub-{portraits[0].subject}",
        portraits=portraits,
        maps=[name for name in SCALES if all(name in one.after for one in portraits)],
        scales=SCALES,
        home=home,
        viewer=Markup(viewer),
        nan=float("nan"),
    )
