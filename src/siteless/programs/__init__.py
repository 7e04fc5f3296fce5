"""Programs beyond Python, such as MRtrix3's, and places for what they read and write."""

from siteless.programs._run import find_version, run_program, scratch_folder

__all__ = ["find_version", "run_program", "scratch_folder"]
