"""Simulate travelling subjects with known truth: anatomy, microstructure, scanners, cohorts."""

from siteless.simulation._atlas import SYSTEMS, load_atlas
from siteless.simulation._biology import USUAL_BIOLOGY, Biology
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
from siteless.simulation._signal import Encoding, clean_signal
from siteless.simulation._worlds import World, draw_world

__all__ = [
    "DESIGNS",
    "EFFECTS",
    "FOLLOW_UP",
    "PATIENT_EFFECT",
    "PRESETS",
    "SYSTEMS",
    "USUAL_BIOLOGY",
    "Anatomy",
    "Biology",
    "Cohort",
    "Effect",
    "Encoding",
    "Person",
    "Scanner",
    "SimulatedScan",
    "StudyDesign",
    "Visit",
    "World",
    "choose_design",
    "clean_signal",
    "draw_cohort",
    "draw_design",
    "draw_scanners",
    "draw_world",
    "load_atlas",
    "make_anatomy",
    "read_scanners",
    "require_fitting",
    "scan_person",
    "scheme",
]
