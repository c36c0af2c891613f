"""Who may change something: nothing changes without the token, from another site's page, or under a strange name."""

from __future__ import annotations

import html
import os
import re
import select
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest
from starlette.routing import Mount
from starlette.testclient import TestClient

from motet.cli.ui_command import do_ui
from motet.errors import UsageError
from motet.runs.model_registry import ModelRegistry
from motet.runs.run_folder import Busy, locked
from motet.runs.study_record import StudyRecord, read_studies, recorded
from motet.web import processes
from motet.web.app import addresses, application
from motet.web.dashboard import Dashboard
from motet.web.questions import Questions
from motet.web.run_index import RunIndex
from motet.web.security import Access
from stored_runs import made

HERE = {"Origin": "http://localhost"}
WORD = "the-token-of-the-tests"
CHANGES = [
    "/start", "/runs/local-0/stop", "/runs/local-0/resume", "/runs/fedavg-0/promote", "/studies/toy/stop",
    "/studies/toy/resume", "/sign-out",
]  # fmt: skip


def files_in(folder: Path) -> set[Path]:
    return {p for p in folder.rglob("*") if not p.name.endswith(("-shm", "-wal"))}


@pytest.mark.parametrize("address", CHANGES)
def test_nothing_changes_without_the_token(page: TestClient, base: Path, address: str) -> None:
    before = files_in(base)
    for headers in (HERE, {}, HERE | {"Authorization": "Bearer wrong"}, HERE | {"Cookie": "motet-80=wrong"}):
        assert (
            page.post(address, data={"name": "x", "form_word": "guess"}, headers=headers).status_code == 403
        )
    assert files_in(base) == before


@pytest.mark.parametrize("address", CHANGES)
def test_nothing_changes_from_a_page_of_another_site(
    owner: TestClient, board: Dashboard, address: str
) -> None:
    form = {"form_word": board.access.form_word}
    for origin in ("http://evil.example", "null", "http://localhost:9999", "https://localhost.evil.example"):
        assert owner.post(address, data=form, headers={"Origin": origin}).status_code == 403
    assert owner.post(address, data=form).status_code == 403  # no origin at all
    assert owner.post(address, data={"form_word": "guess"}, headers=HERE).status_code == 403


@pytest.mark.parametrize("address", CHANGES)
def test_looking_at_an_address_that_changes_something_is_not_enough(owner: TestClient, address: str) -> None:
    assert owner.get(address).status_code == (200 if address == "/start" else 405)


def test_the_wrong_token_begins_no_session(page: TestClient) -> None:
    for word in ("", "wrong", WORD + "x", WORD[:-1]):
        answer = page.post("/sign-in", data={"token": word}, headers=HERE)
        assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_the_cookie_is_not_the_token_and_stays_with_this_site(page: TestClient) -> None:
    cookie = page.post("/sign-in", data={"token": WORD}, headers=HERE).headers["set-cookie"]
    assert WORD not in cookie and "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert WORD not in page.get("/").text


def test_a_program_with_the_token_needs_no_page(page: TestClient) -> None:
    answer = page.post("/runs/nothing/stop", headers={"Authorization": f"Bearer {WORD}"})
    assert answer.status_code == 404  # it was let in, and there is no such run


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil.example", "[::1"]
)
def test_a_strange_name_of_the_host_is_refused(page: TestClient, host: str) -> None:
    assert page.get("/", headers={"Host": host}).status_code == 421


def test_pages_may_load_nothing_from_elsewhere(page: TestClient) -> None:
    for address in ("/", "/runs/fedavg-0", "/nothing", "/static/dashboard.js"):
        headers = page.get(address).headers
        policy = headers["content-security-policy"]
        assert (
            "unsafe" not in policy and "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        )
        assert headers["x-content-type-options"] == "nosniff"


def test_no_page_has_a_script_or_a_style_in_it(page: TestClient) -> None:
    for address in (
        "/",
        "/runs/fedavg-0",
        "/runs/fedavg-0/client?name=a",
        "/compare?run=fedavg-0",
        "/studies",
        "/models",
    ):
        text = page.get(address).text
        assert (
            "<script>" not in text
            and " style=" not in text
            and " onclick" not in text
            and "http://" not in text
        )


def test_a_dashboard_that_only_shows_takes_no_token(base: Path) -> None:
    board = Dashboard(RunIndex(base), Access(frozenset({"localhost"}), changes=False, token=WORD))
    page = TestClient(application(board, warm=False), base_url="http://localhost")
    assert "read only" in page.get("/").text
    assert page.post("/sign-in", data={"token": WORD}, headers=HERE).status_code == 403
    headers = HERE | {"Authorization": f"Bearer {WORD}"}
    assert page.post("/runs/local-0/resume", headers=headers).status_code == 403


def test_a_model_is_not_given_away_without_the_token(page: TestClient) -> None:
    assert page.get("/models/triage/1/file").status_code == 403


def test_a_form_that_is_too_large_is_refused(owner: TestClient, board: Dashboard) -> None:
    form = {"form_word": board.access.form_word, "more": "x" * 1_100_000}
    assert owner.post("/start", data=form, headers=HERE).status_code == 403


def test_the_command_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    from types import SimpleNamespace

    args = SimpleNamespace(base=str(tmp_path / "nothing"), host="127.0.0.1", name=[], kit=[])
    with pytest.raises(UsageError, match="there is no folder"):
        do_ui(args)


# ---- the registry ----


def put(content: bytes):
    return lambda path: path.write_bytes(content)


def test_versions_follow_each_other_and_are_never_used_twice(tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path)
    assert registry.models() == []
    found = [registry.promote("triage", "run-1", "a", "Ada", put(bytes([i]))) for i in range(2)]
    assert [m.version for m in found] == [1, 2] and registry.model("triage", 2) == found[1]
    assert registry.copy_of(found[0]).read_bytes() == b"\0"


def test_two_who_promote_at_once_get_two_versions(tmp_path: Path) -> None:
    both = threading.Barrier(4)

    def promote() -> None:
        both.wait()
        ModelRegistry(tmp_path).promote("triage", "run-1", "a", "Ada", put(b"x"))

    threads = [threading.Thread(target=promote) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert sorted(m.version for m in ModelRegistry(tmp_path).models()) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", "-x", ".x", "a" * 64, "x\n", "<b>"])
def test_a_name_that_could_be_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be called"):
        ModelRegistry(tmp_path).promote(name, "run-1", "a", "Ada", put(b"x"))
    assert not (tmp_path / "promoted").exists()


def test_a_promotion_in_a_folder_of_somebody_else_writes_through_no_link(tmp_path: Path) -> None:
    (mine := tmp_path / "mine").write_text("precious")
    registry = ModelRegistry(tmp_path / "runs")
    registry.folder.mkdir(parents=True)
    for name in ("triage-v1.safetensors", "triage-v1.safetensors.part"):
        (registry.folder / name).symlink_to(mine)
    model = registry.promote("triage", "run-1", "a", "Ada", put(b"x"))
    assert registry.copy_of(model).read_bytes() == b"x" and mine.read_text() == "precious"
    assert [p.name for p in registry.folder.iterdir() if p.is_dir()] == []
    registry.path.rename(tmp_path / "theirs.sqlite")
    registry.path.symlink_to(tmp_path / "theirs.sqlite")
    with pytest.raises(UsageError, match="is a link"):
        registry.promote("triage", "run-1", "a", "Ada", put(b"x"))
    registry.folder.rename(tmp_path / "elsewhere")
    registry.folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a link"):
        registry.promote("other", "run-1", "a", "Ada", put(b"x"))


def test_a_promotion_that_fails_leaves_no_version(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise UsageError("no such client")

    registry = ModelRegistry(tmp_path)
    with pytest.raises(UsageError):
        registry.promote("triage", "run-1", "a", "Ada", fail)
    assert registry.models() == []


def test_a_file_that_was_changed_is_not_exported(tmp_path: Path) -> None:
    registry = ModelRegistry(tmp_path)
    model = registry.promote("triage", "run-1", "a", "Ada", put(b"x"))
    (registry.folder / model.file).write_bytes(b"y")
    with pytest.raises(UsageError, match="checksum"):
        registry.copy_of(model)


def test_a_run_that_is_written_is_not_started_a_second_time(
    owner: TestClient, board: Dashboard, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_read", (-1.0, {}))
    with locked(base / "local-0"):
        answer = owner.post("/runs/local-0/resume", data={"form_word": board.access.form_word}, headers=HERE)
    assert answer.status_code == 409 and "running" in answer.text
    assert not (base / "started").exists()
    monkeypatch.setattr(processes, "_read", (-1.0, {}))


# ---- who may look at what ----

# every address, and who may ask for it: everybody, everybody while no kit is shown, who has the token, or a form of
# who has it
ADDRESSES = {
    "/": "look", "/live": "look", "/runs/{run}": "look", "/runs/{run}/live": "look", "/runs/{run}/client": "look",
    "/runs/{run}/log": "look", "/runs/{run}/stop": "form", "/runs/{run}/resume": "form",
    "/runs/{run}/promote": "form", "/studies": "look", "/studies/{study}": "look", "/studies/{study}/live": "look",
    "/studies/{study}/report": "look", "/studies/{study}/stop": "form", "/studies/{study}/resume": "form",
    "/compare": "look", "/federations": "look", "/federations/{federation}": "look",
    "/federations/{federation}/live": "look", "/federations/{federation}/who": "look", "/models": "look",
    "/models/{model}/{version:int}/file": "token", "/start": "look, form", "/sign-in": "everybody",
    "/sign-out": "form", "/static": "everybody",
}  # fmt: skip
NOBODY = {
    "run": "nothing",
    "study": "nothing",
    "federation": "nothing",
    "model": "nothing",
    "version:int": "1",
}


def test_every_address_says_who_may_ask(base: Path, tmp_path: Path) -> None:
    """A new address must be put into the table, and does what that says."""
    shut = Access(frozenset({"localhost"}), private=True, token=WORD)
    boards = [Dashboard(RunIndex(base), a) for a in (Access(frozenset({"localhost"}), token=WORD), shut)]
    looks, private = (
        TestClient(application(b, warm=False), base_url="http://localhost", follow_redirects=False)
        for b in boards
    )
    found: dict[str, str] = {}
    for route in addresses(boards[0]):
        address = re.sub(r"{(.*?)}", lambda m: NOBODY[m[1]], route.path)
        if isinstance(route, Mount):
            address += "/dashboard.js"
        methods = getattr(route, "methods", None) or {"GET"}
        who = (
            {"form"} if "POST" in methods and looks.post(address, headers=HERE).status_code == 403 else set()
        )
        if "GET" in methods and not address.endswith("live"):
            open_, shut_ = looks.get(address).status_code, private.get(address).status_code
            who |= {"token" if open_ == 403 else "look" if shut_ == 403 else "everybody"}
        elif "GET" in methods:
            who |= {"look"} if private.get(address).status_code == 403 else {"everybody"}
        found[route.path] = ", ".join(
            sorted(who | set(found.get(route.path, "").split(", ")) - {""}, reverse=True)
        )
    wanted = {k: ", ".join(sorted(v.split(", "), reverse=True)) for k, v in ADDRESSES.items()}
    # the page to sign in takes a form of everybody, who then must know the token
    assert found | {"/sign-in": "everybody"} == wanted
    [b.close() for b in boards]


GIVEN = ("data", "net", "method", "data.split")


@pytest.mark.parametrize("section", GIVEN)
def test_the_form_reads_no_path_and_imports_no_name_for_who_has_no_token(
    page: TestClient, tmp_path: Path, section: str
) -> None:
    (table := tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    answers = set()
    for name in (str(table), str(tmp_path / "nothing.csv"), "timeit:main", "hf:stranger/rows"):
        answer = page.get("/start", params={"kind": "run", section: name})
        assert answer.status_code == 200 and "needs the token" in answer.text
        answers.add(answer.text.replace(html.escape(name), "NAME"))
    assert len(answers) == 1  # whether something is there cannot be told
    assert "data.clients" in page.get("/start", params={"kind": "run", "data": "wine"}).text


def test_who_has_signed_in_gets_a_form_for_a_table_of_ones_own(owner: TestClient, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    assert "data.target" in owner.get("/start", params={"data": str(tmp_path / "rows.csv")}).text


def test_a_question_that_takes_long_keeps_no_other_waiting(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "model.safetensors")
    asked, ended = Questions(), threading.Event()

    def slow() -> None:
        with pytest.raises(UsageError):
            asked.ask("export_file", file=str(pipe), to=str(tmp_path / "x.onnx"))
        ended.set()

    thread = threading.Thread(target=slow)
    thread.start()
    try:
        with pipe.open("wb"):  # opens when the other process reads it
            names = {"data": "wine", "net": "auto", "method": "ditto"}
            assert asked.ask("recipe_fields", names=names) and not ended.is_set()
    finally:
        asked.end()
        thread.join()


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_pages_of_other_sites_load_no_page_as_an_image_or_a_script(page: TestClient, site: str) -> None:
    def status(site: str, mode: str, to: str) -> int:
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": to}
        return page.get("/start?data=wine", headers=headers).status_code

    ways = [("no-cors", "image"), ("no-cors", "script"), ("cors", "empty"), ("navigate", "iframe")]
    assert [status(site, *way) for way in ways] == [403] * 4
    assert status(site, "navigate", "document") == 200  # somebody follows a link
    assert status("same-origin", "cors", "empty") == status("none", "navigate", "document") == 200


# ---- many connections ----

SMALL_SERVER = """
import resource, socket, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
from motet.web.app import serve
from motet.web.dashboard import Dashboard
from motet.web.run_index import RunIndex
from motet.web.security import Access
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
access = Access(frozenset({"localhost"}), changes=False)
serve(Dashboard(RunIndex(Path(sys.argv[1])), access), "127.0.0.1", 0, [listening], float(sys.argv[4]))
"""
HALF = {
    "nothing": b"",
    "half of the headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n",
    "half of a form": b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
    b"Content-Length: 99999\r\n\r\na",
    "half of what follows": b"GET /static/dashboard.js HTTP/1.1\r\nHost: localhost\r\n\r\nGET",
    "events": b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@contextmanager
def small_server(base: Path, files: int, most: int, patience: float) -> Iterator[tuple[str, int]]:
    words = [str(base), str(files), str(most), str(patience)]
    command = [sys.executable, "-P", "-c", SMALL_SERVER, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield "127.0.0.1", int(process.stdout.readline())
        finally:
            process.terminate()


def asked_at(address: tuple[str, int]) -> int:
    connection = HTTPConnection(*address, timeout=60)
    with closing(connection):
        connection.request("GET", "/", headers={"Host": "localhost"})
        return connection.getresponse().status


@pytest.mark.parametrize("what", HALF)
def test_a_dashboard_answers_while_others_hold_more_connections_than_it_may_have_files(
    base: Path, what: str
) -> None:
    with small_server(base, 64, 64, 0.5) as address, ExitStack() as many:
        held = [many.enter_context(socket.create_connection(address, timeout=60)) for _ in range(80)]
        for one in held:
            with suppress(OSError):
                one.sendall(HALF[what])
        assert [asked_at(address) for _ in range(3)] == [200] * 3


def test_a_request_that_does_not_become_whole_is_given_up(base: Path) -> None:
    """Also one that grows by a byte now and then."""
    with small_server(base, 256, 256, 0.5) as address:
        for start in (HALF["half of the headers"], HALF["half of a form"], HALF["half of what follows"]):
            with (
                socket.create_connection(address, timeout=60) as one,
                suppress(BrokenPipeError, ConnectionResetError),
            ):
                one.sendall(start)
                while select.select([one], [], [], 0.05)[0] == [] or one.recv(1 << 16):
                    one.sendall(b"a")


def test_a_dashboard_takes_as_many_files_as_the_system_lets_it_have(base: Path) -> None:
    with small_server(base, 40, 1024, 60) as address, ExitStack() as many:
        for _ in range(100):
            many.enter_context(socket.create_connection(address, timeout=60))
        assert asked_at(address) == 200


# ---- a folder of somebody else's runs ----

PROGRAM = {"Authorization": f"Bearer {WORD}"}
EVIL_WORDS = '{"words": ["run", "/tmp/evil.toml", "--trust"], "pid": 1}'
HARMLESS = '[data]\nname = "wine"\n[method]\nname = "local"\n'


@dataclass
class Strangers:
    """A folder of runs that somebody else made, and what was started from it."""

    base: Path
    page: TestClient
    begun: list[list[str]]

    def go_on(self, address: str) -> tuple[int, str]:
        answer = self.page.post(f"{address}/resume", headers=PROGRAM)
        return answer.status_code, answer.text


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Strangers]:
    base = tmp_path / "runs"
    for place in (base, base / "older"):
        place.mkdir()
        (made(place, "local", {"a": 0.5}, status="running") / "recipe.toml").write_text(HARMLESS)
    (base / "started").mkdir()
    for name in ("local-0", "wine-1"):
        (base / "started" / f"{name}.json").write_text(EVIL_WORDS)
    board = Dashboard(RunIndex(base), Access(frozenset({"localhost"}), token=WORD))
    begun: list[list[str]] = []
    monkeypatch.setattr(processes, "start", lambda words, log, folder: begun.append(list(words)) or 1)
    yield Strangers(
        base,
        TestClient(application(board, warm=False), base_url="http://localhost", follow_redirects=False),
        begun,
    )
    board.close()


@pytest.mark.parametrize("name", ["local-0", "older~local-0"])
def test_a_run_goes_on_with_its_own_recipe_and_never_with_words_of_a_file(
    strangers: Strangers, name: str
) -> None:
    assert strangers.go_on(f"/runs/{name}")[0] == 303
    folder = strangers.base.joinpath(*name.split("~"))
    assert strangers.begun == [["run", str(folder / "recipe.toml"), "--out", str(folder), "--quiet"]]
    assert "words" not in (strangers.base / "started" / "local-0.json").read_text()


@pytest.mark.parametrize(
    "recipe",
    [
        '[data]\nname = "timeit:main"\n',
        '[method]\nname = "mine:Mine"\n',
        'net = "os:system"\n',
        '[method]\nname = "ditto"\n[method.agent]\nname = "mine:Agent"\n',
        '[engine]\nname = "ray"\naddress = "10.0.0.1:6379"\n',
    ],
)
def test_a_run_whose_recipe_names_code_goes_on_at_the_command_line_only(
    strangers: Strangers, recipe: str
) -> None:
    (strangers.base / "local-0" / "recipe.toml").write_text(recipe)
    status, text = strangers.go_on("/runs/local-0")
    assert status == 422 and "names code" in text and "motet run" in text
    assert strangers.begun == []


def test_a_recipe_that_is_a_link_a_pipe_or_very_long_is_not_read(
    strangers: Strangers, tmp_path: Path
) -> None:
    recipe, outside = strangers.base / "local-0" / "recipe.toml", tmp_path / "mine.toml"
    outside.write_text(HARMLESS)
    for spoil in (
        lambda: recipe.symlink_to(outside),
        lambda: recipe.symlink_to("/dev/zero"),
        lambda: os.mkfifo(recipe),
        lambda: (recipe.touch(), os.truncate(recipe, 10**9)),
        lambda: recipe.write_text("a = ["),
    ):
        recipe.unlink()
        spoil()
        status, text = strangers.go_on("/runs/local-0")
        assert status in (409, 422) and "Traceback" not in text
    assert strangers.begun == []


def test_a_study_goes_on_with_what_its_record_says_and_never_with_words_of_a_file(
    strangers: Strangers,
) -> None:
    asked = {
        "data": {"name": "wine"},
        "methods": [{"name": "ditto", "lam": 0.5}],
        "seeds": [0, 1],
        "splits": [0],
    }
    StudyRecord("wine-1", status="stopped", asked=asked).write(strangers.base)
    assert strangers.go_on("/studies/wine-1")[0] == 303
    (command,) = strangers.begun
    assert (command[0], command[2:]) == ("compare", ["--out", str(strangers.base), "--quiet"])
    assert tomllib.loads(Path(command[1]).read_text()) == asked


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"data": {"name": "timeit:main"}},
        {"methods": ["local", "mine:Mine"]},
        {"methods": [{"name": "mine:Mine"}]},
        {"grid": {"net.name": ["mlp", "os:system"]}},
        {"engine": {"name": "ray", "address": "10.0.0.1:6379"}},
    ],
)
def test_a_study_that_names_code_or_says_too_little_goes_on_at_the_command_line_only(
    strangers: Strangers, asked: dict[str, object]
) -> None:
    StudyRecord("wine-1", status="stopped", asked=asked).write(strangers.base)
    status, text = strangers.go_on("/studies/wine-1")
    assert status in (409, 422) and ("names code" in text or "its command" in text)
    assert strangers.begun == []


def test_what_is_started_writes_through_no_link(strangers: Strangers, tmp_path: Path) -> None:
    mine, folder = tmp_path / "mine", strangers.base / "started"
    mine.write_text("precious")
    for name in ("local-0.log", "local-0.json.part", "local-0.json"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(mine)
    assert strangers.go_on("/runs/local-0")[0] == 303
    assert mine.read_text() == "precious" and (folder / "local-0.log").read_text() == ""
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert strangers.go_on("/runs/local-0")[0] == 422
    (tmp_path / "elsewhere" / "local-0.log").write_text("SECRET")
    assert "SECRET" not in strangers.page.get("/runs/local-0/log").text


def test_a_pipe_or_an_endless_file_among_what_was_started_is_not_read(strangers: Strangers) -> None:
    os.mkfifo(strangers.base / "started" / "pipe.json")
    (strangers.base / "started" / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        assert strangers.page.get(f"/runs/{name}").status_code == 404


HOLDER = """
import fcntl, signal, sys
signal.signal(signal.SIGINT, lambda *_: print("stopped", flush=True))
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("holds", flush=True)
for line in sys.stdin:
    print("alive", flush=True)
"""


@pytest.mark.skipif(not processes.can_see_processes(), reason="needs /proc/locks")
@pytest.mark.parametrize("link", ["", "symbolic", "hard"])
def test_only_a_process_that_holds_the_lock_of_the_run_itself_is_stopped(
    strangers: Strangers, tmp_path: Path, link: str
) -> None:
    lock = strangers.base / "local-0" / "lock"
    held = tmp_path / "of-another-program" if link else lock
    command = [sys.executable, "-P", "-c", HOLDER, str(held)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == "holds\n"
        if link == "symbolic":
            lock.symlink_to(held)
        if link == "hard":
            lock.hardlink_to(held)
        answer = strangers.page.post("/runs/local-0/stop", headers=PROGRAM)
        assert answer.headers["location"].endswith("stopping=0" if link else "stopping=1")
        process.stdin.write("still there?\n")
        process.stdin.close()
        assert process.stdout.read() == ("alive\n" if link else "stopped\nalive\n")


def test_a_second_process_leaves_the_record_of_a_study_as_it_is(tmp_path: Path) -> None:
    first, second = StudyRecord("s", jobs=["a"]), StudyRecord("s", jobs=["a"])
    with recorded(tmp_path, first):
        first.runs["a"] = "run-a"
        first.write(tmp_path)
        with recorded(tmp_path, second):
            second.write(tmp_path)
        assert read_studies(tmp_path) == [first]
    assert read_studies(tmp_path)[0].status == "stopped"


def test_a_second_writer_is_kept_from_a_run(tmp_path: Path) -> None:
    with locked(tmp_path / "run"), pytest.raises(Busy), locked(tmp_path / "run"):
        pass
