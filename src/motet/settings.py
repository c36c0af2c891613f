"""What can be set: the fields of a class or the parameters of a function, with types, defaults and comments.

The comment behind a field in its source is its documentation: here it becomes a comment in a recipe.
Recipes, data sets, networks and policies are all checked here.
Knows Python signatures. Does not know recipes.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import io
import os
import pkgutil
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from motet.text import nearest, unknown
from motet.trusted_code import check_trusted, own_line

SESSION = "session:"  # names of code that was defined in a notebook or script (own_code.py)
AUTO = "auto"  # a setting that is chosen when a run starts
TYPED = "a,b"  # marks a list of texts that people may type with commas: Annotated[tuple[str, ...], TYPED]
known_here: dict[str, Any] = {}  # such code, by name
_BOUNDS: dict[str, Callable[[float], bool]] = {
    "> 0": lambda v: v > 0,
    ">= 0": lambda v: v >= 0,
    ">= 1": lambda v: v >= 1,
    "0 to 1": lambda v: 0 <= v <= 1,
    "0 to 0.5": lambda v: 0 <= v <= 0.5,
    "above 0 and below 1": lambda v: 0 < v < 1,
    "0 or more, below 1": lambda v: 0 <= v < 1,
    "above 0, up to 1": lambda v: 0 < v <= 1,
}


@dataclass(frozen=True)
class Field:
    """One thing that can be set."""

    name: str
    type: Any
    default: Any
    comment: str = ""

    def check(self, value: Any) -> tuple[Any, str]:
        """The value as it is to be used, and what is wrong with it ("" if nothing)."""
        return _check(value, self.type)

    @property
    def inner(self) -> dict[str, Field]:
        """The fields of a nested setting, with the defaults that its owner gives them; {} for a plain value."""
        if not dataclasses.is_dataclass(self.type):
            return {}
        inside = fields_of(self.type)  # type: ignore[arg-type]
        return {k: dataclasses.replace(f, default=getattr(self.default, k)) for k, f in inside.items()}


def dotted(known: dict[str, Field]) -> dict[str, Field]:
    """Fields by their full names: the fields of a nested setting `agent` are `agent.gamma` and so on."""
    found: dict[str, Field] = {}
    for name, f in known.items():
        found |= {f"{name}.{k}": inside for k, inside in f.inner.items()} or {name: f}
    return found


def with_objects(thing: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Values as the class wants them: the table of a nested setting becomes an object of its dataclass."""
    hints = get_type_hints(thing)
    nested = {k for k, kind in hints.items() if dataclasses.is_dataclass(kind)}
    return {k: hints[k](**v) if k in nested and isinstance(v, dict) else v for k, v in values.items()}


def checked(
    given: Mapping[str, Any],
    known: Mapping[str, Field],
    section: str,
    of: str = "",
    renamed: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Every known setting with its value or default, and everything that is wrong with what was given.
    `renamed` gives today's names of settings that had others."""
    wrong, today = [], renamed or {}
    for key, value in given.items():
        name = f"{section}.{key}" + (f" of {of}" if of else "")
        if key in today:
            wrong.append(f"unknown setting {name}\nhint: it is now {today[key]!r}")
        elif key not in known:
            tables = {k.split(".")[0] for k in known}
            wrong.append(unknown("setting", name, {*known, *tables}, key))
        elif problem := known[key].check(value)[1]:
            in_a_list = isinstance(value, str | int | float) and not known[key].check([value])[1]
            hint = f"\nhint: {section}.{key}=[{value}]" if in_a_list else ""
            wrong.append(f"{section}.{key} {problem}{hint}")
    return {key: f.check(given.get(key, f.default))[0] for key, f in known.items()}, wrong


def fields_of(thing: Callable[..., Any]) -> dict[str, Field]:
    """The settable fields of a dataclass or parameters of a function, in order."""
    if inspect.isclass(thing) and dataclasses.is_dataclass(thing):
        owners = [c for c in reversed(thing.__mro__) if dataclasses.is_dataclass(c)]
        comments = {k: v for c in owners for k, v in _comments(c).items()}
        hints = get_type_hints(thing, include_extras=True)
        settable = [f for f in dataclasses.fields(thing) if f.init and f.metadata.get("setting", True)]
        found = [(f.name, _default(f)) for f in settable]
    else:
        function = thing.__init__ if inspect.isclass(thing) else thing
        comments, hints = _comments(function), get_type_hints(function, include_extras=True)
        given = inspect.signature(thing).parameters.values()
        found = [(p.name, p.default) for p in given if p.name != "seed"]  # whoever calls it gives the seed
    missing = (inspect.Parameter.empty, dataclasses.MISSING)
    return {
        name: Field(name, kind, AUTO if may_be_open(kind) else default, comments.get(name, ""))
        for name, kind, default in ((n, hints.get(n, _type_of(d)), d) for n, d in found)
        if not any(default is m for m in missing)
    }


def may_be_open(kind: Any) -> bool:
    """Whether a setting of this type may be left open, to be chosen when a run starts."""
    return get_origin(kind) is Annotated and AUTO in get_args(kind)[2:]


def _type_of(default: Any) -> Any:
    """The type of a setting without an annotation; anything goes where its default is None or empty."""
    if isinstance(default, list | tuple):
        return list[_type_of(default[0])] if default else Any  # type: ignore[misc]
    return Any if default is None else type(default)


def _default(f: dataclasses.Field[Any]) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


@cache
def _comments(thing: Any) -> dict[str, str]:
    """The comment that stands behind each field or parameter in the source; parsed once, because it is slow."""
    try:
        source = textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    try:
        said = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
        node = ast.parse(source).body[0]
    except (SyntaxError, tokenize.TokenError, IndexError):  # the source of a lambda is a line around it
        return {}
    found = {}
    for name, first, last in _spans(node):
        lines = [said[i] for i in range(first, last + 1) if i in said]
        if lines:
            found[name] = " ".join(lines)
    return found


def _spans(node: ast.stmt) -> list[tuple[str, int, int]]:
    """(name, first line, last line) of what can be set."""
    if isinstance(node, ast.ClassDef):
        rows = [(n.target, n) for n in node.body if isinstance(n, ast.AnnAssign)]
        return [(t.id, n.lineno, n.end_lineno or n.lineno) for t, n in rows if isinstance(t, ast.Name)]
    if not isinstance(node, ast.FunctionDef):
        return []
    args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    ends = [a.lineno - 1 for a in args[1:]] + [node.body[0].lineno - 1]
    return [(a.arg, a.lineno, max(a.lineno, e)) for a, e in zip(args, ends, strict=False)]


def _check(value: Any, kind: Any) -> tuple[Any, str]:
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return value, ""
    if value == AUTO and may_be_open(kind):
        return value, ""
    if origin is Annotated:
        value, wrong = _check(_as_texts(value) if TYPED in inside[1:] else value, inside[0])
        allowed = _BOUNDS.get(inside[1])
        fine = allowed is None or (not wrong and allowed(value))
        must = f"{inside[1]}, or auto" if may_be_open(kind) else inside[1]
        return value, wrong or ("" if fine else f"is {value!r}; it must be {must}")
    if origin is Literal:
        if isinstance(value, bool) and {"yes", "no"} <= set(inside):
            value = "yes" if value else "no"
        words = ", ".join(map(str, inside))
        return value, "" if value in inside else f"is {value!r}; it must be one of {words}"
    if origin in (Union, UnionType):
        tried = [_check(value, k) for k in inside]
        return next(((v, w) for v, w in tried if not w), tried[0])
    if origin in (list, tuple):
        return _check_list(value, inside[0])
    return _check_plain(value, kind)


def _check_list(value: Any, inside: Any) -> tuple[Any, str]:
    if not isinstance(value, list | tuple):
        return value, f"is {value!r}; it must be a list"
    checked = [_check(v, inside) for v in value]
    return [v for v, _ in checked], next((w for _, w in checked if w), "")


def _as_texts(value: Any) -> Any:
    """A list of texts as people type it: a,b or -999."""
    if isinstance(value, str):
        return [v.strip() for v in value.split(",") if v.strip()]
    numbers = isinstance(value, int | float) and not isinstance(value, bool)
    return [str(value)] if numbers else value


def _check_plain(value: Any, kind: Any) -> tuple[Any, str]:
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        NoneType: "nothing",
    }
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value), ""
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value), ""
    right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    return value, "" if right else f"is {value!r}; it must be {names.get(kind, 'a table of settings')}"


def functions_in(package: str, path: Iterable[str], first: list[str]) -> dict[str, Callable[..., Any]]:
    """The public functions in a package's files whose first parameters are these, by name."""
    files = [importlib.import_module(f"{package}.{m.name}") for m in pkgutil.iter_modules(path)]
    every = [(file, f) for file in files for f in vars(file).values() if inspect.isfunction(f)]
    ours = [f for file, f in every if f.__module__ == file.__name__ and not f.__name__.startswith("_")]
    return {f.__name__: f for f in ours if list(inspect.signature(f).parameters)[: len(first)] == first}


def import_named(spec: str, error: type[ValueError]) -> Callable[..., Any]:
    """The function that `module:function` names, if a person said that it may run (trusted_code.py); modules of the
    current folder are found too."""
    if spec.startswith(SESSION):
        return _of_this_session(spec, error)
    check_trusted(spec)
    module_name, _, name = spec.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is None or not f"{module_name}.".startswith(f"{e.name}."):
            raise error(_why_not_imported(module_name, e)) from e  # something that it imports is not there
        raise error(
            f"{spec!r} names the module {module_name!r}, which is not there.\n"
            f"hint: put {module_name.replace('.', '/')}.py into {os.getcwd()}, or install it"
        ) from None
    except Exception as e:  # whatever a person's own module raises
        raise error(_why_not_imported(module_name, e)) from e
    found = getattr(module, name, None)
    if not callable(found):
        mine = [k for k, v in vars(module).items() if callable(v) and not k.startswith("_")]
        raise error(f"the module {module_name!r} has no function {name!r}.\nhint: {nearest(name, mine)}")
    return found  # type: ignore[no-any-return]


def _why_not_imported(name: str, error: Exception) -> str:
    """What an error in a module says, and in which line it arose."""
    said = f"the module {name!r} cannot be imported: {type(error).__name__}: "
    if isinstance(error, SyntaxError) and error.filename:
        text = f": `{error.text.strip()}`" if error.text else ""
        return f"{said}{error.msg}\n{os.path.basename(error.filename)}:{error.lineno}{text}"
    return "\n".join(filter(None, [f"{said}{error}", own_line(error)]))


def _of_this_session(spec: str, error: type[ValueError]) -> Callable[..., Any]:
    if spec not in known_here:
        name = spec.removeprefix(SESSION).rpartition("-")[0]
        raise error(
            f"{name} was defined in a notebook or script, and this process does not have it ({spec}).\n"
            "hint: run the code that defines it and give the object to motet.run or motet.compare first; "
            f"or put it into a module, and name it module:{name}"
        )
    return known_here[spec]  # type: ignore[no-any-return]
