"""Evidence of a run: what it says, that it is the same each time, and that a changed byte is found wherever it is."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from motet.cli.main import main
from motet.evidence import document as documents
from motet.evidence.check_file import check_file, check_folder
from motet.evidence.document import canonical, content_of, opened
from motet.evidence.run_sections import SIMULATED, sections_of_run
from motet.evidence.signing import local_signer
from motet.evidence.write import made_of, write
from motet.runs.recipe import read
from motet.runs.run import run
from motet.runs.store import Store

WORDS = [
    "data=wine",
    "data.clients=5",
    "data.unseen=0.2",
    "train.rounds=3",
    "method=stacking",
    "train.patience=0",
]
MADE = "2026-01-02T03:04:05+00:00"
ODD = "<script>alert(1)</script>&\"'"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(read(words=WORDS), tmp_path_factory.mktemp("runs") / "finished").folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOTET_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "r")
    return tmp_path / "r"


def evidence(folder: Path, to: str = "r.evidence.html") -> Path:
    signer = local_signer()
    return write(made_of(SIMULATED, sections_of_run(folder), signer, MADE), signer, Path(to))


def test_it_says_who_took_part_what_left_whom_and_what_the_server_learned(folder: Path) -> None:
    found = check_file(evidence(folder)).document
    assert found is not None
    people = {p["client"]: p for p in content_of(found, "participants")}
    assert len(people) == 5 and sum(p["role"] == "trained" for p in people.values()) == 4
    with closing(Store(folder)) as store:
        clients, traffic = store.frame("clients").set_index("client"), store.frame("traffic")
    assert all(people[c][part] == clients.loc[c, part] for c in people for part in ("train", "val", "test"))
    left = content_of(found, "left")
    assert "Nothing left any machine" in left["says"]
    for client, rows in traffic.groupby("client"):
        own = [r for r in left["rows"] if r["client"] == client]
        assert {(r["verb"], r["learn"]) for r in own} == {
            *(("publish", "collect"), ("stack", "collect")),
            *(("evaluate", "scores"), ("save_model", "nothing")),
        }
        assert (
            sum(r["up"] for r in own) == rows["up"].sum()
            and sum(r["down"] for r in own) == rows["down"].sum()
        )
    learned = {r["verb"]: r for r in content_of(found, "learned")["rows"]}
    assert learned["publish"]["learns"] == "every single reply, by client" and learned["stack"]["fewest"] == 4
    assert content_of(found, "guards")["clipping"] == content_of(found, "guards")["privacy budget"] == "none"
    assert len(content_of(found, "scores")["rows"]) == 4
    files = content_of(found, "files")
    assert {"run.sqlite", "recipe.toml", "scores.parquet"} <= files.keys()
    assert len(content_of(found, "models")) == 4


def test_an_average_of_one_reply_is_said_to_be_that_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["data=wine", "data.clients=4", "data.unseen=0", "train.rounds=2", "train.cohort=0.25"]
    done = run(read(words=words), tmp_path / "alone")
    found = dict(sections_of_run(done.folder))["learned"]
    assert found["rows"][0]["learn"] == "average" and found["rows"][0]["fewest"] == 1
    assert any("A mean of one reply is that reply" in line for line in found["beyond"])


def test_what_is_asked_before_the_first_round_is_counted_too(tmp_path: Path) -> None:
    words = ["data=wine", "data.clients=4", "data.unseen=0", "train.rounds=1", "method=swarm"]
    done = run(read(words=words), tmp_path / "grouped")
    with closing(Store(done.folder)) as store:
        asks = store.frame("asks")
    assert set(asks[asks["round"] == -1]["client"]) == set(done.clients["client"])


def test_the_same_run_gives_the_same_file_but_for_the_time(folder: Path) -> None:
    one, two = (evidence(folder, f"{name}.evidence.html").read_bytes() for name in "ab")
    assert one == two
    signer = local_signer()
    later = made_of(SIMULATED, sections_of_run(folder), signer, "2027-01-01T00:00:00+00:00")
    first = opened(one)[0]
    assert later["sections"] == first["sections"] and later["root"] != first["root"]


def test_a_changed_byte_anywhere_in_the_file_is_found(folder: Path) -> None:
    file = evidence(folder)
    whole, draw = file.read_bytes(), random.Random(0)
    assert check_file(file).wrong == []
    seal = whole.rfind(b"<!-- motet seal")
    script = whole.find(b'<script type="application/json"')
    spots = [draw.randrange(len(whole)) for _ in range(60)] + [
        draw.randrange(seal, len(whole)) for _ in range(60)
    ]
    spots += [0, script, seal - 1, seal, len(whole) - 1, *range(len(whole) - 8, len(whole))]
    for at in spots:
        other = bytes([whole[at] ^ (1 << draw.randrange(8))])
        file.write_bytes(whole[:at] + other + whole[at + 1 :])
        assert check_file(file).wrong, f"byte {at}, now {other!r}"
    for changed in (
        whole + b"\n",
        whole[:-1],
        whole[1:],
        whole.replace(b"Evidence", b"evidence", 1),
        b"",
        b"{",
    ):
        file.write_bytes(changed)
        assert check_file(file).wrong


def test_a_changed_byte_anywhere_in_the_data_alone_is_found(folder: Path) -> None:
    file = evidence(folder, "r.evidence.json")
    whole, draw = file.read_bytes(), random.Random(1)
    assert check_file(file).wrong == [] and json.loads(whole)["evidence"]["kind"] == SIMULATED
    for at in [*(draw.randrange(len(whole)) for _ in range(60)), *range(len(whole) - 40, len(whole))]:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert check_file(file).wrong, at


def test_a_changed_section_is_named(folder: Path) -> None:
    file = evidence(folder, "r.evidence.json")
    held = json.loads(file.read_bytes())
    held["evidence"]["sections"][1]["content"][0]["train"] += 1
    file.write_bytes(
        b'{"evidence": ' + canonical(held["evidence"]) + b',\n"seal": ' + canonical(held["seal"]) + b"}\n"
    )
    assert check_file(file).wrong[0] == "section 'participants' was changed: its hash does not match"


def test_whoever_repairs_the_hashes_still_lacks_the_key(folder: Path, tmp_path: Path) -> None:
    file = evidence(folder)
    found = opened(file.read_bytes())[0]
    other = local_signer(tmp_path / "another")
    sections = [(s["name"], s["content"]) for s in found["sections"]]
    forged = documents.document(found["kind"], found["made"], found["writer"], found["signer"], sections)
    write(forged, other, file)
    assert "another" in check_file(file).wrong[0]
    write(
        made_of(SIMULATED, sections, other, MADE), other, file
    )  # signed as somebody else: sound, and another key
    assert check_file(file).wrong == []
    assert "was demanded" in check_file(file, key=local_signer().about["fingerprint"]).wrong[0]


def test_a_page_whose_signer_changed_its_text_is_found(folder: Path) -> None:
    signer = local_signer()
    found = made_of(SIMULATED, sections_of_run(folder), signer, MADE)
    from motet.evidence.write import page_of

    head = page_of(found).replace(b"Nothing left any machine", b"Little left any machine", 1)
    Path("r.html").write_bytes(documents.sealed(head, found["root"], signer.sign, page=True))
    assert "does not say what its data say" in check_file(Path("r.html")).wrong[0]


def test_a_changed_byte_in_any_file_of_the_run_is_found_and_named(folder: Path) -> None:
    file, draw = evidence(folder), random.Random(2)
    known = content_of(opened(file.read_bytes())[0], "files")
    for name in known:
        path = folder / name
        whole = path.read_bytes()
        at = draw.randrange(len(whole))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        found = check_file(file)
        check_folder(found, folder)
        assert found.wrong == [f"{name}: is damaged, or was changed since"]
        path.write_bytes(whole)
    (folder / "recipe.toml").unlink()
    (folder / "notes.txt").write_text("mine")
    found = check_file(file)
    check_folder(found, folder)
    assert found.wrong == [f"recipe.toml: is missing in {folder}"] and "notes.txt" in found.notes[0]


def forge_in_the_log(folder: Path) -> None:
    """Better test scores, checksums and all, which are only in the log beside the database."""
    shutil.copytree(folder, folder.with_name("other"))
    with closing(Store(folder.with_name("other"), writing=True)) as store:
        store.db.execute("PRAGMA wal_autocheckpoint = 0")
        store.db.execute("UPDATE scores SET accuracy = 0.99 WHERE part = 'test'")
        store.checks.touch("scores", [r for (r,) in store.db.execute("SELECT DISTINCT round FROM scores")])
        store.checks.write()
        store.db.commit()
        shutil.copy(folder.with_name("other") / "run.sqlite-wal", folder)


def test_scores_that_are_forged_in_the_databases_log_alone_are_found(folder: Path) -> None:
    file, before = evidence(folder), (folder / "run.sqlite").read_bytes()
    forge_in_the_log(folder)
    assert (folder / "run.sqlite").read_bytes() == before and (folder / "run.sqlite-wal").stat().st_size
    check_folder(found := check_file(file), folder)
    assert found.wrong == ["run.sqlite-wal: changes the database beside it, and came later"]
    (folder / "run.sqlite-wal").rename(folder / "run.sqlite-journal")
    check_folder(found := check_file(file), folder)
    assert "run.sqlite-journal" in found.wrong[0]


def test_what_a_killed_run_left_in_a_log_is_in_the_database_once_evidence_is_made(folder: Path) -> None:
    forge_in_the_log(folder)
    file = evidence(folder)
    assert not (folder / "run.sqlite-wal").exists() or not (folder / "run.sqlite-wal").stat().st_size
    check_folder(found := check_file(file), folder)
    assert found.document and not found.wrong and not found.notes
    assert {r["personal"] for r in content_of(found.document, "scores")["rows"]} == {0.99}


def test_reading_a_run_changes_no_byte_of_it(folder: Path) -> None:
    file = evidence(folder)
    assert main(["show", str(folder)]) == 0 and main(["report", str(folder), "--to", "x.html"]) == 0
    assert run(read(words=WORDS), folder).was_read
    evidence(folder, "again.evidence.html")
    found = check_file(file)
    check_folder(found, folder)
    assert found.wrong == [] and found.notes == []


def test_the_key_is_for_its_owner_alone_and_stays_the_same(folder: Path, tmp_path: Path) -> None:
    first = local_signer().about["fingerprint"]
    key = tmp_path / "config" / "evidence.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and local_signer().about["fingerprint"] == first
    key.write_text("broken")
    assert main(["evidence", str(folder)]) == 2


def test_names_of_strangers_are_only_text_in_the_page(folder: Path) -> None:
    with closing(Store(folder, writing=True)) as store:
        store.set_facts(data=ODD, failure=ODD, method=f"{ODD}:x")
        store.event("refused", ODD)
        store.commit()
    with closing(sqlite3.connect(folder / "run.sqlite")) as db:
        (client,) = db.execute("SELECT client FROM clients WHERE seen = 1").fetchone()
    (folder / "models" / f"{client}.md").write_text(ODD)
    file = evidence(folder)
    page = file.read_text()
    assert "<script>alert" not in page and page.count("<script") == 1 and "&lt;script&gt;alert" in page
    assert check_file(file).wrong == []


def test_a_run_that_is_not_finished_has_evidence_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from motet.errors import Stopped
    from motet.runs.run import NoProgress

    class Stop(NoProgress):
        def should_stop(self) -> bool:
            return True

    monkeypatch.setenv("MOTET_CONFIG", str(tmp_path / "config"))
    with pytest.raises(Stopped):
        run(read(words=WORDS), tmp_path / "half", Stop())
    found = check_file(evidence(tmp_path / "half", str(tmp_path / "half.evidence.html")))
    assert found.wrong == [] and found.document is not None
    assert content_of(found.document, "scores")["trouble"].startswith("not finished")


def test_a_run_of_an_earlier_version_says_that_verbs_were_not_counted(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "run.sqlite")) as db:
        db.executescript("DROP TABLE asks; DROP TABLE checks; PRAGMA user_version = 0")
    left = dict(sections_of_run(folder))["left"]
    assert "did not count by verb" in left["says"] and {r["verb"] for r in left["rows"]} == {"all verbs"}
    assert check_file(evidence(folder)).wrong == []


@pytest.mark.parametrize(
    ("name", "content"),
    [("files", [1]), ("files", {"a": 1}), ("files", {"../x": {"sha256": ""}}), ("run", 3), ("left", None)],
)
def test_what_a_signer_made_up_is_refused_in_words(name: str, content: object, folder: Path) -> None:
    signer = local_signer()
    sections = [(n, content if n == name else c) for n, c in sections_of_run(folder)]
    file = write(made_of(SIMULATED, sections, signer, MADE), signer, Path("odd.json"))
    found = check_file(file)
    check_folder(found, folder)
    assert found.wrong or name != "files"


def test_what_a_file_says_cannot_move_a_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signer = local_signer()
    signer.about["federation"] = signer.about["party"] = "\x1b[2Jevil"
    write(made_of(SIMULATED, sections_of_run(folder), signer, MADE), signer, Path("odd.json"))
    assert main(["evidence", "check", "odd.json"]) == 1
    said = capsys.readouterr().out
    assert "evil" in said and "\x1b" not in said


# ---- the command ----


def test_the_command_writes_and_checks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evidence", "r"]) == 0
    out, err = capsys.readouterr()
    assert out == "r.evidence.html\n" and "fingerprint" in err
    assert main(["evidence", "check", "r.evidence.html", "r"]) == 0
    out, err = capsys.readouterr()
    assert "sound" in out and "does not prove who that is" in " ".join(err.split())
    assert max(map(len, err.splitlines())) <= 80
    assert main(["evidence", "check", "r.evidence.html", "--key", local_signer().about["fingerprint"]]) == 0
    assert main(["evidence", "check", "r.evidence.html", "--key", "ab" * 16]) == 1
    whole = Path("r/recipe.toml").read_text()
    Path("r/recipe.toml").write_text(whole + " ")
    capsys.readouterr()
    assert main(["evidence", "check", "r.evidence.html", "r"]) == 1
    assert "wrong: recipe.toml: is damaged, or was changed since" in capsys.readouterr().out
    assert main(["evidence", "r", "--json"]) == 0 and main(["evidence", "check", "r.evidence.json"]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "is not a run"),
        (["check"], "hint: motet evidence check FILE"),
        (["check", "nothing.html"], "cannot read nothing.html"),
        (["r", "r"], "evidence is of one run"),
        (["r", "--json", "--to", "x.html"], "hint: --to x.json"),
        (["check", "r.html", "r.html"], "one server's evidence is held against that of sites"),
    ],
)
def test_what_cannot_be_is_said(
    words: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence(folder, "r.html")
    assert main(["evidence", *words]) == 2
    assert says in capsys.readouterr().err
