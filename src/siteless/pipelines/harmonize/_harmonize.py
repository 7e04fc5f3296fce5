"""`siteless harmonize`: render scans of a dataset, or their maps, as a site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from siteless.bids import (
    ScanFiles,
    ScanSelection,
    read_gradient_pair,
    require_outside,
    write_description,
)
from siteless.errors import ModelError, OutputError, SitelessError, errors_at
from siteless.harmonics import nearest_shells
from siteless.methods import load_model
from siteless.model import RARE, MapModel, Model
from siteless.pipelines._run import Run
from siteless.pipelines.harmonize._job import Job, Outcome, RenderingOptions, killed
from siteless.storage import cache_key

# A scan with a larger fraction of unfamiliar voxels is out-of-distribution.
_UNFAMILIAR = 10 * RARE


@dataclass(frozen=True)
class HarmonizeReport:
    """The result of harmonizing a dataset.

    Attributes
    ----------
    written
        Rendered images; for a method that harmonizes maps, the first map of each scan.
    skipped
        Images of an earlier run with the same model and settings.
    unfamiliar
        Images, written or skipped, of out-of-distribution scans; with the fraction of their
        rendered voxels that is.
    interpolated
        Interpolated b-values of images, written or skipped.
    left_out
        Names of scans without shells.
    errors
        Errors of scans that could not be rendered, each with its file.
    """

    written: tuple[Path, ...]
    skipped: tuple[Path, ...]
    unfamiliar: Mapping[Path, float]
    interpolated: Mapping[Path, tuple[float, ...]]
    left_out: tuple[str, ...]
    errors: tuple[SitelessError, ...]


def harmonize_dataset(
    dataset: ScanSelection | Path | str,
    out: Path | str,
    model: Path | str,
    to: str,
    *,
    rendering: RenderingOptions = RenderingOptions(),
    force: bool = False,
    run: Run = Run(),
) -> HarmonizeReport:
    """Render every scan of a dataset as one site; a scan that fails does not stop the others.

    Parameters
    ----------
    dataset
        Folder, manifest, or selection of scans.
    out
        Folder of the derivative dataset.
    model
        Model file from `siteless fit`.
    to
        Target site, or ``average``.
    rendering
        Gradients to render at, and the treatment of voxels outside the training tissue. A method
        that harmonizes maps supports neither.
    force
        Render images of an earlier run again.
    run
        Processes and progress of the work.

    Raises
    ------
    SitelessError
        When nothing can be rendered, or an output cannot be written.
    """
    # Remote workers have other working folders.
    selection = ScanSelection.of(dataset).absolute()
    out, path = (Path(location).absolute() for location in (out, model))
    rendering = rendering.absolute()
    learned = load_model(path)
    with errors_at(path):
        settings = _settings(learned, to, rendering)
    study = selection.find()
    require_outside(out, study.root)
    if any(files.dwi.resolve().is_relative_to(out.resolve()) for files in study.scans):
        raise OutputError(
            "the output would lie among the scans", remedy="choose another folder", path=out
        )
    root = study.root if study.root.is_dir() else study.root.parent
    maps: tuple[str, ...] = ()
    covariates: tuple[str, ...] = ()
    if isinstance(learned, MapModel):
        maps = learned.maps
        covariates = tuple(covariate.name for covariate in learned.covariates if covariate.means)
    job = Job(path, root, out, to, rendering, settings, maps, covariates, force=force)
    with run.connected() as connected:
        what = "Maps" if maps else "Scans"
        name = f"{what} rendered as {to} by the method {learned.card.method}"
        write_description(
            out, name=name, sources=(root,), ignored=("*_dwimap.*", "model", "report")
        )
        outcomes = connected.map("Rendering scans", job.run, study.scans, lost=killed)
    return _report(study.scans, outcomes)


def _settings(model: Model, to: str, rendering: RenderingOptions) -> Mapping[str, str]:
    """Return the settings of all renderings; raise an error for an unknown target."""
    model.level(to)
    known = {
        "Version": version("siteless"),
        "Method": model.card.method,
        "Denoiser": model.preparation.denoiser or "n/a",
        "NoiseFloor": model.preparation.noise_floor,
        "Model": model.identity,
        "TargetSite": to,
    }
    if isinstance(model, MapModel):
        if rendering != RenderingOptions():
            raise ModelError(
                f"the method {model.card.method} gives maps, which have no --gradients and no "
                "--outside",
                remedy="leave them out",
            )
        return known
    if isinstance(rendering.gradients, tuple):
        table = read_gradient_pair(*rendering.gradients, np.eye(4))
        with errors_at(rendering.gradients[0]):
            nearest_shells(table, model.preparation.shells)
        at = cache_key(table.bvals, table.bvecs)
    else:
        at = rendering.gradients
        if at == "target":
            model.protocol(to)
    beyond = "" if at == "own" else " fit, zero beyond the brain"
    return {**known, "Gradients": at, "OutsideLearnedTissue": rendering.outside + beyond}


def _report(scans: Sequence[ScanFiles], outcomes: Sequence[Outcome]) -> HarmonizeReport:
    images = [(outcome.image, outcome) for outcome in outcomes if outcome.image]
    idle = [s.name for s, o in zip(scans, outcomes, strict=True) if not (o.image or o.error)]
    return HarmonizeReport(
        written=tuple(image for image, outcome in images if not outcome.kept),
        skipped=tuple(image for image, outcome in images if outcome.kept),
        unfamiliar={i: o.unfamiliar for i, o in images if o.unfamiliar > _UNFAMILIAR},
        interpolated={i: o.interpolated for i, o in images if o.interpolated},
        left_out=tuple(idle),
        errors=tuple(outcome.error for outcome in outcomes if outcome.error),
    )
