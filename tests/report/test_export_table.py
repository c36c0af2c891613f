"""The table as a file: LaTeX that compiles, CSV in full precision, Markdown as a README shows it."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from motet.cli.main import main
from motet.errors import UsageError
from motet.report.comparison import Comparison
from motet.report.export_table import as_csv, as_html, as_latex, as_markdown, in_latex, write_table
from motet.report.read import read
from motet.report.tables import comparison

Make = Callable[..., Path]
ODD = r"[a]_b & 50 % of $x$ #1 {y} ~ ^ \z | * <i> \"q\" 東"
THIRD = 1 / 3


@pytest.fixture(scope="module")
def folders(make_once: Make) -> list[Path]:
    scores = {"local": 0.5, "fedavg": THIRD, ODD: 0.75}
    return [make_once(m, {"a": v, "b": v}, folder=f"run-{i}") for i, (m, v) in enumerate(scores.items())]


@pytest.fixture(scope="module")
def table(folders: list[Path]) -> pd.DataFrame:
    return comparison(read(folders))


# ---- LaTeX ----


def test_every_character_that_latex_reads_as_a_command_is_escaped() -> None:
    safe = in_latex(ODD)
    assert not re.search(r"(?<!\\)[&%$#_]", safe)
    assert safe.startswith("{[}a]\\_b \\& 50 \\% of \\$x\\$ \\#1 \\{y\\}") and "\\textbackslash{}z" in safe
    assert in_latex("a\nb\r%") == "a b \\%"  # a line's end in a name ends nothing


def test_a_latex_table_has_as_many_cells_in_each_row(table: pd.DataFrame) -> None:
    lines = as_latex(table).splitlines()
    rows = [line for line in lines if line.endswith(r"\\")]
    assert len(rows) == 1 + len(table)
    assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    assert r"\toprule" in lines and r"\bottomrule" in lines and any("booktabs" in line for line in lines)
    assert "$\\pm$" in rows[1] and "xelatex" in lines[1]


def test_only_a_best_row_that_can_be_told_apart_is_bold(table: pd.DataFrame) -> None:
    said = {"distinct": [True, False, False]}
    bold, plain = table.assign(**said), table.assign(distinct=False)
    assert as_latex(bold).count(r"\textbf{") == 2  # its name and its mean
    assert r"\textbf" not in as_latex(plain)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no LaTeX on this machine")
def test_the_latex_table_compiles(table: pd.DataFrame, tmp_path: Path) -> None:
    text = as_latex(table).replace("東", "")
    head, tail = r"\documentclass{article}\usepackage{booktabs}\begin{document}", r"\end{document}"
    (tmp_path / "t.tex").write_text("\n".join([head, text, tail]))
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=60).returncode == 0


# ---- CSV, Markdown, HTML ----


def test_csv_gives_back_every_number_to_the_last_bit(table: pd.DataFrame) -> None:
    again = pd.read_csv(io.StringIO(as_csv(table)))
    assert list(again.columns) == list(table.columns)
    assert again.set_index("method")["personal"].to_dict() == table.set_index("method")["personal"].to_dict()
    assert again.set_index("method").loc["fedavg", "personal"] == THIRD


def test_text_is_no_formula_in_csv_and_numbers_stay_as_they_are() -> None:
    odd = pd.DataFrame({"=cmd": ["=1+1", "@x", "-1", "plain", None], "n": [-1.5, 2.0, 3.0, 4.0, 5.0]})
    lines = as_csv(odd).splitlines()
    assert lines == ["'=cmd,n", "'=1+1,-1.5", "'@x,2.0", "-1,3.0", "plain,4.0", ",5.0"]


def test_markdown_is_one_table_whatever_names_hold(table: pd.DataFrame) -> None:
    lines = as_markdown(table).splitlines()
    assert len(lines) == 2 + len(table)
    assert lines[0].startswith("| method | personal ± sd |") and set(lines[1]) <= set("| -")
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "<i>" not in lines[2] and "75.0 ± 0.0" in lines[2]


def test_a_test_set_of_the_servers_own_is_a_column(make: Make, tmp_path: Path) -> None:
    folder = make("fedavg", {"a": 0.5}, server_test={"accuracy": 0.625})
    found = Comparison([folder])
    assert "global, server's test set |" in as_markdown(found.table) and "| 62.5 |" in as_markdown(
        found.table
    )
    assert "global, server&#39;s test set" in found.report(tmp_path / "r.html").read_text()


def test_html_is_escaped(table: pd.DataFrame) -> None:
    assert "&lt;i&gt;" in as_html(table) and "<i>" not in as_html(table)


def test_the_same_table_gives_the_same_bytes(table: pd.DataFrame, tmp_path: Path) -> None:
    for name in ("a.tex", "a.csv", "a.md"):
        one, two = (write_table(table, tmp_path / folder / name).read_bytes() for folder in ("x", "y"))
        assert one == two


# ---- commands ----


def test_a_file_of_another_kind_is_refused(table: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ends in \.xlsx; expected \.tex, \.csv, \.md\nhint: .*\.tex"):
        write_table(table, tmp_path / "t.xlsx")


def test_a_file_of_another_kind_is_refused_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "data=digits", "--to", "table.docx"]) == 2
    assert "table.docx ends in .docx" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_report_writes_several_files_at_once(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("t.tex", "t.csv", "t.md", "t.html")]
    assert main(["report", *map(str, folders), *(w for f in files for w in ("--to", str(f)))]) == 0
    assert capsys.readouterr().out.split() == [str(f) for f in files]
    assert files[3].read_text().startswith("<!doctype html>") and "toprule" in files[0].read_text()


def test_figures_are_one_command(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["figures", *map(str, folders), "--to", str(tmp_path / "f"), "--format"]
    assert main([*command, "svg"]) == 0
    found = capsys.readouterr().out.split()
    assert all(Path(path).exists() and path.endswith(".svg") for path in found) and len(found) == 6
    assert main([*command, "gif"]) == 2
    assert "hint: there are: pdf, svg, png" in capsys.readouterr().err


# ---- in Python ----


def test_a_comparison_is_short_in_a_terminal_and_escaped_in_a_notebook(folders: list[Path]) -> None:
    found = Comparison(folders)
    assert repr(found).startswith("Comparison of 3 runs\n") and str(folders[0]) not in repr(found)
    shown = found._repr_html_()
    assert "&lt;i&gt;" in shown and "<i>" not in shown and "<table>" in shown
    assert found.verdict and all(line in repr(found) for line in found.verdict)


def test_the_frame_has_a_row_for_every_client_side_and_metric(make: Make) -> None:
    folders = [
        make("local", {"a": 0.5}),
        make("ditto", {"a": 0.6, "b": 0.7}, seed=3, split=2, shared={"a": 0.4}),
    ]
    folders.append(make("page", {"a": 0.1}, status="failed", failure="nan", reported=None))
    frame = Comparison(folders).frame
    names = ["split", "seed", "method", "label", "side", "client", "metric", "value", "n"]
    assert list(frame.columns)[:9] == names
    rows = {tuple(row) for row in frame[names].astype(object).to_numpy().tolist()}
    assert rows == {
        (0, 0, "local", "local", "personal", "a", "accuracy", 0.5, 2),
        (2, 3, "ditto", "ditto", "personal", "a", "accuracy", 0.6, 2),
        (2, 3, "ditto", "ditto", "personal", "b", "accuracy", 0.7, 2),
        (2, 3, "ditto", "ditto", "global", "a", "accuracy", 0.4, 2),
    }


def test_tuned_settings_are_on_the_page(folders: list[Path], tmp_path: Path) -> None:
    page = Comparison(folders, {"fedavg": "lr = 0.05, <best> of 6"}).report(tmp_path / "r.html").read_text()
    assert "Settings that were tuned" in page and "lr = 0.05, &lt;best&gt; of 6" in page
    assert "Settings that were tuned" not in Comparison(folders).report(tmp_path / "s.html").read_text()
