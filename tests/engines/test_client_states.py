"""What clients keep, in memory and on disk: the same versions, whatever is put, rewound and written."""

from __future__ import annotations

import random
import sqlite3

import pytest

from motet.engines import client_state
from motet.engines.client_state import ClientStates
from motet.engines.give_back import give_back
from motet.wire import pack

CLIENTS = [f"c{i}" for i in range(7)]


def rows(states: ClientStates) -> list[tuple[str, int]]:
    return list(states.database.execute("SELECT client, round FROM keeps ORDER BY client, round"))


@pytest.mark.parametrize("seed", range(8))
def test_memory_and_disk_agree_on_every_version_that_may_come_back(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_state, "_AT_ONCE", 3)
    dice, pair = random.Random(seed), [ClientStates(), ClientStates(on_disk=True)]
    saved = best = -1
    for number in range(20):
        some = dice.sample(CLIENTS, dice.randint(1, 7))
        for states in pair:
            states.begin(number)
            states.put_all(some, [{"made": number, "by": c} for c in some])
        if dice.random() < 0.3:
            best = number
            for states in pair:
                states.mark_best()
        for upto in {number, number - 1, best}:
            found = [states.get_all(CLIENTS, upto) for states in pair]
            assert found[0] == found[1] == [pair[0].get(c, upto) for c in CLIENTS]
        if dice.random() < 0.4:
            saved = number
            for states in pair:
                states.write(saved)
            assert rows(pair[0]) == rows(pair[1])


def test_going_back_forgets_what_later_rounds_made() -> None:
    states = ClientStates(on_disk=True)
    for number in range(3):
        states.begin(number)
        states.put_all(["a", "b"], [number, number])
        states.write(number)
    states.begin(3)
    states.put("a", 3)
    states.rewind(2)
    assert states.get_all(["a", "b", "c"]) == [2, 2, None]


def test_whoever_writes_checksums_learns_which_rounds_changed() -> None:
    states = ClientStates(sqlite3.connect(":memory:"), on_disk=True)
    states.begin(4)
    states.put("a", 1)
    states.begin(9)
    states.put("a", 2)
    states.begin(11)
    states.put("a", 3)  # round 4 is needed by none that may come back
    changed = {number for (number,) in states.database.execute("SELECT round FROM changed_keeps")}
    assert changed == {4, 9, 11}
    assert rows(states) == [("a", 9), ("a", 11)]


def test_memory_is_given_back_once_in_a_while_as_states_go_to_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    tree = b"x" * 100
    monkeypatch.setattr(client_state, "EVERY", 2.5 * len(pack(tree)))
    monkeypatch.setattr(client_state, "give_back", lambda: given.append(states.stored))
    states = ClientStates(on_disk=True)
    for number in range(6):
        states.begin(number)
        states.put("a", tree)
    assert given == [0, 0]
    ClientStates().put("a", b"x" * 300)
    assert len(given) == 2


def test_giving_memory_back_changes_nothing_that_is_in_use() -> None:
    held = [bytes([i]) * 100_000 for i in range(50)]
    give_back()
    assert all(v == bytes([i]) * 100_000 for i, v in enumerate(held))
