"""`siteless fit`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import add_command, positive, running, selection_of
from siteless.errors import DatasetError, OutputError
from siteless.methods.registry import METHODS

if TYPE_CHECKING:
    from siteless.methods import Method
    from siteless.model import Model

_HELP = """\
learn a model from a dataset

Learn from scans of two or more sites how each site shows a brain. By default: a code of the signal
that does not tell the site, and how each site renders it; no person needs to be scanned twice.
`siteless methods` lists the others, which are used alike.

People are for training, validation or test by the split column of participants.tsv (train, val,
test); without it one person in ten validates, where a method needs that. The log (_log.tsv) and,
of training, a picture of it (_losses.png) are written beside the model, coefficients into a folder
(_work) that can be deleted afterwards.

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
_FEW_SCANS = 3


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "fit", run, _HELP)
    parser.add_dataset()
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
    parser.add_seed("random seed")
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
    parser.add_nprocs()
    _add_method_options(parser)


def _add_method_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all methods; missing options are not in the namespace."""
    group = parser.add_argument_group("options of methods")
    for name, methods in _owners().items():
        argument = dict(METHODS[methods[0]].options()[name].metadata)
        argument.pop("collect", None)
        if len(methods) < len(METHODS):
            argument["help"] = f"{', '.join(methods)}: {argument['help']}"
        group.add_argument(_flag(name), default=argparse.SUPPRESS, **argument)


def _owners() -> dict[str, list[str]]:
    """Return the names of methods that have an option, by the option."""
    owners: dict[str, list[str]] = {}
    for method in METHODS.values():
        for name in method.options():
            owners.setdefault(name, []).append(method.name)
    return owners


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _method_of(options: argparse.Namespace) -> Method:
    """Return the method with its settings; raise an error for options of other methods."""
    method = METHODS[options.method]
    known = method.options()
    settings = {}
    for name, owners in _owners().items():
        if name not in options:
            continue
        if name not in known:
            raise DatasetError(
                f"the method {method.name} has no {_flag(name)}",
                remedy=f"leave it out, or use {' or '.join(owners)}",
            )
        value = getattr(options, name)
        collect = known[name].metadata.get("collect")
        settings[name] = collect(value) if collect else value
    return method(**settings)


def run(options: argparse.Namespace) -> None:
    if options.model.suffix != ".safetensors":
        raise OutputError(
            "expected a name that ends in .safetensors", remedy="rename it", path=options.model
        )
    from siteless.cli._console import count, say, warn
    from siteless.cli._info import show_card
    from siteless.distributed import joined, rank
    from siteless.pipelines import fit_model

    method = _method_of(options)
    with joined(getattr(method, "device", "cpu")), running(options) as work:
        model = fit_model(
            selection_of(options),
            options.model,
            method,
            resume=options.resume,
            work=options.work_dir,
            work_gb=options.work_gb,
            run=work,
        )
        first = rank() == 0
    if first:
        for line in _warnings(model, options.model):
            warn(f"warning: {line}")
        if names := model.card.summary["left_out"]:
            scans = f"{count(len(names), 'scan')} ({_first_few(names)})"
            say(f"left out, as they have no shell: {scans}")
        show_card(model)


def _warnings(model: Model, path: Path) -> Iterator[str]:
    """Yield what a user should know about the scans that a model was learned from."""
    from siteless.acquisition import show_bs
    from siteless.cli._console import count

    summary = model.card.summary
    few = [site for site, scans in summary["training_scans"].items() if scans < _FEW_SCANS]
    if few:
        yield (
            f"expected {_FEW_SCANS} scans or more of each site to learn from, found fewer of "
            f"{', '.join(few)}; so few people hardly show what the scanner does, and little of it "
            "is removed: add scans, or leave such sites out with --sites"
        )
    for site in summary["single_person_sites"]:
        yield (
            f"site {site} has one person, who was scanned nowhere else, so that nothing separates "
            "the scanner from the person; add people to harmonize it"
        )
    learning = sum(summary["training_scans"].values())
    used = summary.get("network_scans", learning)
    if used < learning:
        yield (
            f"the network learned from {used} of {learning} scans, as many as --work-gb holds; "
            "site effects come from all of them"
        )
    if names := summary["interpolated"]:
        shells = show_bs(model.preparation.shells)
        scans = f"{count(len(names), 'scan')} ({_first_few(names)})"
        yield f"{scans} had other shells; they were brought to {shells}"
    log = path.with_name(f"{path.stem}_log.tsv")
    for name in summary.get("not_registered", ()):
        yield f"{name} could not be registered to the template and was left out; see {log}"


def _first_few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
