"""Figures that can be saved from the page itself: their numbers as CSV, their drawings as SVG.

The numbers are in the page, within limits. The drawing is in it anyway, so a script makes a file of it, black on
white. Knows figures with their numbers. Does not know the page.
"""

from __future__ import annotations

import base64
import re

from motet.report.export_table import as_csv
from motet.report.figures import Picture

MOST_BYTES = (
    100_000  # of one figure's numbers in a page: 10,000 clients have more, and `motet figures` writes them
)
SAVING = """
for (const link of document.querySelectorAll("a.drawing")) {
  const svg = link.closest("figure").querySelector("svg").cloneNode(true);
  svg.style.color = "#000"; svg.style.background = "#fff";
  const text = '<?xml version="1.0" encoding="utf-8"?>' + new XMLSerializer().serializeToString(svg);
  link.href = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  link.hidden = false;
}
"""


def file_name(name: str) -> str:
    """
    >>> file_name("who-relies-on-whom-stacking (lr=1/2)-seed0")
    'who-relies-on-whom-stacking-lr-1-2-seed0'
    """
    return re.sub(r"[^\w.]+", "-", name).strip("-")[:100]


def numbers(picture: Picture) -> str:
    """A link that holds the figure's numbers; nothing where they are too many for a page."""
    text = as_csv(picture.data).encode()
    if len(text) > MOST_BYTES:
        return ""
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text).decode()}"
