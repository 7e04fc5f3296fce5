"""Render single scans, and write them with their findings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from siteless.acquisition import GradientTable, Scan
from siteless.bids import (
    Map,
    ScanFiles,
    derivative_path,
    fingerprint,
    read_gradient_pair,
    read_gradient_table,
    read_json,
    read_scan,
    sidecar_of,
    write_json,
    write_map,
    write_scan,
)
from siteless.errors import DiskError, SitelessError, errors_at
from siteless.harmonics import interpolated_bs
from siteless.methods import Outside, Rendering, render
from siteless.microstructure import MAPS
from siteless.model import RARE, HarmonizedMaps, MapModel, Model, SignalModel
from siteless.pipelines._choice import read_model

# The scan's b-vectors, those of the target's protocol, or a .bval and a .bvec file.
Gradients: TypeAlias = Literal["own", "target"] | tuple[Path, Path]
# Outputs beside a rendered scan.
_BESIDE = ("spread", "change", "unfamiliar", "brain", "white_matter")


@dataclass(frozen=True)
class RenderingOptions:
    """How scans are rendered.

    Attributes
    ----------
    gradients
        Gradients to render at: ``own``, ``target``, or a .bval and a .bvec file, in the axes of
        each image.
    outside
        Treatment of voxels outside the training tissue, see `siteless.methods.render`.
    """

    gradients: Gradients = "own"
    outside: Outside = "scaled"

    def absolute(self) -> Self:
        """Return the same options for processes with another working folder."""
        if not isinstance(self.gradients, tuple):
            return self
        bval, bvec = self.gradients
        return replace(self, gradients=(bval.absolute(), bvec.absolute()))


@dataclass(frozen=True)
class Outcome:
    """The result for a scan: an image, new or kept; an error; or nothing to render."""

    image: Path | None = None
    kept: bool = False
    unfamiliar: float = 0.0
    interpolated: tuple[float, ...] = ()
    error: SitelessError | None = None


def killed(files: ScanFiles) -> Outcome:
    """Return the outcome of a scan that killed its process."""
    what = "every process that was given the scan died, often for lack of memory"
    return _failed(files, what, "give more memory, or use fewer processes")


def _failed(files: ScanFiles, problem: str, remedy: str) -> Outcome:
    return Outcome(error=SitelessError(problem, remedy=remedy, path=files.dwi))


@dataclass(frozen=True)
class Job:
    """Rendering of single scans, which can run in several processes."""

    model: Path
    root: Path
    out: Path
    to: str
    rendering: RenderingOptions
    settings: Mapping[str, str]
    maps: tuple[str, ...]  # that are harmonized; empty if scans are
    covariates: tuple[str, ...]  # of harmonized maps
    force: bool

    def run(self, files: ScanFiles) -> Outcome:
        """Render a scan and write it, unless an earlier run has."""
        try:
            with errors_at(files.dwi):
                return self._render(files)
        except DiskError:
            raise
        except SitelessError as error:
            return Outcome(error=error)
        except MemoryError:
            return _failed(files, "memory ran out", "use a smaller --nprocs")
        except Exception as error:  # noqa: BLE001 - a bug must not stop other scans
            what = f"siteless failed on this scan ({type(error).__name__}: {error})"
            return _failed(files, what, "please report it")

    def _render(self, files: ScanFiles) -> Outcome:
        names = [f"harmonized_{name}" for name in self.maps] or ["harmonized"]
        images = [derivative_path(self.out, name, files.entities) for name in names]
        provenance = self._provenance(files)
        if not self.force and (earlier := self._earlier(files, images, provenance)):
            return earlier
        gradients = read_gradient_table(files)
        if not gradients.shells:
            return Outcome()
        model = read_model(self.model, self.settings["Model"])
        model.require_known(gradients, files.site)
        scan = read_scan(files)
        metadata = {"Sources": [self._source(files)], "Siteless": provenance}
        if isinstance(model, MapModel):
            maps = model.render_maps(scan, self.to, files.attributes)
            shells = [shell.b for shell in gradients.shells]
            interpolated = interpolated_bs(shells, model.preparation.shells)
            _write_maps(maps, scan, images, metadata, interpolated)
            return Outcome(images[0], interpolated=interpolated)
        table = self._table(model, scan)
        rendering = render(model, scan, self.to, gradients=table, outside=self.rendering.outside)
        metadata["SitelessFound"] = _findings(rendering, model, {str(files.site), self.to})
        write_scan(
            rendering.scan, files, self.out, metadata=metadata, maps=_maps(rendering, model)
        )
        return Outcome(
            images[0], unfamiliar=rendering.unfamiliar_part, interpolated=rendering.interpolated
        )

    def _earlier(
        self, files: ScanFiles, images: Sequence[Path], provenance: Mapping[str, Any]
    ) -> Outcome | None:
        """Return the outcome of an earlier run, if it wrote all outputs with this provenance."""
        sidecars = [_read_sidecar(image) for image in images]
        beside = []
        if not self.maps:
            tables = [sidecar_of(images[0]).with_suffix(end) for end in (".bval", ".bvec")]
            beside = [derivative_path(self.out, name, files.entities) for name in _BESIDE] + tables
        same = all(sidecar.get("Siteless") == provenance for sidecar in sidecars)
        if not same or not all(path.exists() for path in beside):
            return None
        findings = sidecars[0].get("SitelessFound", {})
        return Outcome(
            images[0],
            kept=True,
            unfamiliar=findings.get("Unfamiliar", 0.0),
            interpolated=tuple(findings.get("InterpolatedShells", ())),
        )

    def _table(self, model: Model, scan: Scan) -> GradientTable | None:
        gradients = self.rendering.gradients
        if gradients == "own":
            return None
        if gradients == "target":
            return model.protocol(self.to)
        return read_gradient_pair(*gradients, scan.affine)

    def _source(self, files: ScanFiles) -> str:
        """Return the URI of a scan, relative to the source dataset if possible."""
        if files.dwi.is_relative_to(self.root):
            return f"bids:source:{files.dwi.relative_to(self.root).as_posix()}"
        return files.dwi.absolute().as_uri()

    def _provenance(self, files: ScanFiles) -> dict[str, Any]:
        """Return the provenance of a result, for its sidecar."""
        site = str(files.site or "n/a")
        provenance = {**self.settings, "SourceSite": site, "SourceFiles": fingerprint(files)}
        if not self.maps:
            return provenance
        covariates = {name: files.attributes.get(name, "n/a") for name in self.covariates}
        return {**provenance, "Covariates": covariates}


def _findings(rendering: Rendering, model: Model, sites: Collection[str]) -> dict[str, Any]:
    """Return the findings of rendering, for the sidecar."""
    effects = model.card.summary.get("site_effects", [])
    return {
        "RenderedVoxels": int(rendering.rendered.sum()),
        "Unfamiliar": rendering.unfamiliar_part,
        "UnfamiliarExpected": RARE,
        "SourceLevel": rendering.levels[0],
        "TargetLevel": rendering.levels[1],
        "InterpolatedShells": list(rendering.interpolated),
        "LeftOutShells": list(rendering.left_out),
        "SiteEffects": [effect for effect in effects if effect["site"] in sites],
    }


def _maps(rendering: Rendering, model: Model) -> dict[str, Map]:
    scan, bs = rendering.scan, model.preparation.shells
    of_volumes = {"Units": "arbitrary", "Volumes": ["b0", *(f"b={b:.0f}" for b in bs)]}
    known = model.uncertainty if isinstance(model, SignalModel) else ""
    of = f"of {known}, and " if known else ""
    deviation = f"Standard deviation of the rendered signal: {of}within a voxel"
    change = "Root-mean-square change of the signal, beside that of the scan's level"
    unlike = "Rendered voxels that are unlike the training scans of the source site"
    white = {"Type": "ROI", "Origin": scan.white_matter_origin}
    return {
        "spread": Map(rendering.spread, {"Description": deviation, **of_volumes}),
        "change": Map(rendering.change, {"Description": change, **of_volumes}),
        "unfamiliar": Map(rendering.unfamiliar, {"Description": unlike, "Type": "ROI"}),
        "brain": Map(scan.mask, {"Type": "Brain", "Origin": scan.mask_origin}),
        "white_matter": Map(scan.white_matter, white),
    }


def _write_maps(
    harmonized: HarmonizedMaps,
    scan: Scan,
    images: Sequence[Path],
    metadata: Mapping[str, Any],
    interpolated: tuple[float, ...],
) -> None:
    """Write maps with sidecars; a sidecar is written before its image."""
    for image, (name, values) in zip(images, harmonized.maps.items(), strict=True):
        kind, source = MAPS[name], harmonized.source[name]
        findings = {
            "HarmonizedVoxels": int(harmonized.known.sum()),
            "MeanBefore": float(source[harmonized.known].mean(dtype=float)),
            "MeanAfter": float(values[harmonized.known].mean(dtype=float)),
            "InterpolatedShells": list(interpolated),
        }
        of_map = {"Description": kind.description, "Units": kind.units, "SkullStripped": True}
        sidecar = {**of_map, "BrainMask": scan.mask_origin, **metadata, "SitelessFound": findings}
        image.unlink(missing_ok=True)
        write_json(sidecar_of(image), sidecar)
        write_map(image, values, scan.affine)


def _read_sidecar(image: Path) -> dict[str, Any]:
    """Return the sidecar of an image; empty if either is missing or broken."""
    try:
        return read_json(sidecar_of(image)) if image.exists() else {}
    except SitelessError:
        return {}
