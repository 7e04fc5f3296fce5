import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from browser import Theme, open_page, run_browser
from phantoms import load_image, write_table
from siteless.bids import find_scans, read_scan
from siteless.cli import main
from siteless.errors import SitelessError
from siteless.methods import Combat, Scaled
from siteless.pipelines import (
    Derivatives,
    Run,
    Scoring,
    evaluate_dataset,
    fit_model,
    harmonize_dataset,
    write_report,
)
from siteless.pipelines.evaluate import Kind, find_renderings
from siteless.pipelines.report._summary import _PageGrid, summarize_scan
from siteless.tissue import fit_tensor
from travellers import write_travellers, write_visit


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People at two sites, their scans rendered as b by scaling, and scores."""
    root = tmp_path_factory.mktemp("study v1.0")
    data = write_travellers(root / "my data")
    fit_model(data, root / "scaled.safetensors", Scaled(), run=Run(nprocs=1))
    harmonize_dataset(data, root / "scaled", root / "scaled.safetensors", "b", run=Run(nprocs=1))
    derivatives = {"scaled": [root / "scaled"]}
    kinds: list[Kind] = ["signal", "maps", "leakage", "biology"]
    evaluate_dataset(data, derivatives, root / "scores", scoring=Scoring(kinds), run=Run(nprocs=1))
    return root


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two people at the same sites, which is enough."""
    return write_travellers(tmp_path_factory.mktemp("pair v1.0") / "data", {"01": "", "02": ""})


@pytest.fixture(scope="module")
def report(study: Path) -> Path:
    derivatives, scores = [study / "scaled"], study / "scores"
    return write_report(
        study / "my data", derivatives, study / "report", scores=scores, run=Run(nprocs=1)
    )


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def _summaries(report: Path) -> list[dict[str, Any]]:
    records = sorted((report.parent / "records").glob("*.json"))
    return [summary for path in records for summary in json.loads(path.read_text())["summaries"]]


def test_there_is_a_page_of_the_study_and_one_of_each_person(report: Path) -> None:
    pages = {path.name for path in report.parent.glob("*.html")}
    assert pages == {"index.html", *(f"sub-0{n}.html" for n in range(1, 7))}
    links = set(re.findall(r'href="(sub-[^"]+)"', report.read_text()))
    assert links == pages - {"index.html"}


def test_numbers_are_those_of_white_matter(study: Path, report: Path) -> None:
    files = next(f for f in find_scans(study / "my data").scans if f.name.endswith("02_ses-a_dwi"))
    scan = read_scan(files)
    fa = fit_tensor(scan.volumes, scan.voxels, scan.gradients).fa
    inside = scan.white_matter.T[scan.mask.T]
    [summary] = [row for row in _summaries(report) if row["name"] == "sub-02_ses-a"]
    assert summary["before"]["fa"] == pytest.approx(fa[inside].mean(), rel=1e-5)
    assert sum(summary["curves"]["fa"][0]) == pytest.approx(1, abs=1e-3)
    assert (summary["site"], summary["to"]) == ("a", "b")


def test_scaling_keeps_every_brain_and_changes_little(report: Path) -> None:
    for summary in _summaries(report):
        assert summary["likeness"]["fa"] > 0.9
        assert summary["change"] < 10


def test_what_is_there_is_kept_and_what_has_changed_is_made_again(
    study: Path, pair: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(pair, tmp_path / "data")
    model, out = study / "scaled.safetensors", tmp_path / "made"
    harmonize_dataset(data, out, model, "b", run=Run(nprocs=1))
    page = write_report(data, [out], tmp_path / "out", run=Run(nprocs=1))
    first = _times(page.parent)
    assert write_report(data, [out], tmp_path / "out", run=Run(nprocs=1)) == page
    assert {p for p, t in _times(page.parent).items() if first[p] != t} == {page}
    write_visit(data, "01", "a", None, seed=77)
    harmonize_dataset(data, out, model, "b", run=Run(nprocs=1))
    write_report(data, [out], tmp_path / "out", run=Run(nprocs=1))
    second = _times(page.parent)
    changed = {path.name for path, t in second.items() if first[path] != t}
    assert changed == {"index.html", "sub-01.html", "sub-01.json"}
    table = data / "participants.tsv"
    table.write_text(table.read_text().replace("\t37\t", "\t75\t"))
    write_report(data, [out], tmp_path / "out", run=Run(nprocs=1))
    changed = {path.name for path, t in _times(page.parent).items() if second[path] != t}
    assert changed == {"index.html", "sub-02.html", "sub-02.json"}
    assert _summaries(page)[-1]["age"] == 75


def test_the_same_scans_give_the_same_bytes_whatever_the_processes(
    study: Path, report: Path, tmp_path: Path
) -> None:
    derivatives, scores = [study / "scaled"], study / "scores"
    again = write_report(
        study / "my data", derivatives, tmp_path / "out", scores=scores, run=Run(nprocs=2)
    )
    for page in report.parent.glob("*.html"):
        assert (again.parent / page.name).read_bytes() == page.read_bytes()


def test_only_those_who_stand_out_of_many_people_have_pages(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    page = write_report(study / "my data", [study / "scaled"], out, people=2, run=Run(nprocs=1))
    assert len(list(out.glob("sub-*.html"))) == 2
    listed = page.read_text().partition('aria-label="All scans"')[2]
    assert listed.count('<th scope="row">') == 12


def test_maps_of_a_method_that_gives_no_scans_are_shown(study: Path, tmp_path: Path) -> None:
    pytest.importorskip("neuroCombat")
    data, model = study / "my data", tmp_path / "combat.safetensors"
    fit_model(data, model, Combat(same_space=True, covariates=(), maps=("fa",)), run=Run(nprocs=1))
    harmonize_dataset(data, tmp_path / "maps", model, "b", run=Run(nprocs=1))
    page = write_report(data, [tmp_path / "maps"], tmp_path / "out", run=Run(nprocs=1))
    assert "ComBat" in page.read_text()
    assert all(set(summary["after"]) == {"fa"} for summary in _summaries(page))


def test_fine_volumes_are_averaged_where_they_were(
    monkeypatch: pytest.MonkeyPatch, study: Path
) -> None:
    monkeypatch.setattr("siteless.pipelines.report._summary._MOST_VOXELS", 100)
    scan = read_scan(find_scans(study / "my data").scans[0])
    grid = _PageGrid(scan)
    x = np.indices(scan.mask.shape).astype(float)
    world = np.moveaxis(x, 0, -1) @ scan.affine[:3, :3].T + scan.affine[:3, 3]
    whole = np.ones_like(scan.mask)
    grid.mask = whole
    coarse = grid.volume(world[..., 0], 0.0, 1.0, "mm")
    assert coarse.data.size < scan.mask.size
    i, j, k = 1, 0, 1
    expected = (coarse.affine @ [i, j, k, 1])[0]
    assert coarse.data[i, j, k] == pytest.approx(expected)


def test_the_command_says_where_the_page_is_and_never_touches_data(
    study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _times(study / "my data"), _times(study / "scaled")
    words = ["report", str(study / "my data"), "--harmonized", str(study / "scaled")]
    assert main([*words, "--out", str(tmp_path / "out"), "--nprocs", "1"]) == 0
    assert capsys.readouterr().out.endswith("index.html\n")
    assert (_times(study / "my data"), _times(study / "scaled")) == before


@pytest.mark.parametrize(
    ("to", "scores", "problem"),
    [
        (None, Path("nowhere"), "scores.tsv"),
        ("c", None, "rendered as b, not as c"),
    ],
)
def test_errors_are_reported_before_anything_is_written(
    study: Path, tmp_path: Path, to: str | None, scores: Path | None, problem: str
) -> None:
    derivatives = Derivatives({"scaled": [study / "scaled"]}, to)
    with pytest.raises(SitelessError, match=problem):
        write_report(
            study / "my data", derivatives, tmp_path / "out", scores=scores, run=Run(nprocs=1)
        )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["moved", "cut"])
def test_a_rendering_on_another_grid_is_refused(study: Path, tmp_path: Path, change: str) -> None:
    shutil.copytree(study / "scaled", tmp_path / "made")
    path = next((tmp_path / "made").rglob("sub-01_ses-a_*_dwi.nii.gz"))
    image = load_image(path)
    affine = image.affine.copy()
    affine[0, 3] += 9
    other = nib.Nifti1Image(image.get_fdata(), affine) if change == "moved" else image.slicer[1:]
    nib.save(other, path)
    for mask in path.parent.glob("sub-01_ses-a_*mask.nii.gz"):
        mask.unlink()
    with pytest.raises(SitelessError, match=re.escape(path.name)):
        write_report(study / "my data", [tmp_path / "made"], tmp_path / "out", run=Run(nprocs=1))


def test_renderings_as_two_sites_are_two_reports(study: Path, pair: Path, tmp_path: Path) -> None:
    for site in "ab":
        model = study / "scaled.safetensors"
        harmonize_dataset(pair, tmp_path / site, model, site, run=Run(nprocs=1))
    with pytest.raises(SitelessError, match="rendered as one site, found a, b"):
        write_report(pair, [tmp_path / "a", tmp_path / "b"], tmp_path / "out")


def test_another_page_is_not_replaced(study: Path, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(SitelessError, match="another index"):
        write_report(study / "my data", [study / "scaled"], tmp_path, run=Run(nprocs=1))
    assert (tmp_path / "index.html").read_text() == "mine"


def test_labels_that_are_no_file_names_have_pages_in_the_folder(
    study: Path, tmp_path: Path
) -> None:
    scans = [f for f in find_scans(study / "my data").scans if f.subject in ("01", "02")]
    rows = [
        {"subject": f"../P#{f.subject} %", "site": f.site, "dwi": f.dwi, "mask": f.mask}
        for f in scans
    ]
    write_table(tmp_path / "scans.tsv", rows)
    harmonize_dataset(
        tmp_path / "scans.tsv",
        tmp_path / "made",
        study / "scaled.safetensors",
        "b",
        run=Run(nprocs=1),
    )
    page = write_report(
        tmp_path / "scans.tsv", [tmp_path / "made"], tmp_path / "out", run=Run(nprocs=1)
    )
    pages = {path.name for path in page.parent.glob("sub-*.html")}
    assert len(pages) == 2
    assert set(re.findall(r'href="(sub-[^"]+)"', page.read_text())) == pages


@pytest.mark.parametrize(
    "options", [["--site", "a"], ["--bids-filter-file", "{}"], ["--participant-label", "01"]]
)
def test_a_part_of_the_scans_is_harmonized_and_reported(
    study: Path, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    (tmp_path / "filter.json").write_text('{"dwi": {"session": "a"}}')
    options = [word.format(tmp_path / "filter.json") if word == "{}" else word for word in options]
    words = ["harmonize", str(pair), str(tmp_path / "out"), "--to", "b"]
    model = ["--model", str(study / "scaled.safetensors")]
    assert main([*words, *model, *options, "--nprocs", "1"]) == 0
    output = capsys.readouterr()
    assert "warning" not in output.err
    assert ("index.html" in output.out) != ("--participant-label" in options)
    assert ("siteless report" in output.out) == ("--participant-label" in options)


@pytest.mark.parametrize(
    ("ending", "spoil"),
    [
        ("nii.gz", lambda whole: whole[:1000]),
        ("nii.gz", lambda _: b"x" * 500),
        ("bval", lambda whole: whole.replace(b" ", b"", 1)),
    ],
)
def test_scans_that_failed_are_named_on_the_page(
    study: Path,
    pair: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ending: str,
    spoil: Callable[[bytes], bytes],
) -> None:
    data = shutil.copytree(pair, tmp_path / "data")
    file = data / f"sub-02/ses-a/dwi/sub-02_ses-a_dwi.{ending}"
    file.write_bytes(spoil(file.read_bytes()))
    words = ["harmonize", str(data), str(tmp_path / "out"), "--to", "b", "--nprocs", "1"]
    assert main([*words, "--model", str(study / "scaled.safetensors")]) == 1
    assert "1 failed" in capsys.readouterr().out
    page = (tmp_path / "out/report/index.html").read_text()
    assert "Of 4 scans of the dataset, 1 is not" in page
    assert "this page: sub-02_ses-a." in page


def test_uncertainty_is_shown_where_it_is_known(study: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(study / "scaled", tmp_path / "made")
    deviation = next(copy.rglob("*_stat-std_dwimap.nii.gz"))
    image = load_image(deviation)
    values = np.asarray(image.dataobj) + 1
    values[:, :, : values.shape[2] // 2] = 0
    nib.save(nib.Nifti1Image(values, image.affine, image.header), deviation)
    originals = find_scans(study / "my data").scans
    renderings = find_renderings(originals, Derivatives({"m": [copy]}))
    [rendering] = [
        scan for scan in renderings if scan.image and scan.image.dwi.parent == deviation.parent
    ]
    uncertainty = summarize_scan(rendering)[1].maps["FA"]["uncertainty"].data
    mask = read_scan(rendering.source).mask
    assert np.array_equal(np.isfinite(uncertainty), mask & values.all(axis=3))


def test_a_report_that_fails_is_a_warning(
    study: Path, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out" / "report").mkdir(parents=True)
    (tmp_path / "out" / "report" / "index.html").write_text("mine")
    words = ["harmonize", str(pair), str(tmp_path / "out"), "--to", "b"]
    model = ["--model", str(study / "scaled.safetensors")]
    assert main([*words, *model, "--nprocs", "1"]) == 0
    assert "warning: no report" in capsys.readouterr().err


def test_scores_that_are_no_numbers_are_refused(study: Path, tmp_path: Path) -> None:
    text = (study / "scores/scores.tsv").read_text()
    (tmp_path / "scores.tsv").write_text(text + "05\ta>b\tscaled\twhite-matter\trmse\tmuch\n")
    with pytest.raises(SitelessError, match="expected a number"):
        write_report(
            study / "my data",
            [study / "scaled"],
            tmp_path / "out",
            scores=tmp_path,
            run=Run(nprocs=1),
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with run_browser() as browser:
        yield browser


def test_a_browser_opens_the_page_and_its_parts_respond(browser: Browser, report: Path) -> None:
    with open_page(browser, report) as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        md = page.get_by_role("tab", name="MD").first
        panel = page.locator(f"#{md.get_attribute('aria-controls')}")
        assert not panel.is_visible()
        md.click()
        assert panel.is_visible()
        page.keyboard.press("ArrowLeft")
        assert not panel.is_visible()
        page.locator(".dot:visible").first.hover()
        assert "sub-0" in page.locator("#tip").inner_text()
        page.get_by_role("button", name="Copy the text").click()
        page.get_by_role("button", name="Copied").wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == page.locator("#methods-text").inner_text().strip()
        page.locator("#siteless-viewer").scroll_into_view_if_needed()
        page.wait_for_selector("#siteless-viewer[aria-busy=false]", timeout=60_000)
        canvas = page.locator("#siteless-viewer canvas").first
        picture = canvas.screenshot()
        slider = page.get_by_role("slider", name="Slice")
        slider.focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        page.wait_for_timeout(500)
        assert canvas.screenshot() != picture


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fit_any_width_and_theme_and_are_for_everybody(
    browser: Browser, report: Path, width: int, theme: Theme
) -> None:
    for path in (report, report.with_name("sub-01.html")):
        with open_page(browser, path, width=width, theme=theme) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            ink, paper = page.evaluate(
                "[getComputedStyle(document.body).color,"
                " getComputedStyle(document.body).backgroundColor]"
            )
            dark, bright = sorted(sum(map(int, re.findall(r"\d+", c)[:3])) for c in (ink, paper))
            assert bright - dark > 500
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            results = Axe().run(page)
            assert not results.violations_count, results.generate_report()


def test_scans_whose_files_have_one_name_are_kept_apart(study: Path, tmp_path: Path) -> None:
    rows: list[dict[str, object]] = []
    for files in find_scans(study / "my data").scans[:4]:
        folder = tmp_path / f"p {len(rows)}"
        folder.mkdir()
        for path, name in (
            (files.dwi, "data.nii.gz"),
            (files.bval, "bvals"),
            (files.bvec, "bvecs"),
        ):
            assert path is not None
            shutil.copy(path, folder / name)
        paths = {"bval": folder / "bvals", "bvec": folder / "bvecs", "mask": files.mask}
        who = {"subject": files.subject, "site": files.site, "dwi": folder / "data.nii.gz"}
        rows.append({**who, **paths})
    write_table(tmp_path / "scans.tsv", rows)
    model, out = study / "scaled.safetensors", tmp_path / "made"
    harmonize_dataset(tmp_path / "scans.tsv", out, model, "b", run=Run(nprocs=1))
    page = write_report(tmp_path / "scans.tsv", [out], tmp_path / "out", run=Run(nprocs=1))
    assert {summary["name"] for summary in _summaries(page)} == {
        f"sub-{row['subject']}_ses-{row['site']}" for row in rows
    }


def test_output_among_the_scans_of_a_manifest_is_refused(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study / "my data", tmp_path / "scans")
    rows = [
        {"subject": f.subject, "site": f.site, "dwi": f.dwi}
        for f in find_scans(tmp_path / "scans").scans
    ]
    write_table(tmp_path / "table.tsv", rows)
    with pytest.raises(SitelessError, match="among the scans"):
        harmonize_dataset(
            tmp_path / "table.tsv",
            tmp_path / "scans",
            study / "scaled.safetensors",
            "b",
            run=Run(nprocs=1),
        )
