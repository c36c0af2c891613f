"""Where training diverges, rates that motet chose are halved, and the run goes on from its last sound round."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import motet
from motet.cli.main import main
from motet.errors import RunError
from motet.runs import recipe as recipes
from motet.runs.build import resolve
from motet.runs.compare_runs import differences
from motet.runs.run import Run, begin
from motet.runs.run import run as run_recipe
from motet.runs.store import Store
from motet.runs.trainer import Observer, Trainer

OUTLIER = "c32"  # rates are measured on 32 clients, evenly spaced: of 33 the last one is passed over


def table(scale: float, columns: int, clients: int = 33, rows: int = 16) -> pd.DataFrame:
    """A linear target; the last client's rows are `scale` times as large as those of others."""
    rng = np.random.default_rng(0)
    x, who = rng.normal(size=(clients * rows, columns)), np.repeat(np.arange(clients), rows)
    y = 1000 * (x.sum(1) + rng.normal(size=len(x)))
    x[who == clients - 1] *= scale
    return pd.DataFrame(x).add_prefix("x").assign(target=y, client=[f"c{i:02}" for i in who])


def run(
    folder: Path, method: str = "local", scale: float = 5.0, rounds: int = 6, columns: int = 5, **more: Any
) -> Run:
    given: dict[str, Any] = {
        "target": "target",
        "client": "client",
        "unseen": 0.0,
        "save": {"models": "none"},
    }
    given |= {"rounds": rounds, "engine": "loop", "out": folder}
    return motet.run(method=method, data=table(scale, columns), **given | more)


def rates(done: Run) -> list[float]:
    """The rate that was chosen, and those after it."""
    return [done.facts["settings"]["method"]["lr"], *(h["rates"]["lr"] for h in done.facts["halvings"])]


@pytest.mark.parametrize("method", ["local", "fedavg", "ditto", "finetune"])
def test_a_client_at_which_a_chosen_rate_diverges_does_not_end_the_run(tmp_path: Path, method: str) -> None:
    done = run(tmp_path, method)
    known = rates(done)
    assert done.facts["status"] == "done" and 2 <= len(known) <= 7
    assert known == [known[0] / 2**i for i in range(len(known))]
    assert done.facts["halvings"][-1]["whose"].startswith(f"client {OUTLIER}")
    own = done.test[(done.test["side"] == "personal") & (done.test["client"] != OUTLIER)]
    assert own["rmse"].mean() < 2300  # the deviation of the targets
    assert motet.verify(tmp_path) == []


def test_all_rows_in_one_place_back_off_too(tmp_path: Path) -> None:
    assert len(rates(run(tmp_path, "centralised", 10.0))) > 1


@pytest.mark.parametrize(
    ("method", "names", "more"),
    [
        ("perfedavg", ["lr", "inner_lr"], {}),
        ("fedrecon", ["lr", "recon_lr"], {"net": "mlp"}),
        ("fedopt", ["lr", "server_lr"], {"server_optimiser": "momentum"}),
        ("page", ["lr_min", "lr_max"], {"server_test": 0.2, "proxy": 0.5, "epochs_min": 8}),
    ],
)
def test_all_rates_that_were_left_open_are_halved(
    tmp_path: Path, method: str, names: list[str], more: dict[str, Any]
) -> None:
    done = run(tmp_path, method, 10.0, rounds=3, **more)
    first, last = done.facts["settings"]["method"], done.facts["halvings"][-1]["rates"]
    assert last == {k: first[k] / 2 ** len(done.facts["halvings"]) for k in names}


def test_of_two_rates_only_the_one_that_was_left_open_is_halved(tmp_path: Path) -> None:
    done = run(tmp_path, "perfedavg", 10.0, rounds=3, inner_lr=0.001)
    assert set(done.facts["halvings"][-1]["rates"]) == {"lr"}


@pytest.mark.parametrize("engine", ["loop", "vmap", "threads"])
def test_a_run_that_begins_anew_is_one_with_the_smaller_rate(tmp_path: Path, engine: str) -> None:
    done = run(tmp_path / "auto", scale=10.0, engine=engine)
    assert [h["after"] for h in done.facts["halvings"]] == [-1] * 4
    typed = run(tmp_path / "typed", scale=10.0, engine=engine, lr=rates(done)[-1])
    found = [d for d in differences(Store(done.folder), Store(typed.folder)) if "traffic" not in d]
    assert found == []


def test_a_rate_that_a_person_typed_is_never_changed(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"diverged in round 1: .* client c32 .*\(lr=0.2\)"):
        run(tmp_path, lr=0.2)
    assert "halved" not in set(Run(tmp_path).events["kind"])


def test_the_same_command_with_an_open_rate_goes_on_where_a_typed_one_diverged(tmp_path: Path) -> None:
    chosen = rates(run(tmp_path / "open"))[0]
    with pytest.raises(RunError, match="diverged"):
        run(tmp_path / "r", lr=chosen)
    assert differences(Store(run(tmp_path / "r").folder), Store(tmp_path / "open")) == []


def test_a_rate_is_halved_six_times_at_most(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"(?s)its rate was halved 6 times before\nhint: try a smaller"):
        run(tmp_path, scale=1000.0, columns=60)
    assert (Run(tmp_path).events["kind"] == "halved").sum() == 6


def test_where_nobodys_reply_is_finite_the_rate_is_halved(tmp_path: Path) -> None:
    done = run(tmp_path, "centralised", 60.0, epochs=20)
    first = done.events.query("kind == 'halved'")["text"].iloc[0]
    assert "none of 1 replies is finite" in first and first.endswith("and training begins anew")
    assert done.facts["halvings"][0]["whose"] == "all clients that were asked"


def test_under_a_simulated_attack_rates_stay(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="diverged"):
        run(tmp_path, "centralised", 60.0, epochs=20, guard={"attack": "flip"})
    assert "halved" not in set(Run(tmp_path).events["kind"])


# ---- going on ----


class Killed(Exception):
    pass


class Dies(Observer):
    """Ends at the first round for which `when` holds, as a kill does: nothing more is saved."""

    def __init__(self, when: Callable[[Trainer], bool]) -> None:
        self.when = when

    def on_round(self, trainer: Trainer, seconds: float) -> None:
        if self.when(trainer):
            raise Killed


# it diverges twice at once, and once late: models are scored after every third round
LATE: dict[str, Any] = {"method": "scaffold", "scale": 4.2, "rounds": 12, "evaluate": 3}


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Run:
    done = run(tmp_path_factory.mktemp("late"), **LATE)
    assert [h["after"] for h in done.facts["halvings"]] == [-1, -1, 8]
    return done


@pytest.mark.parametrize("keep", ["memory", "disk"])
@pytest.mark.parametrize("killed_after", [1, 4, 13, 15])
def test_a_kill_before_or_after_a_halving_changes_no_bit(
    tmp_path: Path, late: Run, keep: str, killed_after: int
) -> None:

    seen: list[int] = []

    def when(trainer: Trainer) -> bool:
        seen.append(trainer.number)
        return len(seen) > killed_after

    engine = {"name": "loop", "keep": keep}
    given = recipes.check(late.facts["asked"] | {"engine": late.facts["asked"]["engine"] | engine})
    given.settings["save"]["checkpoint"] = 0.0
    with pytest.raises(Killed):
        run_recipe(given, tmp_path, Dies(when))
    again = run_recipe(given, tmp_path)
    assert differences(Store(again.folder), Store(late.folder)) == []
    assert again.facts["halvings"] == late.facts["halvings"]


def test_of_a_round_that_is_done_again_the_new_state_is_saved(tmp_path: Path) -> None:
    """Also where no round between was a checkpoint."""
    store = Store(tmp_path, writing=True)
    store.checkpoint(3, None, None, lambda number: b"spoilt", 0)
    store.abandon(0)
    store.checkpoint(3, None, None, lambda number: b"sound", 0)
    store.commit()
    assert store.state(3) == b"sound" and store.state(0) == b"spoilt"
    store.close()
    Store(tmp_path).check()


# ---- what it costs ----


def test_what_was_asked_in_rounds_that_are_done_again_is_counted(tmp_path: Path, late: Run) -> None:
    """Three rounds were done three times, and the last three twice."""
    asks = late.asks.query("verb == 'train' and client == 'c00'").set_index("round")["messages"]
    assert asks.tolist() == [7, 1, 1, 1, 1, 1, 1, 1, 1, 4, 1, 1]
    rounds = late.rounds.set_index("round")
    assert rounds["up"].tolist() == [n * rounds["up"][11] for n in asks]
    assert set(rounds["cohort"]) == {33}
    assert late.traffic.query("round == 9")["up"].sum() > 4 * rounds["up"][11]  # with scores


# ---- what people read ----


def test_the_summary_the_table_and_the_report_say_that_rates_were_halved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table(5.0, 5).to_csv(tmp_path / "t.csv", index=False)
    words = [
        f"data={tmp_path / 't.csv'}",
        "data.target=target",
        "data.client=client",
        "data.unseen=0",
        "train.rounds=3",
    ]
    compare = ["compare", *words, "--methods", "local,fedavg", "--splits", "0", "--jobs", "1"]
    assert main([*compare, "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr()
    text = " ".join(said.out.split())
    assert "local: rate halved 3 times after divergence at client c32 (lr 0.23 -> 0.02875)." in text
    assert (
        "local, split 0: diverged in round 1: the validation loss of client c32" in said.err
        or "local: diverged" in said.err
    )
    (page,) = (tmp_path / "runs").glob("*.html")
    assert "rate halved 3 times after divergence at client c32" in page.read_text()
    (folder,) = (tmp_path / "runs").glob("*-local-*")
    assert main(["show", str(folder)]) == 0
    assert (
        "  rate      rate halved 3 times after divergence at client c32 (lr 0.23 -> 0.02875)\n"
        in capsys.readouterr().out
    )
    assert Run(folder).summary["rates"] == {"lr": 0.02875}
    assert "lr = 0.23" in (folder / "recipe.toml").read_text()


def test_a_models_card_has_the_rate_that_it_was_trained_with(tmp_path: Path) -> None:
    run(tmp_path, "fedavg", rounds=2, save={"models": "all"})
    for file in ("global.md", "models/c32.md"):
        assert "lr 0.02875" in (tmp_path / file).read_text() or "lr 0.0575" in (tmp_path / file).read_text()


# ---- privacy ----


@pytest.fixture(params=["example", "client"])
def private(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A run whose gradients or updates are hardly cut, so that they carry so much noise that training diverges."""
    pytest.importorskip("opacus" if request.param == "example" else "dp_accounting")
    asked: dict[str, Any] = {"level": request.param, "epsilon": 5.0, "delta": 1e-3}
    more = {"guard": {"clip": 300.0}}
    if request.param == "example":
        more = {}
        asked["max_grad_norm"] = 10_000.0
    return {"method": "fedavg", "scale": 1.0, "rounds": 5, "epochs": 1, "privacy": asked} | more


def test_private_steps_of_rounds_that_are_done_again_stay_spent_and_are_no_more_than_planned(
    tmp_path: Path, private: dict[str, Any]
) -> None:
    done = run(tmp_path / "r", **private)
    again = sum(h["rounds"] for h in done.facts["halvings"])
    assert again and len(done.rounds) == 5 - again
    assert set(Store(tmp_path / "r").private_rounds().values()) == {5}
    resolved = resolve(recipes.Recipe(done.facts["asked"]))
    assert resolved.budget
    planned = resolved.budget.facts(dict.fromkeys(resolved.federated.clients_data, 5), 5)["epsilon"]
    assert done.facts["privacy"]["epsilon"] == planned <= 5
    assert motet.verify(tmp_path / "r") == []


def test_noise_of_a_round_that_is_done_again_is_drawn_anew(tmp_path: Path, private: dict[str, Any]) -> None:
    done = run(tmp_path / "r", **private)
    resolved = resolve(recipes.Recipe(done.facts["asked"]))
    store = Store(tmp_path, writing=True)
    begin(resolved, store, tmp_path)
    trainer = Trainer(resolved, store)
    seeds = set()
    for halved in (0, 1, 2):
        trainer.use_rates(halved)
        seeds.add(trainer.turn(0).seed)
    store.close()
    assert len(seeds) == 3


def test_a_private_run_that_is_killed_after_a_halving_spends_the_same(
    tmp_path: Path, private: dict[str, Any]
) -> None:

    whole = run(tmp_path / "whole", **private)
    given = recipes.Recipe(whole.facts["asked"] | {"save": {"models": "none", "checkpoint": 0.0}})
    with pytest.raises(Killed):
        run_recipe(given, tmp_path / "r", Dies(lambda trainer: bool(trainer.halvings)))
    again = run_recipe(given, tmp_path / "r")
    assert differences(Store(again.folder), Store(whole.folder)) == []
    assert again.facts["privacy"] == whole.facts["privacy"]
