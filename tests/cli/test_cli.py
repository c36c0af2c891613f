"""The command line, as a person meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from motet.cli.main import main
from motet.report.comparison import Comparison


def test_help_needs_nothing_heavy() -> None:
    code = "import sys; from motet.cli.main import parser; parser().format_help(); print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("torch", "numpy", "pandas", "matplotlib", "sklearn", "rich"):
        assert f"'{heavy}'" not in loaded


def test_bad_input_ends_with_a_message_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "method=fedavgg", "data=digits"]) == 2
    said = capsys.readouterr()
    assert "did you mean 'fedavg'" in said.err and "Traceback" not in said.err and said.out == ""


def write(path: Path, *rows: str) -> str:
    path.write_text("\n".join(rows) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        (("a,b,y", "1,2,x", "3,4,z"), ("data.target=why",), "y"),
        (("a,b,y", "1,2,x", "old,4,z", "5,6,x", "7,8,z"), ("data.target=y",), "mostly numbers"),
        (("a,b,y", "1,2,x", ",4,z", "5,6,x"), ("data.target=y",), "hint"),
        (("a,b,y", "1,2,x", "3,4,x"), ("data.target=y",), "nothing to learn"),
        (("a,b,y",), ("data.target=y",), "no examples"),
    ],
    ids=["missing column", "text in numbers", "missing value", "one class", "empty"],
)
def test_a_bad_csv_is_refused_in_words(
    rows: tuple[str, ...],
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write(tmp_path / "d.csv", *rows)
    assert main(["run", f"data={path}", *words, "--out", str(tmp_path / "r")]) == 2
    err = capsys.readouterr().err
    assert "error: " in err and said in err and "Traceback" not in err
    assert not (tmp_path / "r" / "run.sqlite").exists()


def test_a_persons_csv_goes_from_one_command_to_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["age,ward,outcome,hospital"]
    for i in range(240):
        ill = (i * 7919) % 11 > 4
        rows.append(
            f"{40 + 3 * ill + i % 9},{'abc'[i % 3]},{'ill' if ill else 'well'},{'north' if i % 3 else 'south'}"
        )
    path = write(tmp_path / "patients.csv", *rows)
    words = [f"data={path}", "data.target=outcome", "data.client=hospital", "train.rounds=3"]
    out = str(tmp_path / "runs")
    assert (
        main(
            [
                "compare",
                *words,
                "--methods",
                "finetune",
                "--out",
                out,
                "--quiet",
                "--jobs",
                "1",
                "--splits",
                "0",
            ]
        )
        == 0
    )
    said = capsys.readouterr()
    assert "finetune" in said.out and "report:" in said.err
    (run,) = Path(out).glob("patients-finetune-*")
    assert main(["show", str(run)]) == 0
    assert main(["show", str(run), "--clients"]) == 0
    assert "north" in capsys.readouterr().out
    assert main(["verify", str(run)]) == 0
    assert "bit for bit" in capsys.readouterr().out


def test_the_next_command_shows_a_run_of_the_method_that_the_study_chose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data=wine", "data.clients=8", "net=linear", "train.rounds=3", "--methods", "fedavg"]
    given = [*words, "--splits", "1-2", "--jobs", "1", "--quiet", "--out", str(tmp_path)]
    assert main(["compare", *given]) == 0
    command, which = capsys.readouterr().err.splitlines()[-2:]
    (first, second) = Comparison(sorted(p.parent for p in tmp_path.glob("*/run.sqlite"))).chosen
    assert command == f"next:   motet show {first.folder} --clients" and (first.split, second.split) == (1, 2)
    assert which.strip() == f"({first.label}, the first of its 2 runs: split 1, seed 0)"


def test_recipe_and_list_print_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "method=fedprox"]) == 0
    assert "mu = 0.1" in capsys.readouterr().out
    assert main(["list"]) == 0
    assert "finetune" in capsys.readouterr().out


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path)]) == 2
    assert "is not a run" in capsys.readouterr().err


def test_settings_may_stand_behind_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    behind = ["compare", "--jobs", "1", "--out", str(tmp_path), "method.nonsense=3"]
    assert main(behind) == 2
    assert "nonsense" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["compare", "data=digits", "--nonsense"])
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err


def test_the_help_of_compare_fits_a_narrow_terminal_and_shows_what_a_study_can_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert all(word in said for word in ("--grid ditto.lam=0.01,0.1,1", "study.toml", "--tune", "[grid]"))


def test_a_comparison_as_json_has_its_rows_and_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data=wine", "data.clients=3", "train.rounds=1", "--methods", "fedrecon", "--jobs", "1"]
    assert main(["compare", *words, "--json", "--quiet", "--out", str(tmp_path)]) == 1
    said = json.loads(capsys.readouterr().out)
    assert {r["method"] for r in said["rows"]} >= {"local", "fedrecon"} and "all head" in said["failed"][
        "fedrecon"
    ]
