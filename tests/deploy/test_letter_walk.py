"""How many files of motet a letter crosses on its way from the server to a site and back."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import motet
import sites
from motet.client import seed_of
from motet.core import Turn
from motet.engines.driver import play
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.flare import Flare

HOME = str(Path(motet.__file__).parent) + "/"
MOST = 20


def files_of_a_letter(folder: Path) -> list[str]:
    """Files whose functions run from the round's ask to the mean, in the order of their first call.

    It is the second round of FedAvg with one site, whose service and method are there already.
    """
    settings = sites.recipe("fedavg")
    method = sites.method(settings)
    services = {"a": sites.service("a", folder)}
    expect = ExpectedReplies(method.task, (sites.FEATURES,))
    engine = Flare(["a"], sites.by_hand(services), "r", settings, expect=expect)
    found: dict[str, None] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            found.setdefault(frame.f_code.co_filename.removeprefix(HOME))

    state = method.task.w0
    sys.setprofile(watch)
    try:
        play(engine, method, state, turn(1))
    finally:
        sys.setprofile(None)
    return list(found)


def turn(number: int) -> Turn:
    return Turn(number, ["a"], ["a"], seed_of(1, number))


def test_a_letter_crosses_few_files(tmp_path: Path) -> None:
    found = files_of_a_letter(tmp_path)
    assert len(found) <= MOST, found


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        print(*enumerate(files_of_a_letter(Path(place)), 1), sep="\n")
