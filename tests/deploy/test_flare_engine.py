"""The flare engine asks sites by letters: every method comes out as on the loop engine."""

from __future__ import annotations

from pathlib import Path

import pytest

import sites
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.flare import Flare
from motet.runs.recipe import method_names


@pytest.mark.parametrize("name", method_names())
def test_letters_to_sites_give_what_the_loop_gives(name: str, tmp_path: Path) -> None:
    settings = sites.recipe(name)
    method = sites.method(settings)
    services = {s: sites.service(s, tmp_path / s) for s in sites.SITES}
    expect = ExpectedReplies(method.task, (sites.FEATURES,))
    engine = Flare(sites.SITES, sites.in_process(services), "r", settings, expect=expect)
    state = sites.go(method, engine)
    found = sites.outcome(method, engine, state, sites.kept(engine, services, "r"))
    assert sites.gap(sites.expected(method), found) == 0
