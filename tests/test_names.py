"""One name, one meaning; short files and functions; methods that share little: measured in the sources."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

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


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Every function and its length in lines, decorators and docstring included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield node.name, (node.end_lineno or first) - first + 1


def test_no_file_name_occurs_twice() -> None:
    assert twice(((p.name, relative(p)) for p in sources()), FILES_TWICE) == {}


def test_no_file_is_called_as_a_folder_is() -> None:
    folders = {p.parent.name for p in SOURCE.rglob("*/__init__.py")}
    assert {p.name for p in sources() if p.stem in folders} == set(FILE_AND_FOLDER)


def test_no_class_name_occurs_twice() -> None:
    named = ((c.name, relative(p)) for p in sources() for c in classes(p))
    assert twice(named, CLASSES_TWICE) == {}


@pytest.mark.parametrize("path", sources(), ids=relative)
def test_a_file_has_at_most_400_lines_and_a_function_at_most_40(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400
    assert {name: lines for name, lines in functions(path) if lines > 40} == {}


def test_half_of_all_functions_have_at_most_six_lines() -> None:
    assert median(lines for p in sources() for _, lines in functions(p)) <= 6


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


@pytest.mark.parametrize("name", ["page", "pfa", "fedperc", "swarm", "stacking"])
def test_a_papers_own_method_has_at_most_90_lines_of_code(name: str) -> None:
    assert len(code_lines(METHODS / f"{name}.py")) <= 90


def test_half_of_all_methods_have_at_most_30_lines_of_code() -> None:
    files = [p for p in METHODS.glob("*.py") if p.name != "__init__.py"]
    assert median(len(code_lines(p)) for p in files) <= 30


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
    assert dict(functions(file)) == {"f": 4}
