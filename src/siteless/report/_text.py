"""What a methods section says of a harmonized study, and what it cites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Citation:
    """A paper, by what BibTeX needs."""

    key: str
    told: str
    authors: str
    title: str
    journal: str
    year: int
    doi: str = ""

    def bibtex(self) -> str:
        """Return the entry of a bibliography."""
        fields = {
            "author": self.authors,
            "title": f"{{{self.title}}}",
            "journal": self.journal,
            "year": str(self.year),
            "doi": self.doi,
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        return "\n".join([f"@article{{{self.key},", *lines, "}"])


_MOYER = Citation(
    "moyer2020",
    "Moyer et al. 2020",
    "Moyer, Daniel and Ver Steeg, Greg and Tax, Chantal M. W. and Thompson, Paul M.",
    "Scanner invariant representations for diffusion MRI harmonization",
    "Magnetic Resonance in Medicine",
    2020,
    "10.1002/mrm.28243",
)
_RISH = Citation(
    "mirzaalian2016",
    "Mirzaalian et al. 2016",
    "Mirzaalian, Hengameh and Ning, Lipeng and Savadjiev, Peter and Pasternak, Ofer and others",
    "Inter-site and inter-scanner diffusion MRI data harmonization",
    "NeuroImage",
    2016,
    "10.1016/j.neuroimage.2016.04.041",
)
_LINEAR_RISH = Citation(
    "cetinkarayumak2019",
    "Cetin Karayumak et al. 2019",
    "Cetin Karayumak, Suheyla and Bouix, Sylvain and Ning, Lipeng and others",
    "Retrospective harmonization of multi-site diffusion MRI data acquired with different "
    "acquisition parameters",
    "NeuroImage",
    2019,
    "10.1016/j.neuroimage.2018.08.073",
)
_RISH_GLM = Citation(
    "deluca2025",
    "De Luca et al. 2025",
    "De Luca, Alberto and Swartenbroekx, Tine and Seelaar, Harro and van Swieten, John and others",
    "Cross-site harmonization of diffusion MRI data without matched training subjects",
    "Magnetic Resonance in Medicine",
    2025,
)
_COMBAT = Citation(
    "fortin2017",
    "Fortin et al. 2017",
    "Fortin, Jean-Philippe and Parker, Drew and Tun\\c{c}, Birkan and others",
    "Harmonization of multi-site diffusion tensor imaging data",
    "NeuroImage",
    2017,
    "10.1016/j.neuroimage.2017.08.047",
)
_MPPCA = Citation(
    "veraart2016",
    "Veraart et al. 2016",
    "Veraart, Jelle and Novikov, Dmitry S. and Christiaens, Daan and others",
    "Denoising of diffusion MRI using random matrix theory",
    "NeuroImage",
    2016,
    "10.1016/j.neuroimage.2016.08.016",
)
# What each method does to scans, and whom it is due to.
_METHODS: Mapping[str, tuple[str, tuple[Citation, ...]]] = {
    "invariant": (
        "an invariant conditional variational autoencoder of spherical-harmonic patches, which "
        "learns without paired scans a code of the signal that does not tell the site",
        (_MOYER,),
    ),
    "rish": ("rotation-invariant spherical-harmonic features (RISH)", (_RISH, _LINEAR_RISH)),
    "rish-glm": (
        "rotation-invariant spherical-harmonic features, told from covariates by regression "
        "(RISH-GLM)",
        (_RISH, _RISH_GLM),
    ),
    "paired": ("a network that was trained on people scanned at several sites", ()),
    "combat": ("ComBat of maps at each voxel of a template", (_COMBAT,)),
    "scaled": ("one scale factor for each shell and site", ()),
    "unchanged": ("spherical-harmonic interpolation alone, which leaves sites as they are", ()),
}


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
    how, papers = _METHODS.get(told["Method"], (f"the method {told['Method']}", ()))
    cited = f" ({'; '.join(one.told for one in papers)})" if papers else ""
    target = told.get("TargetSite", "")
    rendered = "the average of sites" if target == "average" else f"site {target}"
    parts = [
        f"{studied} were harmonized with siteless {told.get('Version', '')} by {how}{cited}, "
        f"and rendered as {rendered}{_gradients(told)}."
    ]
    if told.get("Denoiser", "n/a") != "n/a":
        parts.append(f"Scans were denoised before by {told['Denoiser']} ({_MPPCA.told}).")
    if told.get("Model"):
        parts.append(f"The model has the identity {told['Model']}.")
    return " ".join(parts)


def _gradients(told: Mapping[str, str]) -> str:
    known = {"own": ", at their own b-vectors", "target": ", at the b-vectors of its protocol"}
    return known.get(told.get("Gradients", ""), "")


def citations(told: Mapping[str, str]) -> str:
    """Return what is to be cited, as BibTeX."""
    _, papers = _METHODS.get(told.get("Method", ""), ("", ()))
    denoised = told.get("Denoiser", "n/a") != "n/a"
    return "\n\n".join(one.bibtex() for one in (*papers, *((_MPPCA,) if denoised else ())))
