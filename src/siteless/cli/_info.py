"""`siteless info`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siteless.model import Model


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "info",
        help="say what a model is",
        description="Print the card of a model: what it was learned from, how, and how well.",
    )
    parser.add_argument("model", metavar="FILE", type=Path, help="that `siteless fit` wrote")
    parser.add_argument("--json", action="store_true", help="print all of it, for machines")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show a model and return the exit code."""
    from siteless.model import load_model

    model = load_model(options.model)
    if options.json:
        told = {"identity": model.identity, **asdict(model.card)}
        print(json.dumps(told, indent=2))  # noqa: T201
    else:
        show_card(model)
    return 0


def show_card(model: Model) -> None:
    """Print what a person must know of a model."""
    from siteless.cli._console import stdout

    console = stdout()
    for name, value in _lines(model):
        console.print(f"{name:<12}{value}", soft_wrap=True, markup=False, highlight=False)


def _lines(model: Model) -> list[tuple[str, str]]:
    from siteless.cli._console import count
    from siteless.model import show_bs

    card, summary = model.card, model.card.summary
    best, network = summary["best"], card.network
    sites = [
        f"{site}: level {known.level:.4g}, protocol of {len(known.bvals)} volumes, "
        f"{count(summary['training_scans'][site], 'training scan')}, "
        f"{summary['validation_scans'][site]} for validation"
        for site, known in card.sites.items()
    ]
    widths = "-".join(map(str, network.encoder))
    return [
        ("identity", model.identity),
        *zip(["sites", *[""] * (len(sites) - 1)], sites, strict=True),
        ("signal", f"b0, {show_bs(card.bs)}; harmonics to order {card.order}, {card.basis}"),
        ("fit", card.fit.replace("-", " ")),
        ("tissue", card.tissue.replace("-", " ") + _masks(summary["masks_computed"])),
        (
            "network",
            f"patches of {network.neighbours} x {network.channels} to a code of {network.code}, "
            f"encoder {widths} {network.activation}, {best['val_active_units']} units used",
        ),
        (
            "training",
            f"preset {card.preset}, seed {card.seed}: {summary['patches']} patches of "
            f"{_people(len(summary['training_people']))}, best after {best['update']:.0f} updates "
            f"({best['epoch']:.1f} epochs)",
        ),
        (
            "validation",
            f"{_validation(len(summary['validation_people']))}: RMSE "
            f"{best['val_rmse_percent']:.2f} % of white matter's b0, reconstructed at home",
        ),
        ("made with", ", ".join(f"{name} {number}" for name, number in card.versions.items())),
    ]


def _masks(computed: int) -> str:
    return f" (masks computed for {computed} scans)" if computed else ""


def _people(number: int) -> str:
    return "1 person" if number == 1 else f"{number} people"


def _validation(number: int) -> str:
    return _people(number) if number else "nobody, so on the training scans"
