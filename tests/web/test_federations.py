"""The page of a federation's server and of a site: who is there, what left, what was refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from motet.cli.answers import answer
from motet.deploy.server.run_files import JobReport
from motet.deploy.site.ledger import Ledger, LedgerLine
from motet.web.app import application
from motet.web.dashboard import Dashboard
from motet.web.federation_pages import FederationPages, stamp_of_party
from motet.web.live import mark_of
from motet.web.run_index import RunIndex
from motet.web.security import Access
from stored_runs import made

WORD = "the-token-of-the-tests"
EVIL = "<script>alert(1)</script>"


def kit(folder: Path, party: str) -> Path:
    folder.mkdir()
    card = {"federation": "hospitals", "party": party, "host": "127.0.0.1", "port": 1}
    (folder / "motet.json").write_text(json.dumps(card))
    return folder


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> RunIndex:
    place = tmp_path_factory.mktemp("kits")
    server, site, broken = kit(place / "server", "server"), kit(place / "north", "north"), place / "broken"
    (server / "runs").mkdir()
    run = made(server / "runs", "fedavg", {"north": 0.5, "south": 0.6}, federation="hospitals")
    report = JobReport(
        "running", round=4, rounds=9, present=["north"], scores={"personal": 0.81}, waiting=["north"]
    )
    report = JobReport(**{f: getattr(report, f) for f in report.__struct_fields__} | {
        "away": {"south": f"lost {EVIL}"}, "excluded": {"east": "its reply has another form"}})  # fmt: skip
    report.write(run)
    ledger = Ledger(site / "kept")
    line = LedgerLine(
        caller="server", job="verb", verb="train", run="fedavg-0", letter="1", bytes=2048, sha256="ab"
    )
    ledger.write(LedgerLine(**{f: getattr(line, f) for f in line.__struct_fields__} | {"round": 0}))
    ledger.write(line.refused("rounds", f"too many {EVIL}"))
    (site / "policy.toml").write_text("rounds = 1\n")
    broken.mkdir()
    base = place / "runs"
    base.mkdir()
    return RunIndex(base, [server, site, broken])


@pytest.fixture(scope="module")
def page(index: RunIndex) -> Iterator[TestClient]:
    board = Dashboard(index, Access(frozenset({"localhost"})))
    yield TestClient(application(board, warm=False), base_url="http://localhost")
    board.close()


def test_all_kits_are_listed_and_a_folder_that_is_none_says_so(page: TestClient) -> None:
    text = page.get("/federations").text
    assert text.count(">hospitals<") == 2 and "is no kit" in text


def test_the_server_shows_who_is_there_rounds_and_faults(page: TestClient) -> None:
    text = page.get("/federations/hospitals~server").text
    assert "round 4 of 9" in text and "north" in text and "its reply has another form" in text
    assert "no process is at it" in text and "<script>alert" not in text and "&lt;script&gt;" in text
    assert "/runs/hospitals~server~fedavg-0" in text
    assert page.get("/runs/hospitals~server~fedavg-0").status_code == 200


def test_the_owner_of_a_site_sees_what_left_and_what_was_refused(page: TestClient) -> None:
    text = page.get("/federations/hospitals~north").text
    assert "the chain of the ledger is whole" in text and "2.0 KiB" in text and "refused, rounds" in text
    assert "rounds = 1" in text and "<script>alert" not in text


def first_part(board: Dashboard, federation: str, seen: str) -> str:
    """What the page of a party is sent first, of somebody who saw this state of it."""

    async def read() -> str:
        async def receive() -> dict[str, str]:
            await asyncio.sleep(3600)
            return {}

        scope = {
            "type": "http",
            "path_params": {"federation": federation},
            "query_string": f"seen={seen}".encode(),
        }
        answer: Any = await FederationPages(board).live(Request(scope, receive))
        pieces = [await anext(answer.body_iterator) for _ in range(2)]
        return str(json.loads(pieces[1].split("data: ")[1]))

    return asyncio.run(read())


def test_the_pages_are_sent_again_when_a_round_ends_or_a_reply_leaves(index: RunIndex) -> None:
    board = Dashboard(index, Access(frozenset({"localhost"})))
    try:
        for name, file, new in (
            ("hospitals~server", "runs/fedavg-0/job.json", "round 7 of 9"),
            ("hospitals~north", "policy.toml", "rounds = 7"),
        ):
            entry = index.federation(name)
            assert entry is not None
            seen, path = stamp_of_party(entry), entry.folder / file
            before = path.read_text()
            path.write_text(before.replace('"round": 4', '"round": 7').replace("rounds = 1", "rounds = 7"))
            assert stamp_of_party(entry) != seen
            assert new in first_part(board, name, mark_of(seen))
            path.write_text(before)
    finally:
        board.close()


def test_scores_are_written_as_on_other_pages(page: TestClient) -> None:
    assert "personal 81.0 %" in page.get("/federations/hospitals~server").text


def test_a_ledger_that_was_changed_is_said_first(page: TestClient, tmp_path: Path) -> None:
    site = kit(tmp_path / "site", "south")
    Ledger(site / "kept").write(LedgerLine(caller="server", job="verb", verb="train", run="r"))
    path = site / "kept" / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b"train", b"other") + b"no line\n")
    found = answer({"ask": "site_ledger", "with": {"kit": str(site)}})["answer"]
    assert found["damage"] and found["many"] == 1


@pytest.fixture(scope="module")
def private(index: RunIndex) -> Iterator[TestClient]:
    """The same kits, as `motet ui --read-only --kit` shows them."""
    access = Access(frozenset({"localhost"}), changes=False, private=True, token=WORD)
    board = Dashboard(index, access)
    yield TestClient(application(board, warm=False), base_url="http://localhost", follow_redirects=False)
    board.close()


@pytest.mark.parametrize(
    "address",
    ["/", "/live", "/runs/hospitals~server~fedavg-0", "/compare?run=hospitals~server~fedavg-0", "/federations",
     "/federations/hospitals~server", "/federations/hospitals~server/who", "/federations/hospitals~server/live",
     "/federations/hospitals~north"],
)  # fmt: skip
def test_a_kit_is_shown_to_nobody_without_the_token(private: TestClient, address: str) -> None:
    private.cookies.clear()
    answer = private.get(address)
    assert answer.status_code == 403 and "hospitals" not in answer.text
    answer = private.get(address, headers={"Accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")


def test_the_page_to_sign_in_says_nothing_of_a_kit(private: TestClient) -> None:
    private.cookies.clear()
    text = private.get("/sign-in").text
    assert "type the token" in text and "hospitals" not in text
    assert private.get("/static/dashboard.css").status_code == 200


def test_who_has_the_token_may_look_and_sign_out_where_nothing_can_be_changed(private: TestClient) -> None:
    here = {"Origin": "http://localhost"}
    assert private.post("/sign-in", data={"token": "no"}, headers=here).status_code == 403
    assert private.post("/sign-in", data={"token": WORD}, headers=here).status_code == 303
    text = private.get("/federations/hospitals~north").text
    assert "read only" in text and "Sign out" in text and "too many" in text
    word = text.split('name="form_word" value="')[1].split('"')[0]
    assert private.get("/models/triage/1/file").status_code == 403
    assert private.post("/start", data={"form_word": word}, headers=here).status_code == 403
    assert private.post("/sign-out", data={"form_word": word}, headers=here).status_code == 303
    assert private.get("/federations").status_code == 403


def test_a_question_that_fails_is_an_answer_in_words(tmp_path: Path) -> None:
    assert "is no kit" in answer({"ask": "site_ledger", "with": {"kit": str(tmp_path)}})["error"]
    assert "KeyError" in answer({"ask": "nothing"})["error"]


def test_a_form_may_not_name_code() -> None:
    for words in (["data=os:system"], ["method=os:system"], ["net.loss=os:system"]):
        assert "names code" in answer({"ask": "check_run", "with": {"words": words}})["error"]
