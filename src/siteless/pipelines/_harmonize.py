"""`siteless harmonize`: scans of a dataset, rendered as a site."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from siteless.bids import (
    ScanFiles,
    derivative_path,
    find_scans,
    read_scan,
    require_outside,
    write_description,
    write_scan,
)
from siteless.errors import ModelError, SitelessError, errors_at
from siteless.methods import Outside, harmonize
from siteless.model import load_model
from siteless.pipelines._choice import read_model, read_table, scans_of_sites
from siteless.pipelines._parallel import Progress, run_all


@dataclass(frozen=True)
class HarmonizeReport:
    """What became of the scans of a dataset.

    Attributes
    ----------
    written
        Images that were rendered.
    skipped
        Images that an earlier run with the same model and settings has written.
    left_out
        Names of scans without shells.
    errors
        Why scans could not be rendered, each with its file.
    """

    written: tuple[Path, ...]
    skipped: tuple[Path, ...]
    left_out: tuple[str, ...]
    errors: tuple[SitelessError, ...]


def harmonize_dataset(
    dataset: Path | str,
    out: Path | str,
    model: Path | str,
    to: str,
    *,
    sites: Sequence[str] | None = None,
    site_from: str | None = None,
    filters: Mapping[str, Collection[str | None]] | None = None,
    outside: Outside = "scaled",
    force: bool = False,
    nprocs: int | None = None,
    progress: Progress | None = None,
) -> HarmonizeReport:
    """Render every scan of a dataset as one site; a scan that fails does not stop the others.

    Parameters
    ----------
    dataset, site_from, filters
        As for `siteless.bids.find_scans`.
    out
        Folder of the derivative dataset.
    model
        File that `siteless fit` wrote.
    to
        Site of the model.
    sites
        To render scans of, all by default.
    outside
        What happens to voxels that the model has not learned: see `siteless.methods.harmonize`.
    force
        Render again what an earlier run has written.
    nprocs
        Processes; by default one for each core that may be used.
    progress
        Called with the number of scans done, their total, and the name of the last.
    """
    out, path = Path(out), Path(model)
    learned = load_model(path)
    if to not in learned.card.sites:
        raise ModelError(
            f"the model does not know the site {to!r}",
            remedy=f"choose of {', '.join(learned.card.sites)}",
            path=path,
        )
    found = find_scans(dataset, site_from=site_from, filters=filters)
    if found.errors:
        raise found.errors[0]
    require_outside(out, found.root)
    scans = scans_of_sites(found.scans, sites, found.root)
    root = found.root if found.root.is_dir() else found.root.parent
    write_description(out, name=f"Scans rendered as site {to}", sources=(root,))
    job = _Job(path, learned.identity, to, outside, out, force=force)
    outcomes: dict[int, _Outcome] = {}
    for position, outcome in run_all(job.run, scans, nprocs=nprocs):
        outcomes[position] = outcome
        if progress:
            progress(len(outcomes), len(scans), scans[position].name)
    return _report(scans, [outcomes[position] for position in sorted(outcomes)])


@dataclass(frozen=True)
class _Outcome:
    """What became of one scan: an image, new or kept; an error; or nothing to render."""

    image: Path | None = None
    kept: bool = False
    error: SitelessError | None = None


def _report(scans: Sequence[ScanFiles], outcomes: Sequence[_Outcome]) -> HarmonizeReport:
    images = [(o.image, o.kept) for o in outcomes if o.image]
    idle = [s.name for s, o in zip(scans, outcomes, strict=True) if not (o.image or o.error)]
    return HarmonizeReport(
        written=tuple(image for image, kept in images if not kept),
        skipped=tuple(image for image, kept in images if kept),
        left_out=tuple(idle),
        errors=tuple(outcome.error for outcome in outcomes if outcome.error),
    )


@dataclass(frozen=True)
class _Job:
    """What is done to each scan; the same in this process and in others."""

    model: Path
    identity: str
    to: str
    outside: Outside
    out: Path
    force: bool

    def run(self, files: ScanFiles) -> _Outcome:
        """Render a scan and write it, unless that is done already."""
        try:
            with errors_at(files.dwi):
                return self._render(files)
        except SitelessError as error:
            return _Outcome(error=error)
        except MemoryError:
            full = SitelessError("memory ran out", remedy="use a smaller --nprocs", path=files.dwi)
            return _Outcome(error=full)

    def _render(self, files: ScanFiles) -> _Outcome:
        image = derivative_path(self.out, "harmonized", files.entities)
        told = self._told(files)
        if not self.force and image.exists() and _is_of(image, told):
            return _Outcome(image, kept=True)
        gradients = read_table(files)
        if not gradients.shells:
            return _Outcome()
        model = read_model(self.model, self.identity)
        model.require_known(gradients, files.site)
        rendered = harmonize(model, read_scan(files), self.to, outside=self.outside)
        return _Outcome(write_scan(rendered, files, self.out, metadata={"Siteless": told}))

    def _told(self, files: ScanFiles) -> dict[str, Any]:
        """Return what a result is known by, which goes into its sidecar."""
        source = files.dwi.stat() if files.dwi.exists() else None
        return {
            "Version": version("siteless"),
            "Model": self.identity,
            "SourceSite": str(files.site or "n/a"),
            "TargetSite": self.to,
            "OutsideLearnedTissue": self.outside,
            "SourceSize": source.st_size if source else 0,
            "SourceModified": source.st_mtime_ns if source else 0,
        }


def _is_of(image: Path, told: dict[str, Any]) -> bool:
    """Whether an image that is there has the sidecar that it would get."""
    sidecar = image.with_name(image.name.replace(".nii.gz", ".json"))
    try:
        return bool(json.loads(sidecar.read_text(encoding="utf-8")).get("Siteless") == told)
    except (OSError, ValueError, AttributeError):
        return False
