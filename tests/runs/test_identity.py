"""A run's identity: what made a result is part of it, and what differs is said in pieces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field, make_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import motet
from motet.cli.main import main
from motet.data.code_digest import digest
from motet.runs import identity, versions
from motet.runs.recipe import read
from motet.runs.run import NoProgress, RunError, Stopped, run, verify
from rewritten import rewritten

METHOD = """
import helpers
from motet.methods import FedAvg
from motet.core import verb
from base_of_mine import Base
PULL = 1.0
class Mine(Base):
    @verb
    def train(self, w, keep, data):
        return self.descend(self.task.loss, w, data, lr=self.lr * PULL * helpers.share()), keep
"""
FILES = {
    "mine_method": METHOD,
    "base_of_mine": "from motet.methods import FedAvg\nclass Base(FedAvg):\n    def extra(self): return 1\n",
    "helpers": "SCALE = 0.5\ndef share():\n    return inner() * SCALE\ndef inner():\n    return 1.0\n",
    "nets_of_mine": "from torch import nn\ndef tiny(shape, outputs):\n    return nn.Linear(shape[0], outputs)\n"
    "class Net(nn.Module):\n"
    "    def __init__(self, shape, outputs):\n"
    "        super().__init__()\n        self.head = nn.Linear(shape[0], outputs)\n"
    "    def forward(self, x):\n        return self.head(x) * 1.0\n",
    "net_loss_of_mine": "LEVEL = 0.7\ndef tilted(z, y):\n    return (y - z).abs() * LEVEL\n",
    "loss_of_mine": "def wrong(scores, y):\n    return (scores.argmax(1) != y).double().mean()\n",
}
WORDS = ["data=wine", "data.clients=3", "train.rounds=1", "engine.name=loop"]
NETS = ["net=nets_of_mine:tiny"]
NET_LOSS = ["data=diabetes", "net.loss=net_loss_of_mine:tilted"]
LOSS = ["method=swarm", "method.loss=loss_of_mine:wrong", "method.stretch=1", "method.particles=2"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, text in FILES.items():
        Path(f"{name}.py").write_text(text)
    forget()


def forget() -> None:
    """As in a new process: modules are read again."""
    for name in FILES:
        sys.modules.pop(name, None)


def edit(name: str, before: str, after: str) -> None:
    path = Path(f"{name}.py")
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    forget()


def code(*words: str) -> dict[str, str]:
    return identity.code_of(read(words=words))


@pytest.mark.parametrize(
    ("words", "name", "before", "after"),
    [
        (["method=mine_method:Mine"], "mine_method", "self.lr * PULL", "self.lr * 2"),
        (["method=mine_method:Mine"], "mine_method", "PULL = 1.0", "PULL = 0.5"),
        (["method=mine_method:Mine"], "base_of_mine", "return 1", "return 2"),
        (["method=mine_method:Mine"], "helpers", "* SCALE", "+ SCALE"),
        (["method=mine_method:Mine"], "helpers", "SCALE = 0.5", "SCALE = 0.25"),
        (["method=mine_method:Mine"], "helpers", "return 1.0", "return 2.0"),
        (NETS, "nets_of_mine", "nn.Linear(shape[0], outputs)\nclass", "nn.Linear(shape[0], outputs, True)\nclass"),
        (["net=nets_of_mine:Net"], "nets_of_mine", "* 1.0", "* 2.0"),
        (LOSS, "loss_of_mine", "!= y", "== y"),
        (NET_LOSS, "net_loss_of_mine", "LEVEL = 0.7", "LEVEL = 0.3"),
    ],
    ids=["method", "constant", "base", "helper", "helpers-constant", "helpers-helper", "net", "module", "loss",
         "net-loss"],
)  # fmt: skip
def test_edited_code_is_another_run(words: list[str], name: str, before: str, after: str) -> None:
    first = code(*words)
    forget()
    assert first and code(*words) == first
    edit(name, before, after)
    again = code(*words)
    assert again.keys() == first.keys() and again != first


@pytest.mark.parametrize("name", ["mine_method", "helpers", "base_of_mine"])
def test_comments_blank_lines_and_docstrings_change_nothing(name: str) -> None:
    first = code("method=mine_method:Mine")
    path = Path(f"{name}.py")
    path.write_text(
        "# a comment\n\n\n" + path.read_text().replace("return", "# why\n        return", 0) + "\n# end\n"
    )
    path.write_text(path.read_text().replace("def share():\n", 'def share():\n    """The share."""\n'))
    forget()
    assert code("method=mine_method:Mine") == first


def test_what_code_does_not_use_changes_nothing() -> None:
    first = code("method=mine_method:Mine")
    edit("helpers", "SCALE = 0.5", "SCALE = 0.5\nOTHER = 3\ndef unused(): return OTHER")
    assert code("method=mine_method:Mine") == first


def test_a_module_that_is_imported_inside_a_function_counts() -> None:
    edit(
        "mine_method",
        "        return self.d",
        "        from helpers import share as s\n        return self.d",
    )
    edit("mine_method", "* helpers.share()", "* s()")
    edit("mine_method", "import helpers\n", "")
    first = code("method=mine_method:Mine")
    edit("helpers", "return inner() *", "return 3 * inner() *")
    assert code("method=mine_method:Mine") != first


def test_code_of_motet_and_text_that_only_looks_like_a_name_are_no_code_of_the_users() -> None:
    assert code("method=motet.methods.fedavg:FedAvg", "net=mlp") == {}
    assert code("data.name=wine", "method.name=swarm") == {}


# ---- the digest itself ----


def made(source: str, name: str = "f", **known: Any) -> Any:
    space: dict[str, Any] = {"__name__": "somewhere"} | known
    exec(compile(source, "<typed>", "exec"), space)
    return space[name]


@given(st.integers(-99, 99), st.integers(-99, 99), st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_a_changed_constant_counts_and_its_place_does_not(a: int, b: int, above: int, within: int) -> None:
    text = "def f(x):\n{}    y = x * {}\n    return [y + K for _ in range(2)]\n"
    plain, moved = made(text.format("", a), K=b), made("\n#\n" * above + text.format("\n" * within, a), K=b)
    assert digest(plain) == digest(moved)
    assert (
        digest(made(text.format("", a + 1), K=b))
        != digest(plain)
        != digest(made(text.format("", a), K=b + 1))
    )


@given(st.permutations(["a", "b", "c"]))
def test_the_order_of_methods_does_not_count(order: list[str]) -> None:
    def one(names: list[str]) -> Any:
        return made("class C:\n" + "".join(f"    def {n}(self): return {n!r}, self\n" for n in names), "C")

    assert digest(one(order)) == digest(one(["a", "b", "c"]))


CHANGES: dict[str, Callable[[int], Any]] = {
    "default": lambda k: made(f"def f(x={k}): pass"),
    "keyword": lambda k: made(f"def f(*, x={k}): pass"),
    "closure": lambda k: lambda: k,
    "nested": lambda k: made(f"def f():\n    def g(): return {k}\n    return g"),
    "attribute": lambda k: made(f"class f:\n    x = {k}"),
    "field": lambda k: make_dataclass("f", [("x", list, field(default_factory=lambda: [k]))]),
    "cached": lambda k: made(f"@c\ndef g(): return {k}\ndef f(): return g()", c=cache),
    "decorated": lambda k: made(f"@t.no_grad()\ndef f(): return {k}", t=torch),
    "table": lambda k: made("def f(): return T", T={"a": [1, (2.0, k)]}),
    "property": lambda k: made(f"class f:\n    @property\n    def x(self): return {k}"),
    "equality": lambda k: made(f"class f:\n    def __eq__(self, o): return {k}"),
    "object": lambda k: nn.Sequential(nn.Linear(2, k)),
    "decorator class": lambda k: made(
        "from functools import update_wrapper\nclass D:\n    def __init__(self, g): update_wrapper(self, g)\n"
        f"    def __call__(self): return {k} * self.__wrapped__()\n@D\ndef g(): return 1\ndef f(): return g()"
    ),
    "dict class": lambda k: made(
        f"class T(dict):\n    def __missing__(self, key): return {k}\nt = T()\ndef f(): return t[0]"
    ),
    "set": lambda k: made(f"def g(): return {k}\ns = {{g}}\ndef f(): return [h() for h in s]"),
    "bound": lambda k: made(f"get = {{0: {k}}}.get\ndef f(): return get(0)"),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_everything_that_code_rests_on_counts(kind: str) -> None:
    torch.manual_seed(0)
    make = CHANGES[kind]
    one = make(1)
    torch.manual_seed(0)
    assert digest(one) == digest(make(1)) != digest(make(2))


def test_code_whose_name_is_not_ascii_counts() -> None:
    assert identity.named_code("übung:maß") == ["übung:maß"]
    assert identity.named_code("9:x") == identity.named_code("a b:c") == []


def test_weights_of_a_module_and_its_class_count() -> None:
    class Net(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    plain, own = nn.Linear(2, 2), Net(2, 2)
    own.load_state_dict(plain.state_dict())
    before = digest(own)
    assert digest(plain) != before
    with torch.no_grad():
        own.weight[0, 0] += 1
    assert digest(own) != before


def test_functions_that_call_each_other_and_lists_that_hold_themselves_end() -> None:
    both = "def f(n): return g(n)\ndef g(n): return n and f(n - {})"
    assert digest(made(both.format(1))) == digest(made(both.format(1))) != digest(made(both.format(2)))
    ring: list[Any] = [1]
    ring.append(ring)
    assert digest(made("def f(): return R", R=ring)) == digest(made("def f(): return R", R=ring))


def test_locks_and_loggers_do_not_count() -> None:
    import logging
    import threading

    def one() -> Any:
        return made("def f():\n    with L: G.info('x')", L=threading.Lock(), G=logging.getLogger("x"))

    assert digest(one()) == digest(one())


def test_a_module_that_was_made_in_this_process_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    def using(k: int) -> Any:
        module = ModuleType("made_here")
        exec(f"def help(): return {k}", module.__dict__)
        monkeypatch.setitem(sys.modules, "made_here", module)
        return made("def f(): return made_here.help()", made_here=module)

    assert digest(using(1)) == digest(using(1)) != digest(using(2))


def test_the_digest_is_the_same_in_another_process() -> None:
    text = "from motet.runs import identity\nfrom motet.runs.recipe import read\n"
    text += "print(identity.code_of(read(words=['method=mine_method:Mine']))['mine_method:Mine'])"
    found = {subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
             for _ in range(2)}  # fmt: skip
    assert found == {code("method=mine_method:Mine")["mine_method:Mine"] + "\n"}


# ---- runs ----


def test_the_pieces_are_among_the_facts() -> None:
    done = run(read(words=[*WORDS, "method=mine_method:Mine"]), "r")
    pieces = done.facts["identity_pieces"]
    assert set(pieces) == {"settings", "data", "code", "motet", "torch"}
    assert set(pieces["code"]) == {"mine_method:Mine"} and pieces["torch"] == torch.__version__
    assert done.facts["identity"] == identity.whole(pieces) and pieces["data"] == done.facts["fingerprint"]


def test_show_says_with_which_versions_a_run_was_made(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(read(words=WORDS), "r")
    assert main(["show", "r", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["versions"]
    assert shown == done.facts["versions"] and {"torch", "scikit-learn", "onnxruntime"} <= shown.keys()


def test_an_edited_method_gives_a_new_result_from_the_same_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["run", *WORDS, "method=mine_method:Mine", "--quiet", "--json"]

    def folder() -> tuple[str, str]:
        forget()
        assert main(command) == 0
        out, err = capsys.readouterr()
        return json.loads(out)["folder"], err

    first, said = folder()
    assert "saved: " in said
    again, said = folder()
    assert again == first and "saved:" not in said
    assert f"read from {first}, not run again (--fresh runs it anew)" in said
    edit("mine_method", "self.lr * PULL", "0.0 * PULL")
    other, said = folder()
    assert other != first and f"saved: {other}" in said


def test_fresh_runs_anew_and_touches_no_file_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "method=finetune"]
    first = run(read(words=words), "r")
    Path("r/models/mine.safetensors").write_text("mine"), Path("r/table.parquet").write_text("mine")
    created = first.facts["created"]
    assert main(["run", *words, "--out", "r", "--fresh", "--quiet"]) == 0
    again = motet.Run("r")
    assert "saved: r" in capsys.readouterr().err and again.facts["created"] > created
    assert Path("r/models/mine.safetensors").exists() and Path("r/table.parquet").exists()
    assert again.model("client-0").facts["method"]["name"] == "finetune"
    assert run(read(words=[*WORDS, "method=local"]), "r", fresh=True).facts["method"] == "local"


def test_fresh_replaces_a_database_that_cannot_be_read() -> None:
    Path("r").mkdir()
    Path("r/run.sqlite").write_bytes(b"no database at all" * 300)
    assert run(read(words=WORDS), "r", fresh=True).facts["status"] == "done"


def test_a_recipe_that_is_wrong_deletes_nothing() -> None:
    run(read(words=WORDS), "r")
    assert main(["run", *WORDS, "data.target=nothing", "--out", "r", "--fresh", "--quiet"]) == 2
    assert motet.Run("r").facts["status"] == "done"


def test_a_run_from_python_says_that_it_was_read(caplog: pytest.LogCaptureFixture) -> None:
    made = {"data": "wine", "rounds": 1, "engine": {"name": "loop"}}
    assert not motet.run(**made).was_read and caplog.text == ""
    again = motet.run(**made)
    assert again.was_read and caplog.text.count(f"read from {again.folder}, not run again") == 1
    assert not motet.run(**made, fresh=True).was_read


def test_a_redefined_class_net_or_function_is_a_new_run() -> None:
    def folder(**more: Any) -> Path:
        return motet.run(data="wine", rounds=1, engine={"name": "loop"}, **more).folder

    def method(k: float) -> Any:
        class Mine(motet.methods.FedAvg):  # type: ignore[name-defined,misc]
            def extra(self) -> float:
                return k

        return Mine

    def net(k: int) -> Any:
        return made(f"def build(shape, outputs):\n    return n.Linear(shape[0], outputs, bias=bool({k}))", "build",
                    n=nn)  # fmt: skip

    for make in (lambda k: {"method": method(k)}, lambda k: {"net": net(k)}):
        assert folder(**make(1)) == folder(**make(1)) != folder(**make(0))


# ---- what differs is said ----


class AtOnce(NoProgress):
    """Stops before the first round."""

    def should_stop(self) -> bool:
        return True


def refusal(*words: str) -> str:
    with pytest.raises(RunError) as caught:
        run(read(words=[*WORDS, *words]), "r")
    return str(caught.value)


@pytest.fixture(params=["stopped", "done"])
def before(request: pytest.FixtureRequest) -> None:
    recipe = read(words=[*WORDS, "method=mine_method:Mine"])
    if request.param == "done":
        run(recipe, "r")
        return
    with pytest.raises(Stopped):
        run(recipe, "r", AtOnce())


@pytest.mark.usefixtures("before")
def test_other_settings_are_refused_with_their_names_and_values() -> None:
    said = refusal("method=mine_method:Mine", "method.lr=0.05", "seed=1")
    assert "r holds another run:\n" in said and "--fresh" in said.splitlines()[-1]
    assert "- settings: method.lr is 0.05, and was " in said and "- settings: seed is 1, and was 0" in said
    assert "code" not in said.replace("hint", "") and "torch" not in said


@pytest.mark.usefixtures("before")
def test_other_code_is_refused_with_the_name_of_the_object() -> None:
    edit("helpers", "SCALE = 0.5", "SCALE = 0.25")
    said = refusal("method=mine_method:Mine")
    assert "- code: mine_method:Mine, or code that it uses, changed\n" in said and "settings" not in said


@pytest.mark.usefixtures("before")
@pytest.mark.parametrize("piece", ["motet", "torch", "data"])
def test_another_version_or_other_data_are_refused(piece: str) -> None:
    with rewritten("r") as db:
        (text,) = db.execute("SELECT value FROM meta WHERE key = 'identity_pieces'").fetchone()
        pieces = json.dumps(json.loads(text) | {piece: "0.0.1 (old)"})
        db.execute("UPDATE meta SET value = ? WHERE key = 'identity_pieces'", (pieces,))
    said = refusal("method=mine_method:Mine")
    want = "the rows of wine" if piece == "data" else ", and was 0.0.1 (old)\n"
    assert f"- {piece}: " in said and want in said and said.count("\n- ") == 1


@pytest.mark.usefixtures("before")
def test_a_run_of_an_earlier_version_is_refused_and_says_so() -> None:
    with rewritten("r") as db:
        db.execute("DELETE FROM meta WHERE key = 'identity_pieces'")
    assert "made by an earlier version of motet" in refusal("method=mine_method:Mine")


def test_libraries_that_make_public_models_are_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stacking = read(words=["data=wine", "method=stacking"])
    before = identity.pieces_of(stacking)
    assert set(before["libraries"]) == {"scikit-learn", "onnxruntime", "skl2onnx"}
    assert "libraries" not in identity.pieces_of(read(words=WORDS))
    facts = {"identity_pieces": before, "settings": stacking.settings}
    other = identity.versions() | {"scikit-learn": "9.9"}
    monkeypatch.setattr(identity, "versions", lambda: other)
    now = identity.pieces_of(stacking)
    assert identity.whole(now) != identity.whole(before)
    (said,) = identity.changes(facts, stacking, now)
    assert said == f"scikit-learn: it is 9.9, and was {before['libraries']['scikit-learn']}"


def test_verify_says_that_code_changed_and_compares_all_the_same() -> None:
    run(read(words=[*WORDS, "method=mine_method:Mine"]), "r")
    said: list[str] = []
    assert verify("r", say=said.append) == [] and said == []
    edit("mine_method", "self.lr * PULL", "0.0 * PULL")
    assert verify("r", say=said.append) and "code: mine_method:Mine" in said[0]


def test_motets_own_source_is_part_of_it_but_not_what_only_shows_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(**files: str) -> str:
        root = tmp_path / "copy"
        for name, text in {
            "runs/versions.py": "",
            "methods/ditto.py": "a",
            "client/steps.h": "a",
            "cli/main.py": "a",
            **files,
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        monkeypatch.setattr(versions, "__file__", str(root / "runs" / "versions.py"))
        return versions.source_digest.__wrapped__()

    assert of() == of(**{"cli/main.py": "b"}) != of(**{"methods/ditto.py": "b"})
    assert of() != of(**{"client/steps.h": "b"})  # compiled steps are made of it
