"""For the reference of the documentation site: examples in docstrings (`>>> …`) are shown as blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(^>>> .*(?:\n.+)*)", re.MULTILINE)


def fenced(text: str) -> str:
    """
    >>> print(fenced("Adds.\\n\\n>>> 1 + 1\\n2"))
    Adds.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    return EXAMPLE.sub(r"```pycon\n\1\n```", text)


class DoctestBlocks(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **more: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
