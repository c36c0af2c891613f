"""Trackers: what the store holds arrives, once, by name and round, and a missing one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import motet
from motet.cli.main import main
from motet.errors import UsageError
from motet.report.trackers import Number, follow, numbers, tracker_named


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "wine"
    return motet.run(method="fedavg", data="wine", rounds=4, evaluate=1, out=out).folder


class Kept:
    """A tracker that keeps what it is sent."""

    def __init__(self) -> None:
        self.found: list[Number] = []

    def send(self, numbers: list[Number]) -> None:
        self.found += numbers

    def sent(self) -> dict[str, int]:
        return {}

    def remember(self, sent: dict[str, int]) -> None: ...

    def close(self) -> None: ...


def test_the_numbers_are_those_of_the_run(done: Path) -> None:
    run, found = motet.Run(done), list(numbers(done, clients=True))
    scores = run.scores.query("part == 'val' and side == 'personal' and round == 2")
    own = {n.name: n.value for n in found if n.round == 2}
    assert own["validation/personal/accuracy"] == pytest.approx(scores["accuracy"].mean())
    assert own["bytes/up"] == run.rounds.query("round == 2")["up"].item()
    first = scores.iloc[0]
    assert own[f"client/{first['client']}/validation/personal/accuracy"] == first["accuracy"]
    assert any(n.name == "test/personal/accuracy" for n in found)


def test_a_run_that_is_followed_sends_every_number_once(done: Path) -> None:
    kept, looks = Kept(), iter([True, False])
    assert follow(done, kept, wait=lambda: next(looks)) == len(kept.found)
    assert len({(n.name, n.round) for n in kept.found}) == len(kept.found)


def test_tensorboard_reads_them(done: Path, tmp_path: Path) -> None:
    assert main(["track", str(done), "--with", "tensorboard", "--to", str(tmp_path)]) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / done.name), size_guidance={"tensors": 0})
    read.Reload()
    assert [e.step for e in read.Tensors("validation/personal/accuracy")] == [0, 1, 2, 3]


def test_what_tensorboard_was_sent_is_not_sent_again(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["track", str(done), "--with", "tensorboard", "--to", str(tmp_path)]
    assert main(words) == main(words) == main([*words, "--clients"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [" 0 numbers sent" in line for line in said] == [False, True, False]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(tmp_path / done.name), size_guidance={"tensors": 0})
    read.Reload()
    clients = [t for t in read.Tags()["tensors"] if t.startswith("client/")]
    assert clients and all(len({e.step for e in read.Tensors(t)}) == len(read.Tensors(t)) for t in clients)
    assert [e.step for e in read.Tensors("seconds")] == [0, 1, 2, 3]
    assert len(read.Tensors("test/personal/accuracy")) == 1


def test_a_run_that_was_run_anew_has_a_chart_of_its_own(done: Path, tmp_path: Path) -> None:
    place = tmp_path / done.name
    place.mkdir()
    (place / "sent.json").write_text('{"run": "another", "sent": {"rounds": 99}}')
    assert main(["track", str(done), "--with", "tensorboard", "--to", str(tmp_path)]) == 0
    assert len(list(tmp_path.iterdir())) == 2 and [p.name for p in place.iterdir()] == ["sent.json"]


def test_mlflow_reads_them(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database needs more packages than a test should
    place = (tmp_path / "mlruns").as_uri()
    assert main(["track", str(done), "--with", "mlflow", "--to", place, "--clients"]) == 0
    client = mlflow.MlflowClient(tracking_uri=place)
    assert main(["track", str(done), "--with", "mlflow", "--to", place, "--clients"]) == 0  # nothing twice
    (run,) = client.search_runs([client.get_experiment_by_name("motet").experiment_id])
    assert run.data.params["method.name"] == "fedavg"
    history = client.get_metric_history(run.info.run_id, "validation/personal/accuracy")
    assert sorted(m.step for m in history) == [0, 1, 2, 3]


def test_mlflow_takes_any_client_s_name_and_says_where_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mlflow, place = pytest.importorskip("mlflow"), str(tmp_path / "runs")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    assert main(["track", str(done), "--with", "mlflow", "--to", place]) == 2
    assert "hint: start its server" in capsys.readouterr().err
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    tracker = tracker_named("mlflow")(done, place)
    tracker.send([Number("client/Ward <3>, Köln/loss", 0, 1.0)])
    client = mlflow.MlflowClient(tracking_uri=place)
    (run,) = client.search_runs([client.get_experiment_by_name("motet").experiment_id])
    assert [*run.data.metrics] == ["client/Ward _3c_3_3e__2c_ Köln/loss"]


def test_an_unknown_or_missing_tracker_is_named(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="did you mean 'tensorboard'"):
        tracker_named("tensorbord")
    assert main(["track", str(done), "--with", "trackio"]) == 2
    assert "pip install trackio" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_said_before_anything_is_sent(done: Path, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    words = [str(done), str(tmp_path / "nothing"), "--with", "tensorboard", "--to", str(tmp_path / "to")]
    assert main(["track", *words]) == 2
    assert not (tmp_path / "to").exists()


def test_pages_beside_runs_are_left_out(done: Path, tmp_path: Path) -> None:
    """`runs/wine-*` names the report of a study too."""
    (page := tmp_path / "wine-comparison.html").write_text("a report")
    words = [str(done), str(page), "--with", "tensorboard", "--to", str(tmp_path / "to")]
    assert main(["track", *words]) == 0


def test_the_folder_one_is_in_has_its_name(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(done)
    main(["track", ".", "--with", "tensorboard", "--to", str(tmp_path)])
    assert [p.name for p in tmp_path.iterdir()] == ["wine"]
