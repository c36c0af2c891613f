"""A recipe is a program: code that a file names runs only if a person said so, in every command and in Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import motet
from motet import trusted_code
from motet.cli.main import main
from motet.errors import UntrustedCode
from motet.runs.recipe import parsed
from motet.runs.run import Run
from motet.runs.store import Store
from motet.trusted_code import AT_SITES, names_in, require_trust

QUICK = ["data=wine", "train.rounds=1", "engine.name=loop"]
MINE = """
from pathlib import Path
from torch import nn
from motet.methods.fedavg import FedAvg
Path("imported").touch()
class Mine(FedAvg):
    pass
def net(shape, outputs):
    return nn.Linear(shape[0], outputs)
def rows(n=12):
    import numpy as np
    x = np.arange(2.0 * n).reshape(n, 2)
    return {c: (x, ["u", "v"] * (n // 2)) for c in "ab"}
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is trusted yet, and nothing that a test imports stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(trusted_code, "_trusted", {AT_SITES})
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("mine", "pack", "pack.deep"):
        sys.modules.pop(name, None)


@pytest.fixture
def stranger(tmp_path: Path) -> str:
    """The five lines: `timeit.main` runs any Python, so any command, before it fails to be data."""
    command = f"open({str(tmp_path / 'written')!r}, 'w').close()"
    (tmp_path / "stranger.toml").write_text(
        f'[data]\nname = "timeit:main"\nargs = {json.dumps(["-n1", "-r1", "-s", command])}\n'
        '[train]\nrounds = 1\nmetric = "accuracy"\n'
    )
    return "stranger.toml"


@pytest.fixture
def their_run(stranger: str, tmp_path: Path) -> str:
    """A finished run of a stranger's: its database names the same code."""
    done = motet.run(data="wine", rounds=1, engine={"name": "loop"}, out=tmp_path / "theirs")
    settings = done.facts["settings"] | {"data": parsed(stranger)["data"]}
    store = Store(done.folder, writing=True)  # with checksums that are right
    store.set_facts(settings=settings, data="timeit:main")
    store.commit()
    store.close()
    return "theirs"


def own_recipe(path: Path, method: str = "mine:Mine") -> str:
    (path / "mine.py").write_text(MINE)
    (path / "recipe.toml").write_text(
        f'[data]\nname = "wine"\n[method]\nname = "{method}"\n[train]\nrounds = 1\n[engine]\nname = "loop"\n'
    )
    return "recipe.toml"


# ---- a stranger's file ----


@pytest.mark.parametrize("command", ["run", "recipe", "compare", "data show"])
def test_five_lines_of_toml_run_nothing(
    command: str, stranger: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*command.split(), stranger]) == 2
    err = capsys.readouterr().err
    assert "stranger.toml names code that is not motet's: timeit:main (part of Python)" in err
    assert "--trust" in err and "Traceback" not in err
    assert not (tmp_path / "written").exists() and not (tmp_path / "runs").exists()


def test_with_trust_they_run(stranger: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", stranger, "--trust"]) == 2  # it is no data set
    assert "timeit:main returned NoneType" in capsys.readouterr().err
    assert (tmp_path / "written").exists()


def test_what_a_typed_word_replaces_is_not_asked_about(stranger: str, tmp_path: Path) -> None:
    (tmp_path / "stranger.toml").write_text('[data]\nname = "timeit:main"\n[train]\nrounds = 1\n')
    assert main(["run", stranger, *QUICK, "--out", "r", "--quiet"]) == 0


def test_a_strangers_run_folder_is_shown_and_not_run(
    their_run: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["verify", their_run]) == 2
    assert "theirs names code that is not motet's: timeit:main" in capsys.readouterr().err
    assert main(["show", their_run]) == main(["show", their_run, "--clients"]) == 0
    assert main(["report", their_run]) == main(["figures", their_run, "--format", "svg"]) == 0
    assert not (tmp_path / "written").exists()
    assert main(["verify", their_run, "--trust"]) == 2
    assert (tmp_path / "written").exists()


def test_the_own_recipe_of_a_strangers_folder_is_refused(their_run: str, tmp_path: Path) -> None:
    (tmp_path / their_run / "recipe.toml").write_text((tmp_path / "stranger.toml").read_text())
    assert main(["run", f"{their_run}/recipe.toml", "--out", their_run, "--fresh"]) == 2
    assert not (tmp_path / "written").exists() and Run(their_run).facts["status"] == "done"


def test_a_strangers_experiment_runs_nothing(
    stranger: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "experiments" / "theirs"
    folder.mkdir(parents=True)
    data = (tmp_path / stranger).read_text().replace("[data]", "[recipe.data]").partition("[train]")[0]
    (folder / "recipe.toml").write_text(
        f'title = "theirs"\n{data}[rows.A.method]\nname = "fedavg"\n[scales.quick]\nseeds = [0]\n'
        '[columns]\nglobal = "global"\n'
    )
    assert main(["reproduce", "theirs"]) == 2
    assert "names code that is not motet's: timeit:main" in capsys.readouterr().err
    assert main(["reproduce"]) == 0  # the list only reads
    (folder / "recipe.toml").write_text(
        'title = "theirs"\n[rows.A]\n[scales.quick]\nseeds = [0]\n[columns]\n'
    )
    (folder / "procedure.py").write_text(f"open({str(tmp_path / 'written')!r}, 'w').close()\n")
    assert main(["reproduce", "theirs"]) == 2
    assert "procedure.py (experiments/theirs/procedure.py)" in capsys.readouterr().err
    assert not (tmp_path / "written").exists()


def test_motets_own_experiments_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    from motet.runs import experiment as experiments

    if not experiments.own_folder().is_dir():
        pytest.skip("experiments are part of the repository")
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = experiments.find("page/table1-synthetic")
    assert "experiments.page.published:PublishedPAGE" in names_in(found.settings)
    require_trust(found.settings, "its recipe", False)


def test_every_name_of_motets_own_code_is_code_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("r.toml").write_text('[data]\nname = "motet.cli.main:main"\nargv = ["list"]\n')
    assert main(["run", "r.toml"]) == 2
    assert (
        "names code that is not motet's: motet.cli.main:main (not in this folder" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "setting",
    [
        'net = "mine:net"',
        "[train]\nmetric = 'mine:net'",
        '[method]\nname = "swarm"\nloss = "mine:net"',
        '[method]\nname = "pfa"\nextractor = "mine:net width=2"',
        'methods = ["fedavg", "mine:Mine"]',
        '[grid]\nnet.name = ["logistic", "mine:net"]',
        '["mine:Mine"]\nlr = 0.1',
    ],
)
def test_wherever_a_study_names_code_it_is_found_before_anything_is_imported(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "study.toml").write_text(setting + "\n")
    assert main(["compare", "study.toml", "data=wine", "train.rounds=1", "--jobs", "1"]) == 2
    assert "names code that is not motet's: mine:" in capsys.readouterr().err
    assert not (tmp_path / "imported").exists() and "mine" not in sys.modules


def test_an_unusual_name_is_not_imported_either(tmp_path: Path) -> None:
    (tmp_path / "énorme.py").write_text(MINE)
    for name in ("énorme:Mine", "énorme:Mine.x", "./mine:Mine"):
        (tmp_path / "r.toml").write_text(f'[method]\nname = "{name}"\n')
        assert main(["run", "r.toml", "data=wine"]) == 2
    assert not (tmp_path / "imported").exists()


# ---- what a person typed ----


def test_typed_words_run_as_before(tmp_path: Path) -> None:
    own_recipe(tmp_path)
    words = ["run", "method=mine:Mine", "net=mine:net", *QUICK, "--quiet", "--out", "r"]
    assert main(words) == 0 and main(words) == 0
    record = Run("r").facts["code"]
    assert [(r["name"], r["module"], r["file"]) for r in record] == [
        ("mine:Mine", "mine", "mine.py"),
        ("mine:net", "mine", "mine.py"),
    ]
    assert record[0]["digest"] == Run("r").facts["identity_pieces"]["code"]["mine:Mine"]


def test_the_record_of_whose_code_it_was_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_recipe(tmp_path)
    words = ["data=mine:rows", "train.rounds=1", "engine.name=loop", "--quiet", "--out", "r"]
    assert main(["run", *words]) == 0
    (record,) = Run("r").facts["code"]
    capsys.readouterr()
    assert main(["show", "r"]) == 0
    assert f"not motet's: mine:rows (mine.py, {record['digest'][:8]})" in capsys.readouterr().out
    assert main(["report", "r", "--to", "r.html"]) == 0
    assert f"mine:rows (mine.py, {record['digest'][:8]})" in Path("r.html").read_text()


# ---- the question ----


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> Iterator[Callable[[str], str]]:
    """A pseudo-terminal as stdin and stderr, with an answer typed; gives what was printed on it up to some words."""
    ours, theirs = os.openpty()
    os.write(ours, answer.encode())
    with monkeypatch.context() as patch, os.fdopen(theirs, "r+b", buffering=0) as end:
        patch.setattr(sys, "stdin", open(end.fileno(), closefd=False))  # noqa: SIM115
        patch.setattr(sys, "stderr", open(end.fileno(), "w", closefd=False))  # noqa: SIM115
        yield partial(read_until, ours)
    os.close(ours)


def read_until(end: int, words: str) -> str:
    """What a terminal shows comes in pieces, the echo of the answer among them."""
    found = b""
    while words.encode() not in found:
        found += os.read(end, 1 << 20)
    return found.decode()


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("yes\n", 0), ("n\n", 2), ("\n", 2)])
def test_code_of_the_current_folder_runs_after_a_yes(
    answer: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = own_recipe(tmp_path)
    with terminal(monkeypatch, answer) as printed:
        assert main(["run", recipe, "--quiet", "--out", "r"]) == code
        said = printed("Run it? [y/N]")
    assert "recipe.toml names code in this folder: mine:Mine (mine.py)" in said
    assert (tmp_path / "imported").exists() == (code == 0)


def test_a_run_is_verified_after_a_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_recipe(tmp_path)
    assert main(["run", "method=mine:Mine", *QUICK, "--quiet", "--out", "r"]) == 0
    monkeypatch.setattr(trusted_code, "_trusted", {AT_SITES})
    with terminal(monkeypatch, "y\n") as printed:
        assert main(["verify", "r"]) == 0
        assert "r names code in this folder: mine:Mine" in printed("Run it? [y/N]")


def test_nobody_is_asked_about_code_from_elsewhere(
    stranger: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timeit.py").write_text("def main(): ...\n")  # Python's own is the one that is imported
    with terminal(monkeypatch, "y\n") as printed:
        assert main(["run", stranger]) == 2
        assert "[y/N]" not in printed("--trust")
    assert not (tmp_path / "written").exists()


def test_without_a_terminal_nobody_is_asked(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "motet.cli.main", "run", own_recipe(tmp_path), "--quiet"]
    done = subprocess.run(command, input="y\n", capture_output=True, text=True)
    assert done.returncode == 2 and "--trust" in done.stderr and "[y/N]" not in done.stderr
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("mine:f", True),
        ("pack.deep:f", True),
        ("linked:f", False),
        ("os:system", False),
        ("timeit:main", False),
        ("torch:load", False),
        ("numpy.f2py:run_main", False),
        ("motet.cli.main:main", False),
        ("__main__:f", False),
        ("nowhere:f", False),
    ],
)
def test_ones_own_code_lies_in_the_current_folder(
    name: str, here: bool, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "mine.py").write_text("")
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise SystemExit('imported')\n")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "linked.py"
    elsewhere.write_text("")
    (tmp_path / "linked.py").symlink_to(elsewhere)
    before = list(sys.path)
    assert trusted_code.is_here(name) == here
    assert sys.path == before and not {"mine", "pack", "linked"} & set(sys.modules)


# ---- workers, models and Python ----


def test_workers_get_what_is_trusted_with_their_jobs(tmp_path: Path) -> None:
    own_recipe(tmp_path)
    (tmp_path / "study.toml").write_text(
        'methods = ["mine:Mine"]\n[data]\nname = "wine"\n[train]\nrounds = 1\n[engine]\nname = "loop"\n'
    )
    assert main(["compare", "study.toml", "--jobs", "2", "--splits", "0", "--quiet"]) == 2
    assert main(["compare", "study.toml", "--jobs", "2", "--splits", "0", "--quiet", "--trust"]) == 0


def test_workers_import_no_file_of_the_current_folder_in_place_of_a_library(tmp_path: Path) -> None:
    for library in ("pandas", "torch", "sklearn"):
        (tmp_path / f"{library}.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    words = [
        "data=wine",
        "train.rounds=1",
        "engine.name=loop",
        "--methods",
        "fedavg",
        "--jobs",
        "2",
        "--quiet",
    ]
    assert main(["compare", *words]) == 0
    assert not (tmp_path / "imported").exists()


def test_python_needs_trust_for_files_and_none_for_what_it_is_given(stranger: str, tmp_path: Path) -> None:
    recipe = own_recipe(tmp_path)
    (tmp_path / "study.toml").write_text(
        Path(recipe).read_text().replace("[data]", "methods = ['mine:Mine']\n[data]")
    )
    calls = [
        partial(motet.run, recipe),
        partial(motet.run, stranger),
        partial(motet.compare, recipe="study.toml"),
    ]
    for call in calls:
        with pytest.raises(UntrustedCode, match="trust=True"):
            call()
    assert not (tmp_path / "imported").exists()
    assert motet.run(recipe, method="fedavg", out="other").facts["method"] == "fedavg"
    assert motet.run(recipe, trust=True, out="r").facts["method"] == "mine:Mine"
    found = motet.compare(recipe="study.toml", splits=0, trust=True)
    assert "mine:Mine" in set(found.table["method"])
    with pytest.raises(motet.MotetError, match="returned NoneType"):
        motet.run(stranger, trust=True)


def test_python_needs_trust_to_verify_and_to_use_models_of_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    own_recipe(tmp_path)
    done = motet.run(net="mine:net", data="wine", rounds=1, engine={"name": "loop"}, out="r")
    rows = np.zeros((2, 13))
    assert len(done.predict("client-00", rows)) == 2  # it ran here
    monkeypatch.setattr(trusted_code, "_trusted", {AT_SITES})
    with pytest.raises(UntrustedCode, match="mine:net"):
        Run("r").model("client-00")
    with pytest.raises(UntrustedCode, match="mine:net"):
        motet.verify("r")
    assert main(["export", "r", "client-00", "--format", "onnx"]) == 2
    assert len(Run("r", trust=True).predict("client-00", rows)) == 2
    assert motet.verify("r", trust=True) == []


def test_a_cluster_that_a_file_names_is_not_connected_to_unless_a_person_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever owns a Ray cluster can run anything in a process that connects to it."""
    asked: list[str] = []

    def connect(address: str, cpus: int) -> None:
        asked.append(address)
        raise motet.errors.RunError(f"nobody is at {address}")

    monkeypatch.setattr("motet.runs.cluster.connect", connect)
    monkeypatch.setattr(trusted_code, "_trusted", set(trusted_code.trusted_names()))
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text('data = "digits"\n[engine]\nname = "ray"\naddress = "evil.example:6379"\n')
    assert main(["run", "r.toml"]) == 2 and not asked
    assert "evil.example:6379" in capsys.readouterr().err
    assert main(["run", "r.toml", "--trust"]) != 0 and asked == ["evil.example:6379"]
    assert main(["run", "data=digits", "engine.name=ray", "engine.address=mine:6379"]) != 0
    assert asked == ["evil.example:6379", "mine:6379"] and not Path("runs").exists()
    assert names_in({"engine": {"address": "auto"}}) == []
