"""Scans before and after, and scores, to the pages of a study and of its people."""

from siteless.pipelines.report._report import HOME, read_scores, write_report

__all__ = ["HOME", "read_scores", "write_report"]
