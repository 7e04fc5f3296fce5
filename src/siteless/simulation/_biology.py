"""What brains of a simulated world are like: constants of tissue, and how much people differ."""

from __future__ import annotations

from dataclasses import dataclass

MEAN_AGE = 45.0


@dataclass(frozen=True)
class Biology:
    """The tissue of all people of a simulation; the defaults are those of the presets.

    Attributes
    ----------
    intra_axonal, intra_axonal_per_year
        Fraction of a fibre's water inside axons at 45 years, and the effect of age on it.
    intra_axonal_scatter
        Standard deviation of the intra-axonal fraction between people.
    intra_axonal_variation, dispersion_variation
        Standard deviations of smooth variations over the brain: of one that all people share, and
        of each person's own.
    dispersion
        Standard deviation of the tilt of fibres along each of two axes, radians.
    along_axon, free
        Diffusivity along axons and of fluid, mm2/s.
    grey_fast, grey_slow, grey_fast_part
        Diffusivities of the two pools of grey matter, mm2/s, and the fraction of the fast one.
    grey_variation
        Standard deviation of smooth variations of that fraction.
    cortical_sticks
        Fraction of grey matter in sticks perpendicular to the surface of white matter.
    t2_intra, t2_extra, t2_grey, t2_fluid
        Transverse relaxation times, s.
    t2_variation
        Standard deviation of smooth variations of their logarithm.
    water_white, water_grey, water_fluid
        Water content relative to fluid.
    deformation, deformation_scale
        Size of the deformation between people, along each axis, and its smoothness, mm.
    """

    intra_axonal: float = 0.55
    intra_axonal_per_year: float = -0.0015
    intra_axonal_scatter: float = 0.015
    intra_axonal_variation: tuple[float, float] = (0.04, 0.02)
    dispersion: float = 0.29
    dispersion_variation: tuple[float, float] = (0.035, 0.017)
    along_axon: float = 1.9e-3
    free: float = 3.0e-3
    grey_fast: float = 1.1e-3
    grey_slow: float = 0.35e-3
    grey_fast_part: float = 0.65
    grey_variation: float = 0.0
    cortical_sticks: float = 0.0
    t2_intra: float = 0.090
    t2_extra: float = 0.060
    t2_grey: float = 0.080
    t2_fluid: float = 0.500
    t2_variation: float = 0.0
    water_white: float = 0.70
    water_grey: float = 0.80
    water_fluid: float = 1.00
    deformation: float = 2.5
    deformation_scale: float = 30.0


USUAL_BIOLOGY = Biology()
