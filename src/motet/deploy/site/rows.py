"""What a site holds: its table, and for each run the home that was laid out of it as all sites agreed.

Layouts outlive the process, in the run's folder. Rows that changed since a run began are refused: their cut
into training, validation and test rows would be another.
Knows a site's rows and layouts. Does not know letters or verbs.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from motet.core import Tree
from motet.data.federated import FederatedData
from motet.deploy.agreement.layout import Layout
from motet.deploy.site.policy import RefusedByPolicy
from motet.deploy.site.table import SiteTable
from motet.files import write_atomically
from motet.wire import WireError, pack, unpack

_LAYOUT = "layout.motet"  # in a run's folder: the layout, and a hash of the rows that were laid out


class SiteRows:
    """A site's rows, run by run. `data` is its table, or a federation with its home alone."""

    def __init__(self, folder: Path, data: FederatedData | SiteTable) -> None:
        self.folder, self.data = folder, data
        self._last: tuple[str, FederatedData] | None = None

    @property
    def source(self) -> SiteTable:
        if isinstance(self.data, FederatedData):
            raise RefusedByPolicy("this site's rows are laid out already")
        return self.data

    def measure(self, asked: Tree) -> Tree:
        """Sums of columns, from which the federation's means and spreads are made."""
        if not isinstance(asked, dict) or set(asked) != {"layout", "middle"}:
            raise WireError("sums are asked for with a layout and a middle")
        return self.source.measure(Layout.of(asked["layout"]), asked["middle"])

    def single_thread(self, run: str, given: Tree, began: bool) -> FederatedData:
        """Lay the rows out for a run; one that began keeps the layout that it began with."""
        layout, path = Layout.of(given), self.run_folder(run) / _LAYOUT
        if began and path.exists():
            if pack(unpack(path.read_bytes())["layout"]) != pack(layout.tree()):
                raise RefusedByPolicy(f"run {run} began here with another layout of columns")
            return self.of(run)
        found = self.source.build_clients(layout)
        packed = pack({"layout": layout.tree(), "rows": found.fingerprint()})
        write_atomically(path, packed, private=True)
        self._last = run, found
        return found

    def of(self, run: str) -> FederatedData:
        """This site's home in a run."""
        if isinstance(self.data, FederatedData):
            return self.data
        if self._last is None or self._last[0] != run:
            self._last = run, self._again(run, self.data)
        return self._last[1]

    def _again(self, run: str, source: SiteTable) -> FederatedData:
        """The home of a run that was settled before, from the very rows that it began with."""
        path = self.run_folder(run) / _LAYOUT
        if not path.exists():
            raise RefusedByPolicy(f"no layout of columns was agreed on for run {run}")
        given = unpack(path.read_bytes())
        found = source.build_clients(Layout.of(given["layout"]))
        if found.fingerprint() != given["rows"]:
            raise RefusedByPolicy(
                f"the rows of {source.path.name} changed since run {run} began.\n"
                "hint: bring the old file back, or start a new run"
            )
        return found

    def run_folder(self, run: str) -> Path:
        """Where a run's things lie; whatever it is called, in this site's folder."""
        folder = self.folder / "runs" / f"{quote(run, safe='')}.run"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder
