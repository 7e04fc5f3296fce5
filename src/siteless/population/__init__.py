"""Site effects, separated from participants and their covariates."""

from siteless.population._covariates import Covariate, covariate_columns
from siteless.population._design import Design
from siteless.population._effects import SiteEffects, estimate_new_site, estimate_site_effects
from siteless.population._identifiability import require_identifiable, sites_of_one_person
from siteless.population._verdict import NUMBERS, SiteVerdict, judge_sites

__all__ = [
    "NUMBERS",
    "Covariate",
    "Design",
    "SiteEffects",
    "SiteVerdict",
    "covariate_columns",
    "estimate_new_site",
    "estimate_site_effects",
    "judge_sites",
    "require_identifiable",
    "sites_of_one_person",
]
