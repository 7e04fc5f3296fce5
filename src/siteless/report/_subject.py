"""The page of a participant: scans before and after."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from siteless.report._page import render_page
from siteless.report._summary import SCALES, ScanSummary


def subject_page(summaries: Sequence[ScanSummary], home: str, viewer: str) -> str:
    """Return the page of a participant's scans, with a link home and their viewer as HTML."""
    return render_page(
        "subject.html",
        title=f"sub-{summaries[0].subject}",
        summaries=summaries,
        maps=[name for name in SCALES if all(name in summary.after for summary in summaries)],
        home=home,
        viewer=Markup(viewer),
    )
