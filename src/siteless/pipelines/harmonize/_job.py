"""What is done to each scan: rendered, and written with what was found out."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from siteless.acquisition import GradientTable, Scan
from siteless.bids import (
    Map,
    ScanFiles,
    derivative_path,
    fingerprint,
    read_gradient_pair,
    read_gradient_table,
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

# The scan's own b-vectors, those of the target's protocol, or a .bval and a .bvec file.
Gradients: TypeAlias = Literal["own", "target"] | tuple[Path, Path]


@dataclass(frozen=True)
class Outputs:
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


@dataclass(frozen=True)
class Outcome:
    """What became of one scan: an image, new or kept; an error; or nothing to render."""

    image: Path | None = None
    kept: bool = False
    unfamiliar: float = 0.0
    interpolated: tuple[float, ...] = ()
    error: SitelessError | None = None


def killed(files: ScanFiles) -> Outcome:
    """Return what becomes of a scan that its process dies of."""
    error = SitelessError(
        "every process that was given the scan died, often for lack of memory",
        remedy="give more memory, or use fewer processes",
        path=files.dwi,
    )
    return Outcome(error=error)


@dataclass(frozen=True)
class Job:
    """What is done to each scan; the same in this process and in others."""

    model: Path
    root: Path
    out: Path
    to: str
    gradients: Gradients
    outside: Outside
    settings: Mapping[str, str]
    outputs: Outputs
    force: bool

    def run(self, files: ScanFiles) -> Outcome:
        """Render a scan and write it, unless that is done already."""
        try:
            with errors_at(files.dwi):
                return self._render(files)
        except DiskError:
            raise
        except SitelessError as error:
            return Outcome(error=error)
        except MemoryError:
            full = SitelessError("memory ran out", remedy="use a smaller --nprocs", path=files.dwi)
            return Outcome(error=full)
        except Exception as error:  # noqa: BLE001 - a defect of ours must not stop the others
            what = f"siteless failed on this scan ({type(error).__name__}: {error})"
            defect = SitelessError(what, remedy="please report it", path=files.dwi)
            return Outcome(error=defect)

    def _render(self, files: ScanFiles) -> Outcome:
        images = [derivative_path(self.out, name, files.entities) for name in self.outputs.images]
        asked = self._asked(files)
        earlier = [_read_sidecar(image) for image in images]
        same = all(told.get("Siteless") == asked for told in earlier)
        if not self.force and same and self._is_whole(files):
            found = earlier[0].get("SitelessFound", {})
            return Outcome(
                images[0],
                kept=True,
                unfamiliar=found.get("Unfamiliar", 0.0),
                interpolated=tuple(found.get("InterpolatedShells", ())),
            )
        own = read_gradient_table(files)
        if not own.shells:
            return Outcome()
        model = read_model(self.model, self.settings["Model"])
        model.require_known(own, files.site)
        scan = read_scan(files)
        told = {"Sources": [self._source(files)], "Siteless": asked}
        if isinstance(model, MapModel):
            maps = model.render_maps(scan, self.to, files.attributes)
            shells = [shell.b for shell in own.shells]
            interpolated = interpolated_bs(shells, model.preparation.shells)
            _write_maps(maps, scan, images, told, interpolated)
            return Outcome(images[0], interpolated=interpolated)
        table = self._table(model, scan)
        made = render(model, scan, self.to, gradients=table, outside=self.outside)
        told["SitelessFound"] = _found(made, model, {str(files.site), self.to})
        write_scan(made.scan, files, self.out, metadata=told, maps=_maps(made, model))
        return Outcome(images[0], unfamiliar=made.unfamiliar_part, interpolated=made.interpolated)

    def _is_whole(self, files: ScanFiles) -> bool:
        """Whether all that is written of a scan is there."""
        names = (*self.outputs.images, *self.outputs.beside)
        image, *maps = (derivative_path(self.out, name, files.entities) for name in names)
        stem = image.name.removesuffix(".nii.gz")
        endings = () if self.outputs.are_maps else ("bval", "bvec")
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
        if self.outputs.covariates is None:
            return asked
        told = {name: files.attributes.get(name, "n/a") for name in self.outputs.covariates}
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
    known = model.uncertainty if isinstance(model, SignalModel) else ""
    of = f"of {known}, and " if known else ""
    spread = f"Standard deviation of the rendered signal: {of}within a voxel"
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
        kind, own = MAPS[name], made.source[name]
        found = {
            "HarmonizedVoxels": int(made.known.sum()),
            "MeanBefore": float(own[made.known].mean(dtype=float)),
            "MeanAfter": float(values[made.known].mean(dtype=float)),
            "InterpolatedShells": list(interpolated),
        }
        of_map = {"Description": kind.description, "Units": kind.units, "SkullStripped": True}
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
