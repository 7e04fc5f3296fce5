"""Run external programs, such as those of MRtrix3, in scratch folders."""

from siteless.programs._run import find_version, run_program, scratch_folder

__all__ = ["find_version", "run_program", "scratch_folder"]
