"""Evidence of a federation's parties: signed with their certificates, and the server and its sites agree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="kits are made with NVIDIA FLARE")

from living import WORDS, table
from motet.cli.main import main
from motet.deploy.agreement.layout import Split
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.kits import Kit, open_kit
from motet.deploy.server.job import run_job
from motet.deploy.server.job_chain import JobChain
from motet.deploy.server.received import read_received
from motet.deploy.server.run_files import make_order, read_report
from motet.deploy.site.config import open_service, write_source
from motet.deploy.site.table import SiteTable
from motet.errors import RunError
from motet.evidence.check_file import Checked, check_file, check_folder
from motet.evidence.compare_parties import disagreements
from motet.evidence.document import Document, content_of, opened
from motet.evidence.party_evidence import sections_of_party, signer_of
from motet.evidence.signing import local_signer
from motet.evidence.write import made_of, write
from motet.runs.forget import forget

SITES = ("a", "b", "c")
POLICY = 'learn = "collect"\nreply_bytes = 4_000_000\nrounds = 100\n'
Letters = Mapping[str, bytes]


class Care:
    """A federation with kits, whose letters are carried in this process."""

    def __init__(self, folder: Path, method: str = "fedper") -> None:
        create("care", "localhost", SITES, folder, 8002)
        self.folder, self.server = folder, open_kit(folder / "server")
        for i, site in enumerate(SITES):
            table(i).to_csv(folder / f"{site}.csv", index=False)
            write_source(
                open_kit(folder / site), SiteTable(site, folder / f"{site}.csv", "y", split=Split(val=0.2))
            )
            silent = "counts = false\nscores = false\n" if site == "c" else ""
            (folder / site / "policy.toml").write_text(POLICY + silent)
        words = [*WORDS, "train.rounds=2", f"method.name={method}"]
        self.order = make_order("care", None, words, 2, 2, 60.0)
        self.run = self.server.runs / self.order.run
        self.run.mkdir(parents=True)
        self.order.write(self.run)
        self.services = {s: open_service(folder / s) for s in SITES}
        run_job(self.run, self.post, SITES)
        assert read_report(self.run).state == "done", read_report(self.run).why

    def post(self, letters: Letters) -> tuple[dict[str, bytes], dict[str, str]]:
        return {s: self.services[s].answer(letter) for s, letter in letters.items()}, {}

    def kit(self, party: str) -> Kit:
        return open_kit(self.folder / party)

    def evidence(self, party: str, change: Any = None) -> Path:
        """A party's evidence; `change` lets it lie in a section."""
        kit = self.kit(party)
        kind, sections = sections_of_party(kit, self.order.run)
        if change:
            change(dict(sections))
        signer = signer_of(kit)
        return write(made_of(kind, sections, signer), signer, self.folder / f"{party}.evidence.html")

    def all(self, **changes: Any) -> list[Checked]:
        return [check_file(self.evidence(p, changes.get(p))) for p in ("server", *SITES)]


@pytest.fixture(scope="module")
def care(tmp_path_factory: pytest.TempPathFactory) -> Care:
    return Care(tmp_path_factory.mktemp("care"))


def document(file: Path) -> Document:
    return opened(file.read_bytes())[0]


def test_the_server_and_its_sites_agree(care: Care) -> None:
    files = care.all()
    assert [f.wrong for f in files] == [[]] * 4
    wrong, fine = disagreements(files)
    assert wrong == [] and len(fine) == 3 and fine[0].startswith("a: ")


def test_a_site_says_what_left_under_which_policy_and_contract(care: Care) -> None:
    found = document(care.evidence("a"))
    rows = {(r["verb"], r["learn"]): r for r in content_of(found, "left")["rows"]}
    assert rows["train", "average"]["messages"] == 2 and rows["train", "average"]["up"] > 100
    assert {"describe", "measure", "layout", "offer", "evaluate", "save_model"} <= {v for v, _ in rows}
    force = content_of(found, "policies")["in force"]
    assert [p["name"] for p in force] == ["policy of this site", "contract of this run"]
    assert json.loads(force[1]["text"])["policy"] == force[0]["hash"]
    assert "other contracts" not in content_of(found, "policies")["says"]
    assert any(
        "could have looked at single replies" in line for line in content_of(found, "learned")["beyond"]
    )
    assert content_of(found, "participants")[0]["train"] > 0
    (score,) = content_of(found, "scores")["rows"]
    assert score["low"] <= score["personal"] <= score["high"]
    server = document(care.evidence("server"))
    received = [r for r in content_of(server, "left")["rows"] if r["client"] == "a"]
    assert {(r["verb"], r["learn"]): r["up"] for r in received} == {k: r["up"] for k, r in rows.items()}


def test_what_a_policy_keeps_at_a_site_is_not_in_its_evidence(care: Care) -> None:
    found = document(care.evidence("c"))
    assert content_of(found, "participants")[0]["train"] is None and content_of(found, "models") == []
    assert '"rows": "kept back"' in content_of(found, "policies")["in force"][1]["text"]
    people = {p["client"]: p["train"] for p in content_of(document(care.evidence("server")), "participants")}
    assert people["c"] is None and people["a"] > 0


def lose_one(sections: dict[str, Any]) -> None:
    replies = sections["left"]["replies"]
    replies.remove(next(r for r in replies if r["verb"] == "train"))


def resize_one(sections: dict[str, Any]) -> None:
    next(r for r in sections["left"]["replies"] if r["verb"] == "train")["bytes"] += 1


def other_reply(sections: dict[str, Any]) -> None:
    next(r for r in sections["left"]["replies"] if r["verb"] == "train")["sha256"] = "0" * 64


def other_recipe(sections: dict[str, Any]) -> None:
    sections["run"]["recipe hash"] = "0" * 64


@pytest.mark.parametrize(
    ("party", "lie", "says"),
    [
        (
            "a",
            lose_one,
            "a: the server received 1 replies to train (average), round 1, which its ledger does not have",
        ),
        (
            "server",
            lose_one,
            "a: its ledger has 1 replies to train (average), round 1, which the server does not list",
        ),
        ("b", resize_one, "b: 1 replies to train (average), round 1, of which both give different sizes"),
        ("b", other_reply, "b: the server received 1 replies to train"),
        ("a", other_recipe, "a: its contract is for another recipe than the one that the server ran"),
    ],
)
def test_a_disagreement_is_named(party: str, lie: Any, says: str, care: Care) -> None:
    files = care.all(**{party: lie})
    assert [f.wrong for f in files] == [[]] * 4  # each is as its signer signed it
    assert any(line.startswith(says) for line in disagreements(files)[0])


def test_a_changed_file_or_ledger_of_a_site_is_found(care: Care) -> None:
    file, kit = care.evidence("b"), care.folder / "b"
    found = check_file(file)
    check_folder(found, kit)
    assert found.wrong == []
    contract = next((kit / "kept" / "runs").glob("*/contract.json"))
    for path in (kit / "policy.toml", contract, kit / "kept" / "ledger.jsonl"):
        whole = path.read_bytes()
        path.write_bytes(whole[:-20] + b" " + whole[-19:])
        found = check_file(file)
        check_folder(found, kit)
        assert len(found.wrong) == 1 and path.stem.split(".")[0] in found.wrong[0]
        path.write_bytes(whole)


def test_what_the_server_received_is_a_chain(care: Care) -> None:
    lines, damage = read_received(care.run)
    assert damage == [] and {line.site for line in lines} == set(SITES)
    assert [line for line in lines if line.refusal and line.site != "c"] == []
    path = care.run / "received.jsonl"
    whole = path.read_bytes()
    rows = whole.split(b"\n")
    path.write_bytes(b"\n".join(rows[:3] + rows[4:]))
    assert "does not follow the line before it" in read_received(care.run)[1][0]
    path.write_bytes(whole)


def test_a_party_cannot_speak_for_another(care: Care) -> None:
    kind, sections = sections_of_party(care.kit("a"), care.order.run)
    signer = signer_of(care.kit("b"))
    signer.about["party"] = "a"
    file = write(made_of(kind, sections, signer), signer, care.folder / "a.evidence.html")
    assert "the certificate is that of 'b'" in check_file(file).wrong[0]


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({}, "'b' signed it, and it is the evidence of a server"),
        ({"party": "server"}, "says that the server wrote it, and the certificate is that of 'b'"),
        ({"party": "server", "kind": "another"}, "the certificate is that of 'b'"),
        ({"party": "a", "kind": "another"}, "the certificate is that of 'b'"),
    ],
)
def test_a_site_cannot_speak_for_the_server(about: dict[str, str], says: str, care: Care) -> None:
    kind, sections = sections_of_party(care.server, care.order.run)
    signer = signer_of(care.kit("b"))
    signer.about.update(about)
    file = write(made_of(kind, sections, signer), signer, care.folder / "server.evidence.html")
    assert says in check_file(file).wrong[0]


@pytest.mark.parametrize("party", ["server", "a", ""])
def test_a_local_key_speaks_for_no_party(party: str, care: Care, tmp_path: Path) -> None:
    kind, sections = sections_of_party(care.server, care.order.run)
    signer = local_signer(tmp_path)
    signer.about.update(party=party, federation="care")
    file = write(made_of(kind, sections, signer), signer, tmp_path / "server.evidence.html")
    assert "no certificate says so" in check_file(file).wrong[0]


def test_parties_of_different_federations_do_not_agree(care: Care, tmp_path: Path) -> None:
    create("care", "localhost", SITES, tmp_path, 8002)
    kind, sections = sections_of_party(care.kit("a"), care.order.run)
    signer = signer_of(open_kit(tmp_path / "a"))
    file = write(made_of(kind, sections, signer), signer, tmp_path / "a.evidence.html")
    files = [check_file(care.evidence("server")), check_file(file)]
    assert [f.wrong for f in files] == [[], []]
    assert disagreements(files)[0] == ["their certificates have different roots"]


def test_the_commands_of_a_federation(
    care: Care, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["evidence", str(care.run), "--to", "server.html"]) == 0
    for site in SITES:
        assert main(["evidence", str(care.folder / site), "--to", f"{site}.html"]) == 0
    capsys.readouterr()
    assert main(["evidence", "check", "server.html", "a.html", "b.html", "c.html"]) == 0
    out, err = capsys.readouterr()
    assert out.count("agree: ") == 3 and "signed by server of care, by certificate" in out
    assert "the federation's root has signed" in " ".join(err.split())
    assert main(["evidence", "check", "server.html", str(care.run)]) == 0
    assert main(["evidence", "check", "a.html", str(care.folder / "a")]) == 0
    root = document(Path("a.html"))["signer"]["root_fingerprint"]
    assert main(["evidence", "check", "a.html", "--key", root]) == 0
    assert main(["evidence", str(care.folder / "a"), "--run", "another"]) == 2


def test_a_site_that_must_be_forgotten_is_left_out_of_a_new_order(care: Care) -> None:
    with pytest.raises(RunError, match="only they can play it again") as e:
        forget(care.run, "b")
    assert f"{care.run / 'recipe.toml'} 'data.without=[\"b\"]'" in str(e.value)
    again = make_order("care", str(care.run / "recipe.toml"), ['data.without=["b"]'], 2, 2, 60.0)
    assert again.run != care.order.run
    folder = care.server.runs / again.run
    assert JobChain(care.server, again, folder, print, inf).excluded() == {"b"}
