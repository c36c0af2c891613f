"""A process that answers the dashboard's questions: those that need torch or the command line's checks.

It reads a JSON object from each line of stdin, and writes one to stdout. It ends when stdin does. Nothing that it is
asked trains or changes a run.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from motet.errors import MotetError

Answer = dict[str, Any]
_LARGEST = 1_000_000  # bytes of a recipe that lies in a folder


def main() -> None:
    """Answer until nobody asks any more. What libraries print must not be taken for an answer."""
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        out.write(json.dumps(answer(json.loads(line)), default=str) + "\n")
        out.flush()


def answer(question: Mapping[str, Any]) -> Answer:
    try:
        return {"answer": ANSWERS[question["ask"]](**question.get("with", {}))}
    except (MotetError, OSError) as e:
        return {"error": str(e)}
    except Exception as e:  # noqa: BLE001 a bug: the page says so, and the process goes on answering
        return {"error": f"{type(e).__name__}: {e}"}


# ---- recipes ----


def recipe_fields(names: Mapping[str, str], split: str = "", stranger: bool = False) -> list[Answer]:
    """What can be set, section by section, for these data, network and method. A `stranger` has no token, and may name
    motet's own alone: nothing is said of files."""
    from motet import nets
    from motet.data import load, splits
    from motet.runs import recipe as recipes
    from motet.settings import dotted

    there = {"data": load.names(), "net": ["auto", *nets.names()], "method": recipes.method_names()}
    own = {**there, "data.split": splits.names()}
    asked = {**names, "data.split": split or "auto"}
    if stranger and (odd := [k for k in asked if asked[k] not in (*own[k], "auto")]):
        raise MotetError(
            f"{odd[0]} is {asked[odd[0]]!r}, which is not among motet's own; a form for it needs the token\n"
            "hint: sign in with it first"
        )
    found = []
    for section in recipes.SECTIONS:
        part = {"name": names[section]} if section in names else {}
        part |= {"split": split} if section == "data" and split else {}
        name, known = recipes.known_fields(section, part)
        rows = [form_field(f"{section}.{k}", f) for k, f in dotted(known).items()]
        for row in rows:
            if row["name"] == "data.split":
                row["choices"] = ["auto", *(s for s in splits.names() if s != "auto")]
        found.append({"section": section, "name": name, "names": there.get(section, []), "fields": rows})
    return found


def form_field(name: str, field: Any) -> Answer:
    """One field of a form: what may be chosen, its default as people write it, and its comment."""
    from motet.runs.recipe import toml_value

    choices = [str(c) for c in get_args(field.type)] if get_origin(field.type) is Literal else []
    if field.type is bool:
        choices = ["true", "false"]
    default = field.default if isinstance(field.default, str) else toml_value(field.default)
    return {"name": name, "choices": choices, "default": default, "comment": field.comment}


def check_run(words: Sequence[str]) -> Answer:
    """The recipe of a run, as the command line checks it: all that is wrong, or its text and name."""
    from motet.runs import recipe as recipes

    refuse_code(words)
    recipe = recipes.read(None, words)
    data = Path(recipe["data"]["name"].replace(":", "-")).stem
    name = f"{data}-{recipe['method']['name']}-seed{recipe.seed}-{recipe.identity()[:8]}"
    return {"recipe": recipe.toml(), "name": name}


def check_study(words: Sequence[str], methods: Sequence[str], seeds: str, splits: str, base: str) -> Answer:
    """A study's runs and the name of its record, as `motet compare` would have them."""
    from motet.runs import study as studies
    from motet.runs.run_study import record_of

    refuse_code([*words, *methods])
    asked = studies.Asked(methods, {}, seeds or None, splits or None)
    study = studies.read(None, words, asked)
    record = record_of(study, Path(base), tuning=False)
    return {"jobs": record.jobs, "name": record.name, "why": study.why}


def resumed(recipe: str = "", study: Answer | None = None) -> str:
    """The text of a recipe that lies in a run's folder, or a file of the study that a record describes. Neither may
    name code: both may be a stranger's."""
    from motet.runs.recipe_text import parse
    from motet.runs.study import as_file
    from motet.trusted_code import code_in

    command, text = "give its command again where it was started", ""
    if recipe:
        command = shlex.join(["motet", "run", recipe, "--out", str(Path(recipe).parent)])
        with open(recipe, "rb") as opened:
            raw = opened.read(_LARGEST + 1)
        try:
            if len(raw) > _LARGEST:
                raise ValueError(f"it has more than {_LARGEST:,} bytes")
            study = parse(text := raw.decode())
        except ValueError as e:
            raise MotetError(f"{recipe} is no recipe: {e}") from None
    if named := code_in(study):
        raise MotetError(
            f"it names code, {', '.join(named)}, which the dashboard does not start\n"
            f"hint: it goes on at the command line: {command}"
        )
    return text or as_file(study or {})


def refuse_code(words: Sequence[str]) -> None:
    """Names of code (module:name) run code; a form in a browser may not choose any."""
    from motet.runs.recipe_text import RecipeError, parse_word
    from motet.trusted_code import names_in

    said = [parse_word(w) if "=" in w else {"method": {"name": w}} for w in words]
    if named := names_in(said):
        raise RecipeError(
            f"{', '.join(named)} names code, which the dashboard does not start\nhint: start it on the command line"
        )


def export_model(folder: str, client: str, form: str, to: str) -> Answer:
    """A client's model in a file; code that the folder names is not run."""
    from motet.runs.export import export

    return {"file": str(export(Path(folder), client, form, Path(to)))}


def export_file(file: str, to: str) -> Answer:
    """A model's own file as ONNX."""
    from motet.runs.export import to_onnx

    to_onnx(Path(file), Path(to))
    return {"file": to}


# ---- federations ----


def federation_runs(kit: str) -> Answer:
    """How a federation's runs go, as the files at its server say."""
    from msgspec.structs import asdict

    from motet.deploy.flare.kits import open_kit
    from motet.deploy.server.run_files import is_driven, read_report

    opened = open_kit(kit, "server")
    folders = sorted(p for p in opened.runs.glob("*") if p.is_dir()) if opened.runs.is_dir() else []
    return {p.name: asdict(read_report(p)) | {"driven": is_driven(p)} for p in folders}


def server_status(kit: str) -> Answer:
    """Who is there, as the server says now."""
    from motet.deploy.flare.kits import open_kit
    from motet.deploy.server.status import read_status

    return read_status(open_kit(kit, "server"))


def site_ledger(kit: str, last: int = 200) -> Answer:
    """What left a site and what it refused: sums by run, and the last lines."""
    from msgspec import to_builtins

    from motet.deploy.flare.kits import open_kit
    from motet.deploy.site.ledger import asked, fate, read_ledger

    lines, damage = read_ledger(open_kit(kit, "site").folder / "kept")
    runs: dict[str, Answer] = {}
    for line in lines:
        row = runs.setdefault(
            line.run, {"left": 0, "bytes": 0, "numbers": 0, "refused": 0, "rounds": 0, "epsilon": 0.0}
        )
        row["refused" if line.clause else "left"] += 1
        row["bytes"] += 0 if line.clause else line.bytes
        row["numbers"] += line.numbers
        row["epsilon"] += 0.0 if line.again else line.epsilon
        row["rounds"] = max(row["rounds"], line.round + 1)
    shown = [to_builtins(x) | {"asked": asked(x), "fate": fate(x)} for x in lines[-last:][::-1]]
    return {"runs": runs, "lines": shown, "many": len(lines), "damage": damage}


ANSWERS: dict[str, Callable[..., Any]] = {
    "recipe_fields": recipe_fields,
    "check_run": check_run,
    "check_study": check_study,
    "resumed": resumed,
    "export_model": export_model,
    "export_file": export_file,
    "federation_runs": federation_runs,
    "server_status": server_status,
    "site_ledger": site_ledger,
}

if __name__ == "__main__":
    main()
