"""One tree of errors for people: what the command line turns into a message, and how light it is."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import motet
from motet import errors, survival
from motet.cli import main as command_line
from motet.data.huggingface import load
from motet.data.pretrained_tokenizer import PretrainedTokenizer
from motet.engines.choose import Choice
from motet.guard.private_models.dp_boosting import DPBoostingClassifier
from motet.guard.private_models.encrypted import Asker
from motet.nets.pretrained import adapted
from motet.nets.timm_body import made
from motet.nets.transformers_body import read_body
from motet.published import Feature, publish
from motet.published.feature_defaults import defaults
from motet.report.trackers import tracker_named
from motet.runs import recipe as recipes
from motet.runs.export import export
from motet.runs.predict import open_model
from motet.runs.run import run
from motet.stacking.contribution import graph


def test_every_error_of_the_tree_is_found_by_name_and_is_a_motet_error() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.MotetError), name
        assert name in dir(errors) and name in str(errors.__doc__).split()
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = errors.Nonsense


def test_no_public_exception_of_the_package_stands_outside_the_tree() -> None:
    # of the pipe to the child process, of code that cannot be generated, of guards and of pipelines: caught inside of
    # the package and never shown to people
    internal = {"Ended", "Late", "CannotGenerate", "ArrivedWrong", "TellsEmptyCells"}
    outside = []
    for found in pkgutil.walk_packages(motet.__path__, "motet."):
        if found.name.startswith("motet.deploy.flare."):
            continue  # needs nvflare
        module = import_module(found.name)
        for name, thing in vars(module).items():
            own = inspect.isclass(thing) and issubclass(thing, Exception) and thing.__module__ == found.name
            if own and not name.startswith("_") and not issubclass(thing, errors.MotetError):
                outside.append(name)
    assert set(outside) <= internal


def test_an_error_type_that_nobody_has_heard_of_is_a_message_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class BrandNew(errors.MotetError):
        pass

    def fail(args: object) -> None:
        raise BrandNew("the moon is full\nhint: wait")

    monkeypatch.setattr(command_line, "do_list", fail)
    assert command_line.main(["list"]) == 2
    assert capsys.readouterr().err == "error: the moon is full\nhint: wait\n"
    with pytest.raises(BrandNew):
        command_line.main(["list", "--trace"])


def test_a_bug_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: object) -> None:
        raise ValueError("an index, say\nhint: none")

    monkeypatch.setattr(command_line, "do_list", fail)
    with pytest.raises(ValueError, match="an index"):
        command_line.main(["list"])


@pytest.mark.parametrize(
    "code",
    ["import motet, motet.errors; dir(motet)", "from motet.cli.main import main; main(['--help'])"],
    ids=["import motet", "motet --help"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    ask = f"import sys, contextlib\nwith contextlib.suppress(SystemExit):\n    {code}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "numpy", "pandas"} & set(loaded.split())


# ---- packages that only some users need ----

TABLE = np.array([[0.0, 1.0], [1.0, 0.5], [2.0, 0.3], [3.0, 0.1]])
Door = Callable[[Path], Any]


def running(*words: str) -> Door:
    given = ["data=wine", "data.clients=2", "data.unseen=0", "train.rounds=1", *words]
    return lambda folder: run(recipes.read(None, given), folder / "run")


def command(*words: str) -> Door:
    return lambda folder: command_line.main([*(w.format(folder) for w in words), "--trace"])


def exported(folder: Path) -> None:
    running("method=fedavg", "net=linear")(folder)
    export(folder / "run", "client-0", "onnx", folder / "a.onnx")


def predicted(folder: Path) -> None:
    (folder / "m.onnx").write_bytes(b"no")
    open_model(folder / "m.onnx")


def published(model: Any, folder: Path) -> None:
    features = [Feature("a", "number", 0.0), Feature("b", "number", 0.0)]
    publish(model.fit(TABLE, [0, 1, 0, 1]), features, client="a", task="classes", classes=("0", "1"))


def tokenized(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    PretrainedTokenizer(str(folder))


def pretrained(folder: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    read_body(str(folder))


def boosted(folder: Path) -> None:
    published(pytest.importorskip("xgboost").XGBClassifier(n_estimators=1), folder)


DOORS: list[tuple[str, str, Door]] = [  # package, extra, and what cannot be done without it
    ("onnx", "onnx", exported),
    ("onnxscript", "onnx", exported),
    ("onnxruntime", "stacking", predicted),
    *[(name, "stacking", running("method=stacking")) for name in ("onnx", "onnxruntime", "networkx")],
    *[(name, "stacking", partial(published, LogisticRegression())) for name in ("onnx", "onnxruntime")],
    ("skl2onnx", "stacking", partial(published, GaussianNB())),
    ("onnxmltools", "stacking", boosted),
    ("networkx", "stacking", lambda _: graph({"a": {"a": 1.0}})),
    ("lifelines", "survival", lambda _: survival.concordance(np.array([1.0, 2.0]), np.array([1.0, 2.0]))),
    ("opacus", "dp", running("privacy.level=example", "privacy.epsilon=1", "method=fedavg")),
    ("dp_accounting", "dp", running("privacy.level=client", "privacy.epsilon=1", "guard.clip=1")),
    (
        "interpret",
        "privacy",
        lambda _: DPBoostingClassifier(1.0, ((0.0, 1.0),) * 2).fit(TABLE, np.array([0, 1] * 2)),
    ),
    ("opendp", "privacy", lambda _: defaults(TABLE[:, :1], {"a": "number"}, "dp", 1.0, bounds={"a": (0, 1)})),
    ("tenseal", "privacy", lambda _: Asker()),
    *[(name, "ray", running("engine.name=ray")) for name in ("ray", "cloudpickle")],
    *[(name, "ui", command("ui", "{}")) for name in ("starlette", "uvicorn")],
    ("nvflare", "flare", command("federation", "create", "--name", "a", "--server", "b", "--to", "{}/a")),
    ("Crypto", "masks", running("guard.masked=true", "data.clients=4")),
    *[
        (name, "trackers", lambda folder, n=name: tracker_named(n)(folder, ""))
        for name in ("mlflow", "tensorboard")
    ],
    ("timm", "timm", lambda _: made("vit", "folder", {})),
    ("transformers", "hf", pretrained),
    ("peft", "hf", lambda _: adapted(torch.nn.Linear(1, 1), 1, 1.0, [])),
    ("tokenizers", "hf", tokenized),
    ("datasets", "hf", lambda _: load("hf:owner/name")),
    ("numba", "speed", lambda _: Choice("loop", compiled=True).build({})),
]


@pytest.mark.parametrize(("package", "extra", "door"), DOORS, ids=[f"{p}-{e}" for p, e, _ in DOORS])
def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    package: str, extra: str, door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(errors.MotetError, match=rf"{package}(.|\n)*hint: pip install 'motet\[{extra}\]'"):
        door(tmp_path)


def test_every_package_that_may_be_missing_has_a_door() -> None:
    project = Path(__file__).parents[1] / "pyproject.toml"
    given = [d.partition(">")[0] for d in tomllib.loads(project.read_text())["project"]["dependencies"]]
    called = {"scikit-learn": "sklearn", "pillow": "PIL"}
    always = {called.get(name, name) for name in given} | {"motet", *sys.stdlib_module_names}
    always |= {"markupsafe", "google"}  # of jinja2; of onnx, which is asked for before
    imported = set()
    for path in Path(motet.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    assert imported - always <= {package for package, _, _ in DOORS}
