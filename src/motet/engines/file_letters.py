"""Files that sites lack, brought to them: a letter names files, and who does not have them is sent them once.

A letter that names files goes first, whatever a site had before: a server that starts again, and a site whose store
was emptied, need no list of who has what. Knows names, letters and sizes. Does not know what is in a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from motet.core import Client
from motet.engines.letters import LACKS_FILES, Reply
from motet.wire import WireError

Files = Mapping[str, Tensor]  # by their sha256
_AT_ONCE = 8 << 20  # bytes of files in one letter, unless one file is larger
_SHORT = 64 << 10  # bytes; a refusal is shorter


def lacking(came: Mapping[Client, bytes], files: Mapping[Client, Files]) -> dict[Client, list[str]]:
    """Which of its own files each site says that it lacks: one that names a file of another's is not brought it."""
    found = {c: _refused(message) for c, message in came.items() if files.get(c)}
    wanted = {c: [f for f in r.tree if f in files[c]] for c, r in found.items() if r}
    return {c: names for c, names in wanted.items() if names}


def _refused(message: bytes) -> Reply | None:
    if not isinstance(message, bytes) or len(message) > _SHORT:
        return None
    try:
        reply = Reply.read(message)
    except WireError:
        return None
    return reply if reply.refusal == LACKS_FILES else None


def batches(
    wanted: Mapping[Client, Sequence[str]], files: Mapping[Client, Files]
) -> Iterator[dict[Client, dict[str, bytes]]]:
    """The files for each site, some at a time; sites that lack the same are sent the same."""
    every = {name: files[c][name] for c, some in wanted.items() for name in some}
    for names in _groups(sorted(every), every):
        content = {name: every[name].numpy().tobytes() for name in names}
        chosen = {c: [n for n in names if n in some] for c, some in wanted.items()}
        yield {c: {n: content[n] for n in some} for c, some in chosen.items() if some}


def _groups(names: Sequence[str], files: Mapping[str, Tensor]) -> Iterator[list[str]]:
    group: list[str] = []
    for name in names:
        if group and sum(files[n].numel() for n in (*group, name)) > _AT_ONCE:
            yield group
            group = []
        group.append(name)
    if group:
        yield group
