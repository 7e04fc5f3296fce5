"""`siteless info`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siteless.cli._options import add_command

if TYPE_CHECKING:
    from siteless.model import Model

_HELP = """\
say what a model is

Print the card of a model: what it was learned from, how, and how well.
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "info", run, _HELP)
    parser.add_argument("model", metavar="FILE", type=Path, help="that `siteless fit` wrote")
    parser.add_argument("--json", action="store_true", help="print all of it, for machines")


def run(options: argparse.Namespace) -> None:
    from siteless.methods import load_model

    model = load_model(options.model)
    if options.json:
        content = {"identity": model.identity, **asdict(model.card)}
        print(json.dumps(content, indent=2))  # noqa: T201
    else:
        show_card(model)


_FLOORS = {"remove": "removed", "keep": "kept"}


def show_card(model: Model) -> None:
    """Print the description of a model."""
    from siteless.acquisition import show_bs
    from siteless.cli._console import count, say
    from siteless.methods import METHODS

    card, preparation, summary = model.card, model.preparation, model.card.summary
    sites = [
        f"{site}: level {known.level:.4g}, protocol of {len(known.bvals)} volumes, "
        f"{count(summary['training_scans'][site], 'training scan')}, "
        f"{summary['validation_scans'][site]} for validation"
        for site, known in card.sites.items()
    ]
    computed = summary["masks_computed"]
    masks = f" (masks computed for {computed} scans)" if computed else ""
    lines = [
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
        ("noise", f"the floor of magnitudes is {_FLOORS[preparation.noise_floor]}"),
        ("tissue", preparation.tissue.replace("-", " ") + masks),
        *model.describe(),
        ("made with", ", ".join(f"{name} {number}" for name, number in card.versions.items())),
    ]
    for name, value in lines:
        say(f"{name:<12}{value}")
