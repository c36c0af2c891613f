"""How many files of motet a letter crosses on its way from the server to a site and back."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import motet
import sites
from motet.core import Turn
from motet.deploy.site.contract import turn_seed
from motet.engines.driver import play
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.flare import Flare
from motet.engines.letters import Letter

HOME = str(Path(motet.__file__).parent) + "/"
MOST = 37  # with client/thread_net.py and client/dropout.py, and trusted_code.py, which says whose code is checked


def files_of_a_letter(folder: Path) -> list[str]:
    """Files whose functions run from the round's ask to the mean, in the order of their first call.

    The first round of FedAvg with one site, to which the run was offered, as in every federation.
    """
    settings = sites.recipe("fedavg")
    method, service = sites.method(settings), sites.service("a", folder)
    service.answer(Letter("offer", "r", recipe=settings, send={"rounds": 1}).pack())
    expect = ExpectedReplies(method.task, (sites.FEATURES,))
    engine = Flare(["a"], sites.in_process({"a": service}), "r", settings, expect=expect)
    turn = Turn(0, ["a"], ["a"], turn_seed(1, 0))
    found: dict[str, None] = {}

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            found.setdefault(frame.f_code.co_filename.removeprefix(HOME))

    sys.setprofile(watch)
    try:
        play(engine, method, method.task.w0, turn)
    finally:
        sys.setprofile(None)
    return list(found)


def test_a_letter_crosses_few_files(tmp_path: Path) -> None:
    found = files_of_a_letter(tmp_path)
    assert len(found) <= MOST, found


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        print(*enumerate(files_of_a_letter(Path(place)), 1), sep="\n")
