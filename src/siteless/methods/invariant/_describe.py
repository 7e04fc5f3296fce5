"""Describe a model of the invariant method."""

from __future__ import annotations

from siteless.methods.invariant.profiles import SiteProfiles
from siteless.methods.training import count_people, describe_validation
from siteless.model import ModelCard
from siteless.population import NUMBERS, SiteVerdict

# More people are worth mentioning where they reduce the standard error to this part of it.
_FEWER = 0.99


def describe_model(card: ModelCard, profiles: SiteProfiles | None) -> list[tuple[str, str]]:
    """Describe the effect of each site with its uncertainty, and the network."""
    summary, network = card.summary, card.settings["network"]
    best, widths = summary["best"], "-".join(map(str, network["encoder"]))
    covariates = [covariate["name"] for covariate in card.settings["learned_covariates"]]
    turned = ", each in the frame of its fibres," if network.get("turned") else ""
    return [
        *(_profile_lines(profiles) if profiles else ()),
        ("covariates", ", ".join(covariates) or "none"),
        (
            "network",
            f"patches of {network['neighbours']} x {network['channels']}{turned} to a code of "
            f"{network['code']}, encoder {widths} {network['activation']}, "
            f"{best['val_active_units']} units used",
        ),
        (
            "training",
            f"preset {card.settings['preset']}, seed {card.seed}: {summary['patches']} patches of "
            f"{count_people(len(summary['training_people']))}, best after {best['update']:.0f} "
            f"updates ({best['epoch']:.1f} epochs)",
        ),
        describe_validation(card, len(summary["validation_people"]), "reconstructed at home"),
    ]


def _profile_lines(profiles: SiteProfiles) -> list[tuple[str, str]]:
    """Describe the global effect of each site with its uncertainty."""
    values = zip(profiles.sites, profiles.blurs, profiles.field.variation, strict=True)
    effects = [
        f"{site}: blurred by {blur:.2f} mm2, b0 varies by {100 * variation:.1f} % over the head"
        for site, blur, variation in values
    ]
    verdicts = [_verdict(verdict) for verdict in profiles.verdict]
    return [
        (title if number == 0 else "", line)
        for title, lines in (("profiles", effects), ("differences", verdicts))
        for number, line in enumerate(lines)
    ]


def _verdict(site: SiteVerdict) -> str:
    more = [
        f"{100 * error:.1f} % with {number}"
        for number, error in zip(NUMBERS, site.expected_errors, strict=True)
        if number > site.people and error < _FEWER * site.error
    ]
    expected = f" ({', '.join(more)})" if more and site.people else ""
    people = "one person" if site.people == 1 else f"{site.people} people"
    return (
        f"{site.site}: {site.conclusion}; {100 * site.difference:.1f} % from the mean of sites, "
        f"where chance in who was scanned gives {100 * site.chance:.1f} %; "
        f"{100 * site.scanner:.1f} % is removed as the scanner's, with a standard error of "
        f"{100 * site.error:.1f} % for {people}{expected}"
    )
