"""Global effects of sites: point-spread functions, and smooth fields over the head.

A patch shows neither. Both are estimated from surveys of all training scans, and corrected before
patches are cut; the target's fields are applied after codes are rendered.
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
from siteless.methods.invariant.profiles._survey import BLURS, Survey, survey

__all__ = [
    "BLURS",
    "Field",
    "ScanProfile",
    "SiteProfiles",
    "Survey",
    "extend_fields",
    "extend_profiles",
    "fit_fields",
    "flat_fields",
    "learn_profiles",
    "survey",
]
