"""The flare engine asks sites by letters: every method comes out as on the loop engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sites
from motet.engines.driver import training
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.flare import Flare
from motet.engines.loop import Loop
from motet.parts.rate_schedules import RateSchedule
from motet.runs.recipe import method_names


@pytest.mark.parametrize("name", [*method_names(), *sites.WAYS])
def test_letters_to_sites_give_what_the_loop_gives(name: str, tmp_path: Path) -> None:
    settings = sites.recipe(name)
    method = sites.method(settings)
    services = {s: sites.service(s, tmp_path / s) for s in sites.SITES}
    expect = ExpectedReplies(method.task, (sites.FEATURES,))
    engine = Flare(sites.SITES, sites.in_process(services), "r", settings, expect=expect)
    state = sites.go(method, engine)
    found = sites.outcome(method, engine, state, sites.kept(engine, services, "r"))
    assert sites.gap(sites.expected(method), found) == 0


def test_models_after_training_are_scored_at_sites_with_the_rate_of_their_round(tmp_path: Path) -> None:
    settings = sites.recipe("fedavg adamw, cosine")
    method, number = sites.method(settings), 2  # the rate is a half there, and whole in the round before
    services = {s: sites.service(s, tmp_path / s) for s in sites.SITES}
    scores = []
    for engine in (Loop(sites.clients_data()), Flare(sites.SITES, sites.in_process(services), "r", settings)):
        state = sites.go(method, engine, last=number)
        asks, turn = training(method, state, sites.turn(number)), sites.turn(number)
        scores.append(engine.evaluate_trained(method, asks, turn)[1])
    losses = [s["test"]["loss"] for s in scores]
    constant = replace(method, schedule=RateSchedule())
    engine = Loop(sites.clients_data())
    state = sites.go(method, engine, last=number)
    unscheduled = engine.evaluate_trained(constant, training(constant, state, turn), turn)[1]["test"]["loss"]
    assert torch.equal(*losses) and not torch.allclose(losses[0], unscheduled, rtol=1e-4)
