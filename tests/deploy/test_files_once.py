"""Published models cross the wire to a site once: letters name them by their sha256, and sites store them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime")

import sites
from motet.deploy.agreement.refusals import explained
from motet.deploy.site import stored_files
from motet.deploy.site.contract import turn_seed
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.service import SiteService
from motet.deploy.site.storage import site_key
from motet.deploy.site.stored_files import LacksFiles, StoredFiles
from motet.deploy.site.work_limits import limited
from motet.engines.file_letters import batches, lacking
from motet.engines.flare import Flare
from motet.engines.letters import Letter, Reply
from motet.engines.loop import Loop
from motet.engines.meter import by_client
from motet.engines.wrappers.counted import Counted
from motet.wire import FileName, FileNames, WireError, filled, named, names_in, pack, unpack

OPEN = sites.lenient(Policy(learn="collect"))


def recipe(**settings: Any) -> dict[str, Any]:
    made = sites.recipe("stacking")
    return made | {"method": made["method"] | {"trees": 30} | settings}


def services(folder: Path, policy: Policy = OPEN) -> dict[str, SiteService]:
    return {s: sites.service(s, folder / s, policy) for s in sites.SITES}


class Wire:
    """Carries letters in this process, and remembers all that crossed."""

    def __init__(self, there: Mapping[str, SiteService]) -> None:
        self.there, self.post = there, sites.in_process(there)
        self.crossed: list[tuple[str, bytes, bytes]] = []  # site, letter, reply

    def __call__(self, letters: Mapping[str, bytes]) -> Any:
        came, failed = self.post(letters)
        self.crossed += [(site, letter, came[site]) for site, letter in letters.items()]
        return came, failed

    def times(self, state: Any) -> Counter[tuple[str, str]]:
        """How often each model went to each site: (site, owner)."""
        models = {owner: m["model"].numpy().tobytes() for owner, (m,) in state["catalogue"].items()}
        found = [(s, o) for s, letter, _ in self.crossed for o, m in models.items() if m in letter]
        return Counter(found)

    def asked_for_files(self) -> list[str]:
        return [site for site, _, reply in self.crossed if Reply.read(reply).refusal == "files"]


def played(folder: Path, policy: Policy = OPEN, rounds: int = 3) -> tuple[Wire, Flare, Any, Any]:
    held = recipe()
    wire, method = Wire(services(folder, policy)), sites.method(held)
    engine = Flare(sites.SITES, wire, "r", held, explain=explained)
    state = sites.go(method, engine, 0, rounds)
    for part in ("val", "test"):
        engine.evaluate(method, state, sites.turn(rounds - 1), part)
    return wire, engine, method, state


ALL = Counter({(site, owner): 1 for site in sites.SITES for owner in sites.SITES if site != owner})


def test_a_model_goes_to_each_site_once_whatever_is_asked_later(tmp_path: Path) -> None:
    wire, _, _, state = played(tmp_path)
    assert wire.times(state) == ALL


def test_models_that_came_once_give_the_results_of_the_loop_engine(tmp_path: Path) -> None:
    wire, engine, method, state = played(tmp_path)
    kept = sites.kept(engine, wire.there, "r")
    assert sites.gap(sites.outcome(method, engine, state, kept), sites.expected(method)) <= 1e-6


def test_counted_bytes_are_those_of_the_letters(tmp_path: Path) -> None:
    wire, engine, _, _ = played(tmp_path)
    asked = engine.meter.take()
    assert {"publish", "stack", "evaluate", "files"} == {verb for _, verb, _ in asked}
    for site, (up, down) in by_client(asked).items():
        own = [(len(letter), len(reply)) for s, letter, reply in wire.crossed if s == site]
        assert (down, up) == tuple(map(sum, zip(*own, strict=True)))
    assert sum(many for many, _, _ in asked.values()) == len(wire.crossed)


def test_a_server_that_starts_again_sends_no_model_again(tmp_path: Path) -> None:
    wire, engine, method, state = played(tmp_path)
    wire.crossed.clear()
    again = Flare(sites.SITES, wire, "r", recipe())
    again.keeps = engine.keeps
    again.evaluate(method, state, sites.turn(2), "val")
    assert not wire.times(state) and not wire.asked_for_files()


@pytest.mark.parametrize("how", ["deleted", "damaged", "of another key"])
def test_a_site_that_lost_a_model_asks_for_it_and_gets_that_one_again(tmp_path: Path, how: str) -> None:
    wire, engine, method, state = played(tmp_path)
    before = engine.evaluate(method, state, sites.turn(2), "val")
    name = sha256(state["catalogue"]["b"][0]["model"].numpy().tobytes()).hexdigest()
    path = wire.there["a"].files.path(name)
    if how == "deleted":
        path.unlink()
    elif how == "damaged":
        path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    else:
        path.unlink()
        StoredFiles(path.parent, bytes(32), 1 << 30).put(
            name, state["catalogue"]["b"][0]["model"].numpy().tobytes()
        )
    wire.crossed.clear()
    after = engine.evaluate(method, state, sites.turn(2), "val")
    assert wire.times(state) == Counter({("a", "b"): 1}) and wire.asked_for_files() == ["a"]
    assert sites.gap([*map(_flat, [before])], [*map(_flat, [after])]) == 0
    lines = wire.there["a"].ledger.path.read_text()
    assert "1 files with" in lines and '"clause": "files"' in lines


def _flat(found: Any) -> Any:
    from motet.vec import leaves

    return torch.stack([v.double().nan_to_num(-1) for v in leaves(found[1])])


def test_a_repeated_ask_needs_no_files_and_gets_the_same_reply(tmp_path: Path) -> None:
    wire, _, _, _ = played(tmp_path)
    letters = [(s, letter, r) for s, letter, r in wire.crossed if Letter.read(letter).verb == "stack"]
    site, letter, reply = [x for x in letters if not Reply.read(x[2]).refusal][0]
    for path in (wire.there[site].folder / "files").iterdir():
        path.unlink()
    assert wire.there[site].answer(letter) == reply


def test_files_at_a_site_are_encrypted_and_for_their_owner_alone(tmp_path: Path) -> None:
    wire, _, _, state = played(tmp_path)
    stored = list((wire.there["a"].folder / "files").iterdir())
    assert len(stored) == 2 * 1 or len(stored) == 4  # manifests of a kilobyte and more are files, too
    model = state["catalogue"]["b"][0]["model"].numpy().tobytes()
    assert not any(model[:200] in p.read_bytes() for p in stored)
    assert all(p.stat().st_mode & 0o077 == 0 for p in stored)


# The store.


def test_a_store_forgets_what_no_letter_named_for_longest(tmp_path: Path) -> None:
    store, files = StoredFiles(tmp_path, bytes(32), 9000), [bytes([k]) * 2000 for k in range(3)]
    names = [FileName(sha256(f).hexdigest(), len(f)) for f in files]
    for f, n in zip(files[:2], names, strict=False):
        store.put(n.sha256, f)
    store.get(names[0])  # the older one is used
    store.put(names[2].sha256, files[2])
    assert [store.has(n) for n in names] == [True, False, True]
    with pytest.raises(LacksFiles):
        store.check(names[:2])


def put(store: StoredFiles, content: bytes, age: int) -> FileName:
    """A file that no letter has named for so many seconds."""
    name = FileName(sha256(content).hexdigest(), len(content))
    store.put(name.sha256, content)
    os.utime(store.path(name.sha256), (10**9 - age,) * 2)
    return name


def test_what_a_letter_names_is_not_forgotten_for_what_it_lacks(tmp_path: Path) -> None:
    store = StoredFiles(tmp_path, bytes(32), 9000)
    older, newer = put(store, b"a" * 2000, age=2), put(store, b"b" * 2000, age=1)
    lacks = FileName(sha256(b"c" * 2000).hexdigest(), 2000)
    with pytest.raises(LacksFiles):
        store.check([older, lacks])
    store.put(lacks.sha256, b"c" * 2000)
    assert store.has(older) and store.has(lacks) and not store.has(newer)


def test_a_file_in_the_place_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    store = StoredFiles(tmp_path, bytes(32), 1 << 20)
    one, other = put(store, b"a" * 2000, age=2), put(store, b"b" * 2000, age=1)
    store.path(other.sha256).write_bytes(store.path(one.sha256).read_bytes())
    with pytest.raises(LacksFiles):
        store.get(other)
    assert bytes(store.get(one).numpy()) == b"a" * 2000


def test_small_files_count_as_the_disk_does_and_many_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_files, "_MOST", 3)
    store = StoredFiles(tmp_path, bytes(32), 1 << 20)
    names = [put(store, bytes([k]) * 1100, age=9 - k) for k in range(5)]
    assert [store.has(n) for n in names] == [False, False, True, True, True]
    assert sum(store.listed().values()) == 3 * 4096
    with pytest.raises(RefusedByPolicy, match="names 4 files that take 16,384 bytes on disk"):
        store.check(names[:4])
    (tmp_path / "0.file.part").write_bytes(bytes(10**6))
    store.put(names[0].sha256, bytes([0]) * 1100)
    assert not list(tmp_path.glob("*.part"))


def test_a_letter_of_many_files_lists_the_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, listed = StoredFiles(tmp_path, bytes(32), 1 << 20), []
    monkeypatch.setattr(stored_files.os, "scandir", lambda p: listed.append(p) or iter(()))
    files = {sha256(c).hexdigest(): c for c in (bytes([k]) * 1100 for k in range(9))}
    assert store.put_all(files, files) == 9 and len(listed) == 1


def test_only_files_that_were_asked_for_are_taken_and_within_the_limits_of_work(tmp_path: Path) -> None:
    wire, engine, method, state = played(tmp_path)
    service, content = wire.there["a"], b"x" * 2000
    name = sha256(content).hexdigest()
    letter = engine.letter("files", "a", {name: content})
    assert Reply.read(service.answer(letter)).refusal == "letter"
    assert "was not asked for" in service.ledger.path.read_text()
    service.awaited["r"] = frozenset([name])
    service.limits = lambda: limited(0.5, 1 << 34)  # type: ignore[method-assign]
    service.files.store = lambda *_: [None for _ in iter(int, 1)]  # type: ignore[method-assign]
    assert Reply.read(service.answer(letter)).refusal == "limits"


def test_files_that_do_not_fit_are_refused_in_words_and_the_others_go_on(tmp_path: Path) -> None:
    small = {
        s: sites.service(s, tmp_path / s, replace(OPEN, stored_bytes=3000 if s == "a" else 1 << 30))
        for s in "abc"
    }
    held, wire = recipe(), Wire(small)
    method, engine = sites.method(held), Flare(sites.SITES, wire, "r", held, explain=explained)
    state = sites.go(method, engine)
    assert (
        "a" in engine.away
        and "time, memory or disk" in engine.away["a"]
        and {"b", "c"} <= set(state["trust"])
    )
    assert "stored_bytes = 3,000" in small["a"].ledger.path.read_text()


def test_a_file_under_another_name_or_of_a_method_without_files_is_refused(tmp_path: Path) -> None:
    held = recipe()
    service = sites.service("a", tmp_path / "a", OPEN)
    send = {sha256(b"x" * 2000).hexdigest(): b"y" * 2000}
    letter = Letter("files", "r", 0, seed=turn_seed(1, 0), recipe=held, send=send)
    assert Reply.read(service.answer(letter.pack())).refusal == "letter"
    other = sites.service("a", tmp_path / "b", OPEN)
    letter = Letter("files", "r", 0, seed=turn_seed(1, 0), recipe=sites.recipe("fedavg"), send=send)
    assert Reply.read(other.answer(letter.pack())).refusal == "letter"
    assert not list((tmp_path / "b" / "files").glob("*"))


def test_a_service_without_a_key_stores_files_for_its_own_life(tmp_path: Path) -> None:
    own = sites.federation({"a": sites.clients_data()["a"]})
    assert SiteService("a", tmp_path, own, OPEN, site_key(tmp_path / "key")).files.key != b""
    assert len(SiteService("a", tmp_path, own, OPEN).files.key) == 32


# The server.


def test_a_site_is_brought_no_file_that_it_was_not_served() -> None:
    mine, secret = (torch.full((2000,), k, dtype=torch.uint8) for k in (1, 2))
    names = [sha256(t.numpy().tobytes()).hexdigest() for t in (mine, secret)]
    files: Any = {"a": {names[1]: secret}, "b": {names[0]: mine}, "c": {}}
    came = {c: Reply(names, refusal="files").pack() for c in "abc"}
    wanted = lacking(came, files)
    assert wanted == {"a": [names[1]], "b": [names[0]]}
    (brought,) = batches(wanted, files)
    assert {c: set(some) for c, some in brought.items()} == {"a": {names[1]}, "b": {names[0]}}


# Names in trees.


def test_names_stand_for_long_rows_of_bytes_and_for_nothing_else() -> None:
    long, short = torch.arange(2000).to(torch.uint8), torch.zeros(10, dtype=torch.uint8)
    tree = {"a": [long, short, 1.5], "b": (torch.zeros(5000), long)}
    small, files = named(tree, FileNames())
    assert names_in(small) == [FileName(sha256(long.numpy().tobytes()).hexdigest(), 2000)] and len(files) == 1
    back = filled(unpack(pack(small), files=True), lambda n: files[n.sha256])
    assert torch.equal(back["b"][1], long) and torch.equal(back["a"][1], short) and len(pack(small)) < 21_000


@pytest.mark.parametrize(
    "name", [["a" * 63, 5], ["A" * 64, 5], ["a" * 64, -1], ["a" * 64, "5"], ["a" * 64], 5]
)
def test_a_name_that_is_none_is_a_wire_error_and_so_is_one_in_a_reply(name: Any) -> None:
    good = pack(FileName("a" * 64, 5))
    assert unpack(good, files=True) == FileName("a" * 64, 5)
    with pytest.raises(WireError):
        unpack(good)
    import json
    import struct

    header = json.dumps({"tree": {"file": name}, "arrays": []}).encode()
    with pytest.raises(WireError):
        unpack(good[:8] + struct.pack("<Q", len(header)) + header, files=True)


# Simulations.


def test_a_simulation_counts_a_model_once_for_each_client_and_scores_too() -> None:
    held = recipe()
    method, engine = sites.method(held), Counted(Loop(sites.clients_data()))
    state = sites.go(method, engine, 0, 2)
    first = engine.take()
    sizes = {o: m["model"].numel() for o, (m,) in state["catalogue"].items()}
    for client, (_, down) in first.items():
        models = sum(v for o, v in sizes.items() if o != client)
        assert models < down < models + 8000  # manifests, names, words
    engine.evaluate(method, state, sites.turn(1), "val")
    asked = engine.take_by_verb()
    assert {(verb, learn) for _, verb, learn in asked} == {("evaluate", "scores")}
    assert all(0 < up < 2000 and 0 < down < 3000 for _, up, down in asked.values())


def test_a_file_that_is_asked_for_again_and_again_is_brought_a_few_times_and_then_it_is_a_refusal(
    tmp_path: Path,
) -> None:
    held = recipe()
    there = services(tmp_path)
    there["a"].files.put_all = lambda files, _: len(files)  # type: ignore[method-assign] # forgets everything
    wire, method = Wire(there), sites.method(held)
    engine = Flare(sites.SITES, wire, "r", held, explain=explained)
    state = sites.go(method, engine)
    assert wire.asked_for_files().count("a") <= 3 * 4
    assert "lacks files" in engine.away["a"] and {"b", "c"} <= set(state["trust"])


def test_a_file_that_is_there_takes_no_place_of_others_and_is_read_once(tmp_path: Path) -> None:
    one, two = (bytes([k]) * 2000 for k in (1, 2))
    store = StoredFiles(tmp_path, b"k" * 32, 8192)
    files = {sha256(c).hexdigest(): c for c in (one, two)}
    store.put_all(files, files)
    store.put(sha256(two).hexdigest(), two)
    names = [FileName(sha256(c).hexdigest(), 2000) for c in (one, two)]
    assert all(store.has(n) for n in names)
    first, second = store.filled([names[0], names[0]])
    assert first is second


def test_tiny_files_and_very_many_are_not_stored(tmp_path: Path) -> None:
    store = StoredFiles(tmp_path, b"k" * 32, 1 << 20)
    with pytest.raises(RefusedByPolicy, match="none below"):
        store.put(sha256(b"abc").hexdigest(), b"abc")
    with pytest.raises(RefusedByPolicy, match="at most"):
        store.put_all({str(k): b"" for k in range(501)}, [])
