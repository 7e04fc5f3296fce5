"""A study template, and the registration of scans to it."""

from siteless.methods.template._likeness import (
    BrainMaps,
    Likeness,
    describe_template,
    lay_well,
    mean_maps,
)
from siteless.methods.template._work import (
    TEMPLATE,
    TemplateWork,
    bring_to_template,
    is_common_space,
    template_maps,
)

__all__ = [
    "TEMPLATE",
    "BrainMaps",
    "Likeness",
    "TemplateWork",
    "bring_to_template",
    "describe_template",
    "is_common_space",
    "lay_well",
    "mean_maps",
    "template_maps",
]
