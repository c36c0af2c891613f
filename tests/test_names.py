"""One name, one meaning; a module is a subject; methods that share little: measured in the sources.

There is no limit on lines. What is counted is how many places a reader has to open: modules that one other module
imports, and helpers that one place calls. Both ceilings only fall.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "motet"
METHODS = SOURCE / "methods"

# A name may occur twice where both mean the same thing in two places.
FILES_TWICE = {"__init__.py": "Python's name for what a package says of itself"}
CLASSES_TWICE: dict[str, str] = {}
FILE_AND_FOLDER = {
    "stacking.py": "the method, and what builds its stacks",
    "data.py": "one client's examples, and where all clients' examples come from",
    "flare.py": "the engine that sends letters by NVIDIA FLARE, and NVIDIA FLARE's processes",
}


def sources() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def twice(named: Iterator[tuple[str, str]], allowed: dict[str, str]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for name, place in named:
        found[name].append(place)
    return {n: places for n, places in found.items() if len(places) > 1 and n not in allowed}


def classes(path: Path) -> list[ast.ClassDef]:
    return [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)]


def test_no_file_name_occurs_twice() -> None:
    assert twice(((p.name, relative(p)) for p in sources()), FILES_TWICE) == {}


def test_no_file_is_called_as_a_folder_is() -> None:
    folders = {p.parent.name for p in SOURCE.rglob("*/__init__.py")}
    assert {p.name for p in sources() if p.stem in folders} == set(FILE_AND_FOLDER)


def test_no_class_name_occurs_twice() -> None:
    named = ((c.name, relative(p)) for p in sources() for c in classes(p))
    assert twice(named, CLASSES_TWICE) == {}


# ---- places to open ----

SUBJECTS = ("methods/", "data/sets/", "nets/")  # found by name: nobody imports them, or one registry does
MOST_WITH_ONE_IMPORTER = 130
MOST_CALLED_ONCE = 1345


def module_name(path: Path) -> str:
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.Module) -> set[str]:
    """Modules of ours that a file names in its imports, without `motet.`; some are names inside a module."""
    found = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{a.name}" for a in node.names}
    return {name.removeprefix("motet.") for name in found if name.startswith("motet.")}


def with_one_importer(trees: dict[Path, ast.Module]) -> list[str]:
    """Modules that one other module imports and that are found in no other way: should they be in it?"""
    importers = Counter(name for p, tree in trees.items() for name in imported(tree) - {module_name(p)})
    modules = [p for p in trees if p.name != "__init__.py" and not relative(p).startswith(SUBJECTS)]
    return [relative(p) for p in modules if importers[module_name(p)] == 1]


def called_once(trees: dict[Path, ast.Module]) -> list[str]:
    """Functions and methods without decorators whose name stands in one place beside its definition."""
    nodes = [(p, n) for p, tree in trees.items() for n in ast.walk(tree)]
    used = Counter(n.id for _, n in nodes if isinstance(n, ast.Name))
    used += Counter(n.attr for _, n in nodes if isinstance(n, ast.Attribute))
    defined = [(p, n) for p, n in nodes if isinstance(n, ast.FunctionDef) and not n.decorator_list]
    many = Counter(n.name for _, n in defined)
    return [f"{relative(p)}: {n.name}" for p, n in defined if many[n.name] == 1 and used[n.name] == 1]


def test_few_modules_are_imported_by_one_other_module() -> None:
    found = with_one_importer({p: ast.parse(p.read_text()) for p in sources()})
    assert len(found) <= MOST_WITH_ONE_IMPORTER, "\n".join(found)


def test_few_helpers_are_called_in_one_place() -> None:
    found = called_once({p: ast.parse(p.read_text()) for p in sources()})
    assert len(found) <= MOST_CALLED_ONCE, "\n".join(found)


def test_the_measures_of_places_to_open() -> None:
    trees = {
        SOURCE / "a.py": ast.parse("from motet import core\nfrom motet.b import f\nf()"),
        SOURCE / "b.py": ast.parse("import motet.core\ndef f(): g(); h(); h()\ndef g(): ...\ndef h(): ..."),
        SOURCE / "core.py": ast.parse("def k(): ..."),
    }
    assert with_one_importer(trees) == ["b.py"]  # a and b import core, nobody imports a
    assert called_once(trees) == ["b.py: f", "b.py: g"]


# ---- methods ----


def without_docstrings(tree: ast.Module) -> set[int]:
    """The lines that docstrings stand in."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)]
    strings = [n.body[0] for n in nodes if n.body and ast.get_docstring(n) is not None]
    return {line for s in strings for line in range(s.lineno, (s.end_lineno or s.lineno) + 1)}


def code_lines(path: Path) -> list[str]:
    """Lines of code without imports, docstrings, comments and blank lines."""
    text = path.read_text()
    tree = ast.parse(text)
    skipped = without_docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    used = {n for t in tokens if t.type not in blank for n in range(t.start[0], t.end[0] + 1) if t.string}
    return [line.strip() for n, line in enumerate(text.splitlines(), 1) if n in used - skipped]


def shared(files: list[list[str]], block: int = 5) -> float:
    """The share of lines that stand in a block of so many lines which occurs in more than one place."""
    blocks = [[tuple(lines[i : i + block]) for i in range(len(lines) - block + 1)] for lines in files]
    many = Counter(b for of_file in blocks for b in of_file)
    equal = 0
    for lines, of_file in zip(files, blocks, strict=True):
        starts = [i for i, b in enumerate(of_file) if many[b] > 1]
        equal += len({i + k for i in starts for k in range(block)} & set(range(len(lines))))
    return equal / sum(map(len, files))


def test_methods_share_less_than_five_percent_of_their_lines() -> None:
    assert shared([code_lines(p) for p in sorted(METHODS.glob("*.py"))]) < 0.05


def test_the_measure_of_shared_lines() -> None:
    one, other = list("abcdefgh"), list("xabcdey")
    assert shared([one, other]) == 10 / 15  # a to e, in both
    assert shared([one, list("abcd")]) == 0  # four lines are no block


def test_the_measure_of_code_lines(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        '"""Words."""\n\nimport os\n\n\ndef f(x):\n    """More."""\n    # why\n    return x  # y\n'
    )
    assert code_lines(file) == ["def f(x):", "return x  # y"]
