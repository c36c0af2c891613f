"""What people who write their first method or comparison get wrong, and what they are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import motet
from motet import methods, verb
from motet.runs.study import Asked, read
from rounds import TWO, after, apart, one_number


class NoPair(methods.FedAvg):
    """A verb that forgets what is kept."""

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        return self.descend(self.task.loss, w, data)


class Branches(methods.FedAvg):
    """A verb that branches on a tensor."""

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        return (w if data.n > 5 else self.descend(self.task.loss, w, data)), keep


class PersonalLambda(methods.FedAvg):
    """A predictor that cannot be saved."""

    def personal(self, w: Any, keep: Any, data: Any) -> Any:
        return lambda x: self.task.predict(w, x)


@pytest.mark.parametrize("engine", ["loop", "vmap"])
@pytest.mark.parametrize(
    ("method", "said"),
    [
        (NoPair, "it returned Vec; a verb must return a pair"),
        (PersonalLambda, "personal returned a function; it must return functools.partial"),
    ],
)
def test_a_method_that_returns_the_wrong_thing_is_told_what_is_right(
    method: Any, said: str, engine: str, tmp_path: Path
) -> None:
    with pytest.raises(motet.MotetError, match=said):
        motet.run(method=method, data="wine", rounds=1, engine=engine, out=tmp_path)


class Clones(motet.methods.FedAvg):
    """Works on copies, as people do who know torch."""

    @motet.verb
    def train(self, w, keep, data):
        own = {k: v.clone() for k, v in w.items()}
        for k in own:
            own[k].mul_(0.9)
        return self.descend(self.task.loss, own, data), keep


@pytest.mark.parametrize("engine", ["loop", "vmap", "threads"])
def test_a_plain_dict_of_weights_trains_on_every_engine(engine: str, tmp_path: Path) -> None:
    words = {"method": Clones, "data": "wine", "rounds": 1, "lr": 0.1, "engine": engine}
    assert motet.run(**words, out=tmp_path).summary["status"] == "done"


def test_a_branch_on_a_tensor_is_named_as_such(tmp_path: Path) -> None:
    with pytest.raises(
        motet.MotetError, match=r"data-dependent control flow(.|\n)*hint: torch.where chooses"
    ):
        motet.run(method=Branches, data="wine", rounds=1, engine="vmap", out=tmp_path)


def test_a_comparison_of_one_method_says_how_to_name_several() -> None:
    with pytest.raises(motet.errors.RecipeError, match="(?s)several methods.*hint: --methods ditto"):
        read(None, ["method=ditto", "data=wine"], Asked(["fedprox"]))
    assert [row.label for row in read(None, ["method.lr=0.2"], Asked(["ditto"])).rows] == ["ditto", "local"]


def test_one_method_may_be_compared_by_its_name_alone(tmp_path: Path) -> None:
    found = motet.compare("finetune", data="wine", rounds=1, base=tmp_path)
    assert sorted(found.table["method"]) == ["finetune", "local", "majority class"]


def test_a_keyword_that_two_sections_have_is_said_with_names() -> None:
    with pytest.raises(motet.errors.RecipeError, match="method={'name': 'feddyn', 'alpha': …}"):
        motet.run(method="feddyn", data="wine", alpha=0.1)


def test_a_clip_of_zero_is_no_clip() -> None:
    task = one_number()
    plain, zero = (
        after(method(task, lr=0.1, epochs=1, batch=2), motet_loop(), 1)
        for method in (methods.FedAvg, ClipZero)
    )
    assert apart(plain, zero) == 0 and apart(plain, task.w0) > 0


class ClipZero(methods.FedAvg):
    """FedAvg whose descent is told to clip at 0."""

    @verb
    def train(self, w: Any, keep: Any, data: Any) -> Any:
        return self.descend(self.task.loss, w, data, clip=0.0), keep


def motet_loop() -> Any:
    from motet.engines.loop import Loop

    return Loop(TWO)


def test_statistics_that_do_not_exist_are_shown() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 2))
    net.statistics = "avg"  # type: ignore[assignment]
    with pytest.raises(motet.MotetError, match="(?s)is 'avg'.*averaged, local, shared"):
        motet.Task(net, "classes", 2)


# ---- objects ----


def with_chosen(which: int) -> Any:
    def near(self: Any, u: Any, batch: Any) -> Any:
        return self.task.loss(u, batch)

    def far(self: Any, u: Any, batch: Any) -> Any:
        return 0 * self.task.loss(u, batch)

    class Chosen(methods.FedAvg):
        """A method with a loss of its own."""

        loss_a, loss_b, chosen = near, far, (near, far)[which]

        @verb
        def train(self, w: Any, keep: Any, data: Any) -> Any:
            return self.descend(self.chosen, w, data), keep

    return Chosen


def test_code_that_names_another_function_is_another_run(tmp_path: Path) -> None:
    from motet.data.own_code import name_of

    assert name_of(with_chosen(0)) == name_of(with_chosen(0)) != name_of(with_chosen(1))


def test_nested_settings_come_as_a_dict_an_object_or_beside_a_file(tmp_path: Path) -> None:
    from motet.parts.agents import AgentSettings
    from motet.runs.from_python import sections
    from motet.runs.recipe import check

    def recipe_of(file: Any, given: dict[str, Any]) -> Any:
        return check(sections(file, given))

    ways = [
        {"method": {"name": "page", "agent": {"gamma": 0.5, "actor": [8, 4]}}},
        {"method": "page", "agent": {"gamma": 0.5, "actor": [8, 4]}},
        {"method": {"name": "page", "agent.gamma": 0.5, "agent.actor": [8, 4]}},
    ]
    found = [recipe_of(None, way)["method"]["agent"] for way in ways]
    assert found[0] == found[1] == found[2] and found[0]["gamma"] == 0.5
    assert (
        recipe_of(None, {"method": "page", "agent": AgentSettings(gamma=0.25)})["method"]["agent"]["gamma"]
        == 0.25
    )
    file = tmp_path / "page.toml"
    file.write_text('[method]\nname = "page"\n[method.agent]\ngamma = 0.5\n')
    both = recipe_of(file, {"method": {"lr_min": 0.01}})["method"]
    assert both["lr_min"] == 0.01 and both["agent"]["gamma"] == 0.5


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    run = motet.run(data="wine", rounds=np.int64(1), lr=np.float32(0.5), seed=np.int64(3), out=tmp_path)
    assert run.facts["settings"]["method"]["lr"] == 0.5 and run.facts["settings"]["seed"] == 3


def test_a_comparison_takes_seeds() -> None:
    with pytest.raises(motet.errors.RecipeError, match="hint: --seeds"):
        motet.compare(["ditto"], data="wine", seed=5)


def test_what_is_missing_in_objects_is_refused_and_not_made_up(tmp_path: Path) -> None:
    x, y = np.zeros((3, 2)), np.array(["a", None, "b"], dtype=object)
    with pytest.raises(motet.errors.DataError, match="y of client one lacks some values"):
        motet.run(data={"one": (x, y), "two": (x, ["a", "b", "a"])}, out=tmp_path)
    frames = {"one": pd.DataFrame({"x": [1.0, 2.0], "y": [0, 1]}), "two": pd.DataFrame({"x": [], "y": []})}
    with pytest.raises(motet.errors.DataError, match="client two has no rows"):
        motet.run(data=frames, target="y", out=tmp_path)


def test_frozen_parameters_stay_and_are_not_sent(tmp_path: Path) -> None:
    net = torch.nn.Linear(13, 3)
    net.weight.requires_grad_(False)
    run = motet.run(net=net, data="wine", rounds=1, lr=0.1, out=tmp_path / "run")
    assert any("send 3 of the network's 42 weights" in note for note in run.facts["notes"])
    with pytest.raises(motet.MotetError, match="frozen"):
        motet.run(net=net.requires_grad_(False), data="wine", out=tmp_path / "all")


def test_no_message_about_a_frame_holds_its_values(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": [*range(30), "SECRET"], "y": [0, 1] * 15 + [1], "site": ["n", "s"] * 15 + ["n"]}
    )
    with pytest.raises(motet.errors.DataError, match=r"the frame \(1: row") as said:
        motet.run(data=frame, target="y", client="site", out=tmp_path)
    same = pd.DataFrame({"a": range(30), "y": ["SECRET"] * 30, "site": ["n", "s"] * 15})
    with pytest.raises(motet.errors.DataError, match="the same in every row") as other:
        motet.run(data=same, target="y", client="site", out=tmp_path)
    assert "SECRET" not in str(said.value) + str(other.value)


def test_a_client_without_validation_rows_is_stacked(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3))
    labels = (rows[:, 0] > 0).astype(int)
    data = {f"c{i}": (rows[i::4][: 10 - 8 * (i == 3)], labels[i::4][: 10 - 8 * (i == 3)]) for i in range(4)}
    run = motet.run(method={"name": "stacking", "trees": 3}, data=data, rounds=1, unseen=0.0, out=tmp_path)
    assert run.facts["status"] == "done" and (run.clients["val"] == 0).any()


def test_what_is_no_function_is_not_called_after_rounds(tmp_path: Path) -> None:
    with pytest.raises(motet.MotetError, match="on_round is of type int; expected a function"):
        motet.run(data="wine", rounds=1, on_round=5, out=tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("odd", [{"share": 2.0}, {"importance": "x"}])
def test_an_estimator_says_which_parameter_is_wrong(odd: dict[str, Any]) -> None:
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    with pytest.raises(ValueError, match=f"{next(iter(odd))} is .*; expected"):
        motet.StackedClassifier(**odd).fit(x, y)
