"""Puts the documentation site together: `python docs/assemble.py build/docs`, then `mkdocs build --strict`.

Pages are the Markdown files of the repository, so that what people read beside the code and on the site is one text.
Their links are turned to where pages lie on the site. The reference is made from the settings' comments, the
commands' help and the docstrings. The result is plain Markdown: MkDocs needs no hooks for it, and Zensical reads it.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import sys
from contextlib import redirect_stdout, suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = {"README.md": "index.md"}
ALONE = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")  # pages of the root that are on the site
FOLDERS = ("experiments", "benchmarks")  # whose Markdown files are
COPIED = (".svg", ".png", ".ipynb")  # what pages link to, and is copied as it is
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)


def pages(root: Path = ROOT) -> dict[str, str]:
    """Paths in the repository, and where each lies on the site."""
    found = [*(root / "docs").rglob("*.md"), *(root / name for name in ALONE)]
    for folder in FOLDERS:
        found += [p for p in (root / folder).rglob("*.md") if ".envs" not in p.parts]
    there = {p.relative_to(root).as_posix(): p.relative_to(root).as_posix() for p in found}
    return HOME | {path: place.removeprefix("docs/") for path, place in there.items()}


def assemble(to: Path, root: Path = ROOT) -> list[str]:
    """Write the whole site's source; returns links that lead nowhere."""
    known, broken = pages(root), list[str]()
    shutil.rmtree(to, ignore_errors=True)
    for path, place in known.items():
        text = with_links(path, (root / path).read_text(), known, to, root, broken)
        write(to / place, text)
    for place, text in reference().items():
        write(to / place, text)
    return broken


def with_links(path: str, text: str, known: dict[str, str], to: Path, root: Path, broken: list[str]) -> str:
    """The text with links that hold on the site; code is left as it is."""

    def link(found: re.Match[str]) -> str:
        picture, label, target, anchor = found[1], found[2], found[3], found[4] or ""
        label = LINK.sub(link, label)
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        place = on_site(path, target, known, to, root)
        if place == "":  # a file that is not on the site, such as source code
            return label
        if place is None:
            broken.append(f"{path}: {target}")
            return label
        return f"{picture}[{label}]({place}{anchor})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("`") else LINK.sub(link, part) for part in parts)


def on_site(path: str, target: str, known: dict[str, str], to: Path, root: Path) -> str | None:
    """Where a link of a page leads on the site; "" if to a file beside it, None if to nothing."""
    there = os.path.normpath((Path(path).parent / target).as_posix())
    if (root / there).is_dir() and f"{there}/README.md" in known:
        there = f"{there}/README.md"
    if not (root / there).exists():
        return None
    place = known.get(there)
    if place is None and Path(there).suffix in COPIED:
        place = there.removeprefix("docs/")
        (to / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / there, to / place)
    return "" if place is None else os.path.relpath(place, Path(known[path]).parent)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# ---- reference ----


def reference() -> dict[str, str]:
    return {
        "reference/recipe.md": recipe_page(),
        "reference/methods.md": methods_page(),
        "reference/commands.md": commands_page(),
        "reference/python.md": PYTHON,
    }


PYTHON = """# Python

What `import motet` gives. Everything else may move.

::: motet.advise
::: motet.run
::: motet.compare
::: motet.verify
::: motet.forget

## What they give back

::: motet.advice.advise.Advice
::: motet.runs.run.Run
::: motet.report.comparison.Comparison
::: motet.runs.callback.RoundEnd
::: motet.runs.predict.Model

## A method of one's own

::: motet.core.Method
::: motet.core.Ask
::: motet.core.Turn
::: motet.core.average
::: motet.core.collect
::: motet.core.verb
::: motet.client.task.Task
::: motet.client.data.Data
::: motet.client.data.Batch
::: motet.vec.Vec

## Data by a function

::: motet.data.federated.Pool
::: motet.data.federated.FederatedData

## Stacks of models

::: motet.stacking.estimators.StackedClassifier
::: motet.stacking.estimators.StackedRegressor

## Errors

::: motet.errors
"""


def recipe_page() -> str:
    """Every setting of a run of FedAvg, with its comment."""
    from motet.runs import recipe as recipes

    text = recipes.read(None, ["method=fedavg", "data=digits"]).toml()
    head = "# Settings of a run\n\nWhat `motet recipe` prints, for FedAvg on digits. Other methods, data sets and "
    more = "networks have settings of their own: `motet recipe method=ditto data=wine`, and [methods](methods.md)."
    return f"{head}{more}\n\n```toml\n{text}```\n"


def methods_page() -> str:
    """Each method's docstring and settings."""
    from motet.runs import recipe as recipes

    parts = [
        "# Methods and their settings\n\nWhat each does beside the others: [the guide](../guides/methods.md).\n"
    ]
    for name in recipes.method_names():
        found = sys.modules[recipes.method_class(name).__module__]
        about = (found.__doc__ or "").strip()
        text = recipes.read(None, [f"method={name}", "data=digits"]).toml()
        section = re.search(r"^\[method\].*?(?=^\[(?!method)|\Z)", text, re.DOTALL | re.MULTILINE)
        parts.append(
            f"## {name}\n\n```text\n{about}\n```\n\n```toml\n{section[0].strip() if section else ''}\n```\n"
        )
    return "\n".join(parts)


def commands_page() -> str:
    """`--help` of every command and of those below it."""
    from motet.cli.main import parser

    parts = ["# Commands\n"]
    for words, found in commands(parser(), ("motet",)):
        parts.append(f"{'#' * min(len(words) + 1, 4)} {' '.join(words)}\n\n```text\n{help_of(found)}```\n")
    return "\n".join(parts)


def commands(top: argparse.ArgumentParser, words: tuple[str, ...]):
    yield words, top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, found in action.choices.items():
                yield from commands(found, (*words, name))


def help_of(found: argparse.ArgumentParser) -> str:
    os.environ["COLUMNS"] = "100"
    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        found.print_help()
    return out.getvalue()


if __name__ == "__main__":
    lost = assemble(Path(sys.argv[1]))
    if lost:
        sys.exit("links that lead nowhere:\n" + "\n".join(lost))
