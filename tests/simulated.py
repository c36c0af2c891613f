"""What runs inside FLARE's simulator in tests: a server that plays every method, and sites with a service each."""

from __future__ import annotations

import json
from pathlib import Path

from nvflare.collab import collab

import sites
from motet.engines.flare import Flare
from motet.engines.group_calls import group_calls
from motet.engines.letters import Letter, Reply
from motet.runs.recipe import method_names


class Server:
    """Plays every method by group calls, and writes how far each is from the loop engine."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @collab.main
    def main(self) -> None:
        gaps = {name: self.play(name) for name in [*method_names(), *sites.WAYS]}
        found = {"gaps": gaps, "large": self.send(b"x" * (8 << 20)), "strange": self.send(b"hello")}
        found["neighbour"] = self.neighbour(Letter("describe").pack())
        found["after"] = self.play("fedavg", "once more")
        (Path(self.folder) / "found.json").write_text(json.dumps(found))

    def send(self, message: bytes) -> str:
        """What becomes of a message to site a."""
        came, failed = group_calls(20.0)({"a": message})
        return f"failed: {failed['a']}" if failed else f"refused: {Reply.read(came['a']).refusal}"

    def neighbour(self, message: bytes) -> str:
        """What site b says to a letter that site a sends it."""
        call = collab.get_clients(["a"])(blocking=False, timeout=60.0).knock(message)
        return str(dict(call).get("a") or call.failures)

    def play(self, name: str, run: str = "") -> float:
        settings = sites.recipe(name)
        method = sites.method(settings)
        engine = Flare(sites.SITES, group_calls(60.0), run or name, settings)
        state = sites.go(method, engine)
        services = {s: sites.service(s, Path(self.folder) / s) for s in sites.SITES}
        return sites.gap(
            sites.expected(method),
            sites.outcome(method, engine, state, sites.kept(engine, services, run or name)),
        )


class Site:
    """A site's service, as a FLARE component."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @collab.init
    def init(self) -> None:
        name = collab.site_name
        self.service = sites.service(name, Path(self.folder) / name)

    @collab.publish
    def answer(self, message: bytes) -> bytes:
        return self.service.answer(message, str(collab.caller))

    @collab.publish
    def knock(self, message: bytes) -> str:
        """What site b answers to a letter of this site."""
        call = collab.get_clients(["b"])(blocking=False, timeout=30.0).answer(message)
        return Reply.read(dict(call)["b"]).refusal
