"""`siteless-bids`: the commands of siteless with the interface of BIDS Apps."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from siteless.cli._main import exit_code, main, make_parser
from siteless.cli._options import Command, filters_of, positive
from siteless.errors import SitelessError

_DESCRIPTION = """\
Harmonize a BIDS dataset (raw, or a derivative such as QSIPrep's), as a BIDS App.

group        learns a model from all people: OUT_DIR/model/model.safetensors
participant  renders people's scans with it, into OUT_DIR

Other options are those of `siteless fit` (group) and `siteless harmonize` (participant).
"""
_EXAMPLES = """\
examples:
  siteless-bids my_study out group
  siteless-bids my_study out participant --to berlin --participant-label 01 02
  siteless-bids my_study out participant --gradients target --to berlin
"""


def bids_main(arguments: Sequence[str] | None = None) -> int:
    """Run one level of the analysis and return its exit code."""
    options, others = _parser().parse_known_args(arguments)
    return exit_code(lambda: _run_level(options, others))


def _run_level(options: argparse.Namespace, others: Sequence[str]) -> int:
    model = options.model or options.out_dir / "model" / "model.safetensors"
    command = _command(options, model)  # before `_chosen`, which may read the dataset
    chosen = _chosen(options)
    words = [*command, *chosen, *others]
    make_parser().parse_args(words)  # rejects wrong options before scans are read
    if options.level == "group" and not options.skip_bids_validation:
        return main(["check", str(options.bids_dir), *chosen]) or main(words)
    return main(words)


def _parser() -> Command:
    parser = Command(
        prog="siteless-bids",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("bids_dir", metavar="BIDS_DIR", type=Path, help="the dataset")
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path, help="folder for all outputs")
    parser.add_argument("level", choices=("group", "participant"), help="what to do")
    parser.add_argument(
        "--model",
        type=Path,
        metavar="FILE",
        help="model to write or to use (default: OUT_DIR/model/model.safetensors)",
    )
    parser.add_argument(
        "--to",
        default="average",
        metavar="SITE",
        help="site to render scans as (default: average)",
    )
    parser.add_choice()
    parser.add_argument("--nprocs", "--n_cpus", type=positive, metavar="N", help="processes")
    parser.add_argument(
        "--mem-mb", type=positive, metavar="MB", help="use only as many processes as fit in this"
    )
    parser.add_argument(
        "-w", "--work-dir", type=Path, metavar="DIR", help="folder for coefficients (group)"
    )
    parser.add_argument(
        "--skip-bids-validation",
        "--skip_bids_validation",
        action="store_true",
        help="do not run `siteless check` before a model is learned (group)",
    )
    parser.add_verbose()
    parser.add_argument(
        "--version", action="version", version=f"siteless-bids {version('siteless')}"
    )
    return parser


def _chosen(options: argparse.Namespace) -> list[str]:
    """Return the options of all commands: the selection of scans and the number of processes."""
    words: list[str] = []
    for name in ("participant_label", "session_label", "bids_filter_file", "site_from"):
        if value := getattr(options, name):
            labels = value if isinstance(value, list) else [str(value)]
            words += [f"--{name.replace('_', '-')}", *labels]
    nprocs = options.nprocs
    if options.mem_mb is not None:
        from siteless.bids import ScanSelection
        from siteless.pipelines import processes_within

        selection = ScanSelection(options.bids_dir, options.site_from, filters_of(options))
        nprocs = processes_within(options.mem_mb * 10**6, selection, nprocs)
    words += ["--nprocs", str(nprocs)] if nprocs else []
    return [*words, "--verbose"] if options.verbose else words


def _command(options: argparse.Namespace, model: Path) -> list[str]:
    """Return the command of the level, without the options of all commands."""
    dataset, out = str(options.bids_dir), str(options.out_dir)
    if options.level == "group":
        work = ["--work-dir", str(options.work_dir)] if options.work_dir else []
        return ["fit", dataset, "--model", str(model), "--resume", *work]
    if not model.exists():
        remedy = f"run `siteless-bids {dataset} {out} group` first"
        raise SitelessError("there is no model yet", remedy=remedy, path=model)
    return ["harmonize", dataset, out, "--model", str(model), "--to", options.to, "--no-report"]
