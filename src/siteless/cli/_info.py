"""`siteless info`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siteless.model import Model
    from siteless.population import SiteVerdict


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
    from siteless.acquisition import show_bs
    from siteless.methods import METHODS

    card, made, summary = model.card, model.preparation, model.card.summary
    sites = _site_lines(model)
    return [
        ("identity", model.identity),
        ("method", f"{card.method}: {METHODS[card.method].told}"),
        *zip(["sites", *[""] * (len(sites) - 1)], sites, strict=True),
        ("signal", f"b0, {show_bs(made.shells)}; harmonics to order {made.order}, {made.basis}"),
        ("fit", made.fit.replace("-", " ")),
        ("denoised", f"by {made.denoiser}" if made.denoiser else "no"),
        ("tissue", made.tissue.replace("-", " ") + _masks(summary["masks_computed"])),
        *_method_lines(model),
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


def _method_lines(model: Model) -> list[tuple[str, str]]:
    """Say how a model was learned, by its method."""
    match model.card.method:
        case "invariant":
            of_network = [_network_line(model), _training_line(model), _validation_line(model)]
            return [*_profile_lines(model), *of_network]
        case "paired":
            return [_validation_line(model)]
        case "rish" | "rish-glm":
            return _template_lines(model)
        case "combat":
            return [_maps_line(model), *_template_lines(model)]
        case _:
            return []


def _profile_lines(model: Model) -> list[tuple[str, str]]:
    """Say what each site does to all of a brain, and how sure that is."""
    from siteless.methods.invariant import InvariantModel

    if not isinstance(model, InvariantModel) or model.profiles is None:
        return []
    profiles = model.profiles
    shown = [
        f"{site}: blurred by {blur:.2f} mm2, b0 varies by {100 * spread:.1f} % over the head"
        for site, blur, spread in zip(
            profiles.sites, profiles.spreads, profiles.field.variation, strict=True
        )
    ]
    verdicts = [_verdict_line(one) for one in profiles.verdict]
    return [
        *zip(["profiles", *[""] * (len(shown) - 1)], shown, strict=True),
        *zip(["differences", *[""] * (len(verdicts) - 1)], verdicts, strict=True),
    ]


def _verdict_line(one: SiteVerdict) -> str:
    from siteless.population import NUMBERS

    more = [
        f"{100 * error:.1f} % with {number}"
        for number, error in zip(NUMBERS, one.expected_errors, strict=True)
        if number > one.people
    ]
    expected = f" ({', '.join(more)})" if more and one.people else ""
    people = "one person" if one.people == 1 else f"{one.people} people"
    return (
        f"{one.site}: {100 * one.difference:.1f} % from the mean of sites, where chance in who "
        f"was scanned gives {100 * one.chance:.1f} %; {100 * one.scanner:.1f} % is removed as "
        f"the scanner's, known to {100 * one.error:.1f} % with {people}{expected}"
    )


def _network_line(model: Model) -> tuple[str, str]:
    network, best = model.card.settings["network"], model.card.summary["best"]
    widths = "-".join(map(str, network["encoder"]))
    turned = ", each in the frame of its fibres," if network.get("turned") else ""
    return (
        "network",
        f"patches of {network['neighbours']} x {network['channels']}{turned} to a code of "
        f"{network['code']}, encoder {widths} {network['activation']}, "
        f"{best['val_active_units']} units used",
    )


def _training_line(model: Model) -> tuple[str, str]:
    card, summary = model.card, model.card.summary
    best = summary["best"]
    return (
        "training",
        f"preset {card.settings['preset']}, seed {card.seed}: {summary['patches']} patches of "
        f"{_people(len(summary['training_people']))}, best after {best['update']:.0f} updates "
        f"({best['epoch']:.1f} epochs)",
    )


def _validation_line(model: Model) -> tuple[str, str]:
    summary = model.card.summary
    where = "reconstructed at home" if model.card.method == "invariant" else "at other sites"
    people = len(summary["validation_people"]) if summary.get("validated", True) else 0
    return (
        "validation",
        f"{_validation(people)}: RMSE "
        f"{summary['best']['val_rmse_percent']:.2f} % of white matter's b0, {where}",
    )


def _maps_line(model: Model) -> tuple[str, str]:
    names, package = model.card.settings["maps"], model.card.summary["neuroCombat"]
    return ("maps", f"{', '.join(names)}, by neuroCombat {package}; no scans")


def _template_lines(model: Model) -> list[tuple[str, str]]:
    from siteless.methods.template import Likeness

    settings, summary = model.card.settings, model.card.summary
    travelling = settings.get("travelling", False)
    compared = "travelling people with themselves" if travelling else "groups"
    beside = f", beside {', '.join(settings['covariates'])}" if settings["covariates"] else ""
    likeness = Likeness(**summary["likeness"])
    how = "in a common space" if settings["same_space"] else "registered"
    lost = [("left out", ", ".join(summary["not_registered"]) + ": not registered")]
    return [
        ("compared", compared + beside),
        ("template", f"scans {how}, typically: {likeness}"),
        *(lost if summary["not_registered"] else []),
    ]


def _masks(computed: int) -> str:
    return f" (masks computed for {computed} scans)" if computed else ""


def _people(number: int) -> str:
    return "1 person" if number == 1 else f"{number} people"


def _validation(number: int) -> str:
    return _people(number) if number else "nobody, so on the training scans"
