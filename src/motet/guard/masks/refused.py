"""The one error of masked sums."""

from __future__ import annotations

from motet.errors import MotetError


class MaskRefused(MotetError):
    """A step of a masked sum that a party does not take, with the reason and, where there is one, the name."""
