"""Brings modules of motet together by a list, and rewrites every reference to them.

    python tools/merge_modules.py tools/merges.json            # the whole list
    python tools/merge_modules.py tools/merges.json --only data   # groups whose module lies in data/

The list has groups: `to`, the module that there will be; `from`, the modules that go into it; `rename`, names that two
of them have; `prefer`, where a name is imported from if two modules offer it. A group loses modules with which imports
would run in a circle. Parts stand in the order in which they need each other, each below its old docstring. Nothing is
written while two parts define the same name. Afterwards: ruff check --fix, ruff format, mypy, tools/proof.py.
Goes when the house is rebuilt.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "motet"
Group = dict[str, Any]
Renames = Mapping[str, str]
Attributes = Mapping[str, Callable[[str], str]]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
WRITTEN = {".py", ".md", ".toml", ".yml", ".html", ".cfg", ".sh", ".service", ""}  # files that name modules


def path_of(module: str) -> Path:
    path = SOURCE / Path(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# ---- which modules may go together ----


def imports() -> dict[str, set[str]]:
    """Of each module those that it imports at its top."""
    names = {p: ".".join(p.relative_to(SOURCE).with_suffix("").parts) for p in SOURCE.rglob("*.py")}
    modules = {name: p for p, name in names.items() if not name.endswith("__init__")}
    found: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "motet":
                package = (node.module or "").removeprefix("motet").lstrip(".")
                for alias in node.names:
                    inner = f"{package}.{alias.name}".lstrip(".")
                    target = inner if inner in modules else package
                    if target in modules and target != name:
                        found[name].add(target)
    return found


def in_a_circle(needs: Mapping[str, set[str]], place: Mapping[str, str]) -> bool:
    """Whether modules would import each other in a circle if each were where `place` says."""
    joined: dict[str, set[str]] = defaultdict(set)
    for module, needed in needs.items():
        joined[place[module]] |= {place[n] for n in needed} - {place[module]}
    seen: dict[str, bool] = {}  # True while its own imports are followed

    def circle(module: str) -> bool:
        seen[module] = True
        for other in joined[module]:
            if seen.get(other) or (other not in seen and circle(other)):
                return True
        seen[module] = False
        return False

    return any(circle(m) for m in list(joined) if m not in seen)


def without_circles(groups: list[Group]) -> list[Group]:
    """The groups without the modules that would close a circle; groups of one module are left out."""
    sys.setrecursionlimit(10_000)
    needs = imports()
    place = {m: m for m in needs}
    kept = []
    for group in groups:
        there = [m for m in group["from"] if m in needs]
        first = group["to"] if group["to"] in there else there[0]
        label, joined, rest = f"to {group['to']}", [first], [m for m in there if m != first]
        place[first] = label
        for _ in there:  # one that could not come before may come once another is in
            for module in list(rest):
                place[module] = label
                if in_a_circle(needs, place):
                    place[module] = module
                else:
                    joined.append(module)
                    rest.remove(module)
        if rest:
            print(f"{group['to']}: {', '.join(rest)} stay, else imports would run in a circle")
        if len(joined) > 1:
            renames = {m: r for m, r in group["rename"].items() if m in joined}
            kept.append(group | {"from": [m for m in there if m in joined], "rename": renames})
        else:
            place[first] = first
    return kept


# ---- one module ----


class Part:
    """A module that goes into another: its imports, and its text without them and without its docstring."""

    def __init__(self, module: str) -> None:
        self.module, self.path = module, path_of(module)
        self.lines = self.path.read_text().splitlines(keepends=True)
        self.tree = ast.parse("".join(self.lines))
        self.doc = ast.get_docstring(self.tree, clean=False) or ""
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.typing: list[Any] = []  # imports for types alone
        self.outside = {i for n in self.tree.body[: bool(self.doc)] for i in lines_of(n)}
        self.texts: dict[str, tuple[set[int], str]] = {}  # of each definition
        self.names: set[str] = set()
        self.behind: set[str] = set()  # modules with a definition that this one had as well
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self.imports.append(node)
                self.outside |= lines_of(node)
            elif is_for_types(node):
                self.typing += node.body  # type: ignore[attr-defined]
                self.outside |= lines_of(node)
            else:
                self.names |= names_in(node)
                if len(names := names_in(node)) == 1:
                    text = re.sub(r"\s*#.*", "", self.text(lines_of(node)))
                    self.texts[names.pop()] = lines_of(node), text

    def text(self, numbers: set[int]) -> str:
        return "".join(self.lines[i - 1] for i in sorted(numbers)).strip("\n")

    @property
    def body(self) -> str:
        return self.text({*range(1, len(self.lines) + 1)} - self.outside) + "\n"

    def imported(self) -> Iterator[tuple[str, str, str | None]]:
        """Names that imports bind, with the module, and the name there (None: the module itself)."""
        for node in [*self.imports, *self.typing]:
            for alias in node.names:
                if isinstance(node, ast.ImportFrom):
                    yield alias.asname or alias.name, node.module or "", alias.name
                else:
                    yield alias.asname or alias.name.split(".")[0], alias.name, None


def lines_of(node: Any) -> set[int]:
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return {*range(first, node.end_lineno + 1)}


def is_for_types(node: ast.AST) -> bool:
    checked = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return checked and not node.orelse and all(isinstance(n, ast.Import | ast.ImportFrom) for n in node.body)  # type: ignore[attr-defined]


def names_in(node: ast.AST) -> set[str]:
    """Names that a statement at the top of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, COMPREHENSIONS):
        return set()
    here = {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else set()
    return here.union(*map(names_in, ast.iter_child_nodes(node)))


# ---- other names ----


def renamed(
    code: str, names: Renames, attributes: Attributes | None = None, *, of_imports: bool = False
) -> str:
    """The code with other names for what the top of the module binds, and for attributes of modules. Functions and
    comprehensions that bind a name keep theirs; `of_imports`: what an import inside of them binds is meant too."""
    if not names and not attributes:
        return code
    tree, lines, attributes = ast.parse(code), code.splitlines(keepends=True), attributes or {}
    edits: set[tuple[int, int, int, str]] = set()

    def column(line: int, at: int) -> int:
        return len(lines[line - 1].encode()[:at].decode())

    def edit(node: Any, new: str) -> None:
        first, last = column(node.lineno, node.col_offset), column(node.lineno, node.end_col_offset)
        edits.add((node.lineno, first, last, new))

    def visit(node: Any, hidden: frozenset[str]) -> None:
        if isinstance(node, ast.Name) and node.id in names and node.id not in hidden:
            edit(node, names[node.id])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names and node in tree.body:
            at = re.match(r"\s*(async\s+def|def|class)\s+", lines[node.lineno - 1])
            assert at
            edits.add((node.lineno, at.end(), at.end() + len(node.name), names[node.name]))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = node.value.id
            if module in attributes and module not in hidden and node.lineno == node.end_lineno:
                edit(node, attributes[module](node.attr))
        if isinstance(node, FUNCTIONS):
            inside = node.body if isinstance(node.body, list) else [node.body]
            around = [n for n in ast.iter_child_nodes(node) if n not in inside]
            for n in around:
                visit(n, hidden)
            for n in inside:
                visit(n, hidden | bound_in(node, of_imports))
        elif isinstance(node, COMPREHENSIONS):
            visit(node.generators[0].iter, hidden)
            inner = hidden | bound_in(node, of_imports)
            for n in ast.iter_child_nodes(node):
                for m in ast.iter_child_nodes(n) if isinstance(n, ast.comprehension) else [n]:
                    if m is not node.generators[0].iter:
                        visit(m, inner)
        else:
            for n in ast.iter_child_nodes(node):
                visit(n, hidden)

    visit(tree, frozenset())
    done: list[tuple[int, int, int]] = []
    for line, first, last, new in sorted(edits, key=lambda e: (e[0], e[1], -e[2]), reverse=True):
        if not any(line == k and a <= first < b for k, a, b in done):
            lines[line - 1] = lines[line - 1][:first] + new + lines[line - 1][last:]
            done.append((line, first, last))
    return "".join(lines)


def bound_in(scope: Any, of_imports: bool) -> frozenset[str]:
    """Names that a function or a comprehension binds itself."""
    bound, free, left = set[str](), set[str](), list[Any]()
    if isinstance(scope, FUNCTIONS):
        a = scope.args
        arguments = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]
        bound |= {argument.arg for argument in arguments}
        left += scope.body if isinstance(scope.body, list) else [scope.body]
    else:
        left += [g.target for g in scope.generators]
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, COMPREHENSIONS):
            bound |= {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
        elif not isinstance(node, ast.Lambda):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound.add(node.id)
            elif isinstance(node, ast.ExceptHandler) and node.name:
                bound.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom) and not of_imports:
                bound |= {n.asname or n.name.split(".")[0] for n in node.names}
            elif isinstance(node, ast.Global | ast.Nonlocal):
                free |= {*node.names}
            left += ast.iter_child_nodes(node)
    return frozenset(bound - free)


# ---- one group ----


def clashes(group: Group, parts: Mapping[str, Part]) -> list[str]:
    """Names that mean two things in a group. Definitions with the same text become one."""
    full, rename, found = {f"motet.{m}" for m in parts}, group["rename"], []
    owners: dict[str, list[str]] = defaultdict(list)
    for module, part in parts.items():
        for name in part.names:
            owners[rename.get(module, {}).get(name, name)].append(module)
    for name, modules in owners.items():
        texts = {parts[m].texts.get(name, (set(), m))[1] for m in modules}
        if len(modules) > 1 and len(texts) == 1:
            for module in modules[1:]:
                parts[module].outside |= parts[module].texts[name][0]
                parts[module].behind.add(modules[0])
        elif len(modules) > 1:
            found.append(f"{name} is defined in {', '.join(modules)}")
    sources: dict[str, set[tuple[str, str | None]]] = defaultdict(set)
    for module, part in parts.items():
        for name, source, there in part.imported():
            source = group["prefer"].get(name, source)
            if source not in full and f"{source}.{there}" not in full:
                sources[rename.get(module, {}).get(name, name)].add((source, there))
    found += [f"{name} is imported from {sorted(s)}" for name, s in sources.items() if len(s) > 1]  # type: ignore[type-var]
    found += [f"{n} is imported, and defined in {owners[n]}" for n in sources if n in owners]
    return found


def merge(group: Group) -> bool:
    """Write the module that the group becomes, delete the others, and rewrite all that names them."""
    to, parts = group["to"], {m: Part(m) for m in group["from"]}
    if found := clashes(group, parts):
        print(*(f"{to}: {line}" for line in found), sep="\n")
        return False
    renames = {m: group["rename"].get(m, {}) for m in parts}
    full = {f"motet.{m}": m for m in parts}
    main = to if to in parts else in_order(parts, full)[-1]
    sections, plain, typing = [], dict[str, None](), dict[str, None]()
    for module in in_order(parts, full):
        part = parts[module]
        sections.append(section(part, full, renames, first=module == main and not group["doc"]))
        for nodes, into in ((part.imports, plain), (part.typing, typing)):
            for node in nodes:
                into |= dict.fromkeys(import_lines(node, full, renames[module], group["prefer"]))
    doc = (group["doc"] or parts[main].doc).strip()
    ending = "\n" if "\n" in doc else ""
    text = f'"""{doc}{ending}"""\n\nfrom __future__ import annotations\n\n' + "\n".join(plain) + "\n\n"
    text += "if TYPE_CHECKING:\n" + "".join(f"    {line}\n" for line in typing) + "\n" if typing else ""
    path = path_of(to)
    for part in parts.values():
        part.path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "".join(sections))
    for file in files_that_name_modules():
        rewrite(file, full, to, renames)
    return True


def in_order(parts: Mapping[str, Part], full: Mapping[str, str]) -> list[str]:
    """Each part behind those that it imports."""
    needs = {m: p.behind - {m} for m, p in parts.items()}
    for module, part in parts.items():
        for _, source, there in part.imported():
            needs[module] |= {full[s] for s in (source, f"{source}.{there}") if s in full} - {module}
    order: list[str] = []
    while left := [m for m in parts if m not in order]:
        order.append(next((m for m in left if not needs[m] - {*order}), left[0]))
    return order


def section(part: Part, full: Mapping[str, str], renames: Mapping[str, Renames], *, first: bool) -> str:
    """A part's text in its new place, below its old docstring as a comment."""
    names, attributes = dict(renames[part.module]), {}
    for name, source, there in part.imported():
        if source in full and there and renames[full[source]].get(there, there) != name:
            names[name] = renames[full[source]].get(there, there)
        elif there and f"{source}.{there}" in full:
            attributes[name] = lambda x, of=renames[full[f"{source}.{there}"]]: of.get(x, x)
    lines = part.body.splitlines(keepends=True)
    for node in ast.walk(ast.parse(part.body)):  # imports inside of functions
        if isinstance(node, ast.ImportFrom) and node.module in full:
            names |= {a.asname: a.name for a in node.names if a.asname and a.asname != a.name}
            for i in lines_of(node):
                lines[i - 1] = ""
    return f"\n{comment(part, first)}\n\n{renamed(''.join(lines), names, attributes)}\n"


def comment(part: Part, first: bool) -> str:
    head = f"# ---- {part.module.split('.')[-1].replace('_', ' ')} ----\n"
    said = re.sub(r"\n?Knows [^\n]*(?:\n[^\n]+)*$", "", part.doc.strip()).strip()
    lines: list[str] = []
    for paragraph in [] if first else said.split("\n\n"):
        if ">>>" in paragraph:
            continue
        flat = paragraph.split("\n")
        as_it_is = any(line.startswith((" ", "-", "|")) for line in flat)
        wrapped = flat if as_it_is else textwrap.wrap(" ".join(flat), 108, break_on_hyphens=False)
        lines += [*([""] if lines else []), *wrapped]
    return head + "".join(f"# {line}".rstrip() + "\n" for line in lines)


def import_lines(node: Any, full: Mapping[str, str], names: Renames, prefer: Renames) -> Iterator[str]:
    for alias in node.names:
        local = names.get(alias.asname or alias.name, alias.asname or alias.name)
        behind = f" as {local}" if local != alias.name or alias.asname else ""
        if isinstance(node, ast.Import):
            yield f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
        elif node.module != "__future__" and f"{node.module}.{alias.name}" not in full:
            source = prefer.get(alias.asname or alias.name, node.module)
            if source not in full and node.module not in full:
                yield f"from {source} import {alias.name}{behind}"


# ---- everybody else ----


def files_that_name_modules() -> list[Path]:
    words = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [p for p in (ROOT / f for f in listed if f) if p.suffix in WRITTEN and p.is_file()]


def rewrite(file: Path, full: Mapping[str, str], to: str, renames: Mapping[str, Renames]) -> None:
    """Names of modules in imports, texts and paths."""
    try:
        before = text = file.read_text()
    except UnicodeDecodeError:
        return
    packages = {name: name.rpartition(".")[0] for name in full}
    paths = {name: module.replace(".", "/") for name, module in full.items()}
    if not any(n in text or f"from {packages[n]} import" in text or paths[n] in text for n in full):
        return
    if file.suffix == ".py":
        text = with_imports(text, full, to, renames)
    for name, module in full.items():
        if module != to:
            text = re.sub(rf"(?<![\w.]){re.escape(name)}(?![\w])", f"motet.{to}", text)
            text = re.sub(rf"(?<!\w){re.escape(paths[name])}\.py(?!\w)", to.replace(".", "/") + ".py", text)
    if text != before:
        file.write_text(text)


def with_imports(text: str, full: Mapping[str, str], to: str, renames: Mapping[str, Renames]) -> str:
    """Imports of modules, their uses, and imports of names that are called otherwise now."""
    package, leaf = f"motet.{to}".rsplit(".", 1)
    edits, attributes, bare = [], dict[str, Callable[[str], str]](), dict[str, str]()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        meant = [a for a in node.names if f"{node.module}.{a.name}" in full]
        others = [a for a in node.names if a not in meant]
        names = renames[full[node.module]] if node.module in full else {}
        if not meant and not any(a.name in names for a in others):
            continue
        found = dict.fromkeys(
            f"from {node.module} import {names.get(a.name, a.name)}"
            + (f" as {a.asname or a.name}" if a.asname or a.name in names else "")
            for a in others
        )
        for alias in meant:
            local, now = alias.asname or alias.name, alias.asname or leaf
            found[f"from {package} import {leaf}" + (f" as {now}" if alias.asname else "")] = None
            of = renames[full[f"{node.module}.{alias.name}"]]
            attributes[local] = lambda x, of=of, now=now: f"{now}.{of.get(x, x)}"  # type: ignore[misc]
            if local != now:
                bare[local] = now
        edits.append((lines_of(node), node.col_offset * " ", [*found]))
    text = renamed(renamed(text, {}, attributes, of_imports=True), bare, of_imports=True)
    lines = text.splitlines(keepends=True)
    for numbers, indent, new in edits:
        for i in numbers:
            lines[i - 1] = ""
        lines[min(numbers) - 1] = "".join(f"{indent}{line}\n" for line in new)
    return "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="groups whose module begins so")
    given = parser.parse_args()
    groups = without_circles(json.loads(given.file.read_text()))
    groups = [g for g in groups if g["to"].startswith(given.only)]
    done = [merge(g) for g in groups]
    print(f"{sum(done)} of {len(groups)} groups are merged")
    return not all(done)


if __name__ == "__main__":
    sys.exit(main())
