"""All tests of a method come one after another: the records of its training steps are remembered for a while."""

from __future__ import annotations

from typing import Any

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [k for k, item in enumerate(items) if method_of(item)]
    in_order = sorted((items[k] for k in places), key=method_of)
    for place, item in zip(places, in_order, strict=True):
        items[place] = item


def method_of(item: Any) -> str:
    """The method that a test is for; "" for other tests."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return str(params["method"]) if "xdist_group" in item.keywords and "method" in params else ""
