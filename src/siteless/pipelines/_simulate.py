"""`siteless simulate`: a cohort with known truth, as a BIDS dataset."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from siteless.bids import (
    claim_folder,
    derivative_path,
    make_header,
    write_description,
    write_dwi,
    write_json,
    write_map,
    write_raw_description,
    write_table,
)
from siteless.errors import OutputError
from siteless.pipelines._run import Run
from siteless.simulation import (
    PATIENT_EFFECT,
    USUAL_BIOLOGY,
    Anatomy,
    Cohort,
    Person,
    Scanner,
    Visit,
    make_anatomy,
    scan_person,
)

_ABOUT = {
    "travelling": "every person is scanned at every site.",
    "unpaired": "every training person is scanned at one site,\nevery test person at all sites.",
    "confounded": "every training person is scanned at one site,\n"
    "every test person at all sites, and mean ages differ between sites.",
    "patients": "every training person is scanned at one site,\n"
    "every test person at all sites, and the share of patients differs between sites. Patients\n"
    "have a lower intra-axonal part in the voxels of label-affected, and some have a lesion.",
    "bridged": "every training person is scanned at one site,\n"
    "a few of them and every test person at all sites, and mean ages differ between sites.",
    "longitudinal": "every training person is scanned twice, years apart,\n"
    "most of them on another scanner at the follow-up, and every test person twice at all\n"
    "sites. The intra-axonal part is stored for each session.",
}
_README = """\
{design} subjects, simulated by siteless: {about}

The sites' settings, the seed and the version are in derivatives/truth/simulation.json. The same
folder holds, for each scan, the scan without noise (desc-noiseless), and for each person tissue
(white matter, grey matter, fluid), fibre directions (x, y, z in world axes, for three
populations), the part of white matter that each population holds, the intra-axonal part, and the
dispersion (radians).
derivatives/masks holds masks of the brain and of white matter.
"""
# Settings that are recorded only for designs that have them.
_DESIGN_SETTINGS = ("design", "group", "visits")
# Names of truth files that BIDS does not define.
_NOT_IN_BIDS = ("*_dwimap.nii.gz", "*_probseg.nii.gz", "*_mask.nii.gz", "simulation.json")
_SESSION_COLUMNS = {"site": {"Description": "scanner and protocol of the session"}}
_FOLLOW_UP_COLUMNS = {
    "age": {"Description": "age at the session", "Units": "year"},
    "years": {"Description": "time since the first session", "Units": "year"},
}
_COLUMNS = {
    "age": {"Description": "age", "Units": "year"},
    "sex": {"Description": "sex", "Levels": {"F": "female", "M": "male"}},
    "split": {
        "Description": "what the person is for",
        "Levels": {"train": "training", "val": "validation", "test": "test"},
    },
}
_HEALTH = {
    "Description": "whether the person is ill",
    "Levels": {"control": "healthy", "patient": "ill"},
}


def simulate_cohort(out: Path | str, cohort: Cohort, *, run: Run = Run()) -> Path:
    """Write a cohort; existing scans of an interrupted run are kept.

    Parameters
    ----------
    out
        Folder of the dataset: new, empty, or with the same cohort.
    cohort
        Cohort from `siteless.simulation.draw_cohort` or `siteless.simulation.draw_design`.
    run
        How the work is done. The cohort has its own random seed.
    """
    out = Path(out)
    _claim(out, cohort)
    _write_root(out, cohort)
    simulate = partial(_simulate_person, out, cohort)
    run.map("Simulating people", simulate, cohort.people, name=lambda who: f"sub-{who.label}")
    return out


def _claim(out: Path, cohort: Cohort) -> None:
    """Raise an error if the folder contains anything but the same simulation."""
    settings = json.loads(json.dumps({"siteless": version("siteless"), **_settings(cohort)}))
    record = out / "derivatives" / "truth" / "simulation.json"
    if claim_folder(out, record, settings) != settings:
        remedy = "choose another folder, or delete it"
        raise OutputError("the folder holds another simulation", remedy=remedy, path=out)


def _settings(cohort: Cohort) -> dict[str, Any]:
    """Return the settings of a cohort, without those of other designs."""

    def recorded(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value for key, value in items if value or key not in _DESIGN_SETTINGS}

    effect = {"patient_effect": asdict(PATIENT_EFFECT)} if _has_groups(cohort) else {}
    settings = asdict(cohort, dict_factory=recorded) | effect
    if cohort.biology == USUAL_BIOLOGY:
        del settings["biology"]
    return settings


def _has_groups(cohort: Cohort) -> bool:
    return any(person.group for person in cohort.people)


def _write_root(out: Path, cohort: Cohort) -> None:
    design = cohort.design.name if cohort.design else "travelling"
    readme = _README.format(design=design.capitalize(), about=_ABOUT[design])
    write_raw_description(out, name=f"Simulated {design} subjects", readme=readme)
    for name in ("masks", "truth"):
        folder = out / "derivatives" / name
        write_description(folder, name=f"{name} of simulated subjects", ignored=_NOT_IN_BIDS)
    write_table(out / "participants.tsv", [_participant(person) for person in cohort.people])
    write_json(
        out / "participants.json", _COLUMNS | ({"group": _HEALTH} if _has_groups(cohort) else {})
    )
    follow_up = _FOLLOW_UP_COLUMNS if any(map(_is_followed_up, cohort.people)) else {}
    write_json(out / "sessions.json", _SESSION_COLUMNS | follow_up)
    for person in cohort.people:
        rows = [_session(person, visit) for visit in cohort.visits(person)]
        write_table(out / f"sub-{person.label}" / f"sub-{person.label}_sessions.tsv", rows)


def _participant(person: Person) -> dict[str, object]:
    row: dict[str, object] = {"participant_id": f"sub-{person.label}"}
    row |= {"age": person.age, "sex": person.sex, "split": person.split}
    return row | ({"group": person.group} if person.group else {})


def _session(person: Person, visit: Visit) -> dict[str, object]:
    row: dict[str, object] = {"session_id": f"ses-{visit.session}", "site": visit.site}
    if _is_followed_up(person):
        age = person.after(visit.years).age
        row |= {"age": f"{age:g}", "years": f"{visit.years:g}"}
    return row


def _is_followed_up(person: Person) -> bool:
    return any(visit.years for visit in person.visits)


def _simulate_person(out: Path, cohort: Cohort, person: Person) -> None:
    scanners = {scanner.site: scanner for scanner in cohort.scanners}
    scans = [
        _Scan(person, scanners[visit.site], visit, run)
        for visit in cohort.visits(person)
        for run in cohort.runs(person)
    ]
    missing = [scan for scan in scans if not scan.image(out).exists()]
    with threadpool_limits(1):  # sums over several threads round differently
        for years in sorted({scan.visit.years for scan in missing}):
            anatomy = make_anatomy(
                person.after(years), voxel_size=cohort.voxel_size, biology=cohort.biology
            )
            _write_truth(out, person, anatomy)
            for scan in missing:
                if scan.visit.years == years:
                    _write_scan(out, anatomy, scan)


def _write_truth(out: Path, person: Person, anatomy: Anatomy) -> None:
    truth = partial(derivative_path, out / "derivatives" / "truth", entities={"sub": person.label})
    maps = {
        "tissue": anatomy.tissue,
        "fibre_directions": anatomy.directions.reshape(len(anatomy.tissue), -1),
        "fibre_fractions": anatomy.populations,
        **({} if _is_followed_up(person) else {"intra_axonal": anatomy.intra_axonal}),
        "dispersion": anatomy.dispersion,
    }
    for name, values in maps.items():
        write_map(truth(name), anatomy.on_grid(values.astype("float32")), anatomy.affine)
    if person.lesion:
        write_map(truth("lesion"), anatomy.on_grid(anatomy.lesion), anatomy.affine)
    if person.group:
        write_map(truth("affected"), anatomy.on_grid(anatomy.affected), anatomy.affine)


@dataclass(frozen=True)
class _Scan:
    """A scan to simulate."""

    person: Person
    scanner: Scanner
    visit: Visit
    run: int

    @property
    def entities(self) -> dict[str, str]:
        again = {} if self.run == 1 else {"run": str(self.run)}
        return {"sub": self.person.label, "ses": self.visit.session, **again}

    def image(self, out: Path) -> Path:
        return derivative_path(out, "scan", self.entities)


def _write_scan(out: Path, anatomy: Anatomy, planned: _Scan) -> None:
    person, scanner, entities = planned.person, planned.scanner, planned.entities
    scan = scan_person(person, anatomy, scanner, run=planned.run, session=planned.visit.session)
    header, sidecar = make_header(anatomy.affine), _sidecar(scanner)
    masks, truth = out / "derivatives" / "masks", out / "derivatives" / "truth"
    write_map(derivative_path(masks, "brain", entities), anatomy.mask, anatomy.affine)
    white = anatomy.on_grid(anatomy.white_matter)
    write_map(derivative_path(masks, "white_matter", entities), white, anatomy.affine)
    if _is_followed_up(person) and planned.run == 1:
        intra = anatomy.on_grid(anatomy.intra_axonal.astype("float32"))
        write_map(derivative_path(truth, "intra_axonal", entities), intra, anatomy.affine)
    noiseless = derivative_path(truth, "noiseless", entities)
    stripped = sidecar | {"SkullStripped": True}
    write_dwi(noiseless, scan.clean, scan.gradients, header, anatomy.affine, stripped)
    measured = scan.signal.round().astype("int16")
    write_dwi(planned.image(out), measured, scan.gradients, header, anatomy.affine, sidecar)


def _sidecar(scanner: Scanner) -> dict[str, Any]:
    return {
        "Manufacturer": scanner.manufacturer,
        "ManufacturersModelName": scanner.model,
        "DeviceSerialNumber": scanner.serial,
        "MagneticFieldStrength": 3,
        "ProtocolName": scanner.site,
        "EchoTime": scanner.echo_time,
        "ConversionSoftware": "siteless simulate",
        "ConversionSoftwareVersion": version("siteless"),
    }
