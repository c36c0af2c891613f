"""README and guides: every shell command runs, on small made files, and with few rounds where it would take minutes."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from motet.cli.main import main
from motet.data import load
from motet.data.files.cache import status
from readers_files import make_files, make_network

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
SHELL = re.compile(r"(?:motet|make|pip|pytest|python|export|ray|first\$|second\$) ")
# Commands that are not run here, and why. Nothing else is left out.
ELSEWHERE = {
    r"make (run|federation)$|make federation ": "installs an environment; what it runs is tested by itself",
    r"pip install ": "tests/test_wheel.py installs motet",
    r"motet data fetch ": "downloads; tests/data has a server of its own for it",
    r"data=hf:OWNER/NAME ": "downloads; tests/data/test_huggingface.py reads a folder",
    r"--scale full": "takes an hour; tests/experiments runs each at a smaller scale",
    r"reproduce leaderboard": "takes an hour; tests/experiments/test_leaderboard.py runs a small one",
    r"data=FLamby/": "files of FLamby's; tests/data/test_flamby_folders.py makes small ones",
    r"motet ui": "serves until it is stopped; tests/web starts it",
    r"engine.device=cuda": "needs a GPU",
    r"^(first|second)\$|ray:auto|engine.address=auto": "needs a cluster; tests/engines and tests/runs start one",
    r"--with mlflow --to http": "needs MLflow's server; tests/report/test_trackers.py has one without",
    r"^pytest ": "tests of this suite",
    r"motet federation (scores|demo)": "needs a federation: test_hidden_numbers.py and test_real_processes.py",
    r"motet federation (serve|run|status|stop)|motet federation join (north|care)":
        "processes that speak with each other: tests/deploy/test_federation_guide.py and test_own_models_guide.py",
    r"^export PYTHONPATH|known_parts|motet audit 0.5": "five runs and their shadows take minutes",
    r"motet evidence (care|check server)": "needs a run of a federation: tests/deploy/test_federation_guide.py",
}  # fmt: skip
LONG = "|".join((
    "--tune", "--probe", "--grid", "engine.name=ray", "motet bench device", "privacy.level=client",
    "--methods fedper,fedper", "--methods fedavg,ditto,page", "--methods fedavg,fedper,fedrep",
))  # fmt: skip
# What stands for something of the reader's, in the order in which it is replaced.
STANDS_FOR = (
    (r"patients\.csv data\.target=days", "survivors.csv data.target=days"),
    (r"predict --model KIT/\S+ new.csv", "predict --model MODEL new.csv"),
    (r"predict --model MODEL new.csv", "predict --model {model} {new}"),
    (r"runs/patients-\S+ ", "{patients} "),
    (r"(?:runs/(?:\S*-)?…|runs/digits-fedavg-seed0-1a2b3c4d)(?=\s|$)", "{run}"),
    (r"RUN1 RUN2 RUN3", "{run}"),
    (r"\bRUN\b", "{run}"),
    (r"\bKIT\b", "north"),
    (r"=ATTACK", "=flip"),
    (r"=MEAN", "=krum"),
    (r"=SEED", "=1"),
    (r"digits\.evidence\.html", "{evidence}"),
)
CUT = (
    (r"train\.rounds=\d+", "train.rounds=2"),
    (r"data\.clients=1000000", "data.clients=10000"),
    (r"train\.cohort=1000", "train.cohort=5"),
    (r"data\.clients=100\b", "data.clients=10"),
    (r"--rounds 50", "--rounds 2"),
    (r"warm_up=5", "warm_up=1"),
    (r"data\.size=64", "data.size=16"),
    (r"--seeds 0-4", "--seeds 0-1"),
    (r"method\.trees=100", "method.trees=5"),
)


def commands(page: Path) -> list[str]:
    """Lines that a reader would type, without comments."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    fenced = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE) + "".join(fenced).splitlines()
    return [re.split(r"\s+#|\s{3,}", line)[0].strip() for line in lines if SHELL.match(line)]


def reason(command: str) -> str:
    """Why a command is not run here; "" if it is."""
    return next((why for pattern, why in ELSEWHERE.items() if re.search(pattern, command)), "")


def lacks_data(command: str) -> bool:
    """Whether it names a data set that is downloaded and not on this machine."""
    named = re.search(r"\bdata=(\w+)(?=\s|$)", command)
    return bool(named) and named[1] in load.names() and not status(named[1]).here


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    make_files(folder)
    return folder


class Reader:
    """Somebody in a folder who types one command after the other."""

    def __init__(self, place: Path, page: Path) -> None:
        self.place, self.page = place, page

    def type(self, command: str) -> int:
        for pattern, text in (*CUT, *STANDS_FOR):
            command = re.sub(pattern, text, command)
        command, _, to = command.partition(" > ")
        words = [w for part in shlex.split(self.filled(command)) for w in expanded(part)][1:]
        words += few(words)
        self.send_letters(words)
        if not to:
            return main(words)
        with Path(to).open("w") as out, redirect_stdout(out):
            return main(words)

    def send_letters(self, words: list[str]) -> None:
        """What goes by post between a site and its convener; the guide of a site leaves the convener's part out."""
        if words[:2] == ["federation", "accept"] and not Path("care").exists():
            assert main(["federation", "create", "--name", "care", "--server", "127.0.0.1"]) == 0
            assert main(["federation", "sign", "care", "north/requested/north.request"]) == 0
        if words[:2] == ["federation", "create"] and Path("care").exists():
            shutil.move("care", "care-before")  # another example of the page
        for letter in (Path("north/requested/north.request"), Path("care/north.signed")):
            if letter.exists():
                shutil.copy(letter, letter.name)

    def filled(self, command: str) -> str:
        """The command with runs and models that are there."""
        if "{patients}" in command:
            self.run("data=patients.csv data.target=outcome data.client=hospital", "patients")
        if "{evidence}" in command and not list(self.place.glob("*.evidence.html")):
            main(["evidence", str(self.newest())])
        if "{run}" in command or "{model}" in command:
            self.newest()
        names = {"patients": "patients", "run": "", "model": "", "new": "new.csv", "evidence": ""}
        if "{run}" in command or "{model}" in command or "{evidence}" in command:
            run = self.newest()
            models = sorted(run.glob("models/*.safetensors"))
            names |= {"run": str(run), "model": str([*models, run / "global.safetensors"][0])}
            names["new"] = "new_texts.csv" if "news" in run.name else "new.csv"
            names["evidence"] = next((p.name for p in self.place.glob("*.evidence.html")), "")
        return command.format(**names) if "{" in command else command

    def newest(self) -> Path:
        """The run that the page made last, or one that is made now."""
        found = [p.parent for p in Path("runs").glob("*/run.sqlite")]
        if found:
            return max(found, key=lambda p: p.stat().st_mtime)
        own = "data=patients.csv data.target=outcome data.client=hospital"
        small = "data=wine data.clients=3 data.unseen=0"
        data = {"a-site": own, "audit": small, "contributions": small}.get(self.page.stem, "data=digits")
        return self.run(data, "runs/digits-made")

    def run(self, data: str, to: str) -> Path:
        if not Path(to).exists():
            assert (
                main(["run", *data.split(), "method=finetune", "train.rounds=2", "--out", to, "--quiet"]) == 0
            )
        return Path(to)


def expanded(word: str) -> list[str]:
    """As a shell does it."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def few(words: list[str]) -> list[str]:
    """What is added so that a command takes seconds."""
    more = []
    if words[0] in ("run", "compare") and not any(w.startswith("train.rounds=") for w in words):
        more.append("train.rounds=2")
    if words[0] == "audit":
        more += ["--shadows", "2"]
    if words[0] == "compare":
        named = any(w.endswith(".toml") for w in words)
        more += [] if "--methods" in words or named else ["--methods", "finetune"]
        more += [] if {"--splits", "--grid"} & set(words) or named else ["--splits", "0"]
        more += [] if "--jobs" in words else ["--jobs", "1"]
        more += ["data.clients=5"] if {"data=digits", "data=synthetic"} & set(words) else []
    return more


def prepare(files: Path, place: Path, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with the reader's files, and those that the page tells the reader to write."""
    shutil.copytree(files, place, dirs_exist_ok=True)
    for code in re.findall(r"^```python\n(# (\w+\.py).*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        (place / code[1]).write_text(code[0])
    for name in ("my_module", "losses", "costs", "tilted"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("MOTET_CACHE", str(place / "cache"))
    monkeypatch.setenv("MOTET_CONFIG", str(place / "config"))
    if page.stem == "networks":
        make_network(place / "models/bert")
    if page.stem == "publish-a-model":
        publish_linear(place)
    if page.stem == "studies":
        (place / "my.toml").write_text((place / "study.toml").read_text())


def publish_linear(place: Path) -> None:
    """The linear model that the guide on publishing keeps, and rows to ask it about."""
    from sklearn.linear_model import LogisticRegression

    from motet import KeptModel, feature_defaults

    draw = np.random.default_rng(0)
    x = pd.DataFrame(draw.standard_normal((80, 6)), columns=list("abcdef"))
    y = (x["a"] > 0).astype(int)
    features = feature_defaults(x, dict.fromkeys(x.columns, "number"))
    model = LogisticRegression().fit(x, y)
    KeptModel.of(model, features, client="clinic", classes=("well", "ill")).save(place / "kept")
    shutil.copy(place / "kept/clinic.json", place)
    x.head(1).to_csv(place / "new.csv", index=False)  # few rows are answered


def type_all(files: Path, place: Path, page: Path, monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    prepare(files, place, page, monkeypatch)
    reader, failed = Reader(place, page), []
    for command in commands(page):
        if reason(command) or lacks_data(command) or (bool(re.search(LONG, command)) and not long):
            continue
        if reader.type(command):
            failed.append(command)
    assert failed == []


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.stem)
def test_the_commands_of_a_page_run(
    page: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MOTET_DATA", raising=False)  # data sets that are downloaded: the long test
    type_all(files, tmp_path, page, monkeypatch, long=False)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.stem)
def test_the_commands_of_a_page_run_with_all_data(
    page: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_all(files, tmp_path, page, monkeypatch, long=True)


def test_what_is_not_run_is_in_some_page() -> None:
    shown = [c for page in PAGES for c in commands(page)]
    assert [p for p in ELSEWHERE if not any(re.search(p, c) for c in shown)] == []
    assert len([c for c in shown if not reason(c)]) > 90
