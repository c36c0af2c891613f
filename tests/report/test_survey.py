"""The picture, the words and the page of a federation, from figures given by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from motet.report import survey_html as federation_page
from motet.report import survey_text as federation_words
from motet.report.survey_figure import caption, png_of, svg_of, way

EVIL = '<script>alert("x")</script> & $a_b$'
NOTHING = {"rows": 0, "clients": 0, "most": []}
RANGE = {"mean": 0.5, "min": 0.25, "max": 0.75, "least": "a", "most": "b"}


def client(name: str, counts: list[int], **more: Any) -> dict[str, Any]:
    plain = {
        "client": name, "unseen": False, "train": sum(counts), "val": 1, "test": 2, "counts": counts,
        "entropy": 0.5, "evenness": 0.5, "distance": 0.25, "target": {}, "columns": 2, "apart": [],
        "channels": [], "missing": 0,
    }  # fmt: skip
    return plain | more


def survey(clients: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    counts = [sum(c) for c in zip(*(c["counts"] for c in clients), strict=True)]
    duplicates = {"shared": NOTHING, "shared_with_target": NOTHING, "leaked": NOTHING,
             "leaked_with_target": NOTHING, "elsewhere": NOTHING, "column_sets": 1}  # fmt: skip
    plain = {
        "name": "toy", "kind": "classes", "features": "table", "shape": [2], "columns": 2,
        "labels": [f"k{i}" for i in range(len(counts))], "counts": counts, "target": {}, "clients": clients,
        "rows": RANGE, "entropy": RANGE, "evenness": RANGE, "distance": RANGE, "gini": 0.125, "duplicates": duplicates,
        "missing": 0, "proxy": None, "server_test": None, "notes": [],
    }  # fmt: skip
    return plain | more


def few(classes: int = 3) -> dict[str, Any]:
    some = [client(f"c{i}", [i + j for j in range(classes)]) for i in range(3)]
    return survey([*some, client("c10", [0] * (classes - 1) + [5], unseen=True)])


def numbers() -> dict[str, Any]:
    target = {
        "mean": 3.0,
        "std": 1.0,
        "min": 0,
        "q05": 1,
        "q25": 2,
        "median": 3,
        "q75": 4,
        "q95": 5,
        "max": 6,
    }
    return survey([client("a", [1, 1], target=target)], kind="numbers", target=target)


def many() -> dict[str, Any]:
    clients = [client(f"c{i}", [(i * j) % 7 for j in range(200)]) for i in range(120)]
    return survey(clients)


@pytest.mark.parametrize(
    "plain", [few(2), few(), few(8), numbers(), many()], ids=["2", "3", "8", "numbers", "many"]
)
def test_every_kind_of_federation_has_a_picture(plain: dict[str, Any]) -> None:
    assert png_of(plain).startswith(b"\x89PNG\r\n\x1a\n")
    text = svg_of(plain)
    assert ElementTree.fromstring(text).tag.endswith("svg") and len(text) < 2_000_000
    assert svg_of(plain) == text  # the same figures give the same bytes
    assert "#010203" not in text and "<image" not in text


def test_classes_are_stacked_as_long_as_there_are_colours() -> None:
    assert [way(few(k)) for k in (2, 6, 7)] == ["stack", "stack", "matrix"] and way(numbers()) == "boxes"


def test_a_matrix_writes_its_counts_and_stars_the_unseen() -> None:
    text = svg_of(few(8))
    assert ">c10 *</text>" in text and ">all clients</text>" in text and ">k7</text>" in text
    assert "A star marks" in caption(few(8)) and "100 of 120 clients are drawn" in caption(many())


def test_unseen_clients_come_last_and_names_are_in_natural_order() -> None:
    names = ["c10", "c2", "c1"]
    plain = survey([client("c0", [1], unseen=True), *(client(n, [1]) for n in names)])
    assert [c["client"] for c in federation_words.ordered(plain)] == ["c1", "c2", "c10", "c0"]


def test_sentences_count_what_is_wrong() -> None:
    shared = {"rows": 1200, "clients": 2, "most": [["a", 700], ["b", 500]]}
    leaked = {"rows": 3, "clients": 1, "most": [["a", 3]]}
    plain = survey(
        [client("a", [3, 0], missing=7), client("b", [0, 4])], missing=7, proxy=10, server_test=2000
    )
    plain["duplicates"] |= {
        "shared": shared,
        "leaked": leaked,
        "leaked_with_target": leaked,
        "elsewhere": {"rows": 2, "clients": 1, "most": [["b", 2]]},
        "column_sets": 2,
    }
    facts = dict(federation_words.facts(plain))
    assert facts["equal rows"].startswith(
        "1,200 are held by two clients or more, 0 of them with the same target; "
    )
    assert "2 clients (most: a 700, b 500); only clients with the same columns" in facts["equal rows"]
    assert facts["leaks"] == (
        "3 test rows equal one that their own client trains on, 3 of them with the same target; 1 client (most: a 3)"
        "; 2 test rows are, target and all, among another client's training rows (most: b 2)"
    )
    assert facts["missing"].startswith("7 cells were empty") and "(most: a 7)" in facts["missing"]
    assert facts["server"] == "10 proxy rows and 2,000 test rows"
    assert "missing" in federation_words.columns(plain)


def test_sentences_say_that_nothing_is_wrong() -> None:
    facts = dict(federation_words.facts(few()))
    assert facts["equal rows"] == "no row is held by two clients" and facts["missing"] == "no cell was empty"
    assert (
        facts["leaks"] == "no test row equals one that its own client trains on"
        and facts["server"] == "holds no rows"
    )
    plain = few()
    plain["duplicates"]["shared"] = plain["duplicates"]["shared_with_target"] = None
    assert "data.scale=client" in dict(federation_words.facts(plain))["equal rows"]


@pytest.mark.parametrize("width", [60, 100, 160])
def test_a_terminals_table_keeps_its_width_and_its_clients(width: int) -> None:
    apart = [{"column": f"a long name of column {j}", "mean": 0, "std": 1, "away": 1.5} for j in range(3)]
    text = federation_words.as_text(survey([client("north", [3, 1], apart=apart)]), width=width)
    assert max(map(len, text.splitlines())) <= width and "north" in text and "█▃" in text
    assert ("column 2 +1.5" in text) == (width == 160)


def test_a_terminal_shows_thirty_clients_unless_it_is_asked_for_all() -> None:
    text = federation_words.as_text(many())
    assert "c29" in text and "c30" not in text and "… and 90 more" in text
    assert "c119" in federation_words.as_text(many(), everyone=True)


def test_a_page_holds_every_client_and_fetches_nothing(tmp_path: Path) -> None:
    plain = survey([client(EVIL, [1, 2]), *(client(f"c{i}", [1, 1]) for i in range(150))], notes=[EVIL])
    page = federation_page.save(
        json.loads(json.dumps(plain)), tmp_path / "new" / "f.html", "motet …"
    ).read_text()
    assert "<script>alert" not in page and page.count("<script>") == 1
    assert all(f">c{i}</th>" in page for i in range(150)) and "motet …" in page
    assert not re.search(r'(src|href)="(?!#)|@import|url\((?!#)', page.replace("xmlns:xlink", ""))


def test_a_suffix_we_cannot_write_is_refused_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"(?s)ends in \.pdf; expected \.png, \.svg, \.html.*hint: --to .*html"
    ):
        federation_page.save(few(), tmp_path / "f.pdf")
