"""The figures: every method is seen and named, nothing is claimed that cannot be, and files are fit for a paper."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from motet.errors import UsageError
from motet.report import curves, figure_data, figures, fonts, pictures, tables
from motet.report.comparison import Comparison
from motet.report.read import read
from motet.runs.store import Store

Make = Callable[..., Path]
UNASSIGNED = "\U0003fffd"  # a character that no font has


def scored(folder: Path, part: str, side: str, values: Mapping[int, float], client: str = "a") -> Path:
    """The run with a client's accuracy in further rounds."""
    store = Store(folder, writing=True)
    for number, value in values.items():
        store.scored(number, part, side, [client], [2], {"accuracy": np.array([value])})
    store.commit()
    store.close()
    return folder


def drawn(folders: Sequence[Path]) -> dict[str, figures.Picture]:
    runs = read(folders)
    return {p.name: p for p in pictures.pictures(runs, tables.comparison(runs))}


def svg_of(folders: Sequence[Path], name: str = "validation-over-rounds") -> str:
    return figures.in_page(drawn(folders)[name])


def axes_of(picture: figures.Picture):
    """The first axes of the figure, drawn."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=picture.size)
    picture.draw(figure)
    return figure.axes[0]


# ---- lines ----


def test_no_two_methods_look_the_same() -> None:
    labels = [f"method-{i}" for i in range(100)]
    labels += [f"{name} (lr={i})" for name in ("local", "centralised") for i in range(4)]
    assert len(set(figures.styles_of(labels).values())) == len(labels)
    lines = [(s.colour, s.dashes) for s in figures.styles_of(labels[:24]).values()]
    assert len(set(lines)) == 24  # without any marker too


def test_no_colour_is_given_twice_among_nine_methods_and_the_references() -> None:
    found = figures.styles_of(["local", "centralised", *(f"m{i}" for i in range(9))])
    assert len({style.colour for style in found.values()}) == 11


SIGHT = {  # Machado, Oliveira and Fernandes 2009: what eyes without green, without red, and with both make of light
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "full": np.eye(3).tolist(),
}  # fmt: skip


def lightness_and_hue(colour: str, sight: str) -> np.ndarray:
    """CIELAB of a colour as these eyes see it."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(SIGHT[sight]) @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(to_xyz @ seen / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", list(SIGHT))
def test_colours_can_be_told_apart_by_all_eyes(sight: str) -> None:
    found = [lightness_and_hue(colour, sight) for colour in figures.PALETTE]
    apart = [np.linalg.norm(a - b) for i, a in enumerate(found) for b in found[:i]]
    assert min(apart) > 15  # 2.3 is the least that is seen when two colours lie side by side


@pytest.mark.parametrize("wanted", [[0.5] * 12, [0.99, 1.0, 1.0], [0.0, 0.01, 0.3, 0.31, 0.32], [0.7]])
def test_names_at_the_lines_ends_stand_apart_and_inside(wanted: list[float]) -> None:
    places = curves.spread(wanted, 0.08, 0.0, 1.0)
    order = sorted(places)
    assert all(b - a >= 0.08 - 1e-9 for a, b in pairwise(order))
    assert order[0] >= 0 and order[-1] <= 1
    assert sorted(range(len(wanted)), key=lambda i: (wanted[i], -i)) == sorted(
        range(len(wanted)), key=lambda i: places[i]
    )


def test_equal_curves_are_named_as_equal_and_like_ones_as_alike(make: Make) -> None:
    folders = [
        make("fedavg", {"a": 0.5}), make("fedprox", {"a": 0.5}),
        scored(make("ditto", {"a": 0.5}), "val", "personal", {3: 0.9}),
        scored(make("apfl", {"a": 0.5}), "val", "personal", {3: 0.899}),
    ]  # fmt: skip
    text = svg_of(folders)
    assert ">= fedprox" in text and ">≈ " in text and ">= ditto" not in text


def test_a_global_curve_is_drawn_only_where_it_is_another(make: Make) -> None:
    same = scored(make("fedavg", {"a": 0.5}), "val", "global", {0: 0.5, 1: 0.5, 2: 0.5})
    other = scored(make("ditto", {"a": 0.5}), "val", "global", {0: 0.5, 1: 0.5, 2: 0.2})
    text = svg_of([same, other])
    assert "fedavg, global" not in text and "ditto, global" in text


def test_a_long_name_is_cut_before_it_is_said_to_be_global(make: Make) -> None:
    folder = scored(make("m" * 60, {"a": 0.5}), "val", "global", {0: 0.5, 1: 0.5, 2: 0.2})
    assert "m…, global" in svg_of([folder])


def test_bands_reach_from_the_lowest_run_to_the_highest(make: Make) -> None:
    folders = [make("ditto", {"a": value}, seed=seed) for seed, value in enumerate([0.5, 0.6, 0.9])]
    past = figure_data.curves(read(folders))
    assert past[["low", "high"]].drop_duplicates().to_numpy().tolist() == [[0.5, 0.9]]
    assert past["score"].to_list() == pytest.approx([2 / 3] * 3) and set(past["runs"]) == {3}
    picture = drawn(folders)["validation-over-rounds"]
    assert "bands reach from the lowest run to the highest" in picture.caption
    assert len(axes_of(picture).collections) == 1
    assert not axes_of(drawn(folders[:1])["validation-over-rounds"]).collections


def test_a_failed_run_does_not_bend_the_curve_of_its_method(make: Make) -> None:
    folders = [
        make("ditto", {"a": 0.6}),
        make("ditto", {"a": 0.1}, seed=1, status="failed", failure="nan", reported=None),
        make("page", {"a": 0.2}, status="failed", failure="nan", reported=None),
    ]
    past = figure_data.curves(read(folders)).groupby("label")["score"].first()
    assert past.to_dict() == {"ditto": 0.6, "page": 0.2}  # a method without a sound run shows what happened


@pytest.mark.parametrize("values", [[1.0, 1.0], [0.0, 0.0], [0.98, 1.0], [0.0, 0.01]])
def test_no_axis_shows_what_accuracy_cannot_be(make: Make, values: list[float]) -> None:
    found = drawn([make("local", {"a": values[0], "b": values[1]})])
    low, high = axes_of(found["validation-over-rounds"]).get_ylim()
    left, right = axes_of(found["test-of-each-client"]).get_xlim()
    assert 0 <= low < high <= 1 and 0 <= left < right <= 1


def test_errors_are_never_below_zero(make: Make) -> None:
    found = drawn([make("local", {"a": 0.0, "b": 3.0}, metric="rmse")])
    assert axes_of(found["test-of-each-client"]).get_xlim()[0] == 0


def test_the_constant_prediction_is_a_dotted_line(make: Make) -> None:
    folder = scored(make("local", {"a": 0.5}), "val", "constant", {1: 0.4})
    assert figure_data.constant(read([folder])) == 0.4
    assert "constant prediction" in svg_of([folder])
    assert "constant prediction" not in svg_of([make("ditto", {"a": 0.5})])


# ---- clients ----


def gain_rows(folders: Sequence[Path]) -> dict[str, float]:
    found = drawn(folders)["gains-of-methods"].data
    return dict(zip(found["unit"], found["gain"], strict=True))


def two_splits(make: Make, **facts: bool) -> list[Path]:
    scores: Mapping[tuple[str, int], float] = {
        ("local", 0): 0.5,
        ("local", 1): 0.5,
        ("ditto", 0): 0.7,
        ("ditto", 1): 0.4,
    }
    return [make(m, {"a": v}, seed=s, split=s, **facts) for (m, s), v in scores.items()]


def test_a_client_of_another_split_is_another_client(make: Make) -> None:
    assert gain_rows(two_splits(make)) == pytest.approx({"a, split 0": 0.2, "a, split 1": -0.1})


def test_a_natural_client_is_the_same_one_in_every_split(make: Make) -> None:
    assert gain_rows(two_splits(make, natural=True)) == pytest.approx({"a": 0.05})


def test_a_method_is_compared_with_its_own_kind_alone(make: Make) -> None:
    stack = scored(make("ditto", {"a": 0.7}), "test", "alone", {1: 0.6})
    folders = [make("local", {"a": 0.1}), stack]
    assert gain_rows(folders) == pytest.approx({"a": 0.1})


def test_a_thousand_clients_are_two_hundred_marks(make: Make) -> None:
    scores = {f"client-{i}": (i % 97) / 100 for i in range(1000)}
    folders = [make("local", dict.fromkeys(scores, 0.5)), make("ditto", scores)]
    picture = drawn(folders)["gains-of-methods"]
    marks = axes_of(picture).collections
    assert sum(len(c.get_offsets()) for c in marks) == 200
    assert "200 of 1,000 clients are drawn" in picture.caption and len(picture.data) == 1000
    assert len({c.get_facecolor().tobytes() for c in marks}) == 3  # and each has a shape of its own


def test_marks_without_a_face_can_be_seen_too(make: Make) -> None:
    picture = drawn([make("local", {"a": 0.5}), make("ditto", {"a": 0.6})])["gains-of-methods"]
    assert all((c.get_linewidths() > 0).all() for c in axes_of(picture).collections)


# ---- names in any script ----

NAMES = ["東京病院", "مستشفى", "서울", "<b>&amp;", "x" * 300]


def test_names_in_any_script_stay_text_and_warn_of_nothing(make: Make) -> None:
    folders = [make(m, dict.fromkeys(NAMES, s)) for m, s in (("local", 0.5), ("ditto", 0.6))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = drawn(folders)
        text = (
            figures.in_page(found["rows-of-clients"])
            + figures.as_file(found["gains-by-size"], "svg").decode()
        )
    assert "東京病院" in text and "مستشفى" in text and "<b>" not in text
    assert "Noto Sans CJK" in text and "Noto Sans Arabic" in text


def test_a_script_without_a_font_is_said_once(make: Make, tmp_path: Path) -> None:
    names = {UNASSIGNED: 0.5, f"b{UNASSIGNED}": 0.6}
    found = list(drawn([make("local", names)]).values())[1:]
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures.write_figures(found, tmp_path / "a", "pdf", said.append)
        pictures.write_figures(found, tmp_path / "b", "svg", said.append)
    assert len(said) == 1 and "no font of this machine" in said[0] and "hint: " in said[0]


def test_a_font_that_has_the_letters_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = {"first": "abc", "second": "東", "third": "京"}
    monkeypatch.setattr(fonts, "_installed", lambda: [(n.title(), n) for n in sets])
    monkeypatch.setattr(fonts, "_charset", lambda path: frozenset(sets[path]))
    assert fonts._families(frozenset("東京?")) == (["Second", "Third"], {"?"})


# ---- files ----


@pytest.fixture(scope="module")
def comparison(make_once: Make) -> Comparison:
    scores = {f"client-{i}": i / 10 for i in range(8)}
    return Comparison(
        [make_once(m, {c: v + g for c, v in scores.items()}) for m, g in (("local", 0), ("ditto", 0.1))]
    )


def picture(comparison: Comparison) -> figures.Picture:
    return next(
        p for p in pictures.pictures(comparison.runs, comparison.table) if p.name == "gains-of-methods"
    )


@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_the_same_runs_give_the_same_files(comparison: Comparison, kind: str) -> None:
    one, two = (figures.as_file(picture(comparison), kind) for _ in range(2))
    assert one == two


def test_a_pdf_has_its_fonts_inside_and_fits_a_column(comparison: Comparison) -> None:
    pdf = figures.as_file(picture(comparison), "pdf")
    assert b"/FontFile2" in pdf and b"/CIDFontType2" in pdf and b"/Subtype /Type3" not in pdf
    assert b"/MediaBox [ 0 0 252 " in pdf  # 3.5 inches


def test_each_figure_has_its_numbers_beside_it(comparison: Comparison, tmp_path: Path) -> None:
    for path in comparison.figures(tmp_path, "svg"):
        assert len(pd.read_csv(path.with_suffix(".csv"))) > 0
    gained = pd.read_csv(tmp_path / "gains-of-methods.csv")
    assert gained["gain"].to_list() == pytest.approx([0.1] * 8) and "worse" not in set(gained["change"])


def test_a_png_is_on_white(comparison: Comparison) -> None:
    from matplotlib.image import imread

    pixels = imread(io.BytesIO(figures.as_file(picture(comparison), "png")))
    assert pixels[0, 0].tolist() == [1, 1, 1, 1]


def test_an_unknown_format_is_refused_before_anything_is_written(
    comparison: Comparison, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="'jpg'; expected pdf, svg, png\nhint: "):
        comparison.figures(tmp_path / "none", "jpg")
    assert not (tmp_path / "none").exists()
