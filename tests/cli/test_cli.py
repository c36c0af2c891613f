"""The command line, as a person meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from motet.cli.compare_command import study_of
from motet.cli.main import main, parsed
from motet.report.comparison import Comparison
from motet.runs.study import Study


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "data=digits", "--rounds", "5"], "hint: rounds=5, or train.rounds=5"),
        (["compare", "--lr=.1", "data=digits"], "hint: lr=.1, or method.lr=.1"),
        (["run", "--clients", "--quiet"], "hint: clients=…, or data.clients=…"),
        (["run", "--train.rounds", "5"], "hint: train.rounds=5"),
        (["run", "--batch_size", "5"], "hint: settings are written without dashes, say rounds=5"),
    ],
)
def test_a_setting_with_dashes_is_told_how_settings_are_written(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as e:
        main(words)
    err = capsys.readouterr().err
    assert e.value.code == 2 and said in err and f"motet {words[0]}: error: unrecognized arguments: --" in err


def planned(words: list[str]) -> Study:
    """What `motet compare` would run."""
    return study_of(parsed(["compare", *words]))


def test_lists_may_be_written_with_spaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text("[train]\nrounds = 7\n")
    Path("plain").write_text("[train]\nrounds = 8\n")
    Path("ditto").write_text("[train]\nrounds = 9\n")
    commas = ["data=wine", "--methods", "fedavg,ditto", "--seeds", "0-1,4", "--splits", "0,2"]
    spaces = ["--methods", "fedavg", "ditto", "data=wine", "--seeds", "0-1", "4", "--splits", "0", "2"]
    one, two = (planned(words) for words in (commas, spaces))
    assert one == two and [row.label for row in two.rows] == ["fedavg", "ditto", "local"]
    for recipe, rounds in (("mine.toml", 7), ("plain", 8), ("./ditto", 9)):
        for words in (
            ["--methods", "fedavg", recipe, "data=wine"],
            [recipe, "data=wine", "--methods", "fedavg"],
        ):
            found = planned(words)
            assert [row.label for row in found.rows] == ["fedavg", "local"]
            assert found.rows[0].settings["train"]["rounds"] == rounds


@pytest.mark.parametrize(
    "words",
    [
        [
            "--methods",
            "fedavg",
            "--methods",
            "ditto",
            "--seeds",
            "0-1",
            "--seeds",
            "4",
            "--splits",
            "0",
            "--splits",
            "2",
        ],
        ["--methods", "fedavg,", "ditto", "--seeds", "0-1,", "4", "--splits", "0,", "2"],
        ["--methods", "fedavg ditto", "--seeds", "0-1 4", "--splits", "0 2"],
        ["--methods", "fedavg, ditto", "--seeds", "0-1, 4", "--splits", "0, 2"],
        ["--methods", "fedavg", ",", "ditto", "--seeds", "0-1,4", "--splits", "0,2"],
    ],
)
def test_lists_add_up_however_they_are_written(words: list[str]) -> None:
    plain = ["--methods", "fedavg,ditto", "--seeds", "0-1,4", "--splits", "0,2"]
    assert planned(["data=wine", *words]) == planned(["data=wine", *plain])


def test_a_method_that_is_also_a_file_is_taken_as_the_method_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ditto").write_text("[train]\nrounds = 9\n")
    found = planned(["--methods", "fedavg", "ditto", "data=wine"])
    assert [row.label for row in found.rows] == ["fedavg", "ditto", "local"]
    assert (
        "ditto is a method and a file here: taken as the method; ./ditto is the file"
        in capsys.readouterr().err
    )


def test_methods_without_their_option_are_told_where_they_belong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "ditto", "data=wine"]) == 2
    assert (
        "there is no recipe ditto, and there is a method ditto\nhint: --methods ditto"
        in capsys.readouterr().err
    )
    assert main(["run", "ditto", "data=wine"]) == 2
    assert "method=ditto elsewhere" in capsys.readouterr().err


def test_short_names_go_to_all_runs_of_a_study() -> None:
    words = ["data=wine", "rounds=5", "lam=.25", "clients=4", "--methods", "ditto", "fedavg"]
    rows = {row.label: row.settings for row in planned(words).rows}
    assert all(s["train"]["rounds"] == 5 and s["data"]["clients"] == 4 for s in rows.values())
    assert rows["ditto"]["method"]["lam"] == 0.25 and "lam" not in rows["fedavg"]["method"]


def test_the_recipe_is_shown_after_the_checks_and_in_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "d.csv", "a,b,y", *(f"{i},{i % 3},{'xz'[i % 2]}" for i in range(40)))
    assert main(["run", f"data={path}", "target=why", "--out", str(tmp_path / "r")]) == 2
    assert "method" not in capsys.readouterr().err.partition("error:")[0]
    words = ["run", f"data={path}", "target=y", "rounds=1", "method=ditto", "lam=2", "clients=2", "split=iid"]
    assert main([*words, "--out", str(tmp_path / "r")]) == 0
    shown = capsys.readouterr().err
    assert 'method  name="ditto"  lam=2.0\n' in shown and "train   rounds=1\n" in shown
    assert "clients=2" in shown and 'split="iid"' in shown
    assert not any(word in shown for word in ("val=", "guard", "engine  "))


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
