"""Waiting for replies: long work is waited for, a dead process is not."""

from __future__ import annotations

from motet.engines.awaited_replies import Outcome, gather


class World:
    """Replies of clients at certain times, and a clock that moves while somebody waits."""

    def __init__(self, replies: dict[str, float], dead: set[str], silent_at: range = range(10_000)) -> None:
        self.now, self.dead, self.silent_at = 0.0, dead, silent_at
        self.outcomes: list[tuple[float, Outcome]] = [(at, (c, b"reply", "")) for c, at in replies.items()]
        self.waited: list[list[str]] = []

    def next_outcome(self, seconds: float) -> Outcome | None:
        first = min(self.outcomes, default=(1e9, None))
        if first[0] > self.now + seconds or first[1] is None:
            self.now += seconds
            return None
        self.outcomes.remove(first)
        self.now = max(self.now, first[0])
        return first[1]

    def silent(self, clients: list[str]) -> set[str]:
        self.now += 5.0
        return self.dead & set(clients) if int(self.now) in self.silent_at else set()

    def gather(self, *clients: str) -> tuple[dict[str, bytes], dict[str, str]]:
        return gather(self.next_outcome, clients, self.silent, self.waited.append, lambda: self.now)


def test_work_of_many_minutes_is_waited_for_and_people_are_told() -> None:
    world = World({"a": 0.0, "b": 1_800.0}, dead=set())
    assert world.gather("a", "b") == ({"a": b"reply", "b": b"reply"}, {})
    assert world.now >= 1_800 and world.waited[0] == ["b"] and world.waited[-1] == []


def test_a_process_without_a_sign_of_life_is_not_waited_for() -> None:
    world = World({"a": 100.0}, dead={"b"})
    came, failed = world.gather("a", "b")
    assert came == {"a": b"reply"} and "no sign of life for" in failed["b"]
    world = World({}, dead={"b"})
    world.gather("b")
    assert 40 <= world.now < 60


def test_who_is_silent_for_a_moment_is_waited_for() -> None:
    world = World({"b": 100.0}, dead={"b"}, silent_at=range(20, 45))
    assert world.gather("b") == ({"b": b"reply"}, {})


def test_quick_replies_and_failures_of_the_carrier_are_taken_as_they_are() -> None:
    world = World({"a": 0.0}, dead=set())
    world.outcomes.append((1.0, ("b", b"", "no route")))
    assert world.gather("a", "b") == ({"a": b"reply"}, {"b": "no route"})
    assert world.waited == []
