import base64
import gzip
import io
import re
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image, ImageChops
from playwright.sync_api import Browser, FloatRect, Locator, Page

from browser import open_page, run_browser
from siteless.acquisition import Array
from siteless.report import _niivue, _viewer
from siteless.report._niivue import find_class, find_niivue
from siteless.report._viewer import ViewedScan, viewer_html
from siteless.report._volume import Volume, draw_still, encode_volume

SHAPE = (20, 24, 18)
PANELS = ("before", "after", "difference", "uncertainty")


def turned(degrees: float) -> Array:
    around = np.deg2rad(degrees)
    turn = np.eye(3)
    turn[1:, 1:] = [[np.cos(around), -np.sin(around)], [np.sin(around), np.cos(around)]]
    return turn


def make_affine(
    signs: tuple[int, int, int] = (1, 1, 1),
    degrees: float = 0.0,
    order: tuple[int, int, int] = (0, 1, 2),
) -> Array:
    """Return the affine of a grid whose middle is at 3, -5, 11 mm."""
    affine = np.eye(4)
    affine[:3, :3] = turned(degrees) @ np.diag(np.array([8.0, 7.0, 6.0]) * signs)[:, order]
    affine[:3, 3] = np.array([3, -5, 11]) - affine[:3, :3] @ (np.array(SHAPE) - 1) / 2
    return affine


AFFINES = {
    "right-handed": make_affine(),
    "left-handed": make_affine((-1, 1, 1)),
    "upside down": make_affine((1, -1, -1)),
    "axes swapped": make_affine((1, 1, -1), order=(2, 0, 1)),
    "oblique": make_affine((-1, 1, 1), degrees=25),
}


def make_brain() -> Array:
    """Return an ellipsoid that does not reach the edges of the grid."""
    x, y, z = np.meshgrid(*(np.linspace(-1.2, 1.2, n) for n in SHAPE), indexing="ij")
    return x**2 + y**2 + z**2 < 1


def world(affine: Array) -> Array:
    """Return where voxels are, mm, shape (x, y, z, 3)."""
    return nib.affines.apply_affine(affine, np.moveaxis(np.indices(SHAPE), 0, -1))


def decode(packed: bytes) -> nib.Nifti1Image:
    return nib.Nifti1Image.from_bytes(gzip.decompress(packed))


def make_volume(
    seed: int, affine: Array, low: float = 0.0, high: float = 1.0, **more: Any
) -> Volume:
    values = np.random.default_rng(seed).uniform(low, high, SHAPE)
    return Volume(np.where(make_brain(), values, np.nan), affine, low, high, **more)


def make_scan(name: str = "sub-01, leeds", affine: Array = AFFINES["oblique"]) -> ViewedScan:
    """Return a scan with noise in four panels, positions in three, and colours in two."""
    colours = np.random.default_rng(9).uniform(size=(*SHAPE, 3)) * make_brain()[..., None]
    position = np.where(make_brain()[..., None], world(affine), np.nan)
    positions = {
        panel: Volume(position[..., n], affine, -127, 127) for n, panel in enumerate(PANELS[:3])
    }
    return ViewedScan(
        name,
        {
            "FA": {panel: make_volume(n, affine) for n, panel in enumerate(PANELS)},
            "MD": {
                panel: make_volume(n, affine, 0, 3, unit="µm²/ms", colours="viridis")
                for n, panel in enumerate(PANELS, start=4)
            },
            "position": positions,
            "fibre directions": {panel: Volume(colours, affine) for panel in PANELS[:2]},
        },
    )


# The bundle


def test_the_bundle_is_found_and_exports_its_class_without_importing_the_package() -> None:
    source = find_niivue()
    assert source is not None
    assert re.search(r"export\{[\w$]+ as Niivue\};\s*$", source)
    assert "Redistribution" in source.split("*/")[0]  # the licence asks to be kept
    assert len(source) < 3_000_000  # the copy of itself is gone
    assert "ipyniivue" not in sys.modules


def test_a_class_is_found_by_what_it_attaches() -> None:
    source = "this.attachToCanvas(x);var a=new Blob(b),vA=new t$2(C);vA.attachToCanvas(g,1)"
    assert find_class(source) == "t$2"
    assert find_class("this.attachToCanvas(x)") is None


@pytest.mark.parametrize("package", ["no-such-package", "nibabel"])
def test_without_the_package_or_its_file_there_is_no_bundle(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_niivue, "PACKAGE", package)
    assert find_niivue() is None


def test_without_its_licence_a_bundle_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    read = _niivue._read

    def without_licence(package: Distribution, ending: str) -> str:
        return read(package, "no such file" if ending == "LICENSE" else ending)

    monkeypatch.setattr(_niivue, "_read", without_licence)
    assert find_niivue() is None


# Volumes


@pytest.mark.parametrize("name", AFFINES)
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.3, 0.3), (0.5, 3000.0)])
def test_a_volume_is_read_back_within_half_a_level_where_it_was(
    name: str, low: float, high: float
) -> None:
    volume = make_volume(0, AFFINES[name], low, high)
    image = decode(encode_volume(volume))
    assert image.get_data_dtype() == np.uint8
    inside = make_brain()
    there = world(volume.affine)[inside]
    index = nib.affines.apply_affine(np.linalg.inv(image.affine), there)
    np.testing.assert_allclose(index, np.rint(index), atol=1e-3)
    values = image.get_fdata()[tuple(np.rint(index).astype(int).T)]
    half = (high - low) / 254 / 2
    np.testing.assert_allclose(values, volume.data[inside], atol=half * 1.001)


@pytest.mark.parametrize("name", AFFINES)
def test_colours_are_read_back_within_half_a_level_where_they_were(name: str) -> None:
    colours = np.random.default_rng(1).uniform(0.1, 1, (*SHAPE, 3))
    colours[~make_brain()] = 0
    image = decode(encode_volume(Volume(colours, AFFINES[name])))
    shift = np.linalg.solve(AFFINES[name], image.affine)[:3, 3]
    start = np.rint(shift).astype(int)
    np.testing.assert_allclose(shift, start, atol=1e-3)
    cut = tuple(slice(a, a + n) for a, n in zip(start, image.shape, strict=True))
    read = np.asarray(image.dataobj)
    for n, channel in enumerate("RGB"):
        np.testing.assert_allclose(read[channel] / 255, colours[cut][..., n], atol=0.501 / 255)


def test_a_volume_is_cut_to_what_is_seen_and_takes_a_byte_a_voxel() -> None:
    volume = make_volume(0, AFFINES["oblique"])
    packed = encode_volume(volume)
    assert decode(packed).shape == tuple(np.ptp(np.argwhere(make_brain()), axis=0) + 1)
    assert len(packed) < make_brain().sum() + 1000
    assert encode_volume(volume) == packed


def test_outside_is_below_the_scale_and_what_is_beyond_it_is_drawn_in() -> None:
    data = np.full(SHAPE, np.nan)
    data[5, 5, 5:9] = [-7, 0, 1, 7]
    box = (slice(4, 6), slice(4, 6), slice(5, 9))
    image = decode(encode_volume(Volume(data, np.eye(4), 0, 1), box))
    values = image.get_fdata()
    np.testing.assert_allclose(values[1, 1], [0, 0, 1, 1], atol=1e-6)
    np.testing.assert_allclose(values[0], image.header["cal_min"])
    assert (values[0] < 0).all()


@pytest.mark.parametrize("name", AFFINES)
def test_left_is_on_the_left_and_front_on_top_of_a_still(name: str) -> None:
    affine = AFFINES[name]
    x, y = np.moveaxis(world(affine)[..., :2], -1, 0)
    x_slice, y_slice, z_slice = (slice(0, n) for n in SHAPE)
    box = x_slice, y_slice, z_slice
    sides = (24 * 8, 18 * 7) if name == "axes swapped" else (20 * 8, 24 * 7)
    for values, side in ((x, "left"), (y, "bottom")):
        volume = Volume(values - values.min(), affine, 0, np.ptp(values))
        still, width, height = draw_still(volume, box)
        brightness = np.asarray(Image.open(io.BytesIO(still)).convert("L")).astype(float)
        rows, columns = brightness.mean(axis=1), brightness.mean(axis=0)
        darker, lighter = (columns[0], columns[-1]) if side == "left" else (rows[-1], rows[0])
        assert darker < lighter - 100
        assert (width, height) == pytest.approx(sides)


def test_what_cannot_be_compared_is_refused() -> None:
    affine = np.eye(4)
    with pytest.raises(ValueError, match="one scale"):
        ViewedScan(
            "a", {"FA": {"before": make_volume(0, affine), "after": make_volume(0, affine, 0, 2)}}
        )
    with pytest.raises(ValueError, match="one grid"):
        ViewedScan(
            "a", {"FA": {"before": make_volume(0, affine), "x": make_volume(0, 2 * affine)}}
        )
    with pytest.raises(ValueError, match="another unit"):
        make_volume(0, affine, 0, 1e-6)


# The page


def write_page(path: Path, fragment: str, above: str = "") -> None:
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += "<title>Viewer</title><style>body { margin: 12px }</style>"
    path.write_text(f'<!doctype html><html lang="en">{head}{above}{fragment}', encoding="utf-8")


def test_the_same_scans_give_the_same_page() -> None:
    assert viewer_html([make_scan()]) == viewer_html([make_scan()])


def test_without_niivue_the_page_says_what_to_install_and_shows_stills(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_viewer, "find_niivue", lambda: None)
    page = viewer_html([make_scan(), make_scan("sub-02")])
    assert "pip install ipyniivue" in page
    assert "<script" not in page
    stills = re.findall(r"data:image/png;base64,([^\"]+)", page)
    assert len(stills) == 2 * len(make_scan().volumes)
    picture = Image.open(io.BytesIO(base64.b64decode(stills[0])))
    assert np.asarray(picture.convert("L")).std() > 20


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with run_browser() as running:
        yield running


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("a page") / "viewer.html"
    names = ("sub-01, leeds", "sub-02 </script><b>")
    write_page(path, viewer_html([make_scan(name) for name in names]))
    return path


@pytest.fixture
def page(browser: Browser, written: Path) -> Iterator[Page]:
    with open_page(browser, written) as opened:
        undress(opened)
        yield opened


def wait(page: Page) -> None:
    page.wait_for_selector("#siteless-viewer[aria-busy=false]")


def undress(page: Page) -> None:
    """Take cross and letters away, so that only what NiiVue draws is compared."""
    wait(page)
    bare = ".viewer-frame b, .viewer-frame::before, .viewer-frame::after { display: none }"
    page.add_style_tag(content=bare)


def box_of(element: Locator) -> FloatRect:
    box = element.bounding_box()
    assert box is not None
    return box


def found_in(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None
    return match[1]


def look(page: Page) -> dict[str, Image.Image]:
    """Return what each panel that is to be seen shows."""
    wait(page)
    pictures = {}
    for figure in page.locator("figure:visible").all():
        picture = figure.locator("canvas").screenshot()
        name = figure.get_attribute("data-panel") or ""
        pictures[name] = Image.open(io.BytesIO(picture)).convert("RGB")
    return pictures


def assert_all_differ(before: dict[str, Image.Image], after: dict[str, Image.Image]) -> None:
    assert before.keys() == after.keys()
    for panel, picture in before.items():
        change = ImageChops.difference(picture, after[panel]).convert("L")
        assert np.asarray(change).mean() > 5, panel


def read_place(page: Page) -> dict[str, float]:
    """Return the values at the cross in the first three panels."""
    texts = page.locator(".viewer-value").all_inner_texts()[:3]
    return {a: float(t.replace("\N{MINUS SIGN}", "-")) for a, t in zip("xyz", texts, strict=True)}


def test_every_panel_shows_a_brain_and_no_two_the_same(page: Page) -> None:
    pictures = look(page)
    assert list(pictures) == list(PANELS)
    for picture in pictures.values():
        grey = np.asarray(picture.convert("L"))
        assert grey[4, 4:-4].max() == 0  # the frame
        assert grey.std() > 20
    assert_all_differ(pictures, {panel: pictures[PANELS[n - 1]] for n, panel in enumerate(PANELS)})


def test_arrows_on_the_slider_move_all_panels(page: Page) -> None:
    before, position = look(page), page.locator(".viewer-where").inner_text()
    page.locator("input[name=slice]").focus()
    page.keyboard.press("ArrowRight")
    assert_all_differ(before, look(page))
    assert page.locator(".viewer-where").inner_text() != position
    page.keyboard.press("ArrowLeft")
    assert page.locator(".viewer-where").inner_text() == position
    assert look(page) == before


@pytest.mark.parametrize("plane", ["coronal", "sagittal"])
def test_another_plane_changes_all_panels(page: Page, plane: str) -> None:
    before = look(page)
    page.get_by_label(plane).check()
    assert_all_differ(before, look(page))


def test_another_map_changes_all_panels_and_their_bars(page: Page) -> None:
    before = look(page)
    page.select_option("select[name=quantity]", "MD")
    assert_all_differ(before, look(page))
    assert page.locator("figcaption").filter(has_text="3 µm²/ms").count() == 4


def test_panels_without_a_volume_are_hidden(page: Page) -> None:
    page.select_option("select[name=quantity]", "fibre directions")
    pictures = look(page)
    assert list(pictures) == ["before", "after"]
    assert np.asarray(pictures["after"]).std() > 20


def test_another_scan_is_shown_and_its_name_is_text(page: Page) -> None:
    page.select_option("select[name=scan]", label="sub-02 </script><b>")
    assert list(look(page)) == list(PANELS)


@pytest.mark.parametrize(
    ("plane", "axes"), [("axial", "xyz"), ("coronal", "xzy"), ("sagittal", "yzx")]
)
def test_positions_of_an_oblique_image_are_those_of_the_world(
    page: Page, plane: str, axes: str
) -> None:
    """Panels show each voxel's place, so that a value shows where it was read."""
    page.select_option("select[name=quantity]", "position")
    wait(page)
    page.get_by_label(plane).check()
    across, up, through = list(axes)
    canvas = page.locator("figure[data-panel=after] canvas")
    size = box_of(canvas)["width"]
    places = []
    for where in ((0.4, 0.6), (0.6, 0.6), (0.4, 0.4)):
        canvas.click(position={"x": where[0] * size, "y": where[1] * size})
        places.append(read_place(page))
        shown_position = page.locator(".viewer-where").inner_text()
        slice_at = float(found_in(r"= (\S+) mm", shown_position).replace("\N{MINUS SIGN}", "-"))
        assert shown_position.startswith(through)
        assert abs(places[-1][through] - slice_at) < 7  # a voxel is up to 8 mm wide
    origin, right, above = places
    assert right[across] - origin[across] > 20
    assert abs(right[up] - origin[up]) < 9
    assert above[up] - origin[up] > 20
    assert abs(above[across] - origin[across]) < 9


def test_the_cross_is_where_the_click_was_in_all_panels(page: Page) -> None:
    canvas = page.locator("figure[data-panel=after] canvas")
    size = box_of(canvas)["width"]
    canvas.click(position={"x": 0.4 * size, "y": 0.55 * size})
    for frame in page.locator("figure:visible .viewer-frame").all():
        style = frame.get_attribute("style")
        x, y = (float(found_in(rf"--{axis}: ([\d.]+)%", style or "")) for axis in "xy")
        assert abs(x - 40) < 1
        assert abs(y - 55) < 1


def test_a_narrow_page_has_two_square_panels_a_row_and_does_not_scroll_sideways(
    browser: Browser, written: Path
) -> None:
    with open_page(browser, written, width=360, height=740) as narrow:
        wait(narrow)
        assert narrow.evaluate("document.documentElement.scrollWidth") <= 360
        boxes = [box_of(frame) for frame in narrow.locator(".viewer-frame").all()[:4]]
        assert all(abs(box["width"] - box["height"]) < 1 for box in boxes)
        assert boxes[0]["y"] == boxes[1]["y"] < boxes[2]["y"] == boxes[3]["y"]


def test_a_value_has_the_colour_of_the_bar(browser: Browser, tmp_path: Path) -> None:
    levels = {"low": 0.0, "middle": 0.5, "high": 1.0}
    solid = {
        name: Volume(np.where(make_brain(), 2 + value, np.nan), np.eye(4), 2, 3, colours="viridis")
        for name, value in levels.items()
    }
    write_page(tmp_path / "solid.html", viewer_html([ViewedScan("solid", {"FA": solid})]))
    with open_page(browser, tmp_path / "solid.html") as opened:
        undress(opened)
        for name, picture in look(opened).items():
            pixel = picture.getpixel((picture.width // 2, picture.height // 2))
            colour = colormaps["viridis"](levels[name], bytes=True)[:3]
            np.testing.assert_allclose(
                np.asarray(pixel, dtype=int), np.array(colour, dtype=int), atol=4
            )


def test_the_viewer_starts_when_it_comes_near(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "tall.html"
    write_page(path, viewer_html([make_scan()]), above='<div style="height: 5000px"></div>')
    with open_page(browser, path) as tall:
        tall.wait_for_timeout(500)
        assert tall.locator("canvas").count() == 0
        assert tall.locator(".viewer-frame img").count() == 4
        tall.locator("#siteless-viewer").scroll_into_view_if_needed()
        wait(tall)
        assert tall.locator(".viewer-frame img").count() == 0


def test_without_webgl_a_sentence_says_so_and_stills_stay(browser: Browser, written: Path) -> None:
    blind = "HTMLCanvasElement.prototype.getContext = () => null"
    with open_page(browser, written, first=blind) as opened:
        opened.get_by_text("needs WebGL 2").wait_for()
        assert opened.locator(".viewer-frame img:visible").count() == 4
        assert not opened.locator("input[name=slice]").is_visible()
