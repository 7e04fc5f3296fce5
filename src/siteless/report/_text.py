"""What a methods section says of a harmonized study, and what it cites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from siteless.methods import METHODS
from siteless.methods.base import Citation

_MPPCA = Citation(
    "veraart2016",
    "Veraart et al. 2016",
    "Veraart, Jelle and Novikov, Dmitry S. and Christiaens, Daan and others",
    "Denoising of diffusion MRI using random matrix theory",
    "NeuroImage",
    2016,
    "10.1016/j.neuroimage.2016.08.016",
)


def methods_text(told: Mapping[str, str], *, scans: int, people: int, sites: Sequence[str]) -> str:
    """Return sentences for the methods section.

    Parameters
    ----------
    told
        What sidecars of harmonized scans tell of how they were made.
    scans, people, sites
        That were harmonized.
    """
    studied = f"Diffusion MRI scans of {people} people ({scans} scans, sites {', '.join(sites)})"
    if "Method" not in told:
        return f"{studied} were harmonized with another tool."
    method = METHODS.get(told["Method"])
    how = method.sentence if method else f"the method {told['Method']}"
    papers = method.citations if method else ()
    cited = f" ({'; '.join(paper.short for paper in papers)})" if papers else ""
    target = told.get("TargetSite", "")
    rendered = "the average of sites" if target == "average" else f"site {target}"
    parts = [
        f"{studied} were harmonized with siteless {told.get('Version', '')} by {how}{cited}, "
        f"and rendered as {rendered}{_gradients(told)}."
    ]
    if told.get("Denoiser", "n/a") != "n/a":
        parts.append(f"Scans were denoised before by {told['Denoiser']} ({_MPPCA.short}).")
    if told.get("Model"):
        parts.append(f"The model has the identity {told['Model']}.")
    return " ".join(parts)


def _gradients(told: Mapping[str, str]) -> str:
    known = {"own": ", at their own b-vectors", "target": ", at the b-vectors of its protocol"}
    return known.get(told.get("Gradients", ""), "")


def citations(told: Mapping[str, str]) -> str:
    """Return what is to be cited, as BibTeX."""
    method = METHODS.get(told.get("Method", ""))
    papers = [*(method.citations if method else ())]
    if told.get("Denoiser", "n/a") != "n/a":
        papers.append(_MPPCA)
    return "\n\n".join(paper.bibtex() for paper in papers)
