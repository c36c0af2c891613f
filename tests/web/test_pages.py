"""What pages show, of whole runs and of damaged ones; names are text, and addresses lead nowhere else."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from motet.runs.store import Store
from motet.runs.store_file import FILE
from motet.runs.study_record import StudyRecord
from motet.web.app import application
from motet.web.charts import Chart, Line
from motet.web.dashboard import Dashboard
from motet.web.list_pages import differences, mean_tests
from motet.web.run_index import RunIndex
from motet.web.run_reading import RunReader
from motet.web.security import Access
from stored_runs import made

EVIL = "<script>alert(1)</script>"


def browser(base: Path) -> TestClient:
    board = Dashboard(RunIndex(base), Access(frozenset({"localhost"})))
    return TestClient(application(board, warm=False), base_url="http://localhost")


def test_the_list_has_every_run_with_the_newest_first(page: TestClient) -> None:
    text = page.get("/").text
    places = [text.index(f'href="/runs/{name}"') for name in ("local-0", "ditto-3", "stacking-0", "fedavg-0")]
    assert places == sorted(places) and "4 runs" in text and "3 done" in text and "1 stopped" in text


@pytest.mark.parametrize(
    ("words", "found"), [("ditto", 1), ("seed3", 1), ("toy stopped", 1), ("toy", 3), ("zebra", 0)]
)
def test_a_search_finds_runs_that_have_every_word(page: TestClient, words: str, found: int) -> None:
    assert page.get("/", params={"q": words}).text.count('type="checkbox"') == found


def test_a_search_by_state(page: TestClient) -> None:
    assert page.get("/?state=stopped").text.count('type="checkbox"') == 1
    assert page.get("/?page=99999999999&state=nothing").status_code == 200


def test_a_run_shows_its_scores_its_clients_and_where_it_came_from(page: TestClient) -> None:
    text = page.get("/runs/fedavg-0").text
    assert "70.0 %" in text and "60.0 %" in text  # means of personal and global test scores
    assert "Validation accuracy by round" in text and "<polyline" in text
    assert "its weights began" in text and "/runs/ditto-3" in text
    assert "begins with weights of" in page.get("/runs/ditto-3").text


def test_clients_stand_in_natural_order_or_by_score(page: TestClient) -> None:
    text = page.get("/runs/fedavg-0").text
    assert text.index(">client-9<") < text.index(">client-10<")
    worst = page.get("/runs/fedavg-0?order=worst").text
    assert worst.index(">client-9<") < worst.index(">a<") < worst.index(">client-10<")
    assert ">b<" not in page.get("/runs/fedavg-0?client=CLIENT").text


def test_a_client_has_its_data_its_curve_and_who_helped_it(page: TestClient) -> None:
    text = page.get("/runs/stacking-0/client?name=a").text
    helped, helps = text.index("Helped by"), text.index("Helps")
    assert "70.0%" in text[helped:helps] and "40.0%" in text[helps:]
    assert "cat" in text and "43%" in text  # 3 of 7 rows are of class 0
    assert "no contributions" in page.get("/runs/fedavg-0/client?name=a").text


def test_a_client_that_is_not_there(page: TestClient) -> None:
    assert page.get("/runs/fedavg-0/client?name=zebra").status_code == 404
    assert page.get("/runs/fedavg-0/client").status_code == 404


def test_two_runs_on_the_same_axes(page: TestClient) -> None:
    text = page.get("/compare?run=fedavg-0&run=stacking-0").text
    assert "From fedavg to stacking: 3 clients are better, 0 the same, 2 worse" in text
    assert text.count('data-name="stacking"') == 2  # the wide and the narrow drawing
    assert page.get("/compare?run=zebra").status_code == 404


def test_runs_on_other_data_are_compared_with_a_warning(page: TestClient) -> None:
    assert "different data" in page.get("/compare?run=fedavg-0&run=ditto-3").text


def test_differences_by_hand(base: Path) -> None:
    reader = RunReader()
    one, two = (reader.read_brief(base / name) for name in ("fedavg-0", "stacking-0"))
    assert mean_tests(one)["personal"] == pytest.approx(0.7) and mean_tests(one)["worst"] == pytest.approx(
        0.5
    )
    found = differences([("one", one), ("two", two)])
    assert found and found["lowest"][0] == (pytest.approx(-0.15), f"../{EVIL}")
    assert found["highest"][0] == (pytest.approx(0.25), "client-9")


def test_brief_means_are_those_of_the_whole_reading(base: Path) -> None:
    reader = RunReader()
    whole, brief = reader.read(base / "fedavg-0"), reader.read_brief(base / "fedavg-0")
    assert [v for _, v in brief.mean_curve("personal")] == pytest.approx(
        [v for _, v in whole.mean_curve("personal")]
    )


@pytest.mark.parametrize(
    ("metric", "facts", "kept", "shown"),
    [
        ("rmse", {}, -51.6, ">51.6<"),
        ("accuracy", {}, 0.75, ">75.0 %<"),
        ("auc", {"round_by": "loss"}, -0.25, ">0.250<"),  # no client had an AUC: the loss chose the round
    ],
)
def test_lists_show_a_score_as_it_is_and_with_its_name(
    tmp_path: Path, metric: str, facts: dict[str, Any], kept: float, shown: str
) -> None:
    made(tmp_path, "fedavg", {"a": 0.5, "b": 0.5}, metric=metric, **facts)
    store = Store(tmp_path / "fedavg-0", writing=True)
    store.checkpoint(2, 1, kept, lambda _: b"state")
    store.commit()
    store.close()
    StudyRecord("s", jobs=["fedavg"], runs={"fedavg": "fedavg-0"}).write(tmp_path)
    for address in ("/", "/studies/s"):
        text = re.sub(r' *<span class="of inline">.*?</span>', "", browser(tmp_path).get(address).text)
        assert shown in text, address
    assert ("loss" if facts else {"rmse": "RMSE"}.get(metric, metric)) in browser(tmp_path).get("/").text


def test_a_chart_names_no_metric_before_there_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "begun"
    folder.mkdir()
    store = Store(folder, writing=True)
    store.commit()
    store.close()
    StudyRecord("s", jobs=["one", "two"], runs={"one": "begun"}).write(tmp_path)
    for address in ("/studies/s", "/runs/begun"):
        text = browser(tmp_path).get(address).text
        assert "Validation score" in text and "accuracy" not in text, address


def test_a_study_shows_its_runs_and_those_that_wait(tmp_path: Path) -> None:
    made(tmp_path, "fedavg", {"a": 0.5, "b": 0.6})
    record = StudyRecord("toy-1", "toy", 1.0, jobs=["fedavg", "ditto"], runs={"fedavg": "fedavg-0"})
    record.failures["ditto"] = f"nan {EVIL}"
    record.write(tmp_path)
    page = browser(tmp_path)
    assert "toy-1" in page.get("/studies").text
    text = page.get("/studies/toy-1").text
    assert "1 of 2 runs done, 1 failed" in text and "&lt;script&gt;" in text and "<script>alert" not in text
    assert "belongs to the study" in page.get("/runs/fedavg-0").text
    assert page.get("/studies/toy-1/report").status_code == 404


def test_a_study_whose_runs_all_failed_is_failed(tmp_path: Path) -> None:
    StudyRecord("toy-1", "toy", 1.0, status="done", jobs=["a", "b"], failures={"a": "nan", "b": "nan"}).write(
        tmp_path
    )
    page = browser(tmp_path)
    for address in ("/studies", "/studies/toy-1"):
        text = page.get(address).text
        assert '<span class="state failed">failed</span>' in text and "state done" not in text
    assert "data-live" not in text


def test_the_list_names_splits_where_runs_have_other_ones(tmp_path: Path) -> None:
    made(tmp_path, "ditto", {"a": 0.5}, folder="one", split=0)
    assert ">split<" not in browser(tmp_path).get("/").text
    made(tmp_path, "ditto", {"a": 0.5}, folder="two", split=1)
    text = browser(tmp_path).get("/").text
    assert '<td data-label="split">0</td>' in text and '<td data-label="split">1</td>' in text


def test_a_report_is_shown_as_a_page_of_nobody(tmp_path: Path) -> None:
    (tmp_path / "toy.html").write_text("<script>1</script>")
    StudyRecord("toy-1", "toy", report="toy.html").write(tmp_path)
    StudyRecord("toy-2", "toy", report="../secret.html").write(tmp_path)
    (tmp_path.parent / "secret.html").write_text("secret")
    page = browser(tmp_path)
    assert page.get("/studies/toy-1/report").headers["content-security-policy"].startswith("sandbox")
    assert page.get("/studies/toy-2/report").status_code == 404


# ---- names are text ----


@pytest.mark.parametrize(
    "address",
    ["/", "/?q=%3Cscript%3Ealert(1)%3C/script%3E", "/runs/ditto-3", "/runs/fedavg-0", "/compare?run=ditto-3",
     "/runs/fedavg-0/client?name=../%3Cscript%3Ealert(1)%3C/script%3E",
     "/start?data=%3Cscript%3Ealert(1)%3C/script%3E"],
)  # fmt: skip
def test_a_script_in_a_name_is_text(page: TestClient, address: str) -> None:
    answer = page.get(address)
    assert answer.status_code == 200 and "<script>alert" not in answer.text
    assert "&lt;script&gt;" in answer.text or "%3Cscript%3E" in answer.text


OUTSIDE = [
    "..",
    "../..",
    "../../../../etc/passwd",
    "/etc/passwd",
    "~",
    "fedavg-0/..",
    "fedavg-0\0",
    "..\\..",
    ".",
]
ADDRESSES = [
    "/runs/{}", "/runs/{}/log", "/runs/{}/live", "/runs/{}/client", "/studies/{}", "/studies/{}/report",
    "/studies/{}/live", "/federations/{}", "/federations/{}/who", "/federations/{}/live",
    "/models/{}/1/file", "/static/{}",
]  # fmt: skip


def status_of(app: Any, path: str) -> tuple[int, bytes]:
    """What an application answers to a path as it came over the wire, which no client has made shorter."""
    sent: list[Any] = []
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"name=a",
        "headers": [(b"host", b"localhost")], "scheme": "http", "server": ("localhost", 80), "root_path": "",
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent[1:])


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_address_leads_out_of_the_folder(page: TestClient, address: str) -> None:
    for name in OUTSIDE:
        status, body = status_of(page.app, address.format(name))
        assert status in (403, 404), (address, name)
        assert b"root:" not in body and b"Traceback" not in body


def test_no_parameter_leads_out_of_the_folder(page: TestClient) -> None:
    for name in OUTSIDE:
        assert page.get("/runs/fedavg-0/client", params={"name": name}).status_code == 404
        assert page.get("/compare", params={"run": name}).status_code == 404


def test_links_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "runs", tmp_path / "elsewhere"
    inside.mkdir(), outside.mkdir()
    made(outside, "fedavg", {"a": 0.5})
    (inside / "link").symlink_to(outside / "fedavg-0")
    assert "no runs in this folder" in browser(inside).get("/").text


def test_a_report_or_a_log_that_is_a_link_is_not_shown(tmp_path: Path) -> None:
    base, secret = tmp_path / "runs", tmp_path / "secret"
    secret.write_text("SECRET")
    (base / "studies").mkdir(parents=True), (base / "started").mkdir()
    run = made(base, "fedavg", {"a": 0.5})
    (run / "models").mkdir()
    for link in ("report.html", "started/fedavg-0.log", "started/waiting.log", "fedavg-0/models/a.md"):
        (base / link).symlink_to(secret)
    (base / "started" / "waiting.json").write_text('{"words": ["run"], "pid": 1}')
    StudyRecord("s", report="report.html").write(base)
    page = browser(base)
    addresses = ("/studies/s/report", "/runs/fedavg-0/log", "/runs/waiting", "/runs/fedavg-0/client?name=a")
    found = [page.get(a) for a in addresses]
    assert [f.status_code for f in found] == [404, 404, 200, 200]
    assert not any("SECRET" in f.text for f in found)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name in (f"pipe/{FILE}", "studies/pipe.json"):
        (tmp_path / name).parent.mkdir()
        os.mkfifo(tmp_path / name)
    index = RunIndex(tmp_path)
    assert index.runs() == [] and index.studies() == []


# ---- damage ----


@pytest.mark.parametrize("created", [1e300, -1e18, float("inf")])
def test_a_time_that_is_none_is_absent(tmp_path: Path, created: float) -> None:
    made(tmp_path, "fedavg", {"a": 0.5}, created=created)
    StudyRecord("s", created=created).write(tmp_path)
    page = browser(tmp_path)
    assert [page.get(a).status_code for a in ("/", "/runs/fedavg-0", "/studies")] == [200] * 3


def test_a_damaged_list_of_models_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "promoted").mkdir()
    (tmp_path / "promoted" / "models.sqlite").write_text("no database")
    answer = browser(tmp_path).get("/models")
    assert answer.status_code == 422 and "the list of promoted models cannot be used" in answer.text


def damaged(tmp_path: Path, sql: str) -> TestClient:
    folder = made(tmp_path, "fedavg", {"a": 0.5, "b": 0.6})
    with sqlite3.connect(folder / FILE) as db:
        db.execute(sql)
    db.close()
    return browser(tmp_path)


def test_a_damaged_round_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    page = damaged(tmp_path, "UPDATE scores SET accuracy = 0.99 WHERE round = 2 AND client = 'a'")
    text = page.get("/runs/fedavg-0").text
    assert (
        "Not all of this run can be read" in text and "scores of round 3: the checksum does not match" in text
    )
    assert "<polyline" in text and "99.0 %" not in text


def test_damaged_clients_leave_the_curves(tmp_path: Path) -> None:
    text = damaged(tmp_path, "DELETE FROM clients WHERE client = 'a'").get("/runs/fedavg-0").text
    assert "the table of clients" in text and "<polyline" in text


def test_damaged_facts_leave_the_scores(tmp_path: Path) -> None:
    page = damaged(tmp_path, "UPDATE meta SET value = '\"x\"' WHERE key = 'method'")
    assert "damaged" in page.get("/").text
    text = page.get("/runs/fedavg-0").text
    assert "the facts of the run: the checksum does not match" in text and "<polyline" in text


@pytest.mark.parametrize("content", [b"", b"no database at all", b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / FILE).write_bytes(content)
    made(tmp_path, "fedavg", {"a": 0.5})
    page = browser(tmp_path)
    assert "1 damaged" in page.get("/").text and "1 done" in page.get("/").text
    for address in ("/runs/broken", "/compare?run=broken&run=fedavg-0"):
        assert page.get(address).status_code == 200
    assert "Not all of this run can be read" in page.get("/runs/broken").text


def test_a_run_without_its_other_files(tmp_path: Path) -> None:
    folder = made(tmp_path, "fedavg", {"a": 0.5})
    text = browser(tmp_path).get("/runs/fedavg-0/client?name=a").text
    assert "no model of this client" in text
    shutil.rmtree(folder)


# ---- reading what another process writes ----


def test_only_new_rounds_are_read_again(tmp_path: Path) -> None:
    folder = made(tmp_path, "fedavg", {"a": 0.5, "b": 0.6})
    reader = RunReader()
    before = reader.read(folder)
    assert reader.read(folder) is before
    store = Store(folder, writing=True)
    store.scored(3, "val", "personal", ["a", "b"], [2, 2], {"accuracy": np.array([0.8, 1.0])})
    store.commit()
    store.close()
    after = reader.read(folder)
    assert after.curve("personal")[-1][1].mean == pytest.approx(0.9)
    assert after.scored[0, "val", "personal"] is before.scored[0, "val", "personal"]


def test_the_dashboard_cannot_write_a_run(base: Path) -> None:
    store = Store(base / "fedavg-0")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.db.execute("DELETE FROM scores")
    store.close()


# ---- drawings ----


def test_a_line_of_one_point_and_of_numbers_that_are_none() -> None:
    assert "<circle" in Chart("t", [Line("a", [(1, 0.5)])], "round", "y").svg()
    assert "Nothing to draw" in Chart("t", [Line("a", [(1, float("nan"))])], "round", "y").svg()


@pytest.mark.parametrize("span", [0.115, 0.12, 0.22, 0.011, 0.9])
def test_labels_of_an_axis_are_the_numbers_that_they_stand_at(span: float) -> None:
    lines = [Line("a", [(1, 0.05), (2, 0.05 + span)])]
    drawn = str(Chart("t", lines, "round", "y", as_percent=True).svg()).split("</svg>")[0]
    said = [float(t) for t in re.findall(r'text-anchor="end">([\d.]+)</text>', drawn)]
    assert len(said) > 2 and np.allclose(np.diff(said), np.diff(said)[0])


def test_many_points_are_thinned_and_the_last_one_stays() -> None:
    svg = Chart("t", [Line("a", [(float(i), i / 5000) for i in range(5000)])], "round", "y").svg()
    assert svg.count("|round ") < 1000 and "round 4999" in svg


def test_a_name_in_a_drawing_is_text() -> None:
    assert "<script>" not in Chart(EVIL, [Line(EVIL, [(1, 1.0), (2, 2.0)])], EVIL, EVIL).svg()


def test_a_client_page_says_what_was_spent_of_the_privacy_budget() -> None:
    from motet.web.run_pages import budget_of

    spent = {"level": "example", "delta": 1e-4, "noise": "arithmetic, for studies", "clients": {"a": 1.234}}
    assert budget_of(spent, "a") == [
        ("privacy budget spent", "epsilon 1.23, delta 0.0001, of a row; noise: arithmetic, for studies")
    ]
    assert budget_of(spent, "b") == budget_of(None, "a") == budget_of({"clients": None}, "a") == []
