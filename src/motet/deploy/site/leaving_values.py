"""The very values that would leave a site before anything trains, in words for its owner.

Knows descriptions of tables, sums and policies. Does not know letters, nor other sites.
"""

from __future__ import annotations

import numpy as np

from motet.client import ClientData
from motet.core import Tree
from motet.deploy.agreement.column_sums import ColumnSums
from motet.deploy.agreement.layout import Layout
from motet.deploy.site.policy import Policy

Line = tuple[str, str]  # (what, its values)


def described_values(description: Tree) -> list[Line]:
    """What the description of a table says: every category and class by its name."""
    counts, target = description["counts"], description["target"]
    lines = [(c["name"], ", ".join(c["values"]) or c["kind"]) for c in description["columns"]]
    lines.append((f"{target['name']} (target)", ", ".join(target["classes"]) or "numbers"))
    if counts.get("classes"):
        lines.append(("rows of classes", ", ".join(map(str, counts["classes"]))))
    unsaid = "in a masked sum alone" if "counts" in description["masked"] else "not said"
    lines.append(("rows", str(counts["rows"]) if counts else unsaid))
    return [*lines, ("split", str(description["split"]))]


def sum_values(sums: ColumnSums, own: Layout, target: str) -> list[Line]:
    """Mean, spread and number of cells of each column, as they follow from the sums that leave."""
    names = [name for name, _, _ in own.columns] + [target] * (own.kind == "numbers")
    spread = np.sqrt(sums.squares / np.maximum(sums.rows, 1))
    lines = []
    for name, mean, wide, many in zip(names, sums.mean, spread, sums.many, strict=True):
        cells = f", {many:g} cells" if many > 1 else ""  # 1 where numbers of rows stay
        said = f"{mean:.4g}, spread {wide:.4g}{cells}"
        lines.append((f"mean of {name}", said if many else "not said: too few rows are behind it"))
    return lines


def few_rows(client_data: ClientData, policy: Policy) -> list[Line]:
    """Scores that do not leave, because too few rows are behind them."""
    sizes = {"val": len(client_data.val), "test": len(client_data.test)}
    return [
        (
            f"scores on {part} rows",
            f"not said: {many} rows, least_rows = {policy.least_rows}; hint: a larger --{part}",
        )
        for part, many in sizes.items()
        if policy.scores and 0 < many < policy.least_rows
    ]
