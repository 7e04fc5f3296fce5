"""Pictures of scores: whole, repeatable, and true to the numbers."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from siteless.acquisition import Array
from siteless.errors import OutputError
from siteless.harmonics import sh_basis
from siteless.report import _style, draw_boxes, draw_fods, draw_maps
from siteless.report._boxes import percentiles
from siteless.report._glyphs import radii, shared_scale, sphere
from siteless.report._maps import shared_limit

TASKS = ("prisma30 > connectom60", "connectom60 > prisma30")
METHODS = ("unchanged", "scaled", "multi-site, lambda = 0")


@pytest.fixture
def scores() -> dict[str, dict[str, Array]]:
    """Maps of scores, shape (12, 10), NaN at the rim."""
    rng = np.random.default_rng(3)
    maps = {task: {method: rng.gamma(2.0, 0.1, (12, 10)) for method in METHODS} for task in TASKS}
    for row in maps.values():
        for values in row.values():
            values[0] = np.nan
    return maps


@pytest.fixture
def fods() -> Array:
    """Single fibres that turn across a slice, shape (4, 3, 45), one voxel empty."""
    angles = np.linspace(0, 3, 12)
    fibres = np.stack([np.cos(angles), np.sin(angles), 0.4 + 0 * angles], axis=1)
    fibres /= np.linalg.norm(fibres, axis=1, keepdims=True)
    coefficients = sh_basis(fibres, 8).reshape(4, 3, 45)
    coefficients[0, 0] = np.nan
    return coefficients


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn, as matplotlib holds them when it writes them."""
    seen = []
    save = _style.save_figure

    def keep(figure: Figure, path: Path, *, dpi: int) -> None:
        seen.append(figure)
        save(figure, path, dpi=dpi)

    monkeypatch.setattr(_style, "save_figure", keep)
    return seen


def draw_all(scores: dict[str, dict[str, Array]], fods: Array, folder: Path) -> list[Path]:
    draw_boxes(scores, folder / "boxes.png", label="error (1)", floors={TASKS[0]: 0.1}, marked=90)
    anatomy = dict.fromkeys(TASKS, np.ones((12, 10)))
    draw_maps(
        scores, folder / "maps.png", label="error (1)", voxel_size=(2.0, 2.5), anatomy=anatomy
    )
    draw_fods({"a": fods, "b": fods / 2}, folder / "fods.png", background=np.ones((4, 3)))
    return sorted(folder.iterdir())


def test_pictures_are_whole_and_as_wide_as_a_page(
    scores: dict[str, dict[str, Array]], fods: Array, tmp_path: Path
) -> None:
    drawn = draw_all(scores, fods, tmp_path)
    assert [path.name for path in drawn] == ["boxes.png", "fods.png", "maps.png"]
    for path in drawn:
        with Image.open(path) as picture:
            grey = np.asarray(picture.convert("L"))
            assert picture.width / picture.info["dpi"][0] == pytest.approx(17 / 2.54, abs=0.01)
            assert picture.info["dpi"][0] > 199
            assert "Software" not in picture.info
        assert (grey[0] == 255).all()
        assert grey.std() > 5


def test_the_same_numbers_give_the_same_bytes_whatever_the_users_settings(
    scores: dict[str, dict[str, Array]], fods: Array, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first = draw_all(scores, fods, tmp_path / "one")
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 50}):
        second = draw_all(scores, fods, tmp_path / "two")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


@pytest.mark.parametrize("location", ["file/picture.png", "folder"])
def test_a_location_that_cannot_be_written_is_named(
    location: str, scores: dict[str, dict[str, Array]], fods: Array, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    path = tmp_path / location
    draws: tuple[Callable[[], object], ...] = (
        lambda: draw_boxes(scores, path, label="error (1)"),
        lambda: draw_maps(scores, path, label="error (1)", voxel_size=(2.0, 2.0)),
        lambda: draw_fods({"a": fods}, path),
    )
    for draw in draws:
        with pytest.raises(OutputError, match="cannot write here") as caught:
            draw()
        assert caught.value.path == path.parent
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


def test_a_picture_of_nothing_is_refused(tmp_path: Path) -> None:
    nothing = {TASKS[0]: {METHODS[0]: np.full((3, 3), np.nan)}}
    with pytest.raises(OutputError, match="nothing to draw"):
        draw_boxes(nothing, tmp_path / "a.png", label="error (1)")
    with pytest.raises(OutputError, match="nothing to draw"):
        draw_maps({}, tmp_path / "a.png", label="error (1)", voxel_size=(1.0, 1.0))
    with pytest.raises(OutputError, match="nothing to draw"):
        draw_fods({"a": np.full((3, 3, 45), np.nan)}, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def words(figure: Figure) -> list[str]:
    return [text.get_text() for panel in figure.axes for text in panel.texts]


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_methods_that_a_task_lacks_leave_their_place_empty(
    count: int, scores: dict[str, dict[str, Array]], figures: list[Figure], tmp_path: Path
) -> None:
    table = {f"task {n}": dict(scores[TASKS[n % 2]]) for n in range(count)}
    del table["task 0"][METHODS[1]]
    table["task 0"] |= {METHODS[0]: np.full((12, 10), np.nan)}
    draw_boxes(table, tmp_path / "boxes.png", label="error (1)")
    draw_maps(table, tmp_path / "maps.png", label="error (1)", voxel_size=(2.0, 2.0))
    # With one task only, a method that it lacks is in no task, and has no place.
    empty = 2 if count > 1 else 1
    assert [words(figure).count("no values") for figure in figures] == [empty, empty]


def test_percentiles_are_those_of_what_is_finite() -> None:
    values = np.random.default_rng(0).gamma(2.0, size=(50, 41))
    holed = np.where(values > 4, np.nan, values)
    expected = np.percentile(values[values <= 4], [5, 25, 50, 75, 95])
    np.testing.assert_array_equal(percentiles(holed), expected)
    np.testing.assert_array_equal(percentiles(values, [90]), np.percentile(values, [90]))


def test_boxes_are_drawn_at_their_percentiles(
    scores: dict[str, dict[str, Array]], figures: list[Figure], tmp_path: Path
) -> None:
    draw_boxes(
        scores, tmp_path / "boxes.png", label="error (1)", floors={TASKS[1]: 0.07}, marked=90
    )
    for panel, row in zip(figures[0].axes, scores.values(), strict=True):
        expected = np.array(
            [np.nanpercentile(row[method], [5, 25, 50, 75, 95]) for method in METHODS]
        )
        patches = [box for box in panel.patches if isinstance(box, Rectangle)]
        assert len(patches) == len(panel.patches)
        boxes = np.array([[box.get_x(), box.get_x() + box.get_width()] for box in patches])
        np.testing.assert_allclose(boxes, expected[:, [1, 3]])
        whiskers, medians = (
            np.array(lines.get_segments())[..., 0]
            for lines in panel.collections
            if isinstance(lines, LineCollection)
        )
        np.testing.assert_allclose(whiskers, expected[:, [0, 4]])
        np.testing.assert_allclose(medians, expected[:, [2, 2]])
        marks = np.asarray(panel.lines[0].get_xdata())
        np.testing.assert_allclose(marks, [np.nanpercentile(row[m], 90) for m in METHODS])
        assert panel.get_xlim() == figures[0].axes[0].get_xlim()
    assert np.asarray(figures[0].axes[1].lines[1].get_xdata()).tolist() == [0.07, 0.07]
    legend = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert legend[2:] == ["percentiles 5 to 95", "percentile 90", "noise floor"]


def test_maps_share_limits_that_only_all_panels_together_decide(
    scores: dict[str, dict[str, Array]], figures: list[Figure], tmp_path: Path
) -> None:
    limit = shared_limit(scores)
    pooled = np.concatenate(
        [values[1:].ravel() for row in scores.values() for values in row.values()]
    )
    assert limit == pytest.approx(np.percentile(pooled, 99))
    draw_maps(scores, tmp_path / "maps.png", label="error (1)", voxel_size=(2.0, 2.0))
    images = [image for panel in figures[0].axes for image in panel.images]
    assert len(images) == 6
    assert {image.get_clim() for image in images} == {(0, limit)}


def test_maps_are_as_wide_and_high_as_the_slice(
    scores: dict[str, dict[str, Array]], figures: list[Figure], tmp_path: Path
) -> None:
    draw_maps(scores, tmp_path / "maps.png", label="error (1)", voxel_size=(2.0, 2.5))
    panel = figures[0].axes[0]
    assert (panel.get_xlim(), panel.get_ylim()) == ((0, 24), (0, 25))
    (image,) = panel.images
    # The voxel at (3, 7) lies at x of 6 to 8 mm and y of 17.5 to 20 mm.
    np.testing.assert_array_equal(
        np.asarray(image.get_array())[7, 3], scores[TASKS[0]][METHODS[0]][3, 7]
    )
    assert (image.origin, tuple(image.get_extent())) == ("lower", (0, 24, 0, 25))


def test_maps_of_zeros_can_be_drawn(tmp_path: Path) -> None:
    draw_maps({"a": {"b": np.zeros((3, 3))}}, tmp_path / "a.png", label="1", voxel_size=(1.0, 1.0))
    assert (tmp_path / "a.png").exists()


def test_the_sphere_is_closed_even_and_symmetric() -> None:
    points, faces = sphere()
    corners = points[faces]
    # Euler: a closed surface of triangles has 2 V - 4 faces.
    assert len(faces) == 2 * len(points) - 4
    volumes = np.linalg.det(corners) / 6
    assert (volumes > 0).all()
    assert volumes.sum() == pytest.approx(4 / 3 * np.pi, rel=0.01)
    areas = np.linalg.norm(
        np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1
    )
    assert areas.max() < 3 * np.median(areas)
    np.testing.assert_array_equal(points[: len(points) // 2], -points[len(points) // 2 :])


def test_radii_are_a_delta_function_of_order_8(fods: Array) -> None:
    """By the addition theorem, a delta function is a sum of Legendre polynomials."""
    fibre = np.array([0.6, 0.0, 0.8])
    values = radii(sh_basis(fibre[None], 8))[0]
    series = np.zeros(9)
    series[::2] = (2 * np.arange(0, 9, 2) + 1) / (4 * np.pi)
    expected = np.polynomial.legendre.legval(sphere()[0] @ fibre, series)
    assert (expected < 0).any()
    np.testing.assert_allclose(values, expected.clip(0), atol=1e-12)
    assert radii(fods[1, :, :15]).shape == (3, len(sphere()[0]))


def test_glyphs_share_a_scale_and_lie_in_their_voxels(
    fods: Array, figures: list[Figure], tmp_path: Path
) -> None:
    panels = {"a": fods, "b": fods / 2}
    scale = shared_scale(panels)
    peaks = radii(fods[np.isfinite(fods).all(axis=-1)]).max(axis=1)
    assert scale == pytest.approx(np.percentile(np.r_[peaks, peaks / 2], 95))
    draw_fods(panels, tmp_path / "fods.png")
    full, half = (glyph_points(panel) for panel in figures[0].axes)
    np.testing.assert_allclose(half - half.round(), (full - full.round()) / 2, atol=1e-9)
    assert np.abs(full - full.round()).max() == pytest.approx(0.5 * 0.9, rel=0.15)
    voxels = {tuple(voxel) for voxel in full.round().astype(int)}
    assert voxels == {(x, y) for x in range(4) for y in range(3)} - {(0, 0)}


def glyph_points(panel: Axes) -> Array:
    """Corners of the triangles of a panel, in a set order."""
    (glyphs,) = (
        collection for collection in panel.collections if isinstance(collection, PolyCollection)
    )
    return np.concatenate([np.asarray(path.vertices)[:3] for path in glyphs.get_paths()])


def seen_areas(panel: Axes) -> Array:
    """Areas of the triangles of a panel, by the shoelace formula."""
    x, y = np.moveaxis(glyph_points(panel).reshape(-1, 3, 2), -1, 0)
    return np.abs((x * (np.roll(y, -1, axis=1) - np.roll(y, 1, axis=1))).sum(axis=1)) / 2


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_fibre_is_drawn_along_its_axis_in_its_colour(
    axis: int, figures: list[Figure], tmp_path: Path
) -> None:
    fibre = sh_basis(np.eye(3)[[axis]], 8).reshape(1, 1, 45)
    draw_fods({"a": fibre}, tmp_path / "a.png")
    (panel,) = figures[0].axes
    reach = np.abs(glyph_points(panel)).max(axis=0)
    colours = np.asarray(panel.collections[0].get_facecolor())[:, :3]
    assert (seen_areas(panel) @ colours).argmax() == axis
    if axis < 2:
        assert reach[axis] == pytest.approx(0.5, rel=0.02)
        assert reach[1 - axis] < 0.15
    else:
        assert reach.max() < 0.15


def test_what_is_near_hides_what_is_behind(figures: list[Figure], tmp_path: Path) -> None:
    """A fibre that comes out of the slice to the right shows its right end whole."""
    fibre = sh_basis(np.array([[0.6, 0.0, 0.8]]), 8).reshape(1, 1, 45)
    draw_fods({"a": fibre}, tmp_path / "a.png")
    (panel,) = figures[0].axes
    x, y = np.moveaxis(glyph_points(panel).reshape(-1, 3, 2), -1, 0)
    first, last = x[:20].mean(), x[-20:].mean()
    assert first < -0.1
    assert last > 0.1
    # Corners run counterclockwise only where a closed surface faces the viewer.
    assert ((x * (np.roll(y, -1, axis=1) - np.roll(y, 1, axis=1))).sum(axis=1) > 0).all()
