"""Experiments: the runs behind a table or figure of a paper, at three scales, and the paper's numbers.

recipe.toml holds
- [recipe.…]: settings that all rows of the table share;
- [rows.NAME]: settings of one row. `after = ["OTHER"]` runs it when row OTHER of the same seed is done; {OTHER}
  then stands for that run's folder: `net.weights = "{OTHER}/global.safetensors"`;
- [scales.quick|desk|full]: settings, seeds and, if not all, rows of a scale; [scales.desk.by_row.NAME] for one row;
- paper, shows: what a list of experiments says: whose table or figure it is; ran.SCALE: { date, commit, part } of
  the run that the README reports, where part says what of the scale was run, if not all of it; takes.SCALE: the
  seconds of one core that a scale would take;
- [columns]: the entry of a run's summary that each column shows, `global = "server_test"`, with its unit where
  it is not percent, `mse = { key = "global", unit = "number" }`; `metrics.NAME` is a metric of the last round.
expected.json holds the paper's numbers by row and column.

`"{seed}"` stands for the row's seed, for settings that need it as a number: `torch_seed = "{seed}"`.

A seed draws the split too (data.seed = seed) unless the recipe gives data.seed: the tables in experiments/ were
made so, and their spread over seeds includes that of the splits.

A row may name a method that only this paper's experiments need: `name = "experiments.page.published:PublishedPAGE"`
is the class in experiments/page/published.py, wherever the command is given. Code of motet's own experiments may run;
that of other folders, Python files beside the recipe included, needs `trust`.

Two Python files may lie in the same folder (show.py also in the folder above, for all experiments of a paper):
- show.py, `show(done, table, out) -> list[str]`: draws figures into the folder `out` when the runs have ended,
  and returns lines to print;
- procedure.py, `perform(settings, out, jobs, say) -> rows`: computes rows (as in `results`) that are not runs
  of a method. `settings` are those of [recipe] and the scale, with `seeds` and `rows`.
Knows how an experiment is written down and run. Does not know how results are shown.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from motet.runs import parallel
from motet.runs import recipe as recipes
from motet.runs.identity import pieces_of, whole
from motet.runs.jobs import Job, Outcome
from motet.runs.recipe import Recipe, RecipeError, Settings
from motet.text import unknown
from motet.trusted_code import Consent, is_trusted, names_in, require_trust, trust_names

SCALES = ("quick", "desk", "full")


@dataclass(frozen=True)
class Planned:
    """One run of an experiment."""

    row: str
    seed: int
    recipe: Recipe
    after: tuple[str, ...] = ()  # folders of runs that must be done before

    @property
    def folder(self) -> str:
        """Named after settings, code and versions, so that a run of other code is never taken for this one."""
        mark = whole(pieces_of(self.recipe))[:8]
        return f"{self.row}-seed{self.seed}-{mark}".replace("/", "_").replace(" ", "_")


@dataclass(frozen=True)
class Experiment:
    """One table or figure of a paper."""

    name: str
    folder: Path
    title: str
    settings: Settings
    expected: dict[str, dict[str, float | None]] = field(default_factory=dict)

    @property
    def columns(self) -> dict[str, str]:
        """The table's columns, and the name that each has in a run's summary."""
        given: dict[str, Any] = self.settings["columns"]
        return {name: c["key"] if isinstance(c, dict) else c for name, c in given.items()}

    @property
    def units(self) -> dict[str, str]:
        """How each column is printed: percent, or number."""
        given: dict[str, Any] = self.settings["columns"]
        return {
            name: c.get("unit", "percent") if isinstance(c, dict) else "percent" for name, c in given.items()
        }

    @property
    def listing(self) -> Settings:
        """What a list of experiments says of this one, as plain data; `ran` is by scale, `takes` in seconds."""
        given = self.settings
        return {
            "name": self.name,
            "paper": given.get("paper", ""),
            "shows": given.get("shows", self.title),
            "title": self.title,
            "scales": [s for s in SCALES if s in given["scales"]],
            "ran": given.get("ran", {}),
            "takes": given.get("takes", {}),
        }

    @property
    def is_procedure(self) -> bool:
        return (self.folder / "procedure.py").exists()

    def at(
        self, scale: str, rows: Sequence[str] = (), seeds: Sequence[int] = (), words: Sequence[str] = ()
    ) -> Settings:
        """A procedure's settings at a scale."""
        settings: Settings = deepcopy(self.settings.get("recipe", {}))
        for part in (self.settings["scales"][scale], *said(words)):
            recipes.merge(settings, deepcopy(part))
        chosen = self.chosen(rows or settings.get("rows", ()))
        return settings | {"rows": chosen} | ({"seeds": list(seeds)} if seeds else {})

    def chosen(self, rows: Sequence[str]) -> list[str]:
        """These rows, or all of them."""
        known = self.settings["rows"]
        if wrong := [r for r in rows if r not in known]:
            raise RecipeError(unknown_rows(wrong, known))
        return list(rows or known)

    def plan(
        self,
        scale: str,
        rows: Sequence[str] = (),
        seeds: Sequence[int] = (),
        words: Sequence[str] = (),
        base: Path = Path(),
    ) -> list[Planned]:
        """All runs at a scale, or those of some rows and seeds, and what they come after, in folders of `base`;
        `words` change settings of all of them."""
        of_scale = self.settings["scales"][scale]
        planned: list[Planned] = []
        for seed in seeds or of_scale["seeds"]:
            before: dict[str, Planned] = {}
            for row in self.in_order(self.chosen(rows or of_scale.get("rows", ()))):
                before[row] = self.planned(row, seed, scale, words, before, base)
            planned += before.values()
        return planned

    def in_order(self, rows: Sequence[str]) -> list[str]:
        """These rows, each behind those that it comes after."""
        found: list[str] = []
        for row in rows:
            found += [r for r in self.in_order(self.settings["rows"][row].get("after", [])) if r not in found]
            found += [row] if row not in found else []
        return found

    def planned(
        self, row: str, seed: int, scale: str, words: Sequence[str], before: dict[str, Planned], base: Path
    ) -> Planned:
        """One run; {NAME} in its settings stands for the folder of a run `before` it."""
        own, after = deepcopy(self.settings["rows"][row]), self.settings["rows"][row].get("after", [])
        settings = fitting(self.settings.get("recipe", {}), own)
        of_scale = fitting(self.settings["scales"][scale], own)
        for part in (own, of_scale, of_scale.get("by_row", {}).get(row, {})):
            recipes.merge(settings, part)
        typed = recipes.merged(*said(words))
        recipes.merge(settings, recipes.with_sections(typed, recipes.merged(settings, typed)))
        for key in ("after", "seeds", "rows", "by_row"):
            settings.pop(key, None)
        places = {name: str(base / before[name].folder) for name in after}
        settings = seeded(_filled_in(settings, {"seed": seed, **places}), seed)
        return Planned(row, seed, recipes.check(settings), tuple(before[name].folder for name in after))


def row_names(said: str, known: Collection[str]) -> list[str]:
    """The rows that a text names, separated by commas. Names may have commas in them: the longest known name comes
    first, and what is no name stands alone.

    >>> row_names("a, b,a,c", ["a", "a, b"])
    ['a, b', 'a', 'c']
    """
    pieces, found = said.split(","), []
    while pieces:
        ends = range(len(pieces), 0, -1)
        end = next((k for k in ends if ",".join(pieces[:k]).strip() in known), 1)
        found.append(",".join(pieces[:end]).strip())
        pieces = pieces[end:]
    return [name for name in found if name]


def unknown_rows(wrong: Sequence[str], known: Collection[str]) -> str:
    """An error that lists rows one per line: their names may have commas in them."""
    near = [name for row in wrong for name in get_close_matches(row, known, 1, 0.5)]
    lines = [*(f"unknown row {row}" for row in wrong), "rows are:", *(f"  {row}" for row in known)]
    hint = " ".join(f"--rows {shlex.quote(name)}" for name in dict.fromkeys(near or list(known)[:1]))
    return "\n".join([*lines, f"hint: {hint}"])


def said(words: Sequence[str]) -> list[Settings]:
    """Words of the command line as settings; code that they name may run, because a person typed it."""
    found = list(map(recipes.parse_word, words))
    trust_names(names_in(found))
    return found


def seeded(settings: Settings, seed: int) -> Settings:
    """Settings with a seed that draws the split too, unless they say which split."""
    data = settings.get("data", {})
    data = {"name": data} if isinstance(data, str) else data
    return settings | {"seed": seed, "data": {"seed": seed} | data}


def fitting(part: Settings, row: Settings) -> Settings:
    """What rows share, without settings that this row's method does not have."""
    settings: Settings = deepcopy(part)
    known = recipes.known_fields("method", row.get("method", {}))[1]
    settings["method"] = {k: v for k, v in settings.get("method", {}).items() if k in known or k == "name"}
    return settings


def _filled_in(value: Any, places: dict[str, Any]) -> Any:
    """Settings with the seed, and folders, in place of their names in braces."""
    if isinstance(value, dict):
        return {k: _filled_in(v, places) for k, v in value.items()}
    for name, place in places.items():
        if value == f"{{{name}}}":
            return place
        value = value.replace(f"{{{name}}}", str(place)) if isinstance(value, str) else value
    return value


def experiments_folder() -> Path:
    """experiments/ in the current folder, or motet's own."""
    here = Path.cwd() / "experiments"
    return here if any(here.rglob("recipe.toml")) else own_folder()


def own_folder() -> Path:
    """experiments/ of the checkout that motet runs from, or of the installed package."""
    package = Path(__file__).parents[1]
    installed = package / "reproductions" / "experiments"
    return installed if installed.is_dir() else package.parents[1] / "experiments"


def names() -> list[str]:
    root = experiments_folder()
    return sorted(str(p.parent.relative_to(root)) for p in root.rglob("recipe.toml"))


def beginning(start: str) -> list[Experiment]:
    """All experiments whose names begin so, as they are written down."""
    found = [name for name in names() if name.startswith(start)]
    if start and not found:
        raise RecipeError(unknown("experiment", start, names()))
    return [read(name) for name in found]


def find(name: str, trust: Consent = False) -> Experiment:
    """An experiment whose code may run: motet's own, or one of a folder that the caller trusts."""
    found, root = read(name), experiments_folder().resolve()
    mine = root == own_folder().resolve() or is_trusted(str(root))
    files = [f for n in ("procedure", "show") if (f := file_of(found, n))]
    require_trust(found.settings, found.folder / "recipe.toml", mine or trust, files)
    if trust is True:
        trust_names([str(root)])  # its experiments may use each other
    if str(root.parent) not in sys.path:
        sys.path.append(str(root.parent))  # for rows whose method is a class in experiments/
    return found


def read(name: str) -> Experiment:
    """An experiment as it is written down; nothing of it runs."""
    if name not in names():
        if near := [n for n in names() if n.startswith(name)]:
            raise RecipeError(f"unknown experiment {name}\nhint: did you mean {' or '.join(near)}?")
        raise RecipeError(unknown("experiment", name, names()))
    folder = experiments_folder() / name
    settings = recipes.parse_file(folder / "recipe.toml")
    expected = folder / "expected.json"
    numbers = json.loads(expected.read_text()) if expected.exists() else {}
    return Experiment(name, folder, settings.get("title", name), settings, numbers)


@dataclass(frozen=True)
class Done:
    """A run that has ended, and why it failed if it did."""

    planned: Planned
    folder: Path
    failure: str = ""


def perform(
    planned: Sequence[Planned],
    base: Path,
    jobs: parallel.AtOnce,
    on_done: Callable[[Done], None] = lambda _: None,
) -> list[Done]:
    """Run all that is not done yet, `jobs` at a time; runs that were stopped are continued."""
    names = {p.folder: f"{p.row}, seed {p.seed}" for p in planned}
    todo = [
        Job(names[p.folder], p.recipe, base / p.folder, tuple(names[f] for f in p.after)) for p in planned
    ]
    ended = parallel.perform(todo, base, jobs, _OnDone({names[p.folder]: p for p in planned}, on_done))
    return [Done(p, base / p.folder, o.failure) for p, o in zip(planned, ended, strict=True)]


class _OnDone(parallel.Watch):
    """Calls a function with every run that has ended."""

    def __init__(self, planned: dict[str, Planned], on_done: Callable[[Done], None]) -> None:
        self.planned, self.call = planned, on_done

    def on_end(self, outcome: Outcome) -> None:
        assert outcome.job.folder
        self.call(Done(self.planned[outcome.job.name], outcome.job.folder, outcome.failure))


def results(
    experiment: Experiment, done: Sequence[Done], summary: Callable[[Path], dict[str, Any]]
) -> Settings:
    """Plain data: for each row, each column's values by seed, the paper's values, and failures."""
    rows: Settings = {}
    for one in done:
        blank: Settings = {"values": {c: [] for c in experiment.columns}, "failures": []}
        row = rows.setdefault(one.planned.row, blank)
        if one.failure:
            row["failures"].append(one.failure)
            continue
        found = summary(one.folder)
        for column, key in experiment.columns.items():
            if (value := _dotted(found, key)) is not None:
                row["values"][column].append(value)
        row["seconds"] = row.get("seconds", 0.0) + float(found["seconds"])
    return table(experiment, rows)


def _dotted(found: Any, key: str) -> Any:
    """`metrics.reward` is the entry `reward` of the entry `metrics`."""
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def table(experiment: Experiment, rows: Settings) -> Settings:
    """Plain data: rows of values by seed, with the paper's."""
    for name, row in rows.items():
        row["paper"] = experiment.expected.get(name, {})
    return {
        "name": experiment.name,
        "title": experiment.title,
        "columns": list(experiment.columns),
        "units": experiment.units,
        "rows": rows,
    }


def file_of(experiment: Experiment, name: str) -> Path | None:
    """A Python file of an experiment: in its folder or the one above it."""
    places = [folder / f"{name}.py" for folder in (experiment.folder, experiment.folder.parent)]
    return next((p for p in places if p.exists()), None)


def module_of(experiment: Experiment, name: str) -> Any:
    """The experiment's own module `name`; None if there is none."""
    path = file_of(experiment, name)
    if path is None:
        return None
    spec = spec_from_file_location(f"experiment_{name}", path)
    assert spec and spec.loader
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # so that its functions can be found by worker processes
    spec.loader.exec_module(module)
    return module
