"""`motet data show`, as a person meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from motet.cli.main import main

DIGITS = ["data", "show", "data=digits", "data.clients=5"]
Capture = pytest.CaptureFixture[str]


def test_the_table_goes_to_stdout_without_escape_codes_and_talk_to_stderr(capsys: Capture) -> None:
    assert main(DIGITS) == 0
    said = capsys.readouterr()
    assert all(f"client-{i}" in said.out for i in range(5)) and "\x1b" not in said.out
    assert "no row is held by two clients" in said.out
    assert "next:  motet compare data=digits data.clients=5" in said.err and "next" not in said.out


def test_json_holds_every_figure(capsys: Capture) -> None:
    assert main([*DIGITS, "seed=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["name"] == "digits" and len(found["clients"]) == 5 and sum(found["counts"]) == 1797
    assert 0 <= found["gini"] < 1 and found["duplicates"]["shared"]["rows"] == 0


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG\r\n\x1a\n"), (".svg", b"<svg"), (".html", b"<!doct")]
)
def test_a_file_is_what_its_suffix_says(suffix: str, start: bytes, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / f"federation{suffix}"
    assert main([*DIGITS, "--to", str(file)]) == 0
    assert file.read_bytes().startswith(start) and f"saved: {file}" in capsys.readouterr().err


def test_a_page_names_every_client_and_not_the_way_to_its_folder(tmp_path: Path, capsys: Capture) -> None:
    assert main(["data", "show", "data=synthetic", "data.clients=40", "--to", str(tmp_path / "f.html")]) == 0
    page = (tmp_path / "f.html").read_text()
    assert all(f"client-{i:02}" in page for i in range(40)) and str(tmp_path) not in page
    assert "… and 10 more" in capsys.readouterr().out


def test_a_persons_csv_with_a_shared_row_and_a_leak_is_reported(tmp_path: Path, capsys: Capture) -> None:
    rows = [f"{i},{i % 2},{'north' if i < 40 else 'south'}" for i in range(80)]
    rows += ["7,1,south"] + ["999,1,north"] * 20
    (tmp_path / "d.csv").write_text("\n".join(["a,y,where", *rows]) + "\n")
    words = [f"data={tmp_path / 'd.csv'}", "data.target=y", "data.client=where", "data.unseen=0"]
    assert main(["data", "show", *words]) == 0
    out = capsys.readouterr().out
    assert "2 are held by two clients or more, 2 of them with the same target; 2 clients" in out
    assert "test rows equal one that their own client trains on" in out and "(most: north " in out


def test_show_run_and_compare_say_the_classes_leaks_and_columns_that_are_the_target(
    tmp_path: Path, capsys: Capture
) -> None:
    rows = [f"{i / 7:.2f},{['ja', 'nein'][i % 2]},{i % 2},{'ns'[i // 40]}" for i in range(80)]
    rows += ["999,ja,0,n"] * 20
    (tmp_path / "d.csv").write_text("\n".join(["a,leak,y,where", *rows]) + "\n")
    words = [f"data={tmp_path / 'd.csv'}", "data.target=y", "data.client=where", "train.rounds=1"]
    said = [
        "data: 2 classes: 0, 1",
        "test rows equal rows that their client trains on",
        "column 'leak' equals the target, or names it one to one",
    ]
    assert main(["data", "show", *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "2 classes: 0 60, 1 40" in out and out.count(f"note {said[2]}") == 1
    assert main(["run", *words, "method=local", "--out", str(tmp_path / "r")]) == 0
    err = capsys.readouterr().err
    assert all(err.count(line) == 1 for line in said), err
    assert main(
        ["compare", *words, "--methods", "local,fedavg", "--out", str(tmp_path / "c"), "--fresh"]
    ) in (0, 1)
    err = capsys.readouterr().err
    assert all(err.count(line) == 1 for line in said), err
    (page,) = [file.read_text() for file in (tmp_path / "c").glob("*.html")]
    assert said[1] in page and "names it one to one" in page


def test_bad_words_and_bad_files_end_with_a_message(tmp_path: Path, capsys: Capture) -> None:
    assert main([*DIGITS, "--to", str(tmp_path / "f.pdf")]) == 2
    assert main(["data", "show", "data=digits", "data.clints=5"]) == 2
    said = capsys.readouterr()
    assert ".pdf" in said.err and "did you mean 'clients'" in said.err and said.out == ""
    assert "Traceback" not in said.err
