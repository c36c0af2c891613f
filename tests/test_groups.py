"""Tests of one group run in one process: they follow each other, or share something that is dear to start."""

from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("one process")
def test_the_group_of_a_test_is_seen_by_whoever_divides_tests(request: pytest.FixtureRequest) -> None:
    """pytest-xdist writes the group behind a test's name. Where it cannot, it divides groups and says nothing."""
    if "PYTEST_XDIST_WORKER" not in os.environ or not request.config.getoption("loadgroup", False):
        pytest.skip("tests are not divided by groups here")
    assert request.node.nodeid.endswith("@one process")
