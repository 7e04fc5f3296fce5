"""The methods section of a harmonized study, with citations."""

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
_FLOOR = Citation(
    "koay2006",
    "Koay and Basser 2006",
    "Koay, Cheng Guan and Basser, Peter J.",
    "Analytically exact correction scheme for signal extraction from noisy magnitude MR signals",
    "Journal of Magnetic Resonance",
    2006,
    "10.1016/j.jmr.2006.01.016",
)


def methods_text(
    provenance: Mapping[str, str], *, scans: int, people: int, sites: Sequence[str]
) -> str:
    """Return sentences for the methods section, given provenance from the sidecars of scans."""
    studied = f"Diffusion MRI scans of {people} people ({scans} scans, sites {', '.join(sites)})"
    if "Method" not in provenance:
        return f"{studied} were harmonized with another tool."
    method = METHODS.get(provenance["Method"])
    how = method.sentence if method else f"the method {provenance['Method']}"
    papers = method.citations if method else ()
    cited = f" ({'; '.join(paper.short for paper in papers)})" if papers else ""
    target = provenance.get("TargetSite", "")
    rendered = "the average of sites" if target == "average" else f"site {target}"
    known = {"own": ", at their own b-vectors", "target": ", at the b-vectors of its protocol"}
    gradients = known.get(provenance.get("Gradients", ""), "")
    parts = [
        f"{studied} were harmonized with siteless {provenance.get('Version', '')} by {how}{cited}"
        f", and rendered as {rendered}{gradients}."
    ]
    if provenance.get("Denoiser", "n/a") != "n/a":
        parts.append(f"Scans were denoised before by {provenance['Denoiser']} ({_MPPCA.short}).")
    if provenance.get("NoiseFloor") == "remove":
        parts.append(f"The noise floor of magnitude images was subtracted ({_FLOOR.short}).")
    if provenance.get("Model"):
        parts.append(f"The model has the identity {provenance['Model']}.")
    return " ".join(parts)


def citations(provenance: Mapping[str, str]) -> str:
    """Return the citations as BibTeX."""
    method = METHODS.get(provenance.get("Method", ""))
    papers = [*method.citations] if method else []
    if provenance.get("Denoiser", "n/a") != "n/a":
        papers.append(_MPPCA)
    if provenance.get("NoiseFloor") == "remove":
        papers.append(_FLOOR)
    return "\n\n".join(paper.bibtex() for paper in papers)
