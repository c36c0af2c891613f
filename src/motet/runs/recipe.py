"""Recipes: what a run is made of, read from TOML and from `section.name=value` words.

Everything that is wrong with a recipe is said at once, each with what would be right.
Knows which sections there are and what can be set in them. Does not run anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from motet import nets
from motet.client.losses import USUAL
from motet.data import load as data_sets
from motet.data import splits
from motet.data.federated import DataError
from motet.runs.find_methods import method_class as method_class
from motet.runs.find_methods import method_names as method_names
from motet.runs.impossible_settings import impossible_guard, impossible_privacy, impossible_texts
from motet.runs.recipe_text import LARGE
from motet.runs.recipe_text import RecipeError as RecipeError
from motet.runs.recipe_text import Settings as Settings
from motet.runs.recipe_text import merge as merge
from motet.runs.recipe_text import parse_file as parse_file
from motet.runs.recipe_text import parse_word as parse_word
from motet.runs.sections import (
    NEW_IN_GUARD,
    OF_LEDGER,
    PLAIN,
    EngineSettings,
    GuardSettings,
    LossSettings,
    PrivacySettings,
    SaveSettings,
    StartSettings,
    TrainSettings,
)
from motet.settings import Field, checked, dotted, fields_of, with_objects
from motet.text import unknown
from motet.trusted_code import Consent, names_in, require_trust, trust_names

OF_ANY_NET = (
    *fields_of(StartSettings),
    *fields_of(LossSettings),
)  # settings of [net] that no network has of its own
SECTIONS = ("data", "net", "method", "train", "guard", "privacy", "engine", "save")


PLACES = ("workers", "address", "actors")  # settings of the engine that change no result
# Settings that had another name in runs of earlier versions.
RENAMED = {("train", "local"): "after_training", ("data", "exam"): "server_test"}


@dataclass
class Recipe:
    """A checked recipe: every value is there and is of the right kind."""

    settings: Settings

    def __post_init__(self) -> None:
        """Settings of a run of an earlier version get today's names, and later sections their defaults."""
        absent = {s: vars(kind()) for s, kind in PLAIN.items() if s not in self.settings}
        self.settings = self.settings | absent
        for (section, before), now in RENAMED.items():
            if before in self.settings[section]:
                values = {now if k == before else k: v for k, v in self.settings[section].items()}
                self.settings[section] = values
        # one seed drew the split too before data.seed was there
        self.settings["data"] = {"seed": self.settings["seed"]} | self.settings["data"]

    def __getitem__(self, section: str) -> Any:
        return self.settings[section]

    @property
    def seed(self) -> int:
        return int(self.settings["seed"])

    @property
    def train(self) -> TrainSettings:
        return TrainSettings(**self["train"])

    @property
    def guard(self) -> GuardSettings:
        return GuardSettings(**self["guard"])

    @property
    def privacy(self) -> PrivacySettings:
        return PrivacySettings(**self["privacy"])

    @property
    def engine(self) -> EngineSettings:
        return EngineSettings(**self["engine"])

    @property
    def device_kind(self) -> str:
        """The device without its number: which of two GPUs computes is no other run."""
        return self.engine.device.partition(":")[0]

    @property
    def save(self) -> SaveSettings:
        return SaveSettings(**self["save"])

    def options(self, section: str) -> Settings:
        """A section without its name, and without what is no option of the thing that it names."""
        others = {"name", *(OF_ANY_NET if section == "net" else ())}
        return {k: v for k, v in self[section].items() if k not in others}

    @property
    def weights(self) -> str:
        """The file that the net's weights come from, "" if they are fresh."""
        return str(self["net"].get("weights", ""))

    @property
    def loss(self) -> LossSettings:
        """The loss; runs of earlier versions have the usual one."""
        return LossSettings(**{k: v for k, v in self["net"].items() if k in fields_of(LossSettings)})

    def identity(self) -> str:
        """A hash of all settings that may change a result; data, code and versions are in identity.py."""
        what = deepcopy(self.settings)
        del what["save"]
        for name in (*PLACES, *(() if self.engine.name == "ray" else ("inner",))):
            what["engine"].pop(name, None)
        what["engine"]["keep"] = "memory"  # as in runs of the version before it; it changes no result
        if not self.train.evaluate_clients:
            what["train"].pop("evaluate_clients", None)  # all are scored, as in runs of the version before it
        what["engine"]["device"] = self.device_kind
        if self.device_kind == "cpu":
            del what["engine"]["device"]  # as in runs of the version in which there was no other
        if self.guard == GuardSettings():
            del what["guard"]  # so that runs of the version before it are found again
        if not self.privacy.on:
            del what["privacy"]  # as in runs of the version before it
        for name in OF_LEDGER:
            what.get("privacy", {}).pop(name, None)
        for name in (k for k in NEW_IN_GUARD if what.get("guard", {}).get(k) == getattr(GuardSettings, k)):
            del what["guard"][name]
        if not self.weights:
            what["net"].pop("weights", None)
        usual = vars(LossSettings()) | ({"loss": self.loss.loss} if self.loss.loss in USUAL.values() else {})
        for name in (k for k, v in usual.items() if what["net"].get(k) == v):
            del what["net"][name]  # as in runs of the version in which the loss could not be chosen
        if not what["data"].get("without"):
            what["data"].pop("without", None)  # nobody is left out, as in runs of the version before it
        for name in ("weight", "categories"):
            if not what["data"].get(name):
                what["data"].pop(name, None)  # as in runs of the version before they could be named
        if what["data"]["seed"] == self.seed:
            del what["data"]["seed"]  # as in runs of the version in which one seed drew both
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()

    def digest(self) -> str:
        """The names, and the values that are not the defaults, a line for each section that has some."""
        named = {s: {"name": self[s]["name"]} for s in ("data", "net", "method")}
        usual = check(
            named | {"data": {k: self["data"][k] for k in ("name", "split") if k in self["data"]}}
        ).settings
        usual |= {s: usual[s] | {"name": None} for s in named}  # names are always shown
        if split := known_fields("data", named["data"])[1].get("split"):
            usual["data"]["split"] = split.default

        def chosen(part: Settings, default: Settings, prefix: str = "") -> list[str]:
            found = []
            for key, value in part.items():
                if isinstance(value, dict):
                    found += chosen(value, default.get(key, {}), f"{prefix}{key}.")
                elif value != default.get(key):
                    found.append(f"{prefix}{key}={toml_value(value)}")
            return found

        lines = {section: "  ".join(chosen(self[section], usual[section])) for section in SECTIONS}
        return "\n".join([f"seed    {self.seed}", *(f"{s:<7} {line}" for s, line in lines.items() if line)])

    def toml(self, command: str = "motet run recipe.toml") -> str:
        return to_toml(self.settings, command)


# ---- reading ----


def read(
    source: str | Path | None = None,
    words: Iterable[str] = (),
    more: Mapping[str, Any] | None = None,
    trust: Consent = False,
) -> Recipe:
    """A checked recipe from a TOML file, `section.name=value` words and a dict."""
    return check(gathered(source, words, more, trust))


def gathered(
    source: str | Path | None,
    words: Iterable[str] = (),
    more: Mapping[str, Any] | None = None,
    trust: Consent = False,
) -> Settings:
    """What a TOML file, `section.name=value` words and a dict say, in rising order of importance.

    Code that words and the dict name may run, because the caller says so; code of the file needs `trust`.
    """
    own = merged(*map(parse_word, words))
    trust_names(names_in([own, more or {}]))
    file = parsed(source)
    settings = merged(file, own, more or {})
    require_trust(settings, source, trust)
    return merged(file, with_sections(own, settings), more or {})


def parsed(source: str | Path | None) -> Settings:
    """What a TOML file says; nothing without one."""
    return {} if source is None else merged(parse_file(Path(source)))


def merged(*parts: Mapping[str, Any]) -> Settings:
    """Tables of settings in one, the last one counts most."""
    settings: Settings = {}
    for part in parts:
        merge(settings, part)
    return settings


# ---- settings by their name alone ----

Known = dict[str, dict[str, Field]]  # what can be set, by section
_SHORT = ("train", "method", "data", "net")  # sections whose settings may be given by their name alone
# Words of other libraries that are not near enough to ours to be guessed.
_ELSEWHERE = {
    "algorithm": "method",
    "batch_size": "batch",
    "dataset": "data",
    "label": "target",
    "learning_rate": "lr",
    "local_epochs": "epochs",
    "model": "net",
    "network": "net",
    "num_clients": "clients",
    "num_rounds": "rounds",
    "n_clients": "clients",
    "n_rounds": "rounds",
    "random_state": "seed",
    "weight_decay": "decay",
}


def known_settings(found: Settings, methods: Sequence[str] = ()) -> Known:
    """What can be set in each section, for the data, network and method, or methods, that were chosen."""
    known = {section: fields_of(kind) for section, kind in PLAIN.items()}
    for section in ("data", "net", "method"):
        part = found[section] if isinstance(found.get(section), dict) else {}
        parts = [{"name": m} for m in methods] if section == "method" and methods else [part]
        try:
            fields = [known_fields(section, p)[1] for p in parts]
        except (DataError, nets.NetError) as e:
            raise RecipeError(str(e)) from None
        known[section] = {k: f for one in fields for k, f in one.items()}
    return known


def sections_of(key: str, known: Known) -> list[str]:
    """The sections that a setting may belong to which is given by its name alone: one, if all is well."""
    places = [section for section in _SHORT if key in known[section]]
    if len(places) > 1 and key in OF_ANY_NET:
        places.remove("net")  # a method's own setting of this name, say swarm's loss, is meant first
    return places


def unknown_short(what: str, key: str, known: Known, others: Sequence[str]) -> str:
    """That no section has such a setting: the nearest one, or what there is, section by section."""
    words = [*others, *(k for section in _SHORT for k in known[section])]
    near = _ELSEWHERE.get(key)
    close = [near] if near in words else get_close_matches(key, words, 1, cutoff=0.5)
    if close:
        return f"unknown {what} {key}\nhint: did you mean {close[0]!r}?"
    there = {s: ", ".join(k for k in known[s] if k not in others) for s in _SHORT}
    rest = [f"of {section}: {names}" for section, names in there.items() if names]
    return f"unknown {what} {key}\nhint: there are: {', '.join(others)}; {'; '.join(rest)}"


def with_sections(own: Settings, whole: Settings, methods: Sequence[str] = ()) -> Settings:
    """What somebody typed, with settings that were given by their name alone (`rounds=5`) in their sections. `whole`
    are these and all others, which say whose settings there are."""
    given = (*SECTIONS, "seed", *methods, *(method_names() if methods else ()))
    short = {k: v for k, v in own.items() if k not in given and not isinstance(v, dict)}
    if not short:
        return own
    known, wrong = known_settings(whole, methods), list[str]()
    found = {k: deepcopy(v) for k, v in own.items() if k not in short}
    for key, value in short.items():
        places = sections_of(key, known)
        if not places:
            wrong.append(unknown_short("setting", key, known, (*SECTIONS, "seed")))
        elif len(places) > 1:
            say = " or ".join(f"{s}.{key}={toml_value(value)}" for s in places)
            wrong.append(f"{key} is a setting of {' and of '.join(places)}\nhint: {say}")
        elif isinstance(part := found.get(places[0], {}), dict) and part.get(key, value) != value:
            both = f"{key} is {value!r}, and {places[0]}.{key} is {part[key]!r}"
            wrong.append(f"{both}\nhint: leave one out")
        else:
            merge(found, {places[0]: {key: value}})
    if wrong:
        raise RecipeError("\n".join(wrong))
    return found


# ---- checking ----


def check(given: Settings) -> Recipe:
    """The recipe with every default filled in, or all that is wrong with it."""
    wrong: list[str] = []
    settings: Settings = {"seed": given.get("seed", 0)}
    seed = settings["seed"]
    if isinstance(seed, int) and abs(seed) >= LARGE:
        wrong.append("seed has more than 64 bits; it must be a whole number, 0 or more")
    elif not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        wrong.append(f"seed is {seed!r}; it must be a whole number, 0 or more")
    for section in given:
        if section not in (*SECTIONS, "seed"):
            wrong.append(unknown("section", section, (*SECTIONS, "seed")))
    for section in SECTIONS:
        part = given.get(section, {})
        if not isinstance(part, dict):
            wrong.append(f"{section} is {part!r}; it must be a section, say {section}.name=value")
            continue
        settings[section] = check_section(section, part, wrong)
    if not wrong:
        wrong += impossible(settings)
    if wrong:
        raise RecipeError("\n".join(wrong))
    return Recipe(settings)


def check_section(section: str, part: Settings, wrong: list[str]) -> Settings:
    try:
        name, known = known_fields(section, part)
    except (RecipeError, DataError, nets.NetError) as e:
        wrong.append(str(e))
        return dict(part)
    part, known = flat(section, part, known, wrong), dotted(known)
    out: Settings = {"name": name} if name is not None else {}
    given = {k: v for k, v in part.items() if name is None or k != "name"}
    renamed = {before: now for (where, before), now in RENAMED.items() if where == section}
    values, problems = checked(given, known, section, name or "", renamed)
    wrong += problems
    for key, value in values.items():
        merge_dotted(out, key, value)
    return out


def flat(section: str, part: Settings, known: dict[str, Field], wrong: list[str]) -> Settings:
    """A section's values, with those of nested settings under dotted names (agent.gamma)."""
    found: Settings = {}
    for key, value in part.items():
        if key not in known or not known[key].inner:
            found[key] = value
        elif isinstance(value, dict):
            found |= {f"{key}.{k}": v for k, v in value.items()}
        else:
            example = next(iter(known[key].inner))
            wrong.append(f"{section}.{key} is {value!r}; it must be a table, say {section}.{key}.{example}=…")
    return found


def merge_dotted(out: Settings, name: str, value: Any) -> None:
    """Put a value where its dotted name says: agent.gamma into the table `agent`."""
    *tables, last = name.split(".")
    for table in tables:
        out = out.setdefault(table, {})
    out[last] = value


def known_fields(section: str, part: Settings) -> tuple[str | None, dict[str, Field]]:
    """The section's name, if it has one, and what can be set in it."""
    if section in PLAIN:
        return None, fields_of(PLAIN[section])
    name = part.get("name", {"data": "digits", "net": "auto", "method": "fedavg"}[section])
    if not isinstance(name, str):
        raise RecipeError(f"{section}.name is {name!r}; it must be text")
    if section == "method":
        return name, fields_of(method_class(name))
    if section == "net":
        own = {} if name == "auto" else fields_of(nets.source(name))
        return name, {**own, **fields_of(StartSettings), **fields_of(LossSettings)}
    common, own = fields_of(data_sets.DataSettings), fields_of(data_sets.source(name))
    split = part.get("split", (own | common)["split"].default)
    if not isinstance(split, str):
        raise RecipeError(f"data.split is {split!r}; it must be text")
    return name, {**common, **fields_of(splits.source(split)), **own}


def impossible(s: Settings) -> list[str]:
    """Values that are right one by one and wrong together."""
    wrong, cohort = [], s["train"]["cohort"]
    if not (0 < cohort <= 1 or (cohort >= 2 and float(cohort).is_integer())):
        wrong.append(
            f"train.cohort is {cohort}; it must be a share (0 to 1) or a number of clients (2 and more)"
        )
    if min(s["train"]["patience"], *(s["engine"][k] for k in ("chunk", "workers", "actors"))) < 0:
        wrong.append("train.patience, engine.chunk, engine.workers and engine.actors must be 0 or more")
    wrong += without_ray(s["engine"])
    if s["train"]["by"] == "global" and s["method"]["name"] == "local":
        wrong.append("train.by is global, and the method local has no global model\nhint: train.by=personal")
    try:
        with_objects(method_class(s["method"]["name"]), s["method"])
    except ValueError as e:  # a nested setting refuses its own values
        wrong.append(f"method: {e}")
    return [
        *wrong,
        *without_effect(s["net"]),
        *impossible_guard(GuardSettings(**s["guard"])),
        *impossible_privacy(s),
        *impossible_texts(s),
    ]


def without_ray(engine: Settings) -> list[str]:
    """Settings of the engine ray that were given while another engine is asked for."""
    usual = EngineSettings()
    given = [k for k in ("inner", "address", "actors") if engine[k] != getattr(usual, k)]
    if engine["name"] == "ray" or not given:
        return []
    said = ", ".join(f"engine.{k} is {toml_value(engine[k])}" for k in given)
    return [f"{said}, and engine.name is {engine['name']}: only ray has it\nhint: engine.name=ray"]


def without_effect(net: Settings) -> list[str]:
    """Settings of one loss that were given while training is by another."""
    usual = LossSettings()
    return [
        f"net.{name} is {net[name]:g}, and net.loss is {net['loss']}: only {loss} has it\n"
        f"hint: net.loss={loss}, or leave net.{name} out"
        for name, loss in (("quantile", "quantile"), ("gamma", "focal"))
        if net["loss"] != loss and net[name] != getattr(usual, name)
    ]


# ---- writing ----


def to_toml(settings: Settings, command: str) -> str:
    """A recipe as TOML with a comment behind every value, and the command that runs it on top."""
    lines = [
        f"# {command}",
        "",
        f"seed = {settings['seed']}  # of initial weights, batches and cohorts; data.seed draws the split",
    ]
    for section in SECTIONS:
        part = settings[section]
        _, known = known_fields(section, part)
        lines += toml_table(section, part, known)
    return "\n".join(lines) + "\n"


def toml_table(name: str, part: Settings, known: dict[str, Field], about: str = "") -> list[str]:
    """A section, or the table of a nested setting below it."""
    tables = {k: v for k, v in part.items() if isinstance(v, dict)}
    rows = [
        (k, toml_value(v), known[k].comment if k in known else comment_on(name))
        for k, v in part.items()
        if k not in tables
    ]
    wide = max((len(f"{k} = {v}") for k, v, _ in rows), default=0)
    lines = ["", f"[{name}]" + (f"  # {about}" if about else "")]
    lines += [f"{k} = {v}".ljust(wide) + f"  # {c}" if c else f"{k} = {v}" for k, v, c in rows]
    for key, table in tables.items():
        lines += toml_table(f"{name}.{key}", table, known[key].inner, known[key].comment)
    return lines


def comment_on(section: str) -> str:
    listed: dict[str, Callable[[], list[str]]] = {
        "data": lambda: [*data_sets.names(), "a path", "module:function"],
        "net": lambda: ["auto", *nets.names(), "module:function"],
        "method": lambda: [*method_names(), "module:Class"],
    }
    return ", ".join(listed[section]())


def toml_value(v: Any) -> str:
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, list | tuple):
        return f"[{', '.join(map(toml_value, v))}]"
    if isinstance(v, Mapping):
        return f"{{{', '.join(f'{toml_value(k)} = {toml_value(part)}' for k, part in v.items())}}}"
    return json.dumps(v, ensure_ascii=False) if isinstance(v, str) else repr(v)
