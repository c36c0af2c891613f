"""Jobs of a federated run, with sites' services in this process: whatever happens to letters, the run ends the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from living import WORDS, server_has, table
from motet.cli.main import main
from motet.deploy.agreement.layout import Split
from motet.deploy.demo import difference
from motet.deploy.flare.kits import FederationError, Kit
from motet.deploy.server.job import halved_rates, run_job
from motet.deploy.server.job_chain import JobChain
from motet.deploy.server.run_files import JobReport, RunOrder, make_order, note, read_report
from motet.deploy.site.ledger import read_ledger
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.deploy.site.storage import site_key
from motet.deploy.site.table import SiteTable
from motet.engines.flare import TooFew
from motet.runs import recipe as recipes
from motet.runs.run import Run, run
from motet.runs.store import Store

SITES = ("a", "b", "c")
ROUNDS = 3
Letters = Mapping[str, bytes]
Came = tuple[dict[str, bytes], dict[str, str]]


class Cut(BaseException):
    """The server's process ends here."""


class Town:
    """Three sites with tables of their own, and a run's folder at the server."""

    def __init__(
        self, folder: Path, min_replies: int = 3, words: Sequence[str] = (), **policies: Policy
    ) -> None:
        self.folder = folder  # sites shuffle their rows as the loop engine does
        self.policies = {s: replace(policies.get(s, Policy()), secret_orders=False) for s in SITES}
        (folder / "tables").mkdir(parents=True)
        for i, site in enumerate(SITES):
            table(i).to_csv(folder / "tables" / f"{site}.csv", index=False)
        self.words = [*WORDS, f"train.rounds={ROUNDS}", *(words or ["method.lr=0.1", "method.epochs=1"])]
        self.order: RunOrder = make_order("town", None, self.words, 2, min_replies, 60.0)
        self.run = folder / "run"
        self.run.mkdir()
        self.order.write(self.run)
        self.services = {s: self.service(s) for s in SITES}

    def service(self, site: str) -> SiteService:
        place = self.folder / site
        source = SiteTable(site, self.folder / "tables" / f"{site}.csv", "y", split=Split(val=0.2))
        return SiteService(site, place, source, self.policies.get(site, Policy()), site_key(place / "key"))

    def post(self, letters: Letters) -> Came:
        return {s: self.services[s].answer(letter) for s, letter in letters.items()}, {}

    def go(self, post: Callable[[Letters], Came] | None = None, sites: tuple[str, ...] = SITES) -> JobReport:
        """One job; the sites' processes are new ones."""
        self.services = {s: self.service(s) for s in SITES}
        run_job(self.run, post or self.post, sites)
        return read_report(self.run)

    def check(self, same: Run) -> None:
        """All rounds once, and all as on the loop engine."""
        found = Run(self.run)
        assert found.rounds["round"].tolist() == list(range(ROUNDS))
        assert difference(found, same) == 0
        assert Store(self.run).state(ROUNDS - 1) == Store(same.folder).state(ROUNDS - 1)


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run on the loop engine, where the same tables lie in one folder."""
    town = Town(tmp_path_factory.mktemp("loop"))
    data = [f"data.name={town.folder / 'tables'}", "data.target=y", "data.unseen=0", "engine.name=loop"]
    return run(recipes.read(None, [*town.words, *data]), town.folder / "loop")


def test_a_run_in_one_job_is_the_run_of_the_loop_engine(tmp_path: Path, same: Run) -> None:
    town = Town(tmp_path)
    assert town.go().state == "done"
    town.check(same)
    assert Run(town.run).clients["train"].tolist() == [33, 38, 44]


def test_a_server_with_a_table_of_its_own_scores_models_on_it(tmp_path: Path) -> None:
    table(7).to_csv(own := tmp_path / "own.csv", index=False)
    words = ["method.name=page", "method.lr_min=0.03", "method.lr_max=0.3"]
    open_handed = {s: Policy(learn="collect") for s in SITES}
    given = [*words, f"data.server={own}", "data.target=y"]
    town = Town(tmp_path / "town", words=given, **open_handed)
    assert town.go().state == "done"
    at_home = [f"data.name={town.folder / 'tables'}", "data.target=y", "data.unseen=0", "engine.name=loop"]
    with server_has(own, town.run):
        same = run(
            recipes.read(None, [*WORDS, f"train.rounds={ROUNDS}", *words, *at_home]), tmp_path / "loop"
        )
    town.check(same)
    with pytest.raises(FederationError, match="no such table"):
        Town(tmp_path / "other", words=[*words, "data.server=nowhere.csv", "data.target=y"])
    with pytest.raises(FederationError, match=r"data\.target was not"):
        Town(tmp_path / "third", words=[*words, f"data.server={own}"])


def test_a_note_may_end_a_job_between_rounds_and_the_next_one_goes_on(tmp_path: Path, same: Run) -> None:
    town = Town(tmp_path)

    def post(letters: Letters) -> Came:
        note(town.run, "again")
        return town.post(letters)

    for _ in range(ROUNDS):
        assert town.go(post).state in ("again", "done")
    assert town.go().state == "done"
    town.check(same)


def test_a_run_that_goes_on_with_another_torch_says_so_and_goes_on(tmp_path: Path) -> None:
    town = Town(tmp_path)

    def post(letters: Letters) -> Came:
        note(town.run, "again")
        return town.post(letters)

    def said() -> list[str]:
        return [t for t in Run(town.run).events["text"] if "not as it began" in t]

    town.go(post), town.go(post)
    assert said() == []
    store = Store(town.run, writing=True)
    store.set_facts(identity_pieces=store.facts()["identity_pieces"] | {"torch": "0.1"})
    store.commit(), store.close()
    assert town.go().state == "done" and "torch" in said()[0] and "and was 0.1" in said()[0]


@pytest.mark.parametrize("seed", range(2))
def test_replies_lost_before_or_after_the_site_stored_its_keep_change_nothing(
    seed: int, tmp_path: Path, same: Run
) -> None:
    town, draw = Town(tmp_path), random.Random(seed)

    def post(letters: Letters) -> Came:
        lost = {s for s in letters if draw.random() < 0.05}
        unheard = {s for s in lost if draw.random() < 0.5}
        came, _ = town.post({s: v for s, v in letters.items() if s not in unheard})
        return {s: v for s, v in came.items() if s not in lost}, {s: "cut off" for s in lost}

    states = [town.go(post).state for _ in range(40) if read_report(town.run).state != "done"]
    assert states[-1] == "done" and set(states) <= {"short", "done"}
    town.check(same)


@pytest.mark.parametrize("seed", range(2))
def test_a_server_killed_at_any_letter_goes_on_where_it_was(seed: int, tmp_path: Path, same: Run) -> None:
    town, draw = Town(tmp_path), random.Random(seed)

    def post(letters: Letters) -> Came:
        before, after = draw.random() < 0.05, draw.random() < 0.05
        found = ({}, {}) if before else town.post(letters)
        if before or after:
            raise Cut
        return found

    for _ in range(50):
        try:
            if town.go(post).state == "done":
                break
        except Cut:
            continue
    town.check(same)


def test_a_round_counts_without_a_site_if_enough_answer_and_the_site_is_not_asked_again(
    tmp_path: Path,
) -> None:
    town, asked = Town(tmp_path, min_replies=2), list[str]()

    def post(letters: Letters) -> Came:
        asked.extend(letters)
        gone = {"c": "timed out"} if "c" in letters and asked.count("c") > 7 else {}
        came, _ = town.post({s: v for s, v in letters.items() if s not in gone})
        return came, gone

    report = town.go(post)
    assert report.state == "done" and report.present == ["a", "b"] and report.away == {"c": "timed out"}
    assert asked.count("c") == 8 and len(Run(town.run).rounds) == ROUNDS
    assert "site c: timed out" in Store(town.run).frame("events")["text"].tolist()


def test_a_newcomer_is_taken_in_between_jobs(tmp_path: Path) -> None:
    town = Town(tmp_path, min_replies=2)
    note_once = iter([True])

    def post(letters: Letters) -> Came:
        if next(note_once, False):
            note(town.run, "again")
        return town.post(letters)

    assert town.go(post, ("a", "b")).state == "again"
    assert town.go().state == "done"
    found = Run(town.run)
    assert found.clients["client"].tolist() == list(SITES)
    last = found.scores[found.scores["round"] == ROUNDS - 1]
    assert set(last["client"]) == set(SITES)


def test_sites_that_say_no_numbers_of_rows_take_part_with_a_weight_of_one(tmp_path: Path) -> None:
    town = Town(tmp_path, **{s: Policy(counts=False) for s in SITES})
    assert town.go().state == "done"
    found = Run(town.run)
    assert found.clients["train"].tolist() == [0, 0, 0] and set(found.scores["n"]) == {1}
    assert found.test.query("side == 'personal'")["accuracy"].min() > 0.5


def test_a_site_that_keeps_its_scores_takes_part_and_is_not_away(tmp_path: Path) -> None:
    town = Town(tmp_path, b=Policy(scores=False))
    report = town.go()
    assert report.state == "done" and not report.away and report.present == [*SITES]
    assert report.refused == {"b": "its policy lets no scores leave (scores)"}
    assert len(Run(town.run).rounds) == ROUNDS
    events = Store(town.run).frame("events")
    assert events.query("kind == 'refused'")["text"].tolist() == [f"site b: {report.refused['b']}"]


def test_what_a_server_without_rows_chooses_is_said_and_gives_the_loops_bits_if_it_is_said_there(
    tmp_path: Path,
) -> None:
    town = Town(tmp_path, words=["train.patience=0"])  # method.lr and method.epochs are left open
    report = town.go()
    note = next(line for line in report.agreement.splitlines() if "chosen without rows" in line)
    chosen = [w.strip(";") for w in note.split() if w.startswith("method.")]
    assert report.state == "done" and {w.partition("=")[0] for w in chosen} >= {"method.lr", "method.epochs"}
    assert note in Store(town.run).frame("events")["text"].tolist() + Run(town.run).facts.get("notes", [])
    data = [f"data.name={town.folder / 'tables'}", "data.target=y", "data.unseen=0", "engine.name=loop"]
    town.check(run(recipes.read(None, [*town.words, *data, *chosen]), tmp_path / "loop"))


def test_personal_models_of_a_federated_run_are_said_to_be_at_its_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    town = Town(tmp_path)
    town.go()
    for command in (["export", str(town.run), "b"], ["verify", str(town.run)]):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "KIT/kept/models/run.safetensors" in said and "did you mean" not in said, said
    assert main(["export", str(town.run), "bb"]) == 2
    assert "unknown client bb" in capsys.readouterr().err


def test_a_run_says_and_records_how_sites_divide_their_rows(tmp_path: Path) -> None:
    town = Town(tmp_path, words=["method.lr=0.1", "method.epochs=1", "data.val=0.3"])
    report = town.go()
    said = "site b divides its rows in its own way: val 0.2, test 0.25, seed 0; the recipe: val 0.3"
    assert report.state == "done" and said in report.agreement
    assert Run(town.run).facts["settings"]["data"]["val"] == 0.2
    assert Run(town.run).clients["train"].tolist() == [33, 38, 44]


def test_a_policy_that_forbids_the_method_ends_the_run_before_it_starts_with_the_reason(
    tmp_path: Path,
) -> None:
    town = Town(tmp_path, b=Policy(methods=("local",)))
    report = town.go()
    assert report.state == "failed"
    assert "method" in report.why
    assert "fedper is none of them" in read_ledger(town.folder / "b")[0][-1].text
    assert "identity" not in Store(town.run).facts()


def test_a_site_that_refuses_a_run_that_goes_on_stays_out_and_the_others_go_on(tmp_path: Path) -> None:
    town = Town(tmp_path, min_replies=2)
    note_once = iter([True])

    def post(letters: Letters) -> Came:
        if next(note_once, False):
            note(town.run, "again")
        return town.post(letters)

    town.go(post)
    town.policies["b"] = Policy(methods=("local",))
    report = town.go()
    assert report.state == "done" and report.present == ["a", "c"]
    assert "method" in report.away["b"]


def test_too_few_from_the_start_can_be_tried_again(tmp_path: Path, same: Run) -> None:
    town = Town(tmp_path)

    def post(letters: Letters) -> Came:
        raise TooFew("FLARE ended the job")

    assert town.go(post).state == "short"
    assert town.go().state == "done"
    town.check(same)


def test_a_job_reports_what_its_sites_hold_and_the_run_command_shows_it_once(tmp_path: Path) -> None:
    town, lines = Town(tmp_path), list[str]()
    report = town.go()
    chain = JobChain(cast(Kit, None), town.order, town.run, lines.append, 0.0)
    chain.show(report)
    chain.show(report)
    (table,) = lines
    assert "column  kind       a     b     c" in table and "rows               60    70    80" in table


def test_people_see_what_sites_hold_also_where_it_does_not_fit(tmp_path: Path) -> None:
    town = Town(tmp_path)
    table(2).drop(columns="q").to_csv(town.folder / "tables" / "c.csv", index=False)
    report = town.go()
    assert report.state == "failed" and "site c has no column 'q'" in report.why
    assert "q       number     yes   yes   -" in report.agreement


# ---- metrics: computed at home, and all that leaves of predictions ----

OWN = "site_score:hits"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    text = "def hits(targets, p):\n    return float((p.argmax(1) == targets).mean())\n"
    (tmp_path / "site_score.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"train.metric={OWN}"


def test_sites_compute_auc_and_a_constant_at_home(tmp_path: Path) -> None:
    town = Town(tmp_path / "town", words=["train.metric=auc"])
    assert town.go().state == "done"
    done = Run(town.run)
    assert done.facts["metric"] == "auc" and done.test.query("side == 'personal'")["auc"].notna().all()
    assert (done.test.query("side == 'constant'")["auc"] == 0.5).all()
    assert not (town.run / "predictions.parquet").exists(), "predictions stay at sites"


def test_sites_compute_a_metric_that_they_have_and_trust(tmp_path: Path, own: str) -> None:
    trusting = {s: Policy(trusted=(OWN,)) for s in SITES}
    town = Town(tmp_path / "town", words=[own], **trusting)
    assert town.go().state == "done"
    done = Run(town.run)
    assert done.facts["metric"] == "own"
    np.testing.assert_allclose(done.test["own"], done.test["accuracy"])


def test_a_site_refuses_a_metric_that_it_does_not_trust(tmp_path: Path, own: str) -> None:
    town = Town(tmp_path / "town", words=[own])
    report = town.go()
    assert report.state == "failed" and "recipe" in report.why
    assert f"'{OWN}' would import a module" in read_ledger(town.folder / "a")[0][-1].text


def test_where_a_rate_that_the_server_chose_diverges_a_smaller_one_is_named_to_start_a_run_with() -> None:
    """Sites approved a rate: it is not halved between organisations."""
    given = make_order("town", None, WORDS, 2, 3, 60.0).recipe
    whole = recipes.Recipe(given.settings | {"method": given["method"] | {"lr": 0.05}})
    hint = "hint: sites approved the rate, so it is not halved in this run; start one with method.lr=0.025"
    assert halved_rates(given, whole) == hint
    assert halved_rates(whole, whole) == ""  # a person typed it
