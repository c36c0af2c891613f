"""Experiments: every one in the repository can be planned at every scale; a small one runs from end to end."""

from __future__ import annotations

import json

import pytest

from motet.cli.main import main
from motet.report import experiment_list, paper_numbers, tables
from motet.report.read import read
from motet.runs import experiment as experiments
from motet.runs.recipe import RecipeError
from motet.runs.sections import TrainSettings

RECIPE = """
title = "Two methods on wine"
[columns]
global = "global"
personal = "personal"
[scales.quick]
seeds = [0, 1]
train = { rounds = 2 }
[scales.desk]
seeds = [0]
[scales.full]
seeds = [0]
[recipe.data]
name = "wine"
clients = 3
unseen = 0.0
[recipe.method]
lr = 0.2
[rows.Average.method]
name = "fedavg"
[rows.Agents.method]
name = "dapfl"
[rows.Rebuilt.method]
name = "fedrecon"
"""


@pytest.mark.parametrize("name", experiments.names())
@pytest.mark.parametrize("scale", experiments.SCALES)
def test_every_experiment_can_be_planned_and_knows_the_papers_rows(name, scale):
    found = experiments.find(name)
    if found.is_procedure:
        settings = found.at(scale)
        assert settings["seeds"] and set(settings["rows"]) <= set(found.settings["rows"])
        assert callable(experiments.module_of(found, "procedure").perform)
        return
    planned = found.plan(scale)
    assert planned and len({p.folder for p in planned}) == len(planned)
    assert {p.row for p in planned} <= set(found.expected)
    assert len({p.seed for p in planned}) == 1 or scale != "quick"


@pytest.fixture
def small(tmp_path, monkeypatch):
    folder = tmp_path / "experiments" / "wine" / "two"
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "expected.json").write_text(json.dumps({"Average": {"global": 80.0, "personal": None}}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_experiment_runs_in_processes_and_prints_our_numbers_and_the_papers(small, capfd):
    words = ["--rows", "Average,Rebuilt", "--seeds", "0", "--jobs", "2", "--json", "--to", "table.md"]
    assert main(["reproduce", "wine/two", *words]) == 0
    table = json.loads(capfd.readouterr().out)
    average, rebuilt = table["rows"]["Average"], table["rows"]["Rebuilt"]
    assert len(average["values"]["global"]) == 1 and average["paper"] == {"global": 80.0, "personal": None}
    assert "all head" in rebuilt["failures"][0] and rebuilt["values"]["global"] == []
    text = paper_numbers.as_text(table)
    assert "80.00" in text and "all head" in text
    assert "Scale quick" in text and "Scale quick" not in paper_numbers.as_text(table | {"scale": "desk"})
    assert "| Average |" in (small / "table.md").read_text()


def test_every_row_and_seed_of_a_scale_is_run(small):
    found = experiments.find("wine/two")
    done = experiments.perform(found.plan("quick", ["Average", "Agents"]), small / "runs", 1)
    assert [(d.planned.row, d.planned.seed, d.failure) for d in done] == [
        ("Average", 0, ""), ("Agents", 0, ""), ("Average", 1, ""), ("Agents", 1, ""),
    ]  # fmt: skip
    table = experiments.results(found, done, lambda f: tables.summary(read([f])[0]))
    assert len(table["rows"]["Agents"]["values"]["personal"]) == 2


def test_a_procedure_computes_what_is_no_run_and_figures_are_drawn_at_the_end(small, capfd):
    folder = small / "experiments" / "wine" / "three"
    folder.mkdir()
    (folder / "recipe.toml").write_text(
        'title = "Sums"\n[columns]\nsum = { key = "sum", unit = "number" }\n[recipe]\nplus = 1\n'
        "[scales.quick]\nseeds = [1, 2]\n[rows.A]\n[rows.B]\n"
    )
    (folder / "expected.json").write_text('{"A": {"sum": 2.5}}')
    (folder / "procedure.py").write_text(
        "def perform(settings, out, jobs, say):\n"
        "    values = [s + settings['plus'] for s in settings['seeds']]\n"
        "    return {r: {'values': {'sum': values}, 'failures': []} for r in settings['rows']}\n"
    )
    (folder / "show.py").write_text(
        "def show(done, table, out):\n"
        "    (out / 'figure.txt').write_text(' '.join(table['rows']))\n"
        "    return ['drawn: ' + table['name']]\n"
    )
    assert main(["reproduce", "wine/three", "plus=2", "--rows", "A"]) == 2  # it is not motet's own
    assert "code that is not motet's: procedure.py" in capfd.readouterr().err
    assert main(["reproduce", "wine/three", "plus=2", "--rows", "A", "--trust"]) == 0
    printed = capfd.readouterr().out
    assert "3.5000 ± 0.5000" in printed and "2.5000" in printed and "\nB" not in printed
    assert "drawn: wine/three" in printed
    assert (small / "runs/reproduce/wine/three/quick/figure.txt").read_text() == "A"


def test_rows_seeds_and_settings_can_be_chosen(small):
    found = experiments.find("wine/two")
    planned = found.plan("quick", ["Agents"], [7], ["train.rounds=9"])
    assert [(p.row, p.seed, p.recipe.train.rounds) for p in planned] == [("Agents", 7, 9)]
    assert found.plan("quick", ["Average"])[0].recipe["method"]["lr"] == 0.2  # dapfl has no lr, fedavg has


def test_unknown_experiments_and_rows_are_corrected(small):
    with pytest.raises(RecipeError, match="unknown experiment wine/tow\nhint: did you mean 'wine/two'"):
        experiments.find("wine/tow")
    with pytest.raises(RecipeError, match="unknown row"):
        experiments.find("wine/two").plan("quick", ["Averge"])


def test_rows_whose_names_have_commas_can_be_chosen(small, capfd):
    recipe = small / "experiments" / "wine" / "two" / "recipe.toml"
    recipe.write_text(RECIPE + '[rows."mean, of two".method]\nname = "fedavg"\n')
    words = ["--seeds", "0", "--json", "--to", "t.md", "--rows", "mean, of two,Average", "--rows", "Rebuilt"]
    assert main(["reproduce", "wine/two", *words]) == 0
    assert list(json.loads(capfd.readouterr().out)["rows"]) == ["mean, of two", "Average", "Rebuilt"]
    assert "--rows 'mean, of two,Average' --rows Rebuilt" in (small / "t.md").read_text()
    assert main(["reproduce", "wine/two", "--rows", "mean, of tow"]) == 2
    said = capfd.readouterr().err
    assert "rows are:\n  Average\n  Agents\n  Rebuilt\n  mean, of two\n" in said
    assert "hint: --rows 'mean, of two'" in said


def test_a_row_may_start_from_the_model_of_another(small):
    folder = small / "experiments" / "wine" / "two"
    more = '[rows.On]\nafter = ["Average"]\nnet = { weights = "{Average}/global.safetensors" }\n'
    more += '[rows.On.method]\nname = "local"\n[scales.desk.by_row.On.train]\nrounds = 7\n'
    (folder / "recipe.toml").write_text(RECIPE + more)
    found = experiments.find("wine/two")
    first, then = found.plan("desk", ["On"], base=small / "here")  # what it comes after is added
    assert (first.row, then.row, then.after) == ("Average", "On", (first.folder,))
    assert then.recipe.weights == str(small / "here" / first.folder / "global.safetensors")
    assert (first.recipe.train.rounds, then.recipe.train.rounds) == (TrainSettings().rounds, 7)
    quick = found.plan("quick", ["On"], [0], base=small)
    assert [d.failure for d in experiments.perform(quick, small, 1)] == ["", ""]


def test_what_comes_after_a_failure_fails_with_its_name(small):
    folder = small / "experiments" / "wine" / "two"
    more = '[rows.On]\nafter = ["Rebuilt"]\nmethod = { name = "local" }\n'
    (folder / "recipe.toml").write_text(RECIPE + more)
    planned = experiments.find("wine/two").plan("quick", ["On"], [0], base=small)
    done = experiments.perform(planned, small, 1)
    assert [d.planned.row for d in done] == ["Rebuilt", "On"]
    assert done[1].failure == "it comes after Rebuilt, seed 0, which failed"


# ---- the list ----


def test_the_list_says_paper_and_table_and_what_was_run_when_and_at_which_commit(capfd):
    assert main(["reproduce", "--list", "--json"]) == 0
    listed = {e["name"]: e for e in json.loads(capfd.readouterr().out)}
    assert sorted(listed) == experiments.names()
    assert all(e["paper"] and e["shows"] and e["scales"] for e in listed.values())
    assert all(set(e["ran"]) <= set(e["scales"]) for e in listed.values())
    assert main(["reproduce", "swarm/", "--list"]) == 0
    out = capfd.readouterr().out
    assert "swarm/table1" in out and "Table 1" in out and "full ran 2026-11-16 at af4d60b" in out
    assert "fedperc" not in out


@pytest.mark.parametrize("name", experiments.names())
def test_what_the_list_says_was_run_stands_in_the_readme(name):
    found = experiments.read(name)
    commits = [r["commit"] for r in found.listing["ran"].values()]
    readme = found.folder / "README.md"
    said = readme.read_text() if readme.exists() else ""
    if found.name == "swarm/figure7":  # it draws the runs of another experiment
        said = (found.folder.parent / "table1" / "README.md").read_text()
    assert all(c in said for c in commits)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_list_fits_the_terminal(width):
    listed = [e.listing for e in experiments.beginning("")]
    lines = experiment_list.as_text(listed, width).split("\n")
    assert max(map(len, lines)) <= width
    assert all(any(line.startswith(f"  {e['name']}") for line in lines) for e in listed)


def test_a_name_that_nothing_begins_with_is_refused_with_what_there_is(small, capfd):
    assert main(["reproduce", "wime", "--list"]) == 2
    assert "unknown experiment wime" in capfd.readouterr().err
    assert main(["reproduce", "--list"]) == 0
    assert "Two methods on wine" in capfd.readouterr().out  # its title, where nothing says what it shows
