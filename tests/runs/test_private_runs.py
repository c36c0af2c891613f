"""Runs with privacy budgets: what is refused before training, what is spent, and a run that was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from motet.cli.main import main
from motet.core import MethodUnfit
from motet.errors import Stopped
from motet.evidence.run_sections import guards
from motet.runs.build import cohort_of, resolve
from motet.runs.recipe import RecipeError, read
from motet.runs.run import run
from motet.runs.store import Store

pytest.importorskip("opacus")
SMALL = ["data=wine", "data.split=iid", "data.clients=3", "data.unseen=0", "method.batch=16", "method.lr=0.1"]
PRIVATE = ["privacy.level=example", "privacy.noise_multiplier=3", "privacy.accountant=rdp"]


def settings(*words: str) -> Any:
    return read(None, [*SMALL, "train.rounds=4", "train.patience=0", "save.models=none", *words])


def refused(*words: str) -> str:
    with pytest.raises(RecipeError) as e:
        resolve(settings(*words))
    return str(e.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["privacy.level=example", "privacy.epsilon=-1"], "privacy.epsilon is -1.0; it must be >= 0"),
        (["privacy.level=example"], "without noise nothing is private"),
        (["privacy.level=example", "privacy.epsilon=inf"], "privacy.epsilon is inf; it must be a finite number"),
        ([*PRIVATE, "privacy.max_grad_norm=inf"], "privacy.max_grad_norm is inf"),
        (["privacy.level=example", "privacy.noise_multiplier=1e-300"], "hides nothing"),
        (["privacy.level=client", "privacy.noise_multiplier=inf", "guard.clip=1"], "it must be a finite number"),
        (["privacy.epsilon=1"], "privacy.level is none"),
        ([*PRIVATE, "privacy.delta=0.5"], "delta must be below 1 /"),
        ([*PRIVATE, "privacy.delta=1"], "0 or more, below 1"),
        ([*PRIVATE, "train.after_training=true"], "trains a second time"),
        ([*PRIVATE, "net.class_weights=balanced"], "counted without noise"),
        ([*PRIVATE, "method=pfa"], "sparsity vectors are measured on rows and leave"),
        ([*PRIVATE, "privacy.epsilon=0.001"], "first round costs more"),
        (["privacy.level=client", "privacy.epsilon=1"], "guard.clip is 0"),
        (["privacy.level=client", "privacy.epsilon=1", "guard.clip=1", "guard.bits=8"], "replies are compressed"),
        (
            ["privacy.level=client", "privacy.noise_multiplier=1", "guard.clip=1", "method=fedproto", "net=mlp"],
            "measures rows",
        ),
        (["privacy.level=client", "privacy.noise_multiplier=1", "guard.clip=1", "method=fedper+fedopt", "net=mlp",
          "guard.masked=true", "privacy.clip_quantile=0.5"], "trusted server"),
        (
            ["privacy.level=client", "privacy.noise_multiplier=1", "guard.clip=1", "privacy.sampling=poisson",
             "train.cohort=0.5"], "draw nobody",
        ),
        (
            ["privacy.level=client", "privacy.noise_multiplier=1", "guard.clip=1", "privacy.sampling=poisson",
             "train.cohort=1", "method=scaffold"], "how many clients were drawn",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_private_is_refused_before_training(words: list[str], said: str) -> None:
    assert said in refused(*words)


def test_a_clip_that_adapts_among_too_few_clients_is_refused_before_training() -> None:
    words = [
        "privacy.level=client",
        "privacy.noise_multiplier=1",
        "guard.clip=1",
        "privacy.clip_quantile=0.5",
    ]
    with pytest.raises(MethodUnfit, match="with 3 clients in a round its count would need more noise"):
        resolve(settings(*words))


def test_networks_whose_rows_are_mixed_are_refused() -> None:
    words = ["data=digits", "net=lenet", "net.norm=batch", "net.statistics=averaged", "method.epochs=1"]
    try:
        recipe = settings(*PRIVATE, *words)
    except RecipeError:
        recipe = settings(*PRIVATE, "data=digits", "net=resnet18", "net.norm=batch", "method.epochs=1")
    with pytest.raises(RecipeError, match="BatchNorm"):
        resolve(recipe)


def test_rates_that_are_left_open_are_not_measured_on_rows() -> None:
    words = [*PRIVATE, "method.lr=auto"]
    other = resolve(settings(*words, "data.seed=5"))
    assert resolve(settings(*words)).recipe["method"]["lr"] == other.recipe["method"]["lr"]


def test_rates_of_texts_are_found_without_rows(tmp_path: Path) -> None:
    lines = [f"{word} again,{i % 2},{'ab'[i // 2 % 2]}" for i, word in enumerate(["good", "bad"] * 20)]
    (tmp_path / "t.csv").write_text("\n".join(["words,y,c", *lines]))
    words = [f"data={tmp_path / 't.csv'}", "data.target=y", "data.client=c", "data.text=words", "net=lstm"]
    recipe = read(None, [*words, *PRIVATE, "train.rounds=1"])
    assert float(resolve(recipe).recipe["method"]["lr"]) > 0


def test_epsilon_stands_beside_scores_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run(settings(*PRIVATE), tmp_path / "r")
    spent = done.facts["privacy"]
    resolved = resolve(settings(*PRIVATE))
    assert resolved.budget is not None
    each = {c: resolved.budget.epsilon(c, 4) for c in resolved.federated.clients_data}  # type: ignore[union-attr]
    assert spent["clients"] == pytest.approx(each) and spent["epsilon"] == max(each.values())
    assert spent["delta"] == 1e-3 and "for studies" in spent["noise"]
    assert main(["show", str(tmp_path / "r")]) == 0
    assert f"epsilon {spent['epsilon']:.3g}, delta 0.001 for each training row" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "r"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epsilon"] == pytest.approx(spent["epsilon"])
    said = guards(done.facts)
    assert (
        "Gaussian, 3 times privacy.max_grad_norm = 1" in said["noise"] and "epsilon" in said["privacy budget"]
    )


def test_a_run_that_was_stopped_spends_once_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    class Dies:
        """Dies in its third round, when the second was saved."""

        def on_start(self, trainer: Any) -> None: ...
        def on_round(self, trainer: Any, seconds: float) -> None:
            if trainer.number == 2:
                raise Killed

        def should_stop(self) -> bool:
            return False

    words = (*PRIVATE, "save.checkpoint=0")
    whole = run(settings(*words), tmp_path / "whole")
    with pytest.raises(Killed):
        run(settings(*words), tmp_path / "killed", Dies())
    again = run(settings(*words), tmp_path / "killed")
    one, two = (Store(Path(r.folder)) for r in (whole, again))
    assert one.private_rounds() == two.private_rounds() and set(two.private_rounds().values()) == {4}
    assert again.facts["privacy"] == whole.facts["privacy"]
    assert one.state(3) == two.state(3)


def test_a_client_whose_budget_is_spent_takes_no_further_part(tmp_path: Path) -> None:
    resolved = resolve(settings(*PRIVATE))
    two = resolved.budget.epsilon("client-0", 2)  # type: ignore[union-attr]
    done = run(settings(*PRIVATE, f"privacy.epsilon={two * 1.001}"), tmp_path / "r")
    assert set(Store(tmp_path / "r").private_rounds().values()) == {2}
    assert done.facts["privacy"]["epsilon"] <= two * 1.001


@pytest.mark.parametrize("more", [(), ("privacy.noise=clients",), ("privacy.clip_quantile=0.5",)])
def test_client_level_runs_go_on_to_the_same_bits_and_count_rounds(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    pytest.importorskip("dp_accounting")
    words = ("data.clients=9", "privacy.level=client", "privacy.noise_multiplier=0.2", "guard.clip=1", *more)

    class Stops:
        def on_start(self, trainer: Any) -> None:
            self.trainer = trainer

        def on_round(self, trainer: Any, seconds: float) -> None: ...
        def should_stop(self) -> bool:
            return bool(self.trainer.number == 1)

    whole = run(settings(*words), tmp_path / "whole")
    with pytest.raises(Stopped):
        run(settings(*words), tmp_path / "stopped", Stops())
    again = run(settings(*words), tmp_path / "stopped")
    states = [Store(Path(r.folder)).state(3) for r in (whole, again)]
    assert states[0] == states[1] and again.facts["privacy"] == whole.facts["privacy"]
    assert whole.facts["privacy"]["level"] == "client" and whole.facts["privacy"]["epsilon"] > 1


def test_model_cards_say_what_was_spent_and_only_those_of_private_runs(tmp_path: Path) -> None:
    words = ("train.rounds=1", "save.models=all", "method=fedper", "net=mlp")
    done = run(settings(*PRIVATE, *words), tmp_path / "private")
    spent = done.facts["privacy"]
    cards = {p.stem: p.read_text() for p in (done.folder / "models").glob("*.md")}
    own = f"epsilon {spent['clients']['client-1']:.3g}, delta 0.001 for each of a client's training rows"
    assert (
        f"- What left clients has differential privacy: {own}; noise: arithmetic, for studies."
        in cards["client-1"]
    )
    plain = run(settings(*words), tmp_path / "plain")
    assert not [p for p in (plain.folder / "models").glob("*.md") if "privacy" in p.read_text()]


def test_cards_of_personal_models_that_a_client_level_budget_does_not_cover_say_so(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    words = ("data.clients=4", "privacy.level=client", "privacy.noise_multiplier=1", "guard.clip=1", "train.rounds=1",
             "save.models=all")  # fmt: skip
    for method, covered in (("mrmtl", False), ("fedavg", True)):
        done = run(settings(*words, f"method={method}"), tmp_path / method)
        cards = {p.stem: p.read_text() for p in (done.folder / "models").glob("*.md")}
        assert all("for each client with all its rows" in card for card in cards.values())
        assert ("This model has none: it was trained without noise" not in cards["client-1"]) == covered
        assert "This model has none" not in (done.folder / "global.md").read_text()


def test_a_round_whose_draw_has_spent_its_budget_is_passed_over_and_others_train_on(tmp_path: Path) -> None:
    words = (*PRIVATE, "data.clients=4", "train.cohort=0.25", "train.rounds=12")
    one = max(resolve(settings(*words)).budget.epsilon(f"client-{i}", 1) for i in range(4))  # type: ignore[union-attr]
    once = settings(*words, f"privacy.epsilon={one * 1.001}")
    resolved = resolve(once)
    drawn = [cohort_of(resolved.recipe, resolved.training.clients_data, k)[0] for k in range(12)]
    first = {c: drawn.index(c) for c in drawn}
    assert max(first.values()) >= len(first), "somebody is drawn again before everybody was drawn"
    run(once, tmp_path / "r")
    frame = Store(tmp_path / "r").frame("privacy")
    assert dict(zip(frame["client"], frame["round"], strict=True)) == first
    assert len(frame) == len(first)


def test_with_masks_a_round_with_too_few_budgets_left_is_none_and_the_run_ends_before(tmp_path: Path) -> None:
    sizes = ("data.split=dirichlet", "data.alpha=0.3", "data.seed=1", "guard.masked=true", "train.rounds=9")
    resolved = resolve(settings(*PRIVATE, *sizes))
    costs = sorted(resolved.budget.epsilon(c, 3) for c in resolved.training.clients_data)  # type: ignore[union-attr]
    assert costs[0] < 0.9 * costs[-1], "who has fewer rows spends more"
    run(settings(*PRIVATE, *sizes, f"privacy.epsilon={costs[-1] * 1.001}"), tmp_path / "r")
    assert set(Store(tmp_path / "r").private_rounds().values()) == {3}
    first = resolved.budget.epsilon(
        max(resolved.budget.clients, key=lambda c: resolved.budget.epsilon(c, 1)), 1
    )  # type: ignore[union-attr]
    said = refused(*PRIVATE, *sizes, f"privacy.epsilon={first * 0.99}")
    assert "no round has 3 clients whose budget is enough for it" in said


def test_masks_with_cohorts_below_min_in_sum_are_refused_before_training() -> None:
    said = refused("guard.masked=true", "data.clients=9", "train.cohort=2")
    assert "a round has 2 clients, and guard.min_in_sum is 3" in said and "hint: train.cohort=3" in said
