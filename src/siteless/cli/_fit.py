"""`siteless fit`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import (
    add_dataset_options,
    add_nprocs,
    natural,
    positive,
    run_of,
    selection_of,
)
from siteless.errors import DatasetError, OutputError
from siteless.methods.registry import METHODS

if TYPE_CHECKING:
    from siteless.methods import Method
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
# Number of scans from which a site's effect can be separated from participants.
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
    parser.add_argument("--sites", nargs="+", metavar="SITE", help="sites to learn (default: all)")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted fit")
    parser.add_argument("--seed", type=natural, default=0, help="random seed (default: 0)")
    parser.add_argument(
        "--work-dir",
        type=Path,
        metavar="DIR",
        help="folder for what is made of each scan (default: beside the model)",
    )
    parser.add_argument(
        "--work-gb",
        type=positive,
        default=100,
        metavar="GB",
        help="gigabytes that signal and patches may take in it, about; of larger studies the "
        "network learns from as many scans as fit (default: %(default)s)",
    )
    add_nprocs(parser)
    _add_method_options(parser)
    parser.set_defaults(run=run)


def _add_method_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all methods; missing options are not in the namespace."""
    group = parser.add_argument_group("options of methods")
    owners: dict[str, list[type[Method]]] = {}
    for method in METHODS.values():
        for name in method.options():
            owners.setdefault(name, []).append(method)
    for name, methods in owners.items():
        argument = dict(methods[0].options()[name].metadata)
        argument.pop("collect", None)
        if len(methods) < len(METHODS):
            names = ", ".join(method.name for method in methods)
            argument["help"] = f"{names}: {argument['help']}"
        group.add_argument(_flag(name), default=argparse.SUPPRESS, **argument)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def method_of(options: argparse.Namespace) -> Method:
    """Return the method with its settings; raise an error for options of other methods."""
    method = METHODS[options.method]
    known = method.options()
    settings = {}
    for other in METHODS.values():
        for name in other.options().keys() & vars(options).keys():
            if name not in known:
                owners = [owner.name for owner in METHODS.values() if name in owner.options()]
                raise DatasetError(
                    f"the method {method.name} has no {_flag(name)}",
                    remedy=f"leave it out, or use {' or '.join(owners)}",
                )
            collect = known[name].metadata.get("collect", lambda value: value)
            settings[name] = collect(getattr(options, name))
    return method(**settings)


def run(options: argparse.Namespace) -> int:
    """Fit and return the exit code."""
    if options.model.suffix != ".safetensors":
        raise OutputError(
            "expected a name that ends in .safetensors", remedy="rename it", path=options.model
        )
    from siteless.cli._console import shown
    from siteless.cli._info import show_card
    from siteless.distributed import joined, rank
    from siteless.pipelines import fit_model

    method = method_of(options)
    with joined(getattr(method, "device", "cpu")), shown(verbose=options.verbose) as progress:
        model = fit_model(
            selection_of(options),
            options.model,
            method,
            resume=options.resume,
            work=options.work_dir,
            work_gb=options.work_gb,
            run=run_of(options, progress),
        )
        first = rank() == 0
    if first:
        _tell_few(model.card)
        _tell_sampled(model.card)
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


def _tell_sampled(card: ModelCard) -> None:
    learning = sum(card.summary["training_scans"].values())
    used = card.summary.get("network_scans", learning)
    if used < learning:
        print(  # noqa: T201
            f"siteless: warning: the network learned from {used} of {learning} scans, as many as "
            "--work-gb holds; site effects come from all of them",
            file=sys.stderr,
        )


def _tell_left_out(names: list[str]) -> None:
    from siteless.cli._console import count, stdout

    if names:
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        line = f"left out, as they have no shell: {count(len(names), 'scan')} ({shown})"
        stdout().print(line, soft_wrap=True, markup=False, highlight=False)


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
