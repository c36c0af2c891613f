"""Whose code may run: code that settings name as `module:name` is imported only if a person said so.

A recipe that names code is a program. What a person typed, or passed in Python, was said. What stands in a file (a
recipe, a study, a run's folder, a model) may be a stranger's: it needs `--trust`, or a yes at the terminal for
modules of the current folder. What was said counts in this process, and a worker process gets it with its job.
The address of a cluster is as good as code: whoever owns a Ray cluster can run anything in what connects to it.
An error of a person's own code is told with the line that it came from: files by their names, because folders are
nobody's business, and a message may go far.
Knows names, and where Python would find a module, which it does not import. Does not know what settings mean.
"""

from __future__ import annotations

import inspect
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from motet.errors import MotetError

Consent = bool | Callable[[str], bool]  # yes, no, or a function that asks a person
AT_SITES = (
    "motet.deploy.server.run_files:at_sites"  # data of a federated run: it only says where the rows are
)
_NAME = re.compile(r"\w[\w.-]*:[^\W\d]\w*")
_NO_CODE = ("hf:", "timm:", "given:", "session:")  # folders and data of others, what Python objects gave
_OWN_CLUSTERS = ("", "local", "auto")  # of this machine, or named in the person's own environment
_MANY = 10  # names that a message lists
_WIDE = 100  # characters of a line of code that a message shows
_TYPED = (
    "<ipython",
    "<stdin>",
)  # in place of a file, of code that was typed; dataclasses are made of "<string>"
_MOTET = Path(__file__).parent
_STANDARD = {Path(sysconfig.get_path(which)).resolve() for which in ("stdlib", "platstdlib")}
_trusted: set[str] = {AT_SITES}


class UntrustedCode(MotetError):
    """Code that a file names, and that nobody said may run; it was not imported."""


def trust_names(names: Iterable[str]) -> None:
    """From now on, code of these names may be imported in this process."""
    _trusted.update(names)


def trusted_names() -> list[str]:
    """What may be imported in this process, for a worker that is given a job."""
    return sorted(_trusted)


def is_trusted(name: str) -> bool:
    return name in _trusted


def check_trusted(name: str) -> None:
    """Refuse to import code that nobody spoke of; every import by name asks here."""
    if not is_trusted(name):
        raise UntrustedCode(_refusal("a file or a setting", [name]))


def require_trust(settings: Any, where: object, consent: Consent, files: Iterable[Path] = ()) -> None:
    """Let the code that these settings name, and these Python files, run if the caller consents. `where` says who
    names it.

    Nobody is asked about code that is not in the current folder: it could be any command of this machine.
    """
    paths = [str(file.resolve()) for file in files]
    strange = [n for n in [*code_in(settings), *paths] if not is_trusted(n)]
    if consent is True:
        trust_names([*names_in(settings), *paths])
    elif strange:
        ask = consent if callable(consent) and all(map(is_here, strange)) else None
        if ask is None or not ask(_question(where, strange)):
            raise UntrustedCode(_refusal(where, strange))
        trust_names(strange)


def names_in(settings: Any) -> list[str]:
    """Every `module:name` in settings, perhaps with options or a method around it behind it, each once.

    >>> names_in({"net": {"name": "mine:net width=2"}, "seed": 3, "grid": [["b:c+fedopt", "12:30", "fedavg"]]})
    ['mine:net', 'b:c']
    """
    if isinstance(settings, str):
        return [w for w in settings.replace("+", " ").split()[:1] if _NAME.fullmatch(w)]
    if isinstance(settings, Mapping):
        parts: Iterable[Any] = [*settings.keys(), *settings.values()]
        clusters = [cluster_name(v) for v in [settings.get("address")] if isinstance(v, str)]
        found = [*filter(None, clusters), *(name for part in parts for name in names_in(part))]
        return list(dict.fromkeys(found))
    parts = settings if isinstance(settings, list | tuple) else ()
    return list(dict.fromkeys(name for part in parts for name in names_in(part)))


def code_in(settings: Any) -> list[str]:
    """Of these names those that run code.

    >>> code_in({"data": "mine:rows", "net": "timm:resnet18"})
    ['mine:rows']
    """
    return [n for n in names_in(settings) if not n.startswith(_NO_CODE)]


def cluster_name(address: str) -> str:
    """By what a cluster is trusted; "" for those that are the person's own.

    >>> cluster_name("10.0.0.1:6379"), cluster_name("auto")
    ('cluster 10.0.0.1:6379', '')
    """
    return "" if address in _OWN_CLUSTERS else f"cluster {address}"


# ---- where a module lies ----


def is_here(name: str) -> bool:
    """Whether the code lies in the current folder, and is neither installed, nor Python's, nor motet's."""
    here, places = Path.cwd().resolve(), places_of(name)
    inside = (p.is_relative_to(here) and is_own_file(str(p)) for p in places)
    return bool(places) and not _is_standard(name) and all(inside)


def is_own(kind: type) -> bool:
    """Whether a class, or one that it is made from, is neither motet's, nor torch's, nor Python's own."""
    return any(c.__module__.partition(".")[0] not in ("motet", "torch", "builtins") for c in kind.__mro__)


@cache
def is_own_file(file: str) -> bool:
    """Whether a module's file is neither motet's, nor Python's, nor installed."""
    path = Path(file).resolve()
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not (installed or _MOTET in path.parents or _STANDARD & set(path.parents))


def places_of(name: str) -> list[Path]:
    """The file, or the folders, from which Python would import the first part of the module's name: to look further
    would import a package. A path stands for itself."""
    if os.path.isabs(name):
        return [Path(name)]
    with current_folder_importable():
        try:
            found = find_spec(_top(name))
        except (ImportError, ValueError, AttributeError):
            return []
    if found is None:
        return []
    if found.has_location and found.origin:
        return [Path(found.origin).resolve()]
    return [Path(p).resolve() for p in found.submodule_search_locations or ()]


@contextmanager
def current_folder_importable() -> Iterator[None]:
    """As while code is imported by its name, where modules of the current folder are found first."""
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)


def own_command(module: str, *words: str) -> list[str]:
    """The command line of a process that runs a module of motet's. Without -P, a file torch.py of the current folder,
    which may be a stranger's, would be imported instead of torch."""
    return [sys.executable, "-P", "-m", module, *words]


def _top(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


def _is_standard(name: str) -> bool:
    return _top(name) in sys.stdlib_module_names


# ---- lines of a person's own code ----


def own_line(error: BaseException) -> str:
    """Where in a person's own code an error came from, say "bugs.py:80, in train: `self.task.los`"; "" if nowhere."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_own(f.filename)]
    if not frames:
        return ""
    last = frames[-1]
    line = linecache.getline(last.filename, last.lineno or 0)
    if last.lineno == last.end_lineno and last.colno is not None:  # columns count bytes
        line = line.encode()[last.colno : last.end_colno].decode()
    return _shown_line(last.filename, last.lineno or 0, last.name, line)


def own_definition(thing: Any) -> str:
    """Where a function or class of a person's own begins, in the same form; "" if it is nobody's own."""
    try:
        file, (lines, first) = inspect.getfile(thing), inspect.getsourcelines(thing)
    except (OSError, TypeError):
        return ""
    if not _is_own(file):
        return ""
    at = next((i for i, line in enumerate(lines) if line.lstrip().startswith(("def ", "class "))), 0)
    return _shown_line(file, first + at, thing.__name__, lines[at])


def _is_own(file: str) -> bool:
    return file.startswith(_TYPED) if file.startswith("<") else is_own_file(file)


def _shown_line(file: str, number: int, function: str, line: str) -> str:
    text = line.strip()
    short = text if len(text) <= _WIDE else f"{text[:_WIDE]}…"
    return f"{os.path.basename(file)}:{number}, in {function}" + (f": `{short}`" if short else "")


# ---- for people ----


def _question(where: object, names: list[str]) -> str:
    return (
        f"{where} names code in this folder: {_listed(names)}.\n"
        "It would run with all your rights. Run it? [y/N] "
    )


def _refusal(where: object, names: list[str]) -> str:
    return (
        f"{where} names code that is not motet's: {_listed(names)}.\n"
        "It would run with all your rights, so nothing of it was imported.\n"
        "hint: read it; if you trust it, say --trust (in Python: trust=True)"
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    said = [f"{os.path.basename(n) if os.path.isabs(n) else n:.80} ({_whose(n)})" for n in names[:_MANY]]
    return ", ".join(said) + more


def _whose(name: str) -> str:
    """Where the code lies, in a few words."""
    if _is_standard(name):
        return "part of Python"
    places = places_of(name)
    if not places:
        return "no such module here"
    return os.path.relpath(places[0]) if is_here(name) else f"not in this folder: {places[0]}"
