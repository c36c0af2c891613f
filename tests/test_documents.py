"""What documents show is true: code is the files' code, examples run, links and paths exist, commands parse."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

import motet
from motet.cli.main import main
from motet.runs import recipe as recipes

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "motet"


def documents() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").rglob("*.md")]
    return sorted([*found, *(ROOT / "benchmarks").glob("*.md"), *(ROOT / "benchmarks/results").glob("*.md")])


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(document: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


def block_with(document: str, line: str) -> str:
    return next(b for b in blocks(ROOT / document) if line in b)


# ---- code ----


class Bare(ast.NodeTransformer):
    """Leaves out docstrings and the types of parameters and results."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        for argument in [*node.args.args, *node.args.kwonlyargs]:
            argument.annotation = None
        return self.without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return self.without_docstring(node)

    def without_docstring(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return node


def bare(text: str, name: str) -> str:
    """A class of some code, without docstrings, comments and types."""
    tree = ast.parse(text)
    found = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
    return ast.unparse(Bare().visit(found))


@pytest.mark.parametrize(("document", "name"), [("README.md", "FedProx"), ("CONTRIBUTING.md", "Ditto")])
def test_a_method_that_a_document_shows_is_the_files(document: str, name: str) -> None:
    shown = block_with(document, f"class {name}(")
    file = SOURCE / "methods" / f"{name.lower()}.py"
    assert bare(shown, name) == bare(file.read_text(), name)


def test_the_excerpt_of_fedavg_is_the_files() -> None:
    shown = ast.parse(bare(block_with("docs/architecture.md", "class FedAvg("), "FedAvg")).body[0]
    file = ast.parse(bare((SOURCE / "methods" / "fedavg.py").read_text(), "FedAvg")).body[0]
    there = {ast.unparse(n) for n in file.body}
    assert {ast.unparse(n) for n in shown.body} <= there


def test_the_examples_for_contributors_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = {
        "ditto_example": "class Ditto(",
        "iris_example": "def load(",
        "net_example": "def bottleneck(",
    }
    for module, line in examples.items():
        (tmp_path / f"{module}.py").write_text(block_with("CONTRIBUTING.md", line))
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run = motet.run(
        method="ditto_example:Ditto",
        data={"name": "iris_example:load", "petals_only": True, "clients": 3, "unseen": 0.0},
        net={"name": "net_example:bottleneck", "width": 4},
        rounds=1,
        out=tmp_path / "run",
    )
    assert run.test["client"].nunique() == 3 and run.test["accuracy"].notna().all()


def test_two_models_in_one_descent_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = block_with("CONTRIBUTING.md", "def two_losses(")
    head = (
        "from motet.core import verb\nfrom motet.methods.ditto import Ditto\nfrom motet.vec import Vec\n\n\n"
    )
    (tmp_path / "two_example.py").write_text(f"{head}class Two(Ditto):\n{indent(dedent(shown), '    ')}")
    monkeypatch.delitem(sys.modules, "two_example", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run = motet.run(method="two_example:Two", data="wine", rounds=1, out=tmp_path / "run")
    assert run.test["accuracy"].notna().all()


@pytest.mark.parametrize("path", documents(), ids=relative)
def test_code_in_documents_is_python_and_imports_what_is_there(path: Path) -> None:
    for block in blocks(path):
        for node in ast.walk(ast.parse(dedent(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "motet":
                exec(f"from {node.module} import {', '.join(a.name for a in node.names)}", {})


def test_the_guide_to_methods_has_every_method_and_the_readme_their_number() -> None:
    guide = (ROOT / "docs/guides/methods.md").read_text()
    named = {
        name
        for row in re.findall(r"^\| (`.*?) \|", guide, re.MULTILINE)
        for name in re.findall("`(\\w+)`", row)
    }
    assert named == set(recipes.method_names())
    assert f"There are {len(named)} methods" in (ROOT / "README.md").read_text()


def test_the_guide_to_methods_says_which_setting_is_tuned() -> None:
    guide = (ROOT / "docs/guides/methods.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\S+) \|$", guide, re.MULTILINE)
    said = {name: tuned.strip("`–") for name, tuned in rows}
    assert said == {name: recipes.method_class(name).strength for name in said} and len(said) > 30


# ---- links and paths ----


@pytest.mark.parametrize("path", documents(), ids=relative)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text())
    near = [link for link in links if not link.startswith(("http:", "https:", "mailto:"))]
    assert [link for link in near if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", documents(), ids=relative)
def test_files_that_are_named_exist(path: Path) -> None:
    """`engines/loop.py` is a file of the package or of the repository; `loop.py` alone is not checked."""
    named = re.findall(r"`((?:[a-z_0-9-]+/)+[A-Za-z_0-9-]+\.(?:py|md|toml))`", path.read_text())
    places = (SOURCE, ROOT, path.parent)
    assert [file for file in named if not any((place / file).exists() for place in places)] == []


# ---- commands ----

# A reader's own files, and words to be replaced such as SEED.
PLACEHOLDER = re.compile(r"patients\.csv|my\.toml|my_module|runs/|data=\w+/|…|\b[A-Z]{3,}\b")


def commands(path: Path) -> list[str]:
    """Lines of `motet ...` that a reader would copy, without comments and redirections."""
    text = re.sub(r"\\\n\s*", " ", path.read_text())
    lines = re.findall(r"^ {4}(motet .*)$", text, re.MULTILINE)
    return [re.split(r"\s+#|\s{3,}| > ", line)[0].strip() for line in lines]


SHOWN = [(relative(p), c) for p in documents() for c in commands(p)]


@pytest.mark.parametrize(("document", "command"), SHOWN)
def test_settings_of_a_command_are_valid(document: str, command: str) -> None:
    words = shlex.split(command)
    behind = [w for before, w in zip(words[1:], words[2:], strict=False) if before != "--grid"]
    settings = [w for w in behind if re.match(r"[a-z_]+(\.[a-z_]+)*=", w)]
    if words[1] not in ("run", "compare", "recipe") or PLACEHOLDER.search(command):
        return
    recipes.read(None, settings)


@pytest.mark.parametrize("command", sorted({" ".join(c.split()[:2]) for _, c in SHOWN}))
def test_a_command_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command.split()[1], "--help"])
    assert ended.value.code == 0 and capsys.readouterr().out
