"""The commands `motet data ...`: getting data sets, seeing which are here, and who holds what.

Everything heavy is imported when a command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from motet.cli.command import Add, group, say
from motet.cli.show_data import show_command


def data_commands(add: Add) -> None:
    """Adds the commands of `motet data`."""
    within = group(add, "data", "get data sets, list them, and show what each client holds")
    p = within(
        "fetch", do_fetch, "download data sets, or read their files from a folder, and store them decoded"
    )
    p.add_argument("names", nargs="+", metavar="NAME", help="see `motet data list`")
    p.add_argument("--from", dest="source", metavar="FOLDER", help="read files here, without downloading")
    within("list", do_list, "list data sets, and which of them are on this machine")
    show_command(within)


def do_fetch(args: Any) -> None:
    from motet.data.federated import DataError, refuse
    from motet.data.files import cache
    from motet.data.load import names
    from motet.text import nearest

    known = [n for n in names() if cache.origin(n)]
    strange = [n for n in args.names if n not in known]
    refuse([f"there is no data set {n!r} to fetch.\nhint: {nearest(n, known)}" for n in strange])
    problems = []
    for name in args.names:
        try:
            with download_progress() as on_bytes:
                folder = cache.fetch(name, Path(args.source).expanduser() if args.source else None, on_bytes)
            print(f"{name}  {megabytes(cache.size_of(folder))}  {folder}", flush=True)
        except DataError as e:  # go on with the others
            problems.append(str(e))
    refuse(problems)
    say(f"\nnext:  motet compare data={args.names[0]}")


def do_list(args: Any) -> None:
    import importlib

    from motet.data.files import cache
    from motet.data.load import names
    from motet.text import aligned

    parts = []
    for name in names():
        found = cache.status(name)
        where = f"here ({found.how}, {megabytes(found.size)})" if found.how else "here" if found.here else "-"
        text = (importlib.import_module(f"motet.data.sets.{name}").__doc__ or "").strip()
        parts.append((name, where, text.splitlines()[0] if text else ""))
    print("\n".join(aligned(parts)))
    say("\nnext:  motet data fetch NAME")


def megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@contextmanager
def download_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each file in a terminal, otherwise a line for each on stderr."""
    if not sys.stderr.isatty():
        said: set[str] = set()

        def line(file: str, done: int, total: int) -> None:
            if file not in said:
                said.add(file)
                say(f"downloading {file} ({megabytes(total)})")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(24), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        ids: dict[str, Any] = {}

        def bar(file: str, done: int, total: int) -> None:
            if file not in ids:
                ids[file] = bars.add_task(file, total=total or None)
            bars.update(ids[file], completed=done, total=total or None)

        yield bar
