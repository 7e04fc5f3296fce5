"""`siteless adapt`: add a site to a model from a few scans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from siteless.bids import Dataset, ScanFiles, ScanSelection, read_gradient_table, require_outside
from siteless.errors import DatasetError, ModelError, OutputError, errors_at
from siteless.harmonics import table_at_shells
from siteless.methods import METHODS, load_model
from siteless.methods.store import ScanStore
from siteless.model import AVERAGE, Model, save_model
from siteless.pipelines._run import Run
from siteless.pipelines.fit._files import FitFiles
from siteless.pipelines.fit._workspace import FitWorkspace
from siteless.report import draw_profiles
from siteless.storage import require_writable


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

    Known sites, and renderings as them, are unchanged.

    Parameters
    ----------
    model
        Model file of a method that supports adaptation.
    dataset
        Folder, manifest, or selection of scans.
    out
        File of the new model.
    site
        Label of the new site; scans of other sites are ignored, as are validation and test scans
        according to a ``split`` column.
    work
        Folder for derived data of scans; by default beside the new model.
    run
        Processes and progress of the work.
    """
    files = FitFiles(Path(out).absolute())
    work = (work or files.work).absolute()
    if files.model.exists():
        raise OutputError(
            "the model is there already", remedy="choose another name", path=files.model
        )
    known = load_model(Path(model))
    method = METHODS[known.card.method]
    with errors_at(Path(model)):
        method.require_extensible()
    _require_new(known, site)
    selection = ScanSelection.of(dataset).absolute()
    for folder in (files.model.parent, work):
        require_outside(folder, selection.path)
    scans = _choose(known, replace(selection, sites=[site]).find(), site)
    for folder in (files.model.parent, work):
        require_writable(folder)
    workspace = FitWorkspace(ScanStore(work, known.preparation), files, run)
    adapted = method.extend(known, site, scans, workspace)
    if adapted.site_fields:
        draw_profiles(adapted.site_fields, adapted.preparation.shells, files.profiles)
    save_model(adapted, files.model)
    return adapted


def _require_new(known: Model, site: str) -> None:
    if site in known.card.sites or site == AVERAGE:
        raise ModelError(
            f"the model knows the site {site} already",
            remedy="give the label of a site that it does not know, or fit a model anew",
        )


def _choose(known: Model, study: Dataset, site: str) -> list[ScanFiles]:
    """Return the training scans of the new site; raise an error for unsupported ones."""
    scans = []
    for files in study.scans:
        table = read_gradient_table(files)
        if not table.shells or files.attributes.get("split") in ("val", "test"):
            continue
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
