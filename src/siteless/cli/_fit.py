"""`siteless fit`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import (
    MAPS,
    add_dataset_options,
    add_nprocs,
    natural,
    positive,
    run_of,
    selection_of,
)
from siteless.errors import OutputError, TrainingError

if TYPE_CHECKING:
    from siteless.model import ModelCard

_DESCRIPTION = """\
Learn from scans of two or more sites how each site shows a brain. By default: a code of the signal
that does not tell the site, and how each site renders it; no person needs to be scanned twice.
`siteless methods` lists the others, which are used alike.

People are for training, validation or test by the split column of participants.tsv (train, val,
test); without it one person in ten validates, where a method needs that. The log (_log.tsv) and,
of training, a picture of it (_losses.png) are written beside the model, coefficients into a folder
(_work) that can be deleted afterwards.
"""
_EXAMPLES = """\
examples:
  siteless fit my_study --model my_study.safetensors
  siteless fit my_study --model pair.safetensors --sites berlin leeds
  siteless fit my_study --model rish.safetensors --method rish --denoise
  siteless fit my_study --model combat.safetensors --method combat --maps fa md
  siteless fit my_study --model night.safetensors --minutes 480
  siteless fit my_study --model my_study.safetensors --resume       go on after an interruption
  torchrun --nproc-per-node=2 -m siteless fit my_study --model my_study.safetensors
"""
PRESETS = ("siteless", "paper")
METHODS = ("invariant", "rish", "rish-glm", "paired", "combat", "scaled", "unchanged")

# Scans of a site from which what is the site's can be told from what is people's.
_FEW = 3


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "fit",
        help="learn a model from a dataset",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_dataset_options(parser)
    parser.add_argument(
        "--model", type=Path, required=True, metavar="FILE", help="file to write the model to"
    )
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="invariant",
        help="how scans are to be harmonized: see `siteless methods` (default: invariant)",
    )
    parser.add_argument(
        "--denoise",
        action="store_true",
        help="denoise scans by MP-PCA first (MRtrix3's dwidenoise, or DIPY's), here and whenever "
        "the model is used",
    )
    _add_template(parser)
    parser.add_argument(
        "--preset",
        choices=PRESETS,
        default="siteless",
        help="invariant: what measures best (siteless), or as in Moyer et al. 2020 (paper; "
        "default: siteless)",
    )
    parser.add_argument("--sites", nargs="+", metavar="SITE", help="sites to learn (default: all)")
    parser.add_argument(
        "--tissue",
        choices=("white-matter", "brain"),
        default="white-matter",
        help="voxels to learn from (default: white-matter)",
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--epochs", type=positive, metavar="N", help="invariant: passes over the training patches"
    )
    length.add_argument(
        "--minutes",
        type=_minutes,
        metavar="M",
        help="invariant: train for about as long, after reading",
    )
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted fit")
    parser.add_argument("--device", default="cpu", help="invariant: cpu, cuda, ... (default: cpu)")
    parser.add_argument(
        "--seed", type=natural, default=0, help="of all that is random (default: 0)"
    )
    parser.add_argument(
        "--work-dir", type=Path, metavar="DIR", help="folder for coefficients (default: beside)"
    )
    add_nprocs(parser)
    parser.set_defaults(run=run)


def _add_template(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--travelling",
        action="store_true",
        help="rish: compare people with themselves, who were scanned at several sites",
    )
    parser.add_argument(
        "--same-space",
        action="store_true",
        default=None,
        help="rish, rish-glm, combat: scans are in a common space, so register none (default: "
        "when their names say so, as space-MNI152NLin2009cAsym)",
    )
    parser.add_argument(
        "--covariates",
        nargs="*",
        metavar="COLUMN",
        help="invariant, rish-glm, combat: columns of participants.tsv that explain people, or "
        "none (default: age, sex and group, where they are known)",
    )
    parser.add_argument(
        "--reference",
        nargs="+",
        type=_reference,
        metavar="COLUMN=VALUE",
        help="learn site effects from these people alone, as group=control; several values are "
        "separated by commas (default: everybody)",
    )
    parser.add_argument(
        "--maps",
        nargs="+",
        metavar="MAP",
        help=f"combat: of {', '.join(MAPS)} (default: fa, md, and with two shells mk)",
    )


def run(options: argparse.Namespace) -> int:
    """Fit and return the exit code."""
    if options.model.suffix != ".safetensors":
        raise OutputError(
            "expected a name that ends in .safetensors", remedy="rename it", path=options.model
        )
    from siteless.cli._console import shown
    from siteless.cli._info import show_card
    from siteless.distributed import joined, rank
    from siteless.methods.invariant.training import PRESETS as SETTINGS
    from siteless.pipelines import fit_model

    _require_device(options.device)
    settings = None
    if options.epochs:
        settings = replace(SETTINGS[options.preset], epochs=options.epochs, updates=None)
    with joined(options.device), shown(verbose=options.verbose) as progress:
        model = fit_model(
            selection_of(options),
            options.model,
            method=options.method,
            denoise=options.denoise,
            travelling=options.travelling,
            same_space=options.same_space,
            covariates=options.covariates,
            reference=dict(options.reference or ()),
            maps=options.maps,
            preset=options.preset,
            settings=settings,
            tissue=options.tissue,
            minutes=options.minutes,
            device=options.device,
            resume=options.resume,
            work=options.work_dir,
            run=run_of(options, progress),
        )
        first = rank() == 0
    if first:
        _tell_few(model.card)
        _tell_left_out(model.card.summary["left_out"])
        _tell_interpolated(model.card)
        _tell_not_registered(model.card.summary.get("not_registered", ()), options.model)
        show_card(model)
    return 0


def _tell_few(card: ModelCard) -> None:
    few = [site for site, scans in card.summary["training_scans"].items() if scans < _FEW]
    if few:
        print(  # noqa: T201
            f"siteless: warning: expected {_FEW} scans or more of each site to learn from, found "
            f"fewer of {', '.join(few)}; so few people hardly show what the scanner does, and "
            "little of it is removed: add scans, or leave such sites out with --sites",
            file=sys.stderr,
        )
    for site in card.summary["single_person_sites"]:
        print(  # noqa: T201
            f"siteless: warning: site {site} has one person, who was scanned nowhere else, so "
            "that nothing separates the scanner from the person; add people to harmonize it",
            file=sys.stderr,
        )


def _tell_left_out(names: list[str]) -> None:
    from siteless.cli._console import count, stdout

    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        told = f"left out, as they have no shell: {count(len(names), 'scan')} ({shown})"
        stdout().print(told, soft_wrap=True, markup=False, highlight=False)


def _tell_interpolated(card: ModelCard) -> None:
    from siteless.acquisition import show_bs
    from siteless.cli._console import count

    names = card.summary["interpolated"]
    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        print(  # noqa: T201
            f"siteless: warning: {count(len(names), 'scan')} ({shown}) had other shells; they "
            f"were brought to {show_bs(card.preparation.shells)}",
            file=sys.stderr,
        )


def _tell_not_registered(names: Sequence[str], model: Path) -> None:
    for name in names:
        print(  # noqa: T201
            f"siteless: warning: {name} could not be registered to the template and was left out; "
            f"see {model.with_name(f'{model.stem}_log.tsv')}",
            file=sys.stderr,
        )


def _reference(text: str) -> tuple[str, list[str]]:
    column, equals, values = text.partition("=")
    if not (column and equals and values):
        raise argparse.ArgumentTypeError(f"expected COLUMN=VALUE, got {text!r}")
    return column, values.split(",")


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < 1e5:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return minutes


def _require_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        told = str(error).splitlines()[0]
        raise TrainingError(
            f"the device {device!r} cannot be used ({told})", remedy="use --device cpu"
        ) from None
