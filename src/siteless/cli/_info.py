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
    from siteless.methods import load_model

    model = load_model(options.model)
    if options.json:
        content = {"identity": model.identity, **asdict(model.card)}
        print(json.dumps(content, indent=2))  # noqa: T201
    else:
        show_card(model)
    return 0


def show_card(model: Model) -> None:
    """Print the description of a model."""
    from siteless.cli._console import stdout

    console = stdout()
    for name, value in _lines(model):
        console.print(f"{name:<12}{value}", soft_wrap=True, markup=False, highlight=False)


def _lines(model: Model) -> list[tuple[str, str]]:
    from siteless.acquisition import show_bs
    from siteless.methods import METHODS

    card, preparation, summary = model.card, model.preparation, model.card.summary
    sites = _site_lines(model)
    return [
        ("identity", model.identity),
        ("method", f"{card.method}: {METHODS[card.method].summary}"),
        *zip(["sites", *[""] * (len(sites) - 1)], sites, strict=True),
        (
            "signal",
            f"b0, {show_bs(preparation.shells)}; harmonics to order "
            f"{preparation.order}, {preparation.basis}",
        ),
        ("fit", preparation.fit.replace("-", " ")),
        ("denoised", f"by {preparation.denoiser}" if preparation.denoiser else "no"),
        ("tissue", preparation.tissue.replace("-", " ") + _masks(summary["masks_computed"])),
        *model.describe(),
        ("made with", ", ".join(f"{name} {number}" for name, number in card.versions.items())),
    ]


def _site_lines(model: Model) -> list[str]:
    from siteless.cli._console import count

    summary = model.card.summary
    return [
        f"{site}: level {known.level:.4g}, protocol of {len(known.bvals)} volumes, "
        f"{count(summary['training_scans'][site], 'training scan')}, "
        f"{summary['validation_scans'][site]} for validation"
        for site, known in model.card.sites.items()
    ]


def _masks(computed: int) -> str:
    return f" (masks computed for {computed} scans)" if computed else ""
