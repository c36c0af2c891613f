"""Verbs of a person's own: they change nothing that they are given, and a failure names the line that failed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import motet
from motet.cli import main as command_line
from motet.client import Batch, ClientData, Task
from motet.client.losses import Criterion
from motet.client.visit import Visit
from motet.core import Turn, average, collect, verb
from motet.engines.driver import play, start
from motet.engines.loop import Loop
from motet.engines.threads import Threads
from motet.engines.vmap import Vmap
from motet.errors import MethodFailed, VerbFailed
from motet.methods.fedavg import FedAvg
from rounds import turn

Clients = dict[str, ClientData]
every_engine = pytest.mark.parametrize(
    "engine",
    [Loop, Vmap, partial(Vmap, chunk=3), partial(Threads, workers=2)],
    ids=["loop", "vmap", "vmap in chunks", "threads"],
)
FIRST = "0.weight"


@pytest.fixture
def clients_data(clients_data: Clients) -> Clients:
    """Five clients with rows of their own, which a test may spoil."""
    own = {}
    for c, d in list(clients_data.items())[:5]:
        train, val, test = (Batch(b.x.clone(), b.y.clone(), b.live) for b in (d.train.take(), d.val, d.test))
        own[c] = replace(d, train=train, val=val, test=test)
    return own


def copy_of(w: Any) -> Any:
    return w.map(lambda a, _: a.clone())


# ---- what a verb is given stays as it is ----


def scale_all(w: Any) -> None:
    for k in w:
        w[k].mul_(0.9)


def step_of_sgd(w: Any) -> None:
    for t in w.values():
        t.requires_grad_(True)
        t.grad = torch.ones_like(t)
    torch.optim.SGD(w.values(), lr=0.1).step()


def entry_plus_one(w: Any, keep: Any, data: Any) -> None:
    w[FIRST] += 1


def one_number(w: Any, keep: Any, data: Any) -> None:
    w[FIRST][0] = 1


def other_entry(w: Any, keep: Any, data: Any) -> None:
    w[FIRST] = w[FIRST] * 0.9


def other_kept(w: Any, keep: Any, data: Any) -> None:
    keep["v"] = keep["v"] * 0.9


def new_entry(w: Any, keep: Any, data: Any) -> None:
    keep["more"] = data.n + 1


def other_rows(w: Any, keep: Any, data: Any) -> None:
    data.x = data.x + 1


CHANGES: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "all that was sent": (lambda w, keep, data: scale_all(w), "sent['0.weight'], sent['0.bias'], "),
    "entry += 1": (entry_plus_one, "sent['0.weight']"),
    "one number": (one_number, "sent['0.weight']"),
    "a view": (lambda w, keep, data: w[FIRST].view(-1).mul_(2), "sent['0.weight']"),
    "a detached slice": (lambda w, keep, data: w[FIRST].detach()[1:].zero_(), "sent['0.weight']"),
    "a copy into it": (lambda w, keep, data: w[FIRST].copy_(w[FIRST] * 2), "sent['0.weight']"),
    "another entry": (other_entry, "sent['0.weight']"),
    "an entry less": (lambda w, keep, data: w.pop(FIRST), "the entries of a dict or list"),
    "what it keeps": (lambda w, keep, data: scale_all(keep["v"]), "keep['v']['0.weight'], "),
    "a number that it keeps": (lambda w, keep, data: keep["times"].add_(1), "keep['times']"),
    "something else to keep": (other_kept, "keep['v']['0.weight'], "),
    "more to keep": (new_entry, "keep['more']"),
    "rows": (lambda w, keep, data: data.x.mul_(2), "data.x"),
    "targets": (lambda w, keep, data: data.y.zero_(), "data.y"),
    "validation rows": (lambda w, keep, data: data.val.x.zero_(), "data.val.x"),
    "other rows": (other_rows, "data.x"),
}
# Of what clients have of their own, torch refuses these where clients are stacked.
UNSTACKED: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "several at once": (lambda w, keep, data: torch._foreach_mul_(list(w.values()), 0.9), "sent['0.weight']"),
    "data of a tensor": (lambda w, keep, data: w[FIRST].data.mul_(2), "sent['0.weight']"),
    "another tensor's data": (
        lambda w, keep, data: setattr(w[FIRST], "data", w[FIRST] * 2),
        "sent['0.weight']",
    ),
    "an optimiser's step": (lambda w, keep, data: step_of_sgd(w), "sent['0.weight'], sent['0.bias'], "),
    "a NumPy view": (lambda w, keep, data: w[FIRST].numpy().fill(2), "sent['0.weight']"),
    "an array that it keeps": (lambda w, keep, data: keep["array"].fill(2), "keep['array']"),
}


# Rows are each client's own, so torch refuses these too where clients are stacked, in words of its own.
ROWS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "an array of rows": (
        lambda w, keep, data: np.multiply(data.x.numpy(), 0.9, out=data.x.numpy()),
        "data.x",
    ),
    "data of rows": (lambda w, keep, data: data.x.data.mul_(0.9), "data.x"),
    "targets in another order": (lambda w, keep, data: data.y.numpy().sort(), "data.y"),
    "data of validation rows": (lambda w, keep, data: data.val.x.data.neg_(), "data.val.x"),
    "two numbers that change places": (
        lambda w, keep, data: w["0.bias"].numpy().__setitem__([0, 1], w["0.bias"].numpy()[[1, 0]]),
        "sent['0.bias']",
    ),
}


class Changing(FedAvg):
    """Changes something that it was given."""

    what: Any = None

    def join(self, data: Any) -> Any:
        return {"v": copy_of(self.task.w0), "times": torch.zeros(())}

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        self.what(w, keep, data)
        return self.task.w0, keep


class ChangingInPython(Changing):
    """The same in a verb of ordinary Python, which may keep arrays."""

    def join(self, data: Any) -> Any:
        return super().join(data) | {"array": np.zeros(2)}

    @verb(solo=True)
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        self.what(w, keep, data)
        return self.task.w0, keep


def refusal(method: FedAvg, engine: Any, send: Any) -> str:
    with pytest.raises(VerbFailed) as e:
        play(engine, method, send, turn(engine, 0))
    return str(e.value)


@every_engine
@pytest.mark.parametrize("change", CHANGES)
def test_a_verb_that_changes_what_it_was_given_is_refused(
    change: str, engine: Any, task: Task, clients_data: Clients
) -> None:
    what, which = CHANGES[change]
    said = refusal(Changing(task, what=what), engine(clients_data), copy_of(task.w0))
    assert "verb train, round 1" in said and f"it changes what it was given: {which}" in said
    assert re.search(r"\ntest_own_verbs.py:\d+, in train: `def train\(self, w", said) and "\nhint: " in said


@every_engine
@pytest.mark.parametrize("change", [c for c in UNSTACKED if "array" not in c and "optimiser" not in c])
def test_so_is_one_that_goes_around_the_versions_of_tensors(
    change: str, engine: Any, task: Task, clients_data: Clients
) -> None:
    what, which = UNSTACKED[change]
    said = refusal(Changing(task, what=what), engine(clients_data), copy_of(task.w0))
    assert f"it changes what it was given: {which}" in said


@every_engine
@pytest.mark.parametrize("change", CHANGES | UNSTACKED | ROWS)
def test_so_is_a_verb_of_ordinary_python(change: str, engine: Any, task: Task, clients_data: Clients) -> None:
    what, which = (CHANGES | UNSTACKED | ROWS)[change]
    said = refusal(ChangingInPython(task, what=what), engine(clients_data), copy_of(task.w0))
    assert f"it changes what it was given: {which}" in said


@every_engine
@pytest.mark.parametrize("change", ROWS)
def test_rows_changed_around_versions_are_refused_too(
    change: str, engine: Any, task: Task, clients_data: Clients
) -> None:
    what, which = ROWS[change]
    e = engine(clients_data)
    said = refusal(Changing(task, what=what), e, copy_of(task.w0))
    assert isinstance(e, Vmap) or f"it changes what it was given: {which}" in said
    assert re.search(r"\ntest_own_verbs.py:\d+, in ", said)


class SpoilingNet(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        x.data.mul_(0.9)
        return self.last(x)


def spoiling_loss(z: Any, y: Any) -> Any:
    y.data.zero_()
    return torch.nn.functional.cross_entropy(z, y, reduction="none")


def loss_of_rows(method: Any, sent: Any, keep: Any, data: Any) -> Any:
    return method.task.loss(sent, data.val), keep


@pytest.mark.parametrize("engine", [Loop, partial(Threads, workers=2)], ids=["loop", "threads"])
@pytest.mark.parametrize("at", ["forward", "spoiling_loss"])
def test_a_network_or_loss_of_ones_own_changes_no_rows(at: str, engine: Any, clients_data: Clients) -> None:
    spoils = at == "forward"
    net = SpoilingNet() if spoils else torch.nn.Linear(6, 3)
    task = Task(net, "classes", 3, criterion=None if spoils else Criterion(own=spoiling_loss))
    e, method = engine(clients_data), FedAvg(task)
    e.begin(method, turn(e, 0))
    with pytest.raises(VerbFailed) as failed:
        if spoils:
            e.evaluate(method, task.w0, turn(e, 0), "test")
        list(e.each(partial(loss_of_rows, method), dict.fromkeys(e.clients, task.w0), e.data))
    assert f"it changes what it was given: {'examples.x' if spoils else 'data.val.y'}" in str(failed.value)
    assert re.search(rf"\ntest_own_verbs.py:\d+, in {at}: `def {at}\(", str(failed.value))


class SpoilsTheStart(FedAvg):
    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        scale_all(self.task.w0)
        return w, keep


@every_engine
def test_a_verb_may_not_change_the_weights_that_all_start_from(
    engine: Any, task: Task, clients_data: Clients
) -> None:
    own = Task(torch.nn.Linear(6, 3), "classes", 3)
    assert "changes what it was given: self.task.w0['weight']" in refusal(
        SpoilsTheStart(own), engine(clients_data), copy_of(own.w0)
    )


class SpoilsElsewhere(FedAvg):
    """Changes its rows as it joins, or what it was sent as it makes its personal model."""

    at: str = "join"

    def join(self, data: Any) -> Any:
        if self.at == "join":
            data.x.add_(1)
        return self.task.w0

    def personal(self, w: Any, keep: Any, data: Any) -> Any:
        if self.at == "personal":
            scale_all(w)
        return partial(self.task.predict, w)


@every_engine
@pytest.mark.parametrize(("at", "which"), [("join", "data.x"), ("personal", "sent[")])
def test_join_and_personal_change_nothing_either(
    at: str, which: str, engine: Any, task: Task, clients_data: Clients
) -> None:
    e, method = engine(clients_data), SpoilsElsewhere(task, at=at)
    with pytest.raises(VerbFailed) as failed:
        state = play(e, method, start(e, method, turn(e, -1)), turn(e, 0))
        e.evaluate(method, copy_of(state), turn(e, 0), "val")
    assert f"it changes what it was given: {which}" in str(failed.value)
    assert re.search(rf"test_own_verbs.py:\d+, in {at}: `def {at}", str(failed.value))


def test_a_site_refuses_it_too(task: Task, clients_data: Clients) -> None:
    method = Changing(task, what=CHANGES["what it keeps"][0])
    visit = Visit(method, "c00", clients_data["c00"], 1, 0)
    with pytest.raises(VerbFailed, match=r"client c00, verb train, round 1: it changes .* keep\['v'\]"):
        visit.perform(method.train, task.w0, visit.joined())


class Pure(FedAvg):
    """Changes only what it made itself, and gives back what it was sent."""

    def join(self, data: Any) -> Any:
        return self.task.w0

    @verb
    def train(self, w: Any, v: Any, data: Any) -> Any:
        u = copy_of(w)
        scale_all(u)
        u[FIRST] = u[FIRST] + data.x.mean()
        new = dict(kept=v)
        new["more"] = v
        return w + u, w


@every_engine
def test_a_verb_may_change_what_it_made(engine: Any, task: Task, clients_data: Clients) -> None:
    e = engine(clients_data)
    for number in range(2):
        play(e, Pure(task), task.w0, turn(e, number))
    assert torch.equal(e.keeps.get("c00")[FIRST], task.w0[FIRST])


# ---- what the server does ----


class ServerChanges(FedAvg):
    """Changes at the server what it was given, or what it sent."""

    at: str = ""

    def start(self, turn: Turn) -> Any:
        if self.at == "start":
            scale_all(self.task.w0)
        return {"w": self.task.w0, "m": self.task.w0 * 0}

    def round(self, s: Any, turn: Turn) -> Any:
        sent = copy_of(s["w"])
        w = yield average(self.train, turn.cohort, send=sent)
        if self.at == "round":
            scale_all(w := s["w"])
        if self.at == "momentum":
            s["m"][FIRST].mul_(0.9).add_(w[FIRST] - s["w"][FIRST])
        if self.at == "around versions":
            s["w"][FIRST].numpy()[0] += 1
        if self.at == "entry":
            s["w"] = w
        if self.at == "sent":
            scale_all(sent)
        scale_all(own := copy_of(w))
        return {"w": own, "m": s["m"]}

    def look(self, at: str, s: Any) -> Any:
        if self.at == at:
            scale_all(s["w"])
        return s["w"]

    def global_model(self, s: Any) -> Any:
        return self.look("global_model", s)

    def download(self, s: Any, client: Any) -> Any:
        return self.look("download", s)

    def metrics(self, s: Any) -> Any:
        return {"bias": float(next(iter(self.look("metrics", s).values())).sum())}

    def log(self, before: Any, after: Any) -> str:
        return "" if before == () else str(len(self.look("log", before)))


@every_engine
@pytest.mark.parametrize(
    ("at", "which"),
    [
        ("start", "self.task.w0['weight'], "),
        ("round", "state['w']['weight'], "),
        ("momentum", "state['m']['weight']"),
        ("around versions", "state['w']['weight']"),
        ("entry", "state['w']['weight'], "),
        ("sent", "sent[0]['weight'], "),
    ],
)
def test_a_server_that_changes_what_it_was_given_is_refused(
    at: str, which: str, engine: Any, clients_data: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "FIRST", "weight")
    e, method = engine(clients_data), ServerChanges(Task(torch.nn.Linear(6, 3), "classes", 3), at=at)
    with pytest.raises(MethodFailed) as failed:
        play(e, method, start(e, method, turn(e, -1)), turn(e, 0))
    hook, said = "start" if at == "start" else "round", str(failed.value)
    assert f"{hook}: it changes what it was given: {which}" in said
    assert re.search(rf"\ntest_own_verbs.py:\d+, in {hook}: `def {hook}\(.*\nhint: make new tensors", said)


@every_engine
def test_a_server_may_change_what_it_made(engine: Any, task: Task, clients_data: Clients) -> None:
    e, method = engine(clients_data), ServerChanges(task)
    state = start(e, method, turn(e, -1))
    for number in range(2):
        state = play(e, method, state, turn(e, number))
    assert not torch.equal(state["w"][FIRST], task.w0[FIRST])


@pytest.mark.parametrize("at", ["", "global_model", "download", "metrics", "log"])
def test_what_looks_at_the_servers_state_changes_nothing(at: str, tmp_path: Any) -> None:
    asked: Any = dict(method={"name": ServerChanges, "at": at}, data="wine", rounds=1, out=tmp_path / "run")
    if not at:
        motet.run(**asked)
        return
    with pytest.raises(
        motet.MotetError, match=rf"{at}.*: it changes what it was given: (before|state)\['w'\]"
    ):
        motet.run(**asked)


class Answers(FedAvg):
    at: str = ""

    def round(self, w: Any, turn: Turn) -> Any:
        ask = average(self.train, turn.cohort, send=w)
        return ask if self.at == "an ask" else self.talk(ask)

    def talk(self, ask: Any) -> Any:
        return (yield 3)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("an ask", "round returned an ask, which nobody was asked"),
        ("3", "round yielded int; it must yield an ask"),
    ],
)
def test_a_round_that_does_not_ask_is_told_how(at: str, said: str, task: Task, clients_data: Clients) -> None:
    e = Loop(clients_data)
    with pytest.raises(MethodFailed) as failed:
        play(e, Answers(task, at=at), task.w0, turn(e, 0))
    assert re.search(rf"round 1: {said}\ntest_own_verbs.py:\d+, in round: .*\nhint: ", str(failed.value))


# ---- where it failed ----


class Failing(FedAvg):
    """Fails where it is told to."""

    at: str = ""

    def start(self, turn: Turn) -> Any:
        return self.typo if self.at == "start" else self.task.w0

    def round(self, w: Any, turn: Turn) -> Any:
        if self.at == "round":
            w = turn.cohorts
        ask = collect(self.train, turn.cohort, send=w)
        return (yield ask) if self.at == "collect" else (yield average(self.train, turn.cohort, send=w))

    def join(self, data: Any) -> Any:
        return {}[1] if self.at == "join" else self.task.w0

    @verb
    def train(self, w: Any, v: Any, data: Any) -> Any:
        if self.at == "train":
            w = self.task.los
        if self.at == "a name":
            w = unknown  # noqa: F821
        if self.at == "a key":
            w = {}[1]
        if self.at == "its loss":
            w = self.descend(self.own_loss, w, data)
        return (w,) if self.at == "a pair" else (w, v)

    def own_loss(self, w: Any, batch: Any) -> Any:
        return self.task.loss(w.pick(["0.weight"]), batch)

    def personal(self, w: Any, v: Any, data: Any) -> Any:
        if self.at == "a shape":
            w = w.map(lambda a, _: a.reshape(-1, 1) if a.ndim == 2 else a)
        return self.task.predicts if self.at == "personal" else partial(self.task.predict, w)


def failure(at: str, engine: Any, task: Task) -> str:
    method = Failing(task, at=at)
    with pytest.raises(MethodFailed) as e:
        state = play(engine, method, start(engine, method, turn(engine, -1)), turn(engine, 0))
        engine.evaluate(method, state, turn(engine, 0), "val")
    return str(e.value)


@every_engine
@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("train", r"has no attribute 'los'\ntest_own_verbs.py:\d+, in train: `self.task.los`\n"),
        ("a name", r"'unknown' is not defined\ntest_own_verbs.py:\d+, in train: `unknown`\n"),
        ("a key", r"verb train.*: KeyError: 1\ntest_own_verbs.py:\d+, in train: `{}\[1\]`\n"),
        ("a pair", r"must return a pair.*\ntest_own_verbs.py:\d+, in train: `def train\(self, w: Any, .*`"),
        ("its loss", r"\ntest_own_verbs.py:\d+, in own_loss: `self.task.loss\(w.pick\(.*\), batch\)`\n"),
        ("start", r"before round 1: .*has no attribute 'typo'\ntest_own_verbs.py:\d+, in start: `self.typo`"),
        ("round", r"round 1: .*'cohorts'\ntest_own_verbs.py:\d+, in round: `turn.cohorts`\n"),
        ("join", r"join, round 1.*: KeyError: 1\ntest_own_verbs.py:\d+, in join: `{}\[1\]`\n"),
        ("personal", r"'predicts'\ntest_own_verbs.py:\d+, in personal: `self.task.predicts`\n"),
        (
            "a shape",
            r"personal model: its weight 0.weight is \(48, 1\), the network's is \(8, 6\)\ntest_own_verbs.py:",
        ),
    ],
)
def test_a_failure_names_the_line(at: str, said: str, engine: Any, task: Task, clients_data: Clients) -> None:
    message = failure(at, engine(clients_data), task)
    assert re.search(said, message), message
    assert "torch.where" not in message and str(__file__) not in message


def test_a_failure_in_motets_own_code_is_told_as_before(task: Task, clients_data: Clients) -> None:
    broken = replace(clients_data["c02"], train=Batch.of(torch.zeros(4, 9), torch.zeros(4).long()))
    e, said = Loop(clients_data | {"c02": broken}), "mat1 and mat2 shapes cannot be multiplied (4x9 and 6x8)"
    with pytest.raises(VerbFailed) as failed:
        play(e, FedAvg(task), task.w0, turn(e, 0))
    assert str(failed.value) == f"client c02, verb train, round 1: {said}"


class Unstackable(FedAvg):
    at: str = ""

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        if self.at == "branch" and data.x.sum() > 0:
            w = w * 0.9
        if self.at == "item":
            w = w * data.x.sum().item()
        if self.at == "draw":
            w = w * torch.rand(())
        if self.at == "in place":
            torch.zeros(3).add_(data.x[0, :3])
        if self.at == "numpy":
            w = w * float(data.x.numpy().sum())
        return w, keep


@pytest.mark.parametrize(
    ("at", "line", "hint"),
    [
        ("branch", "data.x.sum() > 0", "torch.where"),
        ("item", "data.x.sum().item()", "@verb(solo=True)"),
        ("draw", "torch.rand(())", "data.chance"),
        ("in place", "torch.zeros(3).add_(data.x[0, :3])", "new tensor"),
        ("numpy", "data.x.numpy()", "@verb(solo=True)"),
    ],
)
def test_what_torch_cannot_stack_has_a_hint_of_its_own(
    at: str, line: str, hint: str, task: Task, clients_data: Clients
) -> None:
    said = refusal(Unstackable(task, at=at), Vmap(clients_data), task.w0)
    _, _, hints = said.partition("\nhint: ")
    assert f"`{line}`" in said and hint in hints and "given=" not in hints


class Unmarked(FedAvg):
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        return w, keep


@every_engine
def test_what_lacks_the_mark_of_a_verb_is_named_with_its_line(
    engine: Any, task: Task, clients_data: Clients
) -> None:
    e = engine(clients_data)
    with pytest.raises(MethodFailed) as failed:
        play(e, Unmarked(task), task.w0, turn(e, 0))
    assert re.fullmatch(
        r"train is not a verb\ntest_own_verbs.py:\d+, in train: `def train\(.*`\nhint: .*@verb.*",
        str(failed.value),
    )


class Odd(Exception):
    pass


class Raising(FedAvg):
    what: Any = None

    @verb(solo=True)
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        raise self.what


@every_engine
@pytest.mark.parametrize("what", [Odd("so"), ImportError("so"), OSError("so"), StopIteration("so")])
def test_whatever_own_code_raises_is_told_with_its_line(
    what: Exception, engine: Any, task: Task, clients_data: Clients
) -> None:
    said = refusal(Raising(task, what=what), engine(clients_data), task.w0)
    name = type(what).__name__
    assert re.search(rf"{name}: so\ntest_own_verbs.py:\d+, in train: `raise self.what`", said)


# ---- classes ----


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:", r"SyntaxError: .*\n{name}.py:\d+: `def f\(:`"),
        (
            "import no_such_thing",
            r"No module named 'no_such_thing'\n{name}.py:\d+, in <module>: `import no_such",
        ),
        ("1 / 0", r"ZeroDivisionError: .*\n{name}.py:\d+, in <module>: `1 / 0`"),
        (
            "class Own(FedAvg):\n    mu: float",
            r"non-default argument 'mu' .*\n{name}.py:\d+, in <module>: `class Own",
        ),
        ("class Own(Method):\n    mu: float", r"without a default: mu\n{name}.py:\d+, in Own: `class Own"),
        ("class Own(FedAvg):\n    mu: 'Flot' = 1", r"unknown type: .*Flot.*\n{name}.py:\d+, in Own: `class"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_named_with_its_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"own_module_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(
        f"from motet.core import Method\nfrom motet.methods.fedavg import FedAvg\n\n\n{text}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [f"method={name}:Own", "data=wine", "train.rounds=1", "--out", "run"]
    assert command_line.main(["run", *words]) == 2
    assert re.search(said.format(name=name), capsys.readouterr().err)


class OwnConstructor(FedAvg):
    def __init__(self, task: Any, mu: float = 0.1) -> None:
        self.task = task


SETTINGS: dict[str, Any] = {"data": "wine", "rounds": 1}
CONSTRUCTOR = (
    r"the method OwnConstructor has a constructor of its own\n"
    r"test_own_verbs.py:\d+, in __init__: `def __init__\(self, task: Any, mu: .*`\nhint: .* a field "
)


def test_a_constructor_of_its_own_is_refused_with_its_line(tmp_path: Any) -> None:
    with pytest.raises(motet.MotetError, match=CONSTRUCTOR):
        motet.run(method=OwnConstructor, out=tmp_path / "run", **SETTINGS)


def test_in_python_a_method_without_the_mark_raises_an_error_for_people(tmp_path: Any) -> None:
    with pytest.raises(motet.MotetError, match=r"train is not a verb\ntest_own_verbs.py:\d+, in train: "):
        motet.run(method=Unmarked, out=tmp_path / "run", **SETTINGS)


class SpoilsRows(FedAvg):
    @verb(solo=True)
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        x = data.x.numpy()
        x *= 0.5
        return w, keep


def test_rows_that_a_refused_method_changed_are_read_again(tmp_path: Any) -> None:
    asked = dict(data="wine", train={"rounds": 1}, seeds=[0], splits=[0], jobs=1)
    alone = motet.compare(methods=["fedavg"], base=tmp_path / "alone", **asked)
    beside = motet.compare(methods=[SpoilsRows, "fedavg"], base=tmp_path / "beside", **asked)
    one, two = (next(r.test for r in c.runs if r.label == "fedavg") for c in (alone, beside))
    assert one.equals(two)


@pytest.mark.parametrize(
    ("name", "said"), [("OwnConstructor", CONSTRUCTOR), ("Unmarked", r"train is not a verb\n.*, in train: ")]
)
def test_both_are_messages_on_the_command_line(
    name: str, said: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    words = [f"method=test_own_verbs:{name}", "data=wine", "train.rounds=1", "--out", str(tmp_path / "run")]
    assert command_line.main(["run", *words]) == 2
    assert re.search(said, capsys.readouterr().err)
