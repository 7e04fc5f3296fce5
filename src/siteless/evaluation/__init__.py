"""Scores of harmonized scans and latent codes, for any method."""

from siteless.evaluation._biology import (
    Agreement,
    Change,
    Effect,
    change_per_year,
    intraclass_correlation,
    lesion_contrast,
    linear_effect,
    site_distances,
)
from siteless.evaluation._errors import relative_errors
from siteless.evaluation._fods import Fods, Responses
from siteless.evaluation._leakage import Leakage, Sample, measure_leakage
from siteless.evaluation._metrics import describe_metric
from siteless.evaluation._orientation import estimate_responses, find_engine, find_fods
from siteless.evaluation._peaks import Angles, peak_angles
from siteless.evaluation._score import (
    ALL,
    BEFORE,
    NOISE,
    RESCAN,
    WHITE_MATTER,
    Score,
    ScoreTable,
)
from siteless.evaluation._signal import evenly_spaced, match_volumes
from siteless.evaluation._target import (
    Target,
    maps_within,
    rmse_map,
    score_angles,
    score_maps,
    score_signal,
    summarise_map,
)

__all__ = [
    "ALL",
    "BEFORE",
    "NOISE",
    "RESCAN",
    "WHITE_MATTER",
    "Agreement",
    "Angles",
    "Change",
    "Effect",
    "Fods",
    "Leakage",
    "Responses",
    "Sample",
    "Score",
    "ScoreTable",
    "Target",
    "change_per_year",
    "describe_metric",
    "estimate_responses",
    "evenly_spaced",
    "find_engine",
    "find_fods",
    "intraclass_correlation",
    "lesion_contrast",
    "linear_effect",
    "maps_within",
    "match_volumes",
    "measure_leakage",
    "peak_angles",
    "relative_errors",
    "rmse_map",
    "score_angles",
    "score_maps",
    "score_signal",
    "site_distances",
    "summarise_map",
]
