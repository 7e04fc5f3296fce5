"""Remove thermal noise by Marchenko-Pastur PCA, before any other processing."""

from siteless.denoising._mppca import denoise, find_denoiser

__all__ = ["denoise", "find_denoiser"]
