"""Numbers to pictures."""

from siteless.report._boxes import draw_boxes
from siteless.report._glyphs import draw_fods
from siteless.report._maps import draw_maps
from siteless.report._training import draw_training

__all__ = ["draw_boxes", "draw_fods", "draw_maps", "draw_training"]
