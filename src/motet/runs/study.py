"""A study: methods x settings x seeds x splits on one federation, from TOML, the command line or Python.

    methods = ["fedavg", { name = "ditto", lam = 1.0 }]  # names, or tables with settings of their own
    seeds = "0-4"    # initial weights, batches and cohorts: numbers, or text as on the command line
    splits = [0]     # who holds which rows (data.seed); "auto": several for few rows of named clients
    [grid]
    ditto.lam = [0.01, 0.1, 1]    # rows of ditto only
    method.lr = [0.05, 0.1]       # rows of all methods that have it
    train.rounds = [20, 50]       # rows of all methods

The sections of a recipe may stand beside these. Everything that is wrong is said before anything runs.
Knows which runs a study is made of. Does not run them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from motet.client.population import sizes_of
from motet.data import load as data_sets
from motet.runs import recipe as recipes
from motet.runs.build import federated_data
from motet.runs.choose_metric import chosen_metric, class_counts
from motet.runs.jobs import Job
from motet.runs.recipe import SECTIONS, Recipe, RecipeError, Settings
from motet.runs.recipe_text import parse
from motet.settings import dotted
from motet.text import unknown
from motet.trusted_code import Consent, names_in, require_trust, trust_names

STANDARD = ("local", "fedavg", "fedprox", "ditto", "finetune", "centralised")
ALONE = "local"  # gains are measured against training alone, so it always runs
KEYS = ("methods", "seeds", "splits", "grid")  # what a study's TOML has beside the sections of a recipe
SPLITS = 5  # of few rows, because few test rows say little
FEW = 10_000  # rows in all
RARE_SPLITS = 15  # where one class has few rows: a client tests on one or two of them in a split
RARE = 200  # training rows of a class in all
_MANY = 10_000  # seeds or splits
Grid = dict[str, list[Any]]  # values of each setting, by its full name


@dataclass(frozen=True)
class Row:
    """One row of the table: a method with its settings, for all seeds and splits."""

    label: str  # the method, and the settings of a grid or an entry of its own
    settings: Settings  # of a recipe, without seeds
    given: frozenset[str]  # settings of the method that somebody chose

    def recipe(self, seed: int, split: int) -> Recipe:
        data = dict(self.settings.get("data", {})) | {"seed": split}
        return recipes.check(deepcopy(self.settings) | {"seed": seed, "data": data})

    def with_method(self, **chosen: Any) -> Row:
        return replace(self, settings=self.settings | {"method": self.settings["method"] | chosen})


@dataclass(frozen=True)
class Study:
    """The runs of a study."""

    rows: tuple[Row, ...]
    seeds: tuple[int, ...] = (0,)
    splits: tuple[int, ...] = (0,)
    why: str = ""  # there are as many splits, if nobody chose them
    asked: Settings = field(default_factory=dict)  # what a file of the same study would say

    def jobs(self) -> list[Job]:
        """One job for each row, seed and split; those on the same data stand together."""
        found = []
        for split in self.splits:
            ordered = sorted(self.rows, key=lambda row: str(row.settings.get("data")))
            for seed, row in product(self.seeds, ordered):
                found.append(Job(self.name(row, seed, split), row.recipe(seed, split)))
        return found

    def name(self, row: Row, seed: int, split: int) -> str:
        more = f" seed {seed}" * (len(self.seeds) > 1) + f" split {split}" * (len(self.splits) > 1)
        return row.label + ("," + more if more else "")


@dataclass(frozen=True)
class Asked:
    """What was asked for beside the sections of recipes; None or empty: what the file says, or the default."""

    methods: Sequence[Any] = ()
    grid: Grid = field(default_factory=dict)
    seeds: Any = None
    splits: Any = None


def read(source: str | Path | None, words: Iterable[str], asked: Asked, trust: Consent = False) -> Study:
    """A study from a TOML file and from the command line; code that the file alone names needs `trust`."""
    own, file = recipes.merged(*map(recipes.parse_word, words)), recipes.parsed(source)
    trust_names(names_in([own, list(asked.methods), asked.grid]))
    used = {k: v for k, v in file.items() if k != "methods" or not asked.methods}
    require_trust(recipes.merged(used, own), source, trust)
    entries = [entry_of(m) for m in asked.methods or file.get("methods") or STANDARD]
    said = {k: v for k, v in own.items() if k not in KEYS}
    placed = recipes.with_sections(said, recipes.merged(file, said), [*(e["name"] for e in entries), ALONE])
    return plan(file, placed | {k: v for k, v in own.items() if k in KEYS}, asked)


def plan(file: Settings, own: Settings, asked: Asked) -> Study:
    """A study from what a file says and from what was given beside it, which counts more."""
    check_plural(own)
    if odd := [k for k in KEYS if k in own]:
        raise RecipeError(
            f"{odd[0]}={own[odd[0]]} is no setting of a run\nhint: --{odd[0]}, or {odd[0]} in a file"
        )
    entries = [entry_of(m) for m in asked.methods or file.get("methods") or STANDARD]
    others = others_than(entries) if asked.methods else set()  # of which the file may speak
    in_file = {k: v for k, v in flat_grid(file.get("grid", {})).items() if k.partition(".")[0] not in others}
    check_grid(grid := in_file | asked.grid, own, asked.grid)
    settings = deepcopy({k: v for k, v in file.items() if k not in {*KEYS, *others}})
    recipes.merge(settings, own)
    seeds = asked.seeds if asked.seeds is not None else file.get("seeds", [settings.pop("seed", 0)])
    splits = asked.splits if asked.splits is not None else file.get("splits")
    splits = the_split(splits, own, settings, "splits" in file and asked.splits is None)
    settings.pop("seed", None)
    numbers, same = whole_numbers(seeds, "seeds"), deepcopy(settings) | {"methods": entries, "grid": grid}
    rows = rows_of(settings, entries, grid)
    for row in rows:
        row.recipe(numbers[0], 0)  # says what is wrong with it
    many, why = fitting_splits(rows[0].recipe(numbers[0], 0)) if splits == "auto" else (0, "")
    chosen = tuple(range(many)) if splits == "auto" else whole_numbers(splits, "splits")
    return Study(tuple(rows), numbers, chosen, why, same | {"seeds": list(numbers), "splits": list(chosen)})


def as_file(asked: Mapping[str, Any]) -> str:
    """A file of a study, from what such a file says."""
    text = "".join(f"{recipes.toml_value(k)} = {recipes.toml_value(v)}\n" for k, v in asked.items())
    try:
        if parse(text.encode().decode()) == asked:
            return text
    except ValueError:
        pass
    raise RecipeError(
        "this study cannot be written as a file\nhint: give its command again where it was started"
    )


def check_plural(own: Mapping[str, Any]) -> None:
    """Refuse settings that name one method or one seed: they would be ignored."""
    method = own.get("method", {})
    if name := method.get("name") if isinstance(method, dict) else method:
        raise RecipeError(
            f"a comparison runs several methods, and method={name} names one.\n"
            f"hint: --methods {name}, in Python motet.compare([{name!r}], …)"
        )
    if "seed" in own:
        raise RecipeError(f"seed is {own['seed']}; a comparison takes several.\nhint: --seeds, or seeds=[…]")


def the_split(splits: Any, own: Settings, settings: Settings, in_file: bool) -> Any:
    """The splits that were asked for; data.seed names one."""
    data = settings.get("data", {})
    if not isinstance(data, dict) or "seed" not in data:
        return "auto" if splits is None else splits
    one = data.pop("seed")
    if splits is None:
        return [one]
    if in_file or "seed" in own.get("data", {}):
        raise RecipeError(f"data.seed is {one}, and splits are {splits}; both say which\nhint: leave one out")
    return splits


def fitting_splits(recipe: Recipe) -> tuple[int, str]:
    """How many splits these data need, and why: several for few rows of clients that are the same in every split."""
    federated = federated_data(recipe)
    parts = federated.clients_data, federated.unseen
    rows = sum(int(sizes_of(clients).sum()) for clients in parts)
    if recipe["data"]["name"] in data_sets.names() or not federated.natural or rows >= FEW:
        return 1, ""
    other = federated_data(Recipe(recipe.settings | {"data": recipe["data"] | {"seed": 1}}))
    if federated.given_tests or other.fingerprint() == federated.fingerprint():
        return 1, ""  # the data say which rows are for the test
    many, few = SPLITS, f"{rows:,} rows"
    counts = {c: n for c, n in class_counts(federated, by_weight=False).items() if n}
    if chosen_metric(recipe, federated)[0] == "auc" and min(counts.values()) < RARE:
        many, few = RARE_SPLITS, f"rows of class {min(counts, key=counts.__getitem__)!r}"
    why = f"{many} splits of {sum(map(len, parts))} clients, because {few} are few to test on"
    return many, f"{why}; --splits 0 for one"


# ---- rows ----


def entry_of(method: Any) -> Settings:
    """A method with settings of its own."""
    entry = {"name": method} if isinstance(method, str) else method
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise RecipeError(f'a method is {method!r}; expected a name, or {{ name = "ditto", lam = 1.0 }}')
    return entry


def others_than(entries: Sequence[Settings]) -> set[str]:
    """Methods that are not among these."""
    return set(recipes.method_names()) - {e["name"] for e in entries} - {ALONE}


def rows_of(settings: Settings, entries: Sequence[Settings], grid: Grid) -> list[Row]:
    """Every method with every combination of the grid that concerns it."""
    entries = [*entries, *([] if any(e["name"] == ALONE for e in entries) else [{"name": ALONE}])]
    names = [e["name"] for e in entries]
    special = {m: settings.pop(m) for m in {*recipes.method_names(), *names} if m in settings}
    if strays := sorted(set(special) - set(names)):
        raise RecipeError(f"{strays[0]} has settings, and it is not among the methods: {', '.join(names)}")
    shared = dict(settings.pop("method", {}))
    shared.pop("name", None)
    known = {m: dotted(recipes.known_fields("method", {"name": m})[1]) for m in names}
    outer, inner = divided(grid, known)
    check_known(shared, inner, known)
    found: dict[str, Row] = {}
    for values in combinations(outer):
        around = with_values(settings, values)
        for entry in entries:
            for row in method_rows(around, entry, special.get(entry["name"], {}), shared, inner, known):
                labelled = replace(row, label=" ".join([row.label, *said(values)]))
                found.setdefault(labelled.label, labelled)
    return list(found.values())


def method_rows(
    around: Settings, entry: Settings, special: Settings, shared: Settings, inner: Grid, known: Any
) -> Iterable[Row]:
    """The rows of one entry: its own settings count most, then those for its method, then those for all."""
    name = entry["name"]
    own: Settings = {
        k: v for k, v in shared.items() if k.split(".")[0] in {f.split(".")[0] for f in known[name]}
    }
    recipes.merge(own, special)
    recipes.merge(own, {k: v for k, v in entry.items()})
    mine: Grid = {}
    for key, many in inner.items():
        section, setting = divide_key(key, known)
        if section == name or (section == "method" and setting in known[name] and setting not in entry):
            if setting in entry:
                raise RecipeError(
                    f"the grid varies {key}, and {name} is listed with {setting}={entry[setting]}"
                )
            mine[f"method.{setting}"] = many
    train = {k: v for k, v in around.get("train", {}).items() if (name, k) != (ALONE, "by")}
    for values in combinations(mine):
        whole = with_values(around | {"method": own, "train": train}, values)
        label = " ".join([name, *said({k: v for k, v in entry.items() if k != "name"}), *said(values)])
        yield Row(label, whole, frozenset(whole["method"]) - {"name"})


def check_known(shared: Settings, inner: Grid, known: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse settings that no method has."""
    asked = {*shared, *(s for key in inner for m, s in [divide_key(key, known)] if m == "method")}
    everything = {k for fields in known.values() for k in fields}
    tables = {k.split(".")[0] for k in everything}
    if strays := sorted(k for k in asked if k not in everything | tables):
        raise RecipeError("\n".join(unknown("setting", f"method.{k}", everything, k) for k in strays))
    for key in inner:
        section, setting = divide_key(key, known)
        if section != "method" and setting not in known[section]:
            raise RecipeError(unknown("setting", f"{setting} of {section}", known[section], setting))


# ---- the grid ----


def grid_word(word: str) -> Grid:
    """`ditto.lam=0.01,0.1,1` as {"ditto.lam": [0.01, 0.1, 1]}; lists stay whole."""
    key, equals, text = word.partition("=")
    parts = re.findall(r"(?:\[[^\]]*\]|\"[^\"]*\"|[^,])+", text)
    if not equals or not key or not parts:
        raise RecipeError(f"cannot read --grid {word!r}; expected section.name=a,b, say ditto.lam=0.1,1")
    return {key.strip(): [recipes.parse_word(f"v={part.strip()}")["v"] for part in parts]}


def grid_words(words: Iterable[str]) -> Grid:
    found: Grid = {}
    for word in words:
        one = grid_word(word)
        if twice := [k for k in one if k in found]:
            raise RecipeError(f"--grid {twice[0]} is given twice\nhint: {twice[0]}=a,b,c takes all values")
        found |= one
    return found


def flat_grid(grid: Any, above: str = "") -> Grid:
    """TOML reads `ditto.lam = [1, 2]` as a table in a table; here it is one key."""
    if not isinstance(grid, Mapping):
        raise RecipeError(f"the grid is {grid!r}; expected a table of settings, each with a list of values")
    found: Grid = {}
    for key, value in grid.items():
        if isinstance(value, Mapping):
            found |= flat_grid(value, f"{above}{key}.")
        else:
            found[f"{above}{key}"] = list(value) if isinstance(value, list | tuple | range) else [value]
    return found


def check_grid(grid: Grid, own: Settings, asked: Grid) -> None:
    """Refuse what a grid cannot vary, and a setting that has one value beside its grid."""
    hints = {
        "seed": "--seeds 0-4",
        "data.seed": "--splits 0-4",
        "method": "--methods a,b",
        "method.name": "--methods a,b",
    }
    for key, values in grid.items():
        if key in hints:
            raise RecipeError(f"a grid over {key} is given in another way\nhint: {hints[key]}")
        if key in ("data", "data.name"):
            raise RecipeError("a study is on one federation, and the grid names several data sets")
        if key.split(".")[0] in ("engine", "save"):
            raise RecipeError(f"a grid over {key} would give the same results")
        if not values or any(v == w for i, v in enumerate(values) for w in values[:i]):
            raise RecipeError(f"the grid's values of {key} are {values}; expected different ones")
        if key in asked and value_at(own, key) is not None:
            raise RecipeError(f"{key} is {value_at(own, key)}, and the grid varies it\nhint: leave one out")


def value_at(settings: Mapping[str, Any], key: str) -> Any:
    found: Any = settings
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return None if isinstance(found, Mapping) else found


def divide_key(key: str, known: Mapping[str, Any]) -> tuple[str, str]:
    """A grid's key as section, or method, and setting; names of methods may hold dots."""
    method = next((m for m in known if key.startswith(f"{m}.")), "")
    section = method or key.partition(".")[0]
    return section, key[len(section) + 1 :]


def divided(grid: Grid, known: Mapping[str, Any]) -> tuple[Grid, Grid]:
    """The part of a grid for all runs, and the part for methods."""
    inner = {k: v for k, v in grid.items() if divide_key(k, known)[0] in ("method", *known)}
    outer = {("net.name" if k == "net" else k): v for k, v in grid.items() if k not in inner}
    names = (*SECTIONS, *known)
    if strays := [k for k in outer if k.partition(".")[0] not in SECTIONS or "." not in k]:
        section = strays[0].partition(".")[0]
        if section in recipes.method_names():
            raise RecipeError(
                f"the grid varies {strays[0]}, and {section} is not among the methods: {', '.join(known)}"
            )
        raise RecipeError("the grid: " + unknown("section", strays[0], names, section))
    return outer, inner


def combinations(grid: Grid) -> list[Settings]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def with_values(settings: Settings, values: Settings) -> Settings:
    changed = deepcopy(settings)
    for key, value in values.items():
        if isinstance(changed.get(section := key.partition(".")[0]), str):
            changed[section] = {"name": changed[section]}
        recipes.merge_dotted(changed, key, value)
    return changed


def said(values: Mapping[str, Any]) -> list[str]:
    """Settings in short, for a label."""
    return [f"{k.rpartition('.')[2] if k != 'net.name' else 'net'}={v}" for k, v in values.items()]


# ---- seeds and splits ----


def whole_numbers(given: Any, what: str) -> tuple[int, ...]:
    """Seeds or splits: a number, several of them, or text such as 0-4 or 0,1,5-7.

    >>> whole_numbers("0-2,5", "seeds")
    (0, 1, 2, 5)
    """
    if isinstance(given, str):
        numbers = [n for part in given.split(",") for n in _span(part.strip(), given, what)]
    else:
        numbers = list(given) if isinstance(given, Iterable) else [given]
    if not numbers or any(isinstance(n, bool) or not hasattr(n, "__index__") or n < 0 for n in numbers):
        raise RecipeError(f"{what} are {given!r}; expected whole numbers, say 0-4 or 0,1,2")
    if twice := sorted({int(n) for n in numbers if numbers.count(n) > 1}):
        raise RecipeError(f"{what} are {given}, and {twice[0]} is there twice; each is run once")
    return tuple(int(n) for n in numbers)


def _span(part: str, given: str, what: str) -> range:
    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", part)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last or last - first >= _MANY:
        raise RecipeError(f"{what} are {given!r}; expected whole numbers, say 0-4 or 0,1,2 or 0-2,5")
    return range(first, last + 1)
