"""One short file per method, found by its file's name.

The class is an attribute of this package under its own name, imported when it is asked for:

>>> from motet import methods
>>> methods.Ditto.__name__, "FedPer" in dir(methods)
('Ditto', True)
>>> methods.Ditto.__doc__.splitlines()[0].startswith("Ditto: ")
True

Knows files and names. Does not know what any method does.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any


def __getattr__(name: str) -> Any:
    file = next((f for f in _files() if _plain(f) == _plain(name)), "")
    if not file:
        raise AttributeError(f"there is no method {name}\nhint: there are {', '.join(_files())}")
    module = import_module(f"{__name__}.{file}")
    return module if name == file else getattr(module, name)


def __dir__() -> list[str]:
    modules = {file: import_module(f"{__name__}.{file}") for file in _files()}
    return sorted(name for file, m in modules.items() for name in vars(m) if _plain(name) == _plain(file))


def _plain(name: str) -> str:
    """Case and underscores do not count: page_private.py holds PAGEPrivate."""
    return name.replace("_", "").lower()


def _files() -> list[str]:
    return [m.name for m in iter_modules(__path__)]
