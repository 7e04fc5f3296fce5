"""Convert between signal and spherical-harmonic coefficients, in scanner axes."""

from siteless.harmonics._basis import coefficient_orders, count_coefficients, max_order, sh_basis
from siteless.harmonics._channels import Channels
from siteless.harmonics._coefficients import (
    Coefficients,
    nearest_shells,
    project,
    projection_matrix,
    rish,
)
from siteless.harmonics._fit import (
    FITS,
    FitName,
    choose_penalty,
    common_order,
    fit_coefficients,
    fitting_matrix,
)
from siteless.harmonics._noise import FitNoise, fit_noise, noise_channels
from siteless.harmonics._shells import (
    at_shells,
    common_bs,
    interpolated_bs,
    shells_for,
    table_at_shells,
    unused_bs,
)

__all__ = [
    "FITS",
    "Channels",
    "Coefficients",
    "FitName",
    "FitNoise",
    "at_shells",
    "choose_penalty",
    "coefficient_orders",
    "common_bs",
    "common_order",
    "count_coefficients",
    "fit_coefficients",
    "fit_noise",
    "fitting_matrix",
    "interpolated_bs",
    "max_order",
    "nearest_shells",
    "noise_channels",
    "project",
    "projection_matrix",
    "rish",
    "sh_basis",
    "shells_for",
    "table_at_shells",
    "unused_bs",
]
