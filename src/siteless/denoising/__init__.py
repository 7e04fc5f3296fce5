"""Thermal noise: taken out of a scan by Marchenko-Pastur PCA, before anything else is done."""

from siteless.denoising._mppca import denoise, find_denoiser

__all__ = ["denoise", "find_denoiser"]
