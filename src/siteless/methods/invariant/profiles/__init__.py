"""What a site does to all of a brain alike: its point spread, and smooth fields over the head.

A patch cannot see either. Both are estimated from surveys of all training scans, and taken out
before patches are cut; the target's fields are put in again after codes are rendered.
"""

from siteless.methods.invariant.profiles._field import (
    Field,
    extend_fields,
    fit_fields,
    flat_fields,
)
from siteless.methods.invariant.profiles._profiles import (
    ScanProfile,
    SiteProfiles,
    extend_profiles,
    learn_profiles,
)
from siteless.methods.invariant.profiles._spread import diffuse
from siteless.methods.invariant.profiles._survey import SPREADS, Survey, survey

__all__ = [
    "SPREADS",
    "Field",
    "ScanProfile",
    "SiteProfiles",
    "Survey",
    "diffuse",
    "extend_fields",
    "extend_profiles",
    "fit_fields",
    "flat_fields",
    "learn_profiles",
    "survey",
]
