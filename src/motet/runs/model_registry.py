"""Models that somebody promoted: a name, a version, from which run and client, by whom, and a copy of the file.

    runs/promoted/models.sqlite
    runs/promoted/triage-v1.safetensors

A version is never changed or used twice. The copy stays when the run is deleted; a checksum says whether it is still
what was promoted.
Knows a table and files. Does not know how models are made. Imports no torch.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from motet.errors import UsageError

FOLDER = "promoted"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_WAIT = 30.0  # seconds to wait for another process


@dataclass(frozen=True)
class PromotedModel:
    """One version of a model."""

    name: str
    version: int
    run: str  # the run's folder, by name
    client: str  # whose personal model it is; "global" is the one for all
    promoted_by: str
    at: float  # when, in seconds since 1970
    note: str
    file: str  # the copy, beside the table
    sha256: str
    method: str = ""
    data: str = ""


_COLUMNS = tuple(f.name for f in fields(PromotedModel))
_TABLE = f"""CREATE TABLE IF NOT EXISTS models (
    {", ".join(f"{n} {'INTEGER' if n == 'version' else 'REAL' if n == 'at' else 'TEXT'} NOT NULL" for n in _COLUMNS)},
    PRIMARY KEY (name, version))"""


class ModelRegistry:
    """The promoted models of a folder of runs."""

    def __init__(self, base: Path) -> None:
        self.folder = base / FOLDER
        self.path = self.folder / "models.sqlite"

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        if link := next((p for p in (self.folder, self.path) if p.is_symlink()), None):
            raise UsageError(
                f"{link} is a link\nhint: remove it; models are promoted into a folder of their own"
            )
        try:
            with closing(sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None)) as db:
                yield db
        except sqlite3.Error as e:
            raise UsageError(f"the list of promoted models cannot be used: {self.path}: {e}") from e

    def models(self) -> list[PromotedModel]:
        """All versions, the newest first."""
        if not self.path.exists():
            return []
        with self.opened() as db:
            rows = db.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM models ORDER BY at DESC, version DESC"
            ).fetchall()
        return [PromotedModel(*row) for row in rows]

    def model(self, name: str, version: int) -> PromotedModel | None:
        return next((m for m in self.models() if (m.name, m.version) == (name, version)), None)

    def promote(
        self, name: str, run: str, client: str, promoted_by: str, write: Callable[[Path], None],
        note: str = "", method: str = "", data: str = "",
    ) -> PromotedModel:  # fmt: skip
        """Give a model the next version of a name; `write` puts a copy of it into a file."""
        check_name(name)
        if not promoted_by.strip():
            raise UsageError("nobody is named who promotes the model\nhint: your name, or your team's")
        if not self.folder.is_symlink():
            self.folder.mkdir(parents=True, exist_ok=True)
        with self.opened() as db:
            db.execute(_TABLE)
            db.execute("BEGIN IMMEDIATE")  # nobody else takes the same version
            try:
                (last,) = db.execute(
                    "SELECT COALESCE(MAX(version), 0) FROM models WHERE name = ?", (name,)
                ).fetchone()
                file = f"{name}-v{last + 1}.safetensors"
                with TemporaryDirectory(
                    dir=self.folder
                ) as draft:  # a link that has the file's name is replaced
                    write(Path(draft) / file)
                    mark = sha256((Path(draft) / file).read_bytes()).hexdigest()
                    os.replace(Path(draft) / file, self.folder / file)
                found = PromotedModel(
                    name,
                    last + 1,
                    run,
                    client,
                    promoted_by.strip(),
                    time.time(),
                    note,
                    file,
                    mark,
                    method,
                    data,
                )
                holes = ", ".join("?" * len(_COLUMNS))
                db.execute(f"INSERT INTO models ({', '.join(_COLUMNS)}) VALUES ({holes})", astuple(found))
                db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise
        return found

    def copy_of(self, model: PromotedModel) -> Path:
        """The file of a promoted model, once it is found to be what was promoted."""
        path = self.folder / model.file
        if path.parent != self.folder or not path.is_file():
            raise UsageError(f"the file of {model.name} version {model.version} is gone: {path}")
        if sha256(path.read_bytes()).hexdigest() != model.sha256:
            raise UsageError(f"{path} is not what was promoted: its checksum does not match")
        return path


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a model cannot be called {name[:80]!r}; expected small letters, digits, '.', '_' and '-', say triage"
        )
