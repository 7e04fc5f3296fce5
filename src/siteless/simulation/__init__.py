"""Simulate travelling subjects with known truth: anatomy, microstructure, scanners, cohorts."""

from siteless.simulation._atlas import SYSTEMS, load_atlas
from siteless.simulation._cohort import PRESETS, Cohort, draw_cohort
from siteless.simulation._designs import (
    DESIGNS,
    FOLLOW_UP,
    StudyDesign,
    choose_design,
    draw_design,
    require_fitting,
)
from siteless.simulation._person import (
    INTRA_AXONAL_PER_YEAR,
    PATIENT_EFFECT,
    Anatomy,
    Effect,
    Person,
    Visit,
    make_anatomy,
)
from siteless.simulation._random_scanners import draw_scanners
from siteless.simulation._scanner import (
    EFFECTS,
    Scanner,
    SimulatedScan,
    read_scanners,
    scan_person,
    scheme,
)
from siteless.simulation._signal import clean_signal

__all__ = [
    "DESIGNS",
    "EFFECTS",
    "FOLLOW_UP",
    "INTRA_AXONAL_PER_YEAR",
    "PATIENT_EFFECT",
    "PRESETS",
    "SYSTEMS",
    "Anatomy",
    "Cohort",
    "Effect",
    "Person",
    "Scanner",
    "SimulatedScan",
    "StudyDesign",
    "Visit",
    "choose_design",
    "clean_signal",
    "draw_cohort",
    "draw_design",
    "draw_scanners",
    "load_atlas",
    "make_anatomy",
    "read_scanners",
    "require_fitting",
    "scan_person",
    "scheme",
]
