"""`siteless adapt`: add a site to a model from a few scans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from siteless.bids import Dataset, ScanFiles, ScanSelection
from siteless.errors import DatasetError, ModelError, errors_at
from siteless.harmonics import table_at_shells
from siteless.methods import METHODS, load_model
from siteless.methods.store import ScanStore
from siteless.model import AVERAGE, Model
from siteless.pipelines._choice import with_shells
from siteless.pipelines._run import Run
from siteless.pipelines.fit._workspace import FitFiles, FitWorkspace


def adapt_model(
    model: Path | str,
    dataset: ScanSelection | Path | str,
    out: Path | str,
    *,
    site: str,
    work: Path | None = None,
    run: Run = Run(),
) -> Model:
    """Add a site to a model, and write the new model.

    Known sites, and renderings as them, are unchanged. Only training scans of the new site are
    used, according to a ``split`` column if there is one. Derived data of scans are stored in
    `work`, by default a folder beside the new model. The method of the model must support this.
    """
    files = FitFiles(Path(out).absolute(), work and work.absolute())
    files.require_new()
    known = load_model(Path(model))
    method = METHODS[known.card.method]
    with errors_at(Path(model)):
        method.require_extensible()
    if site in known.card.sites or site == AVERAGE:
        raise ModelError(
            f"the model knows the site {site} already",
            remedy="give the label of a site that it does not know, or fit a model anew",
        )
    selection = ScanSelection.of(dataset).absolute()
    files.require_outside(selection.path)
    scans = _choose(known, replace(selection, sites=[site]).find(), site)
    files.require_writable()
    store = ScanStore(files.work, known.preparation)
    workspace = FitWorkspace(store, files, run)
    adapted = method.extend(known, site, scans, workspace)
    files.save(adapted)
    return adapted


def _choose(known: Model, study: Dataset, site: str) -> list[ScanFiles]:
    """Return the training scans of the new site; raise an error for unsupported ones."""
    scans = []
    for files, table in with_shells(study.scans):
        if files.attributes.get("split") not in ("val", "test"):
            with errors_at(files.dwi):
                table_at_shells(table, known.preparation.shells)
            scans.append(files)
    if not scans:
        raise DatasetError(
            f"no scan of site {site} is there to learn from",
            remedy="give diffusion scans, and do not keep all of them for test",
            path=study.root,
        )
    return scans
