"""Numbers to pictures."""

from siteless.report._training import draw_training

__all__ = ["draw_training"]
