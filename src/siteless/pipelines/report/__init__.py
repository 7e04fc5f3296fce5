"""Write the pages of a study and of its participants, from scans and scores."""

from siteless.pipelines.report._report import HOME, read_scores, write_report

__all__ = ["HOME", "read_scores", "write_report"]
