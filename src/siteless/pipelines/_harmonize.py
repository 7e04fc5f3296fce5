"""`siteless harmonize`: scans of a dataset, or maps of them, rendered as a site."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from siteless.acquisition import GradientTable, Scan
from siteless.bids import (
    Map,
    ScanFiles,
    ScanSelection,
    derivative_path,
    read_gradient_pair,
    read_scan,
    require_outside,
    sidecar_of,
    write_description,
    write_json,
    write_map,
    write_scan,
)
from siteless.errors import DiskError, ModelError, OutputError, SitelessError, errors_at
from siteless.harmonics import interpolated_bs, nearest_shells
from siteless.methods import Outside, Rendering, load_model, render
from siteless.methods.combat import CombatModel, HarmonizedMaps
from siteless.microstructure import MAPS
from siteless.model import RARE, Model
from siteless.pipelines._choice import fingerprint, read_model, read_table
from siteless.pipelines._run import Run
from siteless.storage import cache_key

# The scan's own b-vectors, those of the target's protocol, or a .bval and a .bvec file.
Gradients: TypeAlias = Literal["own", "target"] | tuple[Path, Path]
# A scan with a larger part of unfamiliar voxels is unlike those that were learned from.
_UNFAMILIAR = 10 * RARE


@dataclass(frozen=True)
class HarmonizeReport:
    """What became of the scans of a dataset.

    Attributes
    ----------
    written
        Images that were rendered; of a method that gives maps, the first map of each scan.
    skipped
        Images that an earlier run with the same model and settings has written.
    unfamiliar
        Images, of both, whose scan is unlike the training scans of its site; with the part of
        their rendered voxels that is.
    interpolated
        b-values that volumes of some images, of both, were not acquired at.
    left_out
        Names of scans without shells.
    errors
        Why scans could not be rendered, each with its file.
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
    gradients: Gradients = "own",
    outside: Outside = "scaled",
    force: bool = False,
    run: Run = Run(),
) -> HarmonizeReport:
    """Render every scan of a dataset as one site; a scan that fails does not stop the others.

    Parameters
    ----------
    dataset
        Its folder, a manifest, or a selection of its scans.
    out
        Folder of the derivative dataset.
    model
        File that `siteless fit` wrote.
    to
        Site of the model, or ``average``.
    gradients
        To render at: ``own``, ``target``, or a .bval and a .bvec file, taken along the axes of
        each image as those beside it are.
    outside
        What happens to voxels that the model has not learned: see `siteless.methods.render`.
        A method that gives maps has neither this nor `gradients`.
    force
        Render again what an earlier run has written.
    run
        How the work is done.

    Raises
    ------
    SitelessError
        When nothing can be rendered, or an output cannot be written.
    """
    # Workers elsewhere have other working folders.
    selection = ScanSelection.of(dataset).absolute()
    out, path = (Path(given).absolute() for given in (out, model))
    if isinstance(gradients, tuple):
        gradients = gradients[0].absolute(), gradients[1].absolute()
    learned = load_model(path)
    with errors_at(path):
        told = _settings(learned, to, gradients, outside)
    found = selection.find()
    require_outside(out, found.root)
    _require_elsewhere(found.scans, out)
    root = found.root if found.root.is_dir() else found.root.parent
    job = _Job(path, root, out, to, gradients, outside, told, _parts(learned), force=force)
    with run.connected() as connected:
        what = "Maps" if job.parts.are_maps else "Scans"
        name = f"{what} rendered as {to} by the method {learned.card.method}"
        write_description(
            out, name=name, sources=(root,), ignored=("*_dwimap.*", "model", "report")
        )
        outcomes = connected.map("Rendering scans", job.run, found.scans, lost=_killed)
    return _report(found.scans, outcomes)


@dataclass(frozen=True)
class _Parts:
    """What a model writes of a scan, by names of `siteless.bids.NAMES`.

    Attributes
    ----------
    images
        Whose sidecars tell what they are known by.
    beside
        Maps that go with them.
    covariates
        That maps depend on; None where scans are written.
    """

    images: tuple[str, ...]
    beside: tuple[str, ...] = ()
    covariates: tuple[str, ...] | None = None

    @property
    def are_maps(self) -> bool:
        """Whether maps are written, and no scan."""
        return self.covariates is not None


def _parts(model: Model) -> _Parts:
    if isinstance(model, CombatModel):
        covariates = tuple(one.name for one in model.covariates if one.means)
        return _Parts(tuple(f"harmonized_{name}" for name in model.estimates), (), covariates)
    return _Parts(("harmonized",), ("spread", "change", "unfamiliar", "brain", "white_matter"))


def _settings(model: Model, to: str, gradients: Gradients, outside: Outside) -> Mapping[str, str]:
    """Return what a result is known by, whatever its scan; refuse a target there is not."""
    model.level(to)
    known = {
        "Version": version("siteless"),
        "Method": model.card.method,
        "Denoiser": model.preparation.denoiser or "n/a",
        "Model": model.identity,
        "TargetSite": to,
    }
    if isinstance(model, CombatModel):
        if gradients != "own" or outside != "scaled":
            raise ModelError(
                f"the method {model.card.method} gives maps, which have no --gradients and no "
                "--outside",
                remedy="leave them out",
            )
        return known
    if gradients == "own":
        at = "own"
    elif gradients == "target":
        model.protocol(to)
        at = "target"
    else:
        table = read_gradient_pair(*gradients, np.eye(4))
        with errors_at(gradients[0]):
            nearest_shells(table, model.preparation.shells)
        at = cache_key(table.bvals, table.bvecs)
    beyond = "" if at == "own" else " fit, zero beyond the brain"
    return {**known, "Gradients": at, "OutsideLearnedTissue": outside + beyond}


@dataclass(frozen=True)
class _Outcome:
    """What became of one scan: an image, new or kept; an error; or nothing to render."""

    image: Path | None = None
    kept: bool = False
    unfamiliar: float = 0.0
    interpolated: tuple[float, ...] = ()
    error: SitelessError | None = None


def _killed(files: ScanFiles) -> _Outcome:
    """Return what becomes of a scan that its process dies of."""
    error = SitelessError(
        "every process that was given the scan died, often for lack of memory",
        remedy="give more memory, or use fewer processes",
        path=files.dwi,
    )
    return _Outcome(error=error)


def _require_elsewhere(scans: Sequence[ScanFiles], out: Path) -> None:
    """Refuse an output that would lie beside the scans themselves."""
    for files in scans:
        if files.dwi.resolve().is_relative_to(out.resolve()):
            raise OutputError(
                "the output would lie among the scans", remedy="choose another folder", path=out
            )


def _report(scans: Sequence[ScanFiles], outcomes: Sequence[_Outcome]) -> HarmonizeReport:
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


@dataclass(frozen=True)
class _Job:
    """What is done to each scan; the same in this process and in others."""

    model: Path
    root: Path
    out: Path
    to: str
    gradients: Gradients
    outside: Outside
    settings: Mapping[str, str]
    parts: _Parts
    force: bool

    def run(self, files: ScanFiles) -> _Outcome:
        """Render a scan and write it, unless that is done already."""
        try:
            with errors_at(files.dwi):
                return self._render(files)
        except DiskError:
            raise
        except SitelessError as error:
            return _Outcome(error=error)
        except MemoryError:
            full = SitelessError("memory ran out", remedy="use a smaller --nprocs", path=files.dwi)
            return _Outcome(error=full)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not stop the others
            what = f"siteless failed on this scan ({type(error).__name__}: {error})"
            defect = SitelessError(what, remedy="please report it", path=files.dwi)
            return _Outcome(error=defect)

    def _render(self, files: ScanFiles) -> _Outcome:
        images = [derivative_path(self.out, name, files.entities) for name in self.parts.images]
        asked = self._asked(files)
        earlier = [_read_sidecar(image) for image in images]
        same = all(told.get("Siteless") == asked for told in earlier)
        if not self.force and same and self._is_whole(files):
            found = earlier[0].get("SitelessFound", {})
            return _Outcome(
                images[0],
                kept=True,
                unfamiliar=found.get("Unfamiliar", 0.0),
                interpolated=tuple(found.get("InterpolatedShells", ())),
            )
        own = read_table(files)
        if not own.shells:
            return _Outcome()
        model = read_model(self.model, self.settings["Model"])
        model.require_known(own, files.site)
        scan = read_scan(files)
        told = {"Sources": [self._source(files)], "Siteless": asked}
        if isinstance(model, CombatModel):
            maps = model.render_maps(scan, self.to, files.attributes)
            shells = [shell.b for shell in own.shells]
            interpolated = interpolated_bs(shells, model.preparation.shells)
            _write_maps(maps, scan, images, told, interpolated)
            return _Outcome(images[0], interpolated=interpolated)
        table = self._table(model, scan)
        made = render(model, scan, self.to, gradients=table, outside=self.outside)
        told["SitelessFound"] = _found(made, model, {str(files.site), self.to})
        write_scan(made.scan, files, self.out, metadata=told, maps=_maps(made, model))
        return _Outcome(images[0], unfamiliar=made.unfamiliar_part, interpolated=made.interpolated)

    def _is_whole(self, files: ScanFiles) -> bool:
        """Whether all that is written of a scan is there."""
        names = (*self.parts.images, *self.parts.beside)
        image, *maps = (derivative_path(self.out, name, files.entities) for name in names)
        stem = image.name.removesuffix(".nii.gz")
        endings = () if self.parts.are_maps else ("bval", "bvec")
        tables = (image.with_name(f"{stem}.{ending}") for ending in endings)
        return all(path.exists() for path in (image, *maps, *tables))

    def _table(self, model: Model, scan: Scan) -> GradientTable | None:
        if self.gradients == "own":
            return None
        if self.gradients == "target":
            return model.protocol(self.to)
        return read_gradient_pair(*self.gradients, scan.affine)

    def _source(self, files: ScanFiles) -> str:
        """Return the URI of a scan, by the link of the dataset's description where it can be."""
        if files.dwi.is_relative_to(self.root):
            return f"bids:source:{files.dwi.relative_to(self.root).as_posix()}"
        return files.dwi.absolute().as_uri()

    def _asked(self, files: ScanFiles) -> dict[str, Any]:
        """Return what a result is known by, which goes into its sidecar."""
        site = str(files.site or "n/a")
        asked = {**self.settings, "SourceSite": site, "SourceFiles": fingerprint(files)}
        if self.parts.covariates is None:
            return asked
        told = {name: files.attributes.get(name, "n/a") for name in self.parts.covariates}
        return {**asked, "Covariates": told}


def _found(made: Rendering, model: Model, sites: Collection[str]) -> dict[str, Any]:
    """Return what rendering has found out, for the sidecar."""
    effects = model.card.summary.get("site_effects", [])
    return {
        "RenderedVoxels": int(made.rendered.sum()),
        "Unfamiliar": made.unfamiliar_part,
        "UnfamiliarExpected": RARE,
        "SourceLevel": made.levels[0],
        "TargetLevel": made.levels[1],
        "InterpolatedShells": list(made.interpolated),
        "LeftOutShells": list(made.left_out),
        "SiteEffects": [one for one in effects if one["site"] in sites],
    }


def _maps(made: Rendering, model: Model) -> dict[str, Map]:
    volumes = {"Volumes": ["b0", *(f"b={b:.0f}" for b in model.preparation.shells)]}
    known = {"invariant": "of its code (of unfamiliar voxels, to it), and ", "paired": ""}.get(
        model.card.method, "of the noise that is left, and "
    )
    spread = f"Standard deviation of the rendered signal: {known}within a voxel"
    change = "Root-mean-square change of the signal, beside that of the scan's level"
    unlike = "Rendered voxels that are unlike the training scans of the source site"
    return {
        "spread": Map(made.spread, {"Description": spread, "Units": "arbitrary", **volumes}),
        "change": Map(made.change, {"Description": change, "Units": "arbitrary", **volumes}),
        "unfamiliar": Map(made.unfamiliar, {"Description": unlike, "Type": "ROI"}),
        "brain": Map(made.scan.mask, {"Type": "Brain", "Origin": made.scan.mask_origin}),
        "white_matter": Map(
            made.scan.white_matter, {"Type": "ROI", "Origin": made.scan.white_matter_origin}
        ),
    }


def _write_maps(
    made: HarmonizedMaps,
    scan: Scan,
    images: Sequence[Path],
    told: Mapping[str, Any],
    interpolated: tuple[float, ...],
) -> None:
    """Write maps with sidecars; where an image is, its sidecar tells of it."""
    for image, (name, values) in zip(images, made.maps.items(), strict=True):
        kind, own = MAPS[name], made.own[name]
        found = {
            "HarmonizedVoxels": int(made.known.sum()),
            "MeanBefore": float(own[made.known].mean(dtype=float)),
            "MeanAfter": float(values[made.known].mean(dtype=float)),
            "InterpolatedShells": list(interpolated),
        }
        of_map = {"Description": kind.told, "Units": kind.units, "SkullStripped": True}
        sidecar = {**of_map, "BrainMask": scan.mask_origin, **told, "SitelessFound": found}
        image.unlink(missing_ok=True)
        write_json(sidecar_of(image), sidecar)
        write_map(image, values, scan.affine)


def _read_sidecar(image: Path) -> dict[str, Any]:
    """Return what the sidecar of an image says, nothing where either is missing or broken."""
    try:
        told = json.loads(sidecar_of(image).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) and image.exists() else {}
