"""The site as a gatekeeper: each way in which rows were taken from it is refused, with a clause and a ledger line."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

import sites
from motet.cli.main import main
from motet.client import ClientData
from motet.data.federated import FederatedData
from motet.deploy.site.contract import Contract, turn_seed
from motet.deploy.site.ledger import Ledger, LedgerLine, read_ledger
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.deploy.site.score_budget import scorings_allowed
from motet.deploy.site.service import CONTRACT, SiteService
from motet.engines.letters import Letter, Reply

KEY = b"k" * 32
FEDAVG, FEDPER, SWARM = (sites.recipe(name) for name in ("fedavg", "fedper", "swarm"))


def rows_of(many: int = 36, val: int = 12, test: int = 15, seed: int = 0) -> FederatedData:
    """A site's patients: six columns of numbers, of which the first is the age, and three classes."""
    g = torch.Generator().manual_seed(seed)
    return sites.federation({"a": ClientData(*(sites.examples(0, n, g) for n in (many, val, test)))})


def site(folder: Path, policy: Policy | None = None, data: FederatedData | None = None) -> SiteService:
    return SiteService("a", folder, data or rows_of(), policy or Policy(), KEY)


def with_settings(recipe: dict[str, Any], **method: Any) -> dict[str, Any]:
    return recipe | {"method": recipe["method"] | method}


def offered(service: SiteService, recipe: dict[str, Any], rounds: int = 20, run: str = "r") -> str:
    return asked(service, Letter("offer", run, recipe=recipe, send={"rounds": rounds})).refusal


def ask(recipe: dict[str, Any], number: int = 0, **more: Any) -> Letter:
    method = sites.method(recipe)
    sent = more.pop("send", None)
    usual: dict[str, Any] = {"verb": "train", "recipe": recipe, "seed": turn_seed(1, number)}
    start = method.start(sites.turn(-1)) if sent is None else sent
    return Letter("verb", "r", number, send=start, **(usual | more))


def asked(service: SiteService, letter: Letter, caller: str = "server") -> Reply:
    return Reply.read(service.answer(letter.pack(), caller))


def last(folder: Path) -> LedgerLine:
    lines, damage = read_ledger(folder)
    assert damage == []
    return lines[-1]


# ---- who asks ----


@pytest.mark.parametrize("job", ["describe", "measure", "layout", "offer", "verb", "evaluate", "save_model"])
def test_only_the_server_is_answered_and_who_else_asked_is_written_down(tmp_path: Path, job: Any) -> None:
    service = site(tmp_path)
    assert not offered(service, FEDAVG)
    letter = Letter(job, "r", 0, recipe=FEDAVG, send={"rounds": 1}, verb="train", seed=turn_seed(1, 0))
    for caller in ("west", "", "server2", "Server", "owner"):
        assert asked(service, letter, caller) == Reply(refusal="caller")
        assert last(tmp_path).clause == "caller" and last(tmp_path).caller == caller


# ---- what was offered ----


def test_letters_of_a_run_that_was_not_offered_are_refused(tmp_path: Path) -> None:
    service = site(tmp_path)
    for job in ("verb", "evaluate", "evaluate_trained", "save_model"):
        letter = Letter(job, "r", 0, recipe=FEDAVG, verb="train", seed=turn_seed(1, 0))  # type: ignore[arg-type]
        assert asked(service, letter).refusal == "recipe"
        assert "was not offered" in last(tmp_path).text
    assert not list(tmp_path.rglob("*.keep"))


def test_the_head_that_stays_at_home_is_not_given_to_another_method(tmp_path: Path) -> None:
    service = site(tmp_path)
    offered(service, FEDPER)
    assert not asked(service, ask(FEDPER)).refusal
    whole = sites.method(FEDAVG).task.w0
    assert asked(service, ask(FEDAVG, 1, send=whole, base=(0, 0))).refusal == "method"
    assert asked(service, ask(with_settings(FEDPER, lr=0.5), 1, base=(0, 0))).refusal == "recipe"
    assert offered(service, FEDAVG) == "method", "and a run that began keeps its method"
    assert offered(service, with_settings(FEDPER, lr=0.5)) == "recipe"
    assert offered(service, FEDPER, rounds=21) == "rounds"
    assert not offered(service, FEDPER), "the same offer once more, as every job of a run makes it"


@pytest.mark.parametrize(
    ("name", "verb"), [("pfa", "sparsity"), ("fedperc", "sparsity"), ("stacking", "publish")]
)
def test_whether_a_reply_is_averaged_is_read_from_the_text_and_not_from_the_letter(
    tmp_path: Path, name: str, verb: str
) -> None:
    recipe = sites.recipe(name)
    assert offered(site(tmp_path / "1", data=rows_of(48)), recipe) == "learn"
    service = site(tmp_path / "2", Policy(learn="collect"), rows_of(48))
    assert not offered(service, recipe)
    send = {"extractor": sites.method(recipe).task.w0}
    assert asked(service, ask(recipe, verb=verb, learn="mean", send=send)).refusal == "learn"
    assert last(tmp_path / "2").clause == "learn"


def test_verbs_that_the_method_does_not_ask_for_are_refused(tmp_path: Path) -> None:
    service = site(tmp_path)
    offered(service, FEDPER)
    for verb in ("descend", "personal", "train_extractor", "", "__init__"):
        assert asked(service, ask(FEDPER, verb=verb)).refusal == "verb"


def test_three_hundred_trainings_of_one_round_are_three(tmp_path: Path) -> None:
    service = site(tmp_path, Policy(rounds=30))
    offered(service, FEDAVG)
    letter = ask(FEDAVG)
    found = [asked(service, replace(letter, send=letter.send * (1 + i / 100))).refusal for i in range(300)]
    assert found == [""] * 3 + ["asks"] * 297
    labels = [asked(service, replace(letter, number=i)).refusal for i in (1, 2)]
    assert labels == ["asks"] * 2, "whatever the ask's number is"
    assert last(tmp_path).clause == "asks"


def scored(service: SiteService, factor: float, part: Any = "val", run: str = "r", number: int = 0) -> str:
    """Why scores of some weights are refused."""
    w = sites.method(FEDAVG).task.w0 * factor
    send = {"global": w, "download": (), "same": False, "sides": ["global"]}
    seed = turn_seed(1, number)
    return asked(
        service, Letter("evaluate", run, number, recipe=FEDAVG, seed=seed, send=send, part=part)
    ).refusal


def test_scores_are_counted_over_all_runs_and_earned_by_training(tmp_path: Path) -> None:
    service = site(tmp_path)
    for run in ("r", "s", "t"):
        assert not offered(service, FEDAVG, run=run)
    assert {scored(service, 1.0) for _ in range(40)} == {""}, "the same letter counts once"
    found = [scored(service, 1 + i / 100, run="rst"[i % 3]) for i in range(1, 40)]
    assert found == [""] * 15 + ["asks"] * 24, "whatever the run is called"
    assert not asked(service, ask(FEDAVG)).refusal, "a round of training"
    again = site(tmp_path)
    found = [scored(again, 2 + i / 100, number=1) for i in range(20)]
    assert found == [""] * 12 + ["asks"] * 8, "8 for a run that trains, 4 for its round"
    assert "after 1 rounds of training" in last(tmp_path).text


def test_test_rows_are_scored_a_few_times_in_a_run(tmp_path: Path) -> None:
    service = site(tmp_path)
    offered(service, FEDAVG)
    found = [scored(service, 1 + i / 100, "test") for i in range(12)]
    assert found == [""] * 8 + ["asks"] * 4 and not scored(service, 1.0)


def test_an_honest_study_fits_the_budget_of_scores() -> None:
    """20 runs of 200 rounds, each scored, and tested at the end."""
    done = 0
    for run in range(20):
        for number in range(200):
            done += 1
            assert done <= scorings_allowed(run + 1, 200 * run + number + 1, Policy())
        done += 3
    assert done <= scorings_allowed(20, 4000, Policy())


def test_rounds_beyond_the_offer_are_refused(tmp_path: Path) -> None:
    service = site(tmp_path)
    offered(service, FEDAVG, rounds=2)
    found = [asked(service, ask(FEDAVG, number)).refusal for number in (-1, 0, 1, 2, -2, 10**6)]
    assert found == ["", "", "", "rounds", "rounds", "rounds"]
    assert offered(service, FEDAVG, rounds=10_001, run="another") == "rounds"


def test_the_server_does_not_choose_a_rounds_seed(tmp_path: Path) -> None:
    service = site(tmp_path)
    offered(service, FEDAVG)
    assert asked(service, ask(FEDAVG, seed=7)).refusal == "recipe"
    assert not asked(service, ask(FEDAVG)).refusal


# ---- settings through which a reply could be inverted ----


@pytest.mark.parametrize("many", [1, 2, 9])
def test_no_reply_rests_on_few_rows(tmp_path: Path, many: int) -> None:
    assert offered(site(tmp_path, data=rows_of(many)), FEDAVG) == "rows"
    assert "least_rows = 10" in last(tmp_path).text


def test_a_method_that_trains_on_half_of_the_rows_needs_twice_as_many(tmp_path: Path) -> None:
    recon = sites.recipe("fedrecon")
    assert offered(site(tmp_path / "1", data=rows_of(18)), recon) == "rows"
    assert not offered(site(tmp_path / "2", data=rows_of(24)), recon)


@pytest.mark.parametrize(
    ("many", "batch", "known", "secret"),
    [(17, 16, "rows", ""), (33, 16, "", ""), (21, 20, "rows", ""), (36, 1, "rows", "rows")],
)
def test_no_row_is_most_of_a_reply(tmp_path: Path, many: int, batch: int, known: str, secret: str) -> None:
    """With orders of its own, a site makes batches even."""
    for orders, clause in ((False, known), (True, secret)):
        service = site(tmp_path / str(orders), Policy(secret_orders=orders), rows_of(many))
        assert offered(service, with_settings(FEDAVG, batch=batch)) == clause


@pytest.mark.parametrize(
    ("steps", "batch", "clause"), [(1, 8, "rows"), (1, 16, ""), (3, 1, "rows"), (40, 16, "")]
)
def test_a_number_of_steps_may_not_rest_on_few_rows(
    tmp_path: Path, steps: int, batch: int, clause: str
) -> None:
    assert (
        offered(site(tmp_path, data=rows_of(100)), with_settings(FEDAVG, steps=steps, batch=batch)) == clause
    )


def test_a_number_of_steps_is_bounded_by_the_passes_that_it_takes(tmp_path: Path) -> None:
    passes = with_settings(FEDAVG, steps=2001, batch=50)
    assert not offered(site(tmp_path / "1", data=rows_of(1000)), passes), "a hundred passes"
    assert offered(site(tmp_path / "2", data=rows_of(100)), passes) == "limits"
    said = "method.steps is 2001, some 1,000 passes over the rows, and this site's policy has epochs = 1000"
    assert said in last(tmp_path / "2").text


@pytest.mark.parametrize("settings", [{"epochs": 10**9}, {"lr": 1e6}, {"epochs": 1001}])
def test_passes_and_rates_have_bounds(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert offered(site(tmp_path), with_settings(FEDAVG, **settings)) == "limits"


def test_a_network_of_one_layer_gets_no_weights_that_single_out_rows(tmp_path: Path) -> None:
    logistic = FEDAVG | {"net": {"name": "logistic"}}
    service = site(tmp_path)
    assert not offered(service, logistic)
    w0 = sites.method(logistic).task.w0
    steep = w0.map(lambda v, _: v + 1e6)
    assert asked(service, ask(logistic, send=steep)).refusal == "weight"
    assert not asked(service, ask(logistic, send=w0)).refusal


def test_an_owner_may_bound_how_wide_networks_are(tmp_path: Path) -> None:
    """Units of a wide network can be made to see one row each; 83 weights and 36 rows."""
    assert offered(site(tmp_path / "1", Policy(weights_per_row=2.0)), FEDAVG) == "weights"
    assert "weights_per_row = 2" in last(tmp_path / "1").text
    assert not offered(site(tmp_path / "2", Policy(weights_per_row=3.0)), FEDAVG)


def test_scores_of_few_rows_stay(tmp_path: Path) -> None:
    service = site(tmp_path, data=rows_of(val=9))
    offered(service, FEDAVG)
    send = {"global": sites.method(FEDAVG).task.w0, "download": (), "same": False, "sides": ["global"]}
    letter = Letter("evaluate", "r", 0, recipe=FEDAVG, seed=turn_seed(1, 0), send=send, part="val")
    assert asked(service, letter).refusal == "rows"
    assert not asked(service, replace(letter, part="test")).refusal


# ---- limits of time and memory ----


def test_work_without_end_ends_with_a_line_and_nothing_is_kept(tmp_path: Path) -> None:
    service = site(tmp_path, Policy(epochs=10**10, letter_seconds=0.5))
    endless = with_settings(FEDAVG, epochs=10**9)
    assert not offered(service, endless)
    assert asked(service, ask(endless)).refusal == "limits"
    assert "longer than 0.5 s" in last(tmp_path).text
    assert not list(tmp_path.rglob("*.keep"))
    assert not offered(service, FEDAVG, run="another"), "and the site answers on"


def test_a_network_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    huge = FEDAVG | {"net": {"name": "mlp", "hidden": [10**5] * 3}}
    service = site(tmp_path, Policy(letter_memory=1 << 30))
    assert offered(service, huge) == "limits"
    assert "bytes of memory" in last(tmp_path).text
    assert not offered(service, FEDAVG, run="another")


# ---- losses and sketches ----


def particles(values: np.ndarray) -> torch.Tensor:
    """(1, particles, 27) of a logistic network for three classes and six columns: how far the age is beyond a point."""
    theta = np.zeros((1, len(values), 21))
    theta[0, :, 0], theta[0, :, 18] = 50.0, -50.0 * values  # class 0's score: 50 (age - point)
    return torch.from_numpy(theta)


def swarm_site(folder: Path, policy: Policy) -> tuple[SiteService, dict[str, Any]]:
    recipe = SWARM | {"net": {"name": "logistic"}, "method": SWARM["method"] | {"bound": 30.0}}
    service = site(folder, policy)
    assert not offered(service, recipe, rounds=15)
    return service, recipe


def losses_at(service: SiteService, recipe: dict[str, Any], points: np.ndarray, number: int) -> Reply:
    letter = ask(recipe, number, verb="loss_of_particles", send={"theta": particles(points)})
    return asked(service, letter)


def test_234_chosen_particles_are_more_than_the_recipe_has(tmp_path: Path) -> None:
    service, recipe = swarm_site(tmp_path, Policy())
    assert losses_at(service, recipe, np.linspace(-4, 4, 234), 0).refusal == "asks"
    assert last(tmp_path).clause == "asks"


def ages_from(losses: np.ndarray, points: np.ndarray, many: int) -> np.ndarray:
    """The attack: a loss bends where a patient's age is, so second differences count patients between two points."""
    bends = np.diff(losses, 2).clip(min=0)
    share = np.cumsum(bends) / max(bends.sum(), 1e-12)
    at = np.searchsorted(share, (np.arange(many) + 0.5) / many)
    return points[1:-1][np.minimum(at, len(bends) - 1)]


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_losses_at_chosen_points_do_not_give_the_ages(tmp_path: Path, noise: float) -> None:
    """Without noise all ages are there; with it a guess from their mean and spread is better."""
    service, recipe = swarm_site(tmp_path, Policy(noise=noise, loss_bound=1e6 if not noise else 3.0))
    points, found = np.linspace(-4, 4, 234), list[float]()
    for number, some in enumerate(np.array_split(points, 12)):
        found += losses_at(service, recipe, some, number).tree[0, 0].tolist()
    ages = np.sort(rows_of().clients_data["a"].train.take().x[:, 0].numpy())
    miss = np.abs(ages_from(np.array(found), points, len(ages)) - ages).mean()
    even = NormalDist(ages.mean(), ages.std()).inv_cdf
    guess = np.abs([even((i + 0.5) / len(ages)) for i in range(len(ages))] - ages).mean()
    assert (miss < 0.5 * guess) if noise == 0 else (miss > guess)


def test_the_same_letter_gets_the_same_noise_and_losses_are_counted(tmp_path: Path) -> None:
    service, recipe = swarm_site(tmp_path, Policy(losses=25_000))
    few = np.linspace(-1, 1, 20)
    first = losses_at(service, recipe, few, 0)
    for file in tmp_path.rglob("*.keep"):
        file.unlink()  # as if the version was forgotten
    assert torch.equal(first.tree, losses_at(service, recipe, few, 0).tree)
    clean = losses_at(site(tmp_path / "2", Policy(noise=0.0)), recipe, few, 0)
    assert clean.refusal == "recipe", "and other policies have contracts of their own"
    assert Ledger(tmp_path).numbers == {"r": 40}
    other, _ = swarm_site(tmp_path / "3", Policy(losses=25_000))
    other.ledger.numbers["before"] = 24_990
    assert losses_at(other, recipe, few, 0).refusal == "losses"


def test_sketches_get_noise_too(tmp_path: Path) -> None:
    recipe, found = sites.recipe("pfa"), {}
    send = {"extractor": sites.method(recipe).task.w0}
    for noise in (0.0, 2.0):
        service = site(tmp_path / str(noise), Policy(learn="collect", noise=noise))
        assert not offered(service, recipe)
        found[noise] = asked(service, ask(recipe, verb="sparsity", learn="all", send=send)).tree
    away = (found[2.0] - found[0.0]).abs()
    assert found[0.0].min() >= 0 and found[0.0].max() <= 1 and float(away.mean()) > 0.2


# ---- contracts are kept ----


def test_a_contract_is_stored_outlives_the_process_and_is_named_in_the_ledger(tmp_path: Path) -> None:
    offered(site(tmp_path), FEDAVG)
    (file,) = tmp_path.rglob(CONTRACT)
    contract = Contract.read(file.read_bytes())
    assert contract.caller == "server" and contract.method == "fedavg" and contract.rows["train"] == 36
    assert {(r.ask, r.learn) for r in contract.asks} >= {("train", "average"), ("evaluate", "scores")}
    assert not asked(site(tmp_path), ask(FEDAVG)).refusal, "another process of the site"
    assert last(tmp_path).contract == contract.hash and file.stat().st_mode & 0o077 == 0


def test_a_contract_of_another_policy_does_not_hold_until_it_is_offered_again(tmp_path: Path) -> None:
    offered(site(tmp_path), FEDAVG)
    strict = site(tmp_path, Policy(rounds=50))
    assert asked(strict, ask(FEDAVG)).refusal == "recipe"
    assert not offered(strict, FEDAVG) and not asked(strict, ask(FEDAVG)).refusal


def test_a_damaged_contract_is_said_and_offered_anew(tmp_path: Path) -> None:
    service = site(tmp_path)
    offered(service, FEDAVG)
    (file,) = tmp_path.rglob(CONTRACT)
    file.write_bytes(b"{" + file.read_bytes()[9:])
    assert asked(site(tmp_path), ask(FEDAVG)).refusal == "state"
    again = site(tmp_path)
    assert not offered(again, FEDAVG) and not asked(again, ask(FEDAVG)).refusal


def test_no_flipped_bit_and_no_edited_number_makes_another_contract(tmp_path: Path) -> None:
    service, _ = swarm_site(tmp_path, Policy())
    (file,) = tmp_path.rglob(CONTRACT)
    good = file.read_bytes()
    whole, unnoticed = Contract.read(good), 0
    for i in range(len(good)):
        bad = bytearray(good)
        bad[i] ^= 1 << i % 8
        try:
            unnoticed += Contract.read(bytes(bad)) != whole
        except RefusedByPolicy as e:
            assert e.clause == "state"
    assert unnoticed == 0
    text = good.decode().replace(f'"noise": {whole.noise!r}', '"noise": 0.0')
    assert text.encode() != good
    file.write_text(text)
    assert losses_at(site(tmp_path), SWARM, np.zeros(3), 0).refusal == "state"


# ---- the ledger ----


def test_nothing_leaves_unwritten_and_refusals_leave_one_word(tmp_path: Path) -> None:
    service, replies = site(tmp_path), list[bytes]()
    offer = Letter("offer", "r", recipe=FEDAVG, send={"rounds": 5})
    for letter in (offer, ask(FEDAVG), ask(FEDAVG), ask(FEDAVG, verb="x"), ask(FEDAVG, seed=3)):
        replies.append(service.answer(letter.pack(), "server"))
    replies.append(service.answer(b"\xff\x00 no letter", "server"))
    lines, damage = read_ledger(tmp_path)
    assert damage == [] and len(lines) == len(replies)
    assert [x.clause for x in lines] == ["", "", "", "verb", "recipe", "letter"]
    assert [x.again for x in lines] == [False, False, True, False, False, False]
    assert [x.bytes for x in lines[:3]] == [len(r) for r in replies[:3]]
    assert all(x.text for x in lines[3:]) and all(x.contract for x in lines[:5])
    assert [Reply.read(r).refusal for r in replies[3:]] == ["verb", "recipe", "letter"]


def test_a_job_that_the_site_objects_to_is_declined_with_a_line(tmp_path: Path) -> None:
    service, why = site(tmp_path), "version: this site runs motet 2, and the server another"
    assert Reply.read(service.decline(why)).refusal == why
    assert Reply.read(service.decline(why, "b")).refusal == "caller", "another site learns nothing"
    lines, damage = read_ledger(tmp_path)
    assert damage == [] and [(x.caller, x.clause) for x in lines] == [("server", "version"), ("b", "caller")]
    assert all(why in x.text for x in lines)


FORGED = 'x\n{"job":"verb","run":"honest","round":1,"letter":"1"}\n\u2028\x00\x1b[2J\t"\\'


def test_nothing_in_a_letter_forges_a_line_or_moves_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from motet.deploy.flare.all_kits import create

    create("care", "localhost", ["a", "b"], tmp_path / "care", 8002)
    place = tmp_path / "care" / "a" / "kept"
    service = site(place)
    for letter in (Letter("describe", FORGED, verb=FORGED), Letter("verb", FORGED, 1, verb=FORGED)):
        assert asked(service, letter).refusal
    asked(service, Letter("describe"), FORGED)
    lines, damage = read_ledger(place)
    assert len(lines) == 3 and damage == [] and lines[0].run == FORGED
    assert Ledger(place).rounds == set()
    assert main(["federation", "ledger", str(tmp_path / "care" / "a")]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "3 lines, and the chain is whole" in shown and len(shown.splitlines()) == 6
    assert main(["federation", "ledger", str(tmp_path / "care" / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"][1]["clause"] == "recipe"


def written(folder: Path, many: int = 5) -> Path:
    ledger = Ledger(folder)
    for i in range(many):
        ledger.write(LedgerLine(caller="server", job="verb", run="r", round=i, letter=str(i)))
    return ledger.path


@pytest.mark.parametrize("how", ["changed", "left out", "put in", "no UTF-8"])
def test_a_damaged_chain_is_said_and_the_site_goes_on(tmp_path: Path, how: str) -> None:
    path = written(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = {
        "changed": [*lines[:2], lines[2].replace(b'"round": 2', b'"round": 9'), *lines[3:]],
        "left out": [*lines[:2], *lines[3:]],
        "put in": [*lines[:2], lines[0], *lines[2:]],
        "no UTF-8": [*lines[:2], b"\xff\xfe\n", *lines[3:]],
    }[how]
    assert read_ledger(tmp_path)[1] == []
    path.write_bytes(b"".join(damaged))
    assert read_ledger(tmp_path)[1]
    ledger = Ledger(tmp_path)
    ledger.write(LedgerLine(caller="server", job="verb", run="r", round=7, letter="7"))
    assert read_ledger(tmp_path)[0][-1].round == 7 and ("r", 7) in Ledger(tmp_path).rounds


def test_a_ledger_of_an_older_motet_is_counted_and_sealed_by_the_chain(tmp_path: Path) -> None:
    old = tmp_path / "ledger.tsv"
    old.write_bytes(b"2026-01-01T00:00:00Z\told\t0\t0\tverb\ttrain\taverage\t9\n\xff\tno line\n")
    service = site(tmp_path, Policy(rounds=3))
    assert offered(service, FEDAVG, rounds=3) == "rounds"
    assert not offered(service, FEDAVG, rounds=2) and read_ledger(tmp_path)[1] == []
    old.write_bytes(b"")
    assert "line 1 does not follow" in read_ledger(tmp_path)[1][0]


def test_two_processes_of_a_site_write_one_chain(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path), Ledger(tmp_path)
    for i, ledger in enumerate((first, second, second, first)):
        ledger.write(LedgerLine(caller="server", job="verb", run="r", round=i, letter=str(i)))
    assert read_ledger(tmp_path)[1] == [] and len(first.rounds) == 4
