"""People: who was scanned where, their covariates, and site effects, separated from both."""

from siteless.population._covariates import Covariate, covariate_columns
from siteless.population._design import Design
from siteless.population._effects import SiteEffects, estimate_new_site, estimate_site_effects
from siteless.population._identifiability import require_identifiable, sites_of_one_person

__all__ = [
    "Covariate",
    "Design",
    "SiteEffects",
    "covariate_columns",
    "estimate_new_site",
    "estimate_site_effects",
    "require_identifiable",
    "sites_of_one_person",
]
