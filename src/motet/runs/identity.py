"""What a run is made of, in named pieces: settings, data, the user's own code, motet and torch. With public models
also the libraries that make them, and the models in an outbox.

Two runs with equal pieces give the same result. A folder that holds another run says which piece differs, and
how, as far as it can be shown.
Knows recipes, code and versions. Does not know folders, and does not run anything.
"""

from __future__ import annotations

import inspect
import json
import platform
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from motet.data.code_digest import digest, is_own_module
from motet.runs.recipe import PLACES, Recipe, RecipeError, method_class, toml_value
from motet.runs.versions import OF_MODELS, source_digest, versions
from motet.settings import SESSION, import_named

Pieces = dict[str, Any]  # piece: a hash or a version; for code a dict, object: hash
_NAMED = re.compile(r"(?:session:[\w.-]+|[^\W\d][\w.]*:[^\W\d]\w*)$")
_EARLIER = "it was made by an earlier version of motet, which did not write down what code made a run"


def pieces_of(recipe: Recipe, fingerprint: str = "") -> Pieces:
    """The pieces of a resolved recipe on data with this fingerprint."""
    return {
        "settings": recipe.identity(),
        "data": fingerprint,
        "code": code_of(recipe),
        "motet": f"{versions()['motet']} (source {source_digest()[:12]})",
        "torch": torch.__version__,
        **({"libraries": used} if (used := libraries_of(recipe)) else {}),
        **({"outbox": files} if (files := outbox_files(recipe)) else {}),
    }


def libraries_of(recipe: Recipe) -> dict[str, str]:
    """Versions of the libraries that fit, convert and run public models, for methods that have such."""
    public = method_class(recipe["method"]["name"]).has_public_models
    return {name: versions()[name] for name in OF_MODELS} if public else {}


def outbox_files(recipe: Recipe) -> dict[str, str]:
    """sha256 of each model and manifest that clients of a simulation publish: a file may change and keep its name."""
    folder = str(recipe["method"].get("outbox") or "")
    files = sorted(Path(folder).glob("*")) if folder else []
    return {p.name: sha256(p.read_bytes()).hexdigest() for p in files if p.suffix in (".onnx", ".json")}


def whole(pieces: Pieces) -> str:
    """One hash of all pieces."""
    return sha256(json.dumps(pieces, sort_keys=True).encode()).hexdigest()


# ---- code ----


def code_of(recipe: Recipe) -> dict[str, str]:
    """A digest of each function and class, but motet's, that a setting names. Data count by their content."""
    found: dict[str, str] = {}
    for label, thing in own_things({k: v for k, v in recipe.settings.items() if k != "data"}):
        found[label] = digest(thing) if label not in found else digest(found[label], thing)
    return found


def code_record(recipe: Recipe, digests: Mapping[str, str]) -> list[dict[str, str]]:
    """Whose code a run is made of: name, module, file and digest of all code but motet's, that of the data too.
    `digests` are those of `code_of`."""
    return [
        {
            "name": label,
            "module": str(getattr(thing, "__module__", "")),
            "file": place_of(thing),
            "digest": digests.get(label) or digest(thing),
        }
        for label, thing in own_things(recipe.settings)
    ]


def own_things(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each function and class, but motet's, that a setting names, with its label."""
    for word in sorted({w for _, value in flat(settings) for w in named_code(value)}):
        try:
            thing = import_named(word, RecipeError)
        except RecipeError:
            continue  # text that only looks like a name; where code is needed, its absence is an error
        if word.startswith(SESSION) or not _is_motets(thing):
            yield label_of(word), thing


def place_of(thing: Any) -> str:
    """The file that code was read from, relative to the current folder if it lies there; "" if there is none."""
    try:
        path = Path(inspect.getfile(inspect.unwrap(thing))).resolve()
    except (TypeError, ValueError, OSError):  # built in, or made in a notebook
        return ""
    here = Path.cwd().resolve()
    if not path.is_file():
        return ""
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _is_motets(thing: Any) -> bool:
    name = str(getattr(thing, "__module__", ""))
    return name.partition(".")[0] == "motet" and not is_own_module(name)


def named_code(value: Any) -> list[str]:
    """`module:name` or code of this session in a setting, perhaps with options behind it ("mine:net width=2")."""
    words = value.replace("+", " ").split()[:1] if isinstance(value, str) else []
    return [w for w in words if _NAMED.match(w)]


def label_of(word: str) -> str:
    """A name of code that stays the same when the code changes."""
    return word.removeprefix(SESSION).rpartition("-")[0] if word.startswith(SESSION) else word


# ---- what differs ----


def changes(facts: Mapping[str, Any], recipe: Recipe, pieces: Pieces) -> list[str]:
    """Which pieces differ from those of the run with these facts, and how; nothing if it is the same run."""
    if "identity_pieces" not in facts:
        return [_EARLIER, *changed_settings(Recipe(facts["settings"]), recipe)]
    before: Pieces = facts["identity_pieces"]
    found = []
    if before["settings"] != pieces["settings"]:
        found += changed_settings(Recipe(facts["settings"]), recipe)
    if before["data"] != pieces["data"]:
        found.append(f"data: the rows of {recipe['data']['name']}, or weights to start from, changed")
    found += changed_code(before["code"], pieces["code"], facts.get("versions", {}))
    found += changed_outbox(before.get("outbox", {}), pieces.get("outbox", {}))
    found += changed_versions(before, pieces)
    return found or ([] if whole(before) == whole(pieces) else ["settings: they differ"])


def changed_settings(before: Recipe, now: Recipe) -> list[str]:
    """Settings that may change a result and have another value, a line for each."""
    old, new = dict(flat(_resulting(before))), dict(flat(_resulting(now)))
    names = [
        k for k in {**old, **new} if old.get(k) != new.get(k) and not _same_label(old.get(k), new.get(k))
    ]
    return [f"settings: {k} is {_shown(new, k)}, and was {_shown(old, k)}" for k in names]


def _resulting(recipe: Recipe) -> dict[str, Any]:
    engine = {k: v for k, v in recipe["engine"].items() if k not in PLACES} | {"device": recipe.device_kind}
    engine = engine if recipe.engine.name == "ray" else engine | {"inner": "auto"}
    return {k: v for k, v in recipe.settings.items() if k != "save"} | {"engine": engine}


def _same_label(old: Any, new: Any) -> bool:
    """Code of a session that changed its name because it changed: that is said of the code."""
    both = [v for v in (old, new) if isinstance(v, str) and v.startswith(SESSION)]
    return len(both) == 2 and label_of(both[0]) == label_of(both[1])


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return toml_value(settings[name]) if name in settings else "not set"


def changed_code(before: dict[str, str], now: dict[str, str], versions: Mapping[str, str]) -> list[str]:
    python, here = versions.get("python", ""), platform.python_version()
    other = python.split(".")[:2] != here.split(".")[:2] and python
    why = f" (or only looks so: this is Python {here}, and it was {python})" if other else ""
    names = [k for k in {**before, **now} if before.get(k) != now.get(k)]
    said = {k: "changed" if k in before and k in now else "is new" if k in now else "is gone" for k in names}
    return [f"code: {k}, or code that it uses, changed{why}" if s == "changed" else f"code: {k} {s}"
            for k, s in said.items()]  # fmt: skip


def changed_versions(before: Pieces, now: Pieces) -> list[str]:
    """Which versions differ: of motet and torch, and of libraries that make public models."""
    old, new = before.get("libraries", {}), now.get("libraries", {})
    pairs = {n: (before[n], now[n]) for n in ("motet", "torch")}
    pairs |= {n: (old.get(n, "not written down"), version) for n, version in new.items()}
    return [f"{n}: it is {b}, and was {a}" for n, (a, b) in pairs.items() if a != b]


def changed_outbox(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Which models and manifests in method.outbox differ."""
    names = sorted(k for k in {**before, **now} if before.get(k) != now.get(k))
    said = {k: "changed" if k in before and k in now else "is new" if k in now else "is gone" for k in names}
    return [f"outbox: {k} {s}" for k, s in said.items()]


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their full names: method.agent.gamma."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
