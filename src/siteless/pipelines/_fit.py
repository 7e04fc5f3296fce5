"""`siteless fit`: a dataset to a model."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from siteless.acquisition import GradientTable, count_axes
from siteless.bids import (
    Dataset,
    ScanFiles,
    find_scans,
    read_scan,
    require_outside,
    write_table,
)
from siteless.errors import (
    DatasetError,
    GradientTableError,
    OutputError,
    SitelessError,
    errors_at,
)
from siteless.harmonics import max_order
from siteless.model import (
    AVERAGE,
    LearnedSite,
    Model,
    ModelCard,
    Typical,
    load_model,
    same_shells,
    save_model,
    show_bs,
)
from siteless.pipelines._choice import fingerprint, read_table, scans_of_sites
from siteless.pipelines._parallel import Progress, run_all
from siteless.report import draw_training
from siteless.tissue import Tissue
from siteless.training import (
    PRESETS,
    Lesson,
    Row,
    Training,
    TrainingScan,
    TrainingSettings,
    is_stored,
    make_training_scan,
    open_scan,
    raise_everywhere,
    rank,
    store_scan,
    train,
)

Watch = Callable[[int, int, Sequence[Row]], None]
# One person in so many validates, when no table says who does.
_VALIDATION = 10
_HIGHEST_ORDER = 8
# Raised when what is stored of a scan changes.
_STORE = 2
# Voxels that tell what is typical of a site: of a scan, and at most of all its scans.
_TYPICAL_PER_SCAN, _TYPICAL_PER_SITE = 20_000, 2_000_000


@dataclass(frozen=True)
class FitFiles:
    """Where a fit writes: the model, and beside it what tells how it came to be."""

    model: Path

    @property
    def log(self) -> Path:
        """A row for each evaluation, tab-separated."""
        return self.model.with_name(f"{self.model.stem}_log.tsv")

    @property
    def picture(self) -> Path:
        """The terms of the loss as curves."""
        return self.model.with_name(f"{self.model.stem}_losses.png")

    @property
    def work(self) -> Path:
        """Coefficients of the scans."""
        return self.model.with_name(f"{self.model.stem}_work")

    @property
    def state(self) -> Path:
        """What an interrupted fit goes on from."""
        return self.model.with_name(f"{self.model.stem}_state")


def fit_model(
    dataset: Path | str,
    out: Path | str,
    *,
    preset: str = "siteless",
    settings: TrainingSettings | None = None,
    sites: Sequence[str] | None = None,
    site_from: str | None = None,
    filters: Mapping[str, Collection[str | None]] | None = None,
    tissue: Tissue = "white-matter",
    minutes: float | None = None,
    seed: int = 0,
    device: str = "cpu",
    resume: bool = False,
    work: Path | None = None,
    nprocs: int | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Model:
    """Learn a model from a dataset, and write it.

    Parameters
    ----------
    dataset, site_from, filters
        As for `siteless.bids.find_scans`.
    out
        The model's file. The log and a picture of it go beside it.
    preset
        ``siteless`` or ``paper``.
    settings
        Used instead of the preset's.
    sites
        To learn, all by default.
    tissue
        To learn from.
    minutes
        Train for about as long, instead of as long as the settings say.
    seed
        Of all that is random, and of who validates where no ``split`` column says it.
    device
        As torch names it: ``cpu``, ``cuda``.
    resume
        Go on with an interrupted fit; what is finished is returned as it is.
    work
        Folder for coefficients; by default beside the model. Fits can share it.
    nprocs
        Processes that read scans; by default one for each core that may be used.
    progress
        Called with the number of scans read, their total, and the name of the last.
    watch
        Called with the number of updates done, their total, and the log.
    """
    files = FitFiles(Path(out))
    work = work or files.work
    if files.model.exists() and not resume:
        raise OutputError(
            "the model is there already", remedy="choose another name", path=files.model
        )
    for folder in (files.model.parent, work):
        require_outside(folder, Path(dataset))
    settings = settings or PRESETS[preset]
    found = find_scans(dataset, site_from=site_from, filters=filters)
    choice = _choose(found, sites, seed)
    recipe = _Recipe(fit=settings.fit, order=choice.order, bs=choice.bs, tissue=tissue)
    if files.model.exists():
        return _finished(files.model, recipe, settings, seed, choice)
    for folder in (files.model.parent, work):
        _require_writable(folder)
    scans = _prepare(recipe, work / "coefficients", choice.scans, nprocs=nprocs, progress=progress)
    learning = len(choice.learning)
    lesson = Lesson(scans[:learning], scans[learning:], choice.sites)
    if not resume and rank() == 0:
        files.state.unlink(missing_ok=True)
    raise_everywhere(None)
    training = train(
        lesson,
        settings,
        seed=seed,
        device=device,
        minutes=minutes,
        checkpoint=files.state,
        watch=partial(_record, files.log, watch),
    )
    model = Model(_card(lesson, training, recipe, choice, preset, seed), training.network)
    if rank() == 0:
        _write_log(files.log, training.log)
        draw_training(training.log, files.picture)
        save_model(model, files.model)
        files.state.unlink(missing_ok=True)
    return model


def _require_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to before hours are spent."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"cannot write here ({error.strerror})", remedy="choose another folder", path=folder
        ) from None


def _finished(
    path: Path, recipe: _Recipe, settings: TrainingSettings, seed: int, choice: _Choice
) -> Model:
    """Return a model that is there already, if it is what was asked for."""
    model = load_model(path)
    card = model.card
    asked = {
        **asdict(recipe),
        "seed": seed,
        "sites": list(choice.sites),
        "settings": asdict(settings) | {"precision": card.settings["precision"]},
        "people": sorted({scan.subject for scan in choice.learning}),
    }
    found = asdict(card) | {"sites": list(card.sites), "people": card.summary["training_people"]}
    other = [name for name, value in asked.items() if _plain(found[name]) != _plain(value)]
    if other:
        raise OutputError(
            f"the model that is there differs from what is asked for in {', '.join(other)}",
            remedy="give the same options as then, or choose another name",
            path=path,
        )
    return model


def _plain(value: Any) -> Any:
    """Return a value as JSON keeps it."""
    return json.loads(json.dumps(value))


@dataclass(frozen=True)
class _Choice:
    """Scans to learn from and to validate by, and what they share."""

    learning: tuple[ScanFiles, ...]
    validating: tuple[ScanFiles, ...]
    left_out: tuple[ScanFiles, ...]
    sites: tuple[str, ...]
    bs: tuple[float, ...]
    order: int

    @property
    def scans(self) -> tuple[ScanFiles, ...]:
        """All that are read, those to learn from first."""
        return (*self.learning, *self.validating)


def _choose(found: Dataset, sites: Sequence[str] | None, seed: int) -> _Choice:
    if found.errors:
        raise found.errors[0]
    chosen = scans_of_sites(found.scans, sites, found.root)
    tables = [read_table(scan) for scan in chosen]
    weighted = [scan for scan, table in zip(chosen, tables, strict=True) if table.shells]
    bs, order = _common_shells(weighted, [table for table in tables if table.shells], found.root)
    labels = list(dict.fromkeys(str(scan.site) for scan in weighted))  # names decide nothing
    if AVERAGE in labels:
        raise DatasetError(
            f"a site is called {AVERAGE!r}, which is the name of the mean of sites",
            remedy="rename it",
            path=found.root,
        )
    if len(labels) < 2:
        raise DatasetError(
            f"expected scans of at least two sites, found {', '.join(labels)} only",
            remedy="name other --sites" if sites else "tell sites apart, e.g. with --site-from",
            path=found.root,
        )
    learning, validating = _split(weighted, seed=seed, root=found.root)
    left_out = tuple(scan for scan in chosen if scan not in weighted)
    return _Choice(tuple(learning), tuple(validating), left_out, tuple(labels), bs, order)


@dataclass(frozen=True)
class _Recipe:
    """How coefficients are made: part of what a stored scan is known by."""

    fit: Any
    order: int
    bs: tuple[float, ...]
    tissue: Tissue

    def store(self, folder: Path, files: ScanFiles) -> None:
        """Make what training needs of a scan, unless it is there already."""
        place = folder / self.key(files)
        if not is_stored(place):
            scan = read_scan(files)
            with errors_at(files.dwi):
                made = make_training_scan(scan, **vars(self))
            store_scan(made, place)

    def key(self, files: ScanFiles) -> str:
        """Return the name of a scan's folder in the store."""
        source = str(files.dwi.resolve()), fingerprint(files)
        told = [source, asdict(self), version("siteless"), _STORE]
        digest = hashlib.blake2b(json.dumps(told).encode(), digest_size=8).hexdigest()
        return f"{files.name}-{digest}"


def _prepare(
    recipe: _Recipe,
    folder: Path,
    scans: Sequence[ScanFiles],
    *,
    nprocs: int | None,
    progress: Progress | None,
) -> list[TrainingScan]:
    """Make the store on the first process, and map it on all."""
    error = None
    try:
        if rank() == 0:
            _store(recipe, folder, scans, nprocs=nprocs, progress=progress)
    except SitelessError as caught:
        error = caught
    raise_everywhere(error)
    return [open_scan(folder / recipe.key(files)) for files in scans]


def _store(
    recipe: _Recipe,
    folder: Path,
    scans: Sequence[ScanFiles],
    *,
    nprocs: int | None,
    progress: Progress | None,
) -> None:
    if progress:
        progress(0, len(scans), "")
    work = partial(recipe.store, folder)
    for done, (position, _) in enumerate(run_all(work, scans, nprocs=nprocs), start=1):
        if progress:
            progress(done, len(scans), scans[position].name)


def _common_shells(
    scans: Sequence[ScanFiles], tables: Sequence[GradientTable], root: Path
) -> tuple[tuple[float, ...], int]:
    """Return the b-values that all scans share, and the order that all can be fitted to."""
    if not scans:
        raise DatasetError("no scan has a shell", remedy="give diffusion scans", path=root)
    bs = [tuple(shell.b for shell in table.shells) for table in tables]
    for scan, found in zip(scans, bs, strict=True):
        if not same_shells(found, bs[0]):
            raise GradientTableError(
                f"expected shells of {show_bs(bs[0])} as in {scans[0].name}, found "
                f"{show_bs(found)}",
                remedy="choose scans of the same shells, e.g. with --bids-filter-file",
                path=scan.dwi,
            )
    counts = [count_axes(t.directions[shell.volumes]) for t in tables for shell in t.shells]
    typical = np.round(np.median(bs, axis=0), 1).tolist()
    return tuple(typical), min(_HIGHEST_ORDER, max_order(min(counts)))


def _split(
    scans: Sequence[ScanFiles], *, seed: int, root: Path
) -> tuple[list[ScanFiles], list[ScanFiles]]:
    """Part scans by the tables' ``split`` column, or else let one person in ten validate."""
    told = [scan.attributes.get("split") for scan in scans]
    unknown = [word for word in told if word not in (None, "train", "val", "test")]
    if unknown:
        raise DatasetError(
            f"expected train, val or test in the split column, found {unknown[0]!r}",
            remedy="correct it",
            path=root,
        )
    if any(told):
        learning = [scan for scan, split in zip(scans, told, strict=True) if split == "train"]
        validating = [scan for scan, split in zip(scans, told, strict=True) if split == "val"]
    else:
        chosen = _validating_people(scans, seed)
        learning = [scan for scan in scans if scan.subject not in chosen]
        validating = [scan for scan in scans if scan.subject in chosen]
    lost = {str(scan.site) for scan in scans} - {str(scan.site) for scan in learning}
    if lost:
        raise DatasetError(
            f"no scan of site {min(lost)} is there to train on",
            remedy="mark people as train in the split column of participants.tsv",
            path=root,
        )
    return learning, validating


def _validating_people(scans: Sequence[ScanFiles], seed: int) -> set[str]:
    """Draw people, but never the last one of a site."""
    people = sorted({scan.subject for scan in scans})
    sites = {str(scan.site) for scan in scans}
    chosen: set[str] = set()
    for person in np.random.default_rng(seed).permutation(people):
        left = {str(scan.site) for scan in scans if scan.subject not in chosen | {person}}
        if len(chosen) < max(1, len(people) // _VALIDATION) and left == sites:
            chosen.add(str(person))
    return chosen


def _record(path: Path, watch: Watch | None, update: int, total: int, log: Sequence[Row]) -> None:
    """Keep the log on disk as it grows, and tell the watcher."""
    if log and log[-1]["update"] == update and rank() == 0:
        _write_log(path, log)
    if watch:
        watch(update, total, log)


def _write_log(path: Path, log: Sequence[Row]) -> None:
    write_table(path, [{k: f"{v:.6g}" for k, v in row.items()} for row in log])


def _summary(lesson: Lesson, training: Training, choice: _Choice) -> dict[str, Any]:
    """Tell from what a model was trained, and how well; how fast is not of the model."""
    return {
        "training_scans": {site: _count(lesson.scans, site) for site in lesson.sites},
        "validation_scans": {site: _count(lesson.validation, site) for site in lesson.sites},
        "training_people": sorted({scan.subject for scan in choice.learning}),
        "validation_people": sorted({scan.subject for scan in choice.validating}),
        "masks_computed": sum(not (scan.mask and scan.white_matter) for scan in choice.scans),
        "left_out": [scan.name for scan in choice.left_out],
        "patches": sum(len(scan.neighbours) for scan in lesson.scans),
        "best": {k: v for k, v in training.best.items() if k != "patches_per_second"},
    }


def _card(
    lesson: Lesson,
    training: Training,
    recipe: _Recipe,
    choice: _Choice,
    preset: str,
    seed: int,
) -> ModelCard:
    return ModelCard(
        sites={site: _learned_site(site, lesson, recipe, choice) for site in lesson.sites},
        **asdict(recipe),
        network=training.network.settings,
        preset=preset,
        seed=seed,
        settings=asdict(training.settings),
        summary=_summary(lesson, training, choice),
        versions={name: version(name) for name in ("siteless", "torch", "numpy")},
    )


def _learned_site(site: str, lesson: Lesson, recipe: _Recipe, choice: _Choice) -> LearnedSite:
    scans = [scan for scan in lesson.scans if scan.site == site]
    most = min(_TYPICAL_PER_SCAN, _TYPICAL_PER_SITE // len(scans))
    centres = (scan.neighbours[:, 0] for scan in scans)
    rows = [own[:: max(1, len(own) // most)] for own in centres]
    samples = [scan.values[own] for scan, own in zip(scans, rows, strict=True)]
    protocol = _protocol([files for files in choice.learning if str(files.site) == site])
    return LearnedSite(
        level=float(np.median([scan.level for scan in scans])),
        bvals=tuple(protocol.bvals.tolist()),
        bvecs=tuple(map(tuple, protocol.bvecs.round(9).tolist())),
        typical=Typical.of(samples, recipe.order),
    )


def _protocol(scans: Sequence[ScanFiles]) -> GradientTable:
    """Return the table of the first scan that has as many volumes as most."""
    tables = [read_table(files) for files in scans]
    sizes = Counter(map(len, tables))
    [(usual, _)] = sizes.most_common(1)
    return next(table for table in tables if len(table) == usual)


def _count(scans: Sequence[TrainingScan], site: str) -> int:
    return sum(scan.site == site for scan in scans)
