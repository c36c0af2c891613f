"""Several methods and seeds on the same data. Runs that are already done are used as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from motet.runs import recipe as recipes
from motet.runs.build import resolve
from motet.runs.recipe import Recipe, RecipeError, Settings
from motet.runs.run import RunError, folder_for, run
from motet.runs.trainer import Observer
from motet.settings import Field
from motet.text import unknown

STANDARD = ("local", "fedavg", "fedprox", "ditto", "finetune", "centralised")
REFERENCES = ("local", "fedavg")  # gains are measured against these, so they always run


def plan(
    source: str | Path | None,
    words: Iterable[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    more: Settings | None = None,
) -> list[Recipe]:
    """A recipe for every method and seed. `method.lr=…` is for all that have an lr, `fedprox.mu=…` for one."""
    words = list(words)
    check_plural(recipes.gathered(None, words))
    settings = recipes.gathered(source, words, more)
    wanted = list(dict.fromkeys([*methods, *REFERENCES]))
    special = {m: settings.pop(m, {}) for m in recipes.method_names()}
    shared = dict(settings.pop("method", {}))
    shared.pop("name", None)
    known = {m: recipes.known_fields("method", {"name": m})[1] for m in wanted}
    if stray := [k for k in shared if not any(k in fields for fields in known.values())]:
        everything = {k for fields in known.values() for k in fields}
        raise RecipeError("\n".join(unknown("setting", f"method.{k}", everything, k) for k in stray))
    return [recipe_for(settings, m, special.get(m, {}), shared, known[m], s) for s in seeds for m in wanted]


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


def recipe_for(
    settings: Settings, name: str, special: Settings, shared: Settings, known: Mapping[str, Field], seed: int
) -> Recipe:
    fitting = {k: v for k, v in shared.items() if k in known}
    train = dict(settings.get("train", {}))
    if name == "local":
        train.pop("by", None)  # it has no global model to go by
    return recipes.check(
        settings | {"method": {"name": name} | fitting | special, "train": train, "seed": seed}
    )


def compare(
    recipes_: Sequence[Recipe],
    base: str | Path = "runs",
    observer: Callable[[Recipe, int, int], Observer] | None = None,
    failed: Callable[[Recipe, str], None] | None = None,
) -> list[Path]:
    """Run them all, and return their folders. One that fails says so, and the others go on."""
    folders = []
    for i, recipe in enumerate(recipes_):
        shown = observer(recipe, i, len(recipes_)) if observer else None
        folder, failure = run_one(recipe, base, shown)
        if failure and failed:
            failed(recipe, failure)
        folders.append(folder)
    return folders


def run_one(recipe: Recipe, base: str | Path, observer: Observer | None) -> tuple[Path, str]:
    """The run's folder, and why it failed if it did. Its data and network are forgotten on return."""
    resolved = resolve(recipe)
    folder = folder_for(resolved, base)
    try:
        run(resolved, folder, observer)
    except RunError as e:
        if not (folder / "run.sqlite").exists():
            raise
        return folder, str(e)
    return folder, ""
