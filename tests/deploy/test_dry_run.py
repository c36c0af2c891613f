"""A dry run at a site, as its owner sees it: it changes nothing, says what would really leave, and does not contradict
itself."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from motet.cli.main import main
from motet.deploy.demo import free_port
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.kits import FederationError
from motet.deploy.server.run_files import make_order
from motet.deploy.site.config import open_service
from motet.deploy.site.ledger import Ledger, LedgerLine
from motet.engines.letters import Letter, Reply

ROWS = 120


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("motet.deploy.flare.process.become", lambda kit: None)
    create("care", "localhost", ["a"], tmp_path / "care", free_port())
    patients(0).to_csv(tmp_path / "a.csv", index=False)
    return tmp_path / "care" / "a"


def patients(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, bp = rng.normal(50, 12, ROWS), rng.normal(130, 15, ROWS)
    return pd.DataFrame(
        {"age": age, "bp": bp, "ill": np.where(age + rng.normal(0, 5, ROWS) > 50, "yes", "no")}
    )


class Owner:
    """What the site's owner types, and sees."""

    def __init__(self, kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.kit, self.capsys = kit, capsys
        self.data = ["--data", str(kit.parents[1] / "a.csv"), "--target", "ill"]

    def join(self, *words: str, code: int = 0) -> str:
        found = main(["federation", "join", str(self.kit), *words])
        said = self.capsys.readouterr()
        assert found == code, said
        return said.out + said.err

    def dry(self, *words: str, code: int = 0) -> str:
        return self.join(*self.data, *words, "--dry-run", code=code)

    def policy(self, text: str) -> list[str]:
        path = self.kit.parents[1] / f"{sha256(text.encode()).hexdigest()[:6]}.toml"
        path.write_text(text)
        return ["--policy", str(path)]


@pytest.fixture
def owner(kit: Path, capsys: pytest.CaptureFixture[str]) -> Owner:
    return Owner(kit, capsys)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def leaving(text: str) -> dict[str, str]:
    """What the table says of each verb."""
    table = text.partition("---\n")[2].partition("\n\n")[0]
    return {line.split()[0]: line for line in table.splitlines()}


def use(kit: Path) -> None:
    """As the first run does, which divides the rows."""
    service = open_service(kit)
    assert not Reply.read(service.answer(Letter("measure", "r", send={"kind": "classes"}).pack())).refusal


# ---- it changes nothing ----


def test_a_first_dry_run_writes_nothing(owner: Owner) -> None:
    before = contents(owner.kit)
    owner.dry(*owner.policy("rounds = 200\n"))
    assert contents(owner.kit) == before


def test_a_dry_run_with_another_policy_leaves_the_sites_own(owner: Owner) -> None:
    owner.join(*owner.data, *owner.policy("scores = false\n"))
    use(owner.kit)
    before = contents(owner.kit)
    assert "evaluate" in leaving(owner.dry(*owner.policy("learn = 'collect'\n")))
    owner.dry("--new-split", "--val", "0.3")
    assert contents(owner.kit) == before
    owner.join(*owner.policy("learn = 'collect'\n"))
    assert (owner.kit / "policy.toml").read_text() == "learn = 'collect'\n"
    owner.join("--policy", str(owner.kit / "policy.toml"))  # its own
    assert (owner.kit / "policy.toml").read_text() == "learn = 'collect'\n"


def test_weights_of_rows_are_refused_with_what_helps(owner: Owner) -> None:
    assert "hint: leave the column out: --drop w" in owner.dry("--weight", "w", code=2)
    with pytest.raises(FederationError, match="motet run … data.weight=COLUMN"):
        make_order("f", None, ["data.weight=w"], 1, 1, 1.0)


def test_a_join_that_is_refused_leaves_the_policy_of_before(owner: Owner, tmp_path: Path) -> None:
    owner.join(*owner.data, *owner.policy("scores = false\n"))
    use(owner.kit)
    patients(1).to_csv(tmp_path / "a.csv", index=False)
    assert "changed since its rows were divided" in owner.join(*owner.data, *owner.policy(""), code=2)
    assert (owner.kit / "policy.toml").read_text() == "scores = false\n"


# ---- what is spent ----


def test_a_dry_run_counts_what_earlier_runs_spent(owner: Owner) -> None:
    policy = owner.policy("rounds = 120\nlosses = 5000\n")
    (recipe := owner.kit.parents[1] / "recipe.toml").write_text("[train]\nrounds = 100\n")
    policy += ["--recipe", str(recipe)]
    assert "within this site's policy" in owner.dry(*policy, "--method", "fedavg")
    ledger = Ledger(owner.kit / "kept")
    for number in range(50):
        ledger.write(
            LedgerLine("", "server", job="verb", verb="train", run="r1", round=number, letter=str(number))
        )
    ledger.write(
        LedgerLine("", "server", job="verb", verb="measure", run="r1", round=50, letter="x", numbers=4990)
    )
    text = owner.dry(*policy, "--method", "fedavg", code=1)
    assert "refused: the run has 100 rounds after 51 of earlier runs" in text and "within" not in text
    assert "after 4,990 of earlier runs" in owner.dry(*policy, "--method", "swarm", code=1)


# ---- what would really leave ----


def test_a_dry_run_lists_what_the_policy_lets_leave_and_nothing_else(owner: Owner) -> None:
    usual = leaving(owner.dry())
    assert list(usual)[:4] == ["describe", "measure", "layout", "offer"]
    assert list(usual)[-2:] == ["evaluate", "save_model"]
    assert "numbers of rows" in usual["describe"]
    assert "numbers of training, validation and test rows" in usual["layout"]
    assert "that it takes part" in usual["offer"] and "that it was saved" in usual["save_model"]
    text = owner.dry(*owner.policy("scores = false\nsums = false\ncounts = false\n"), code=1)
    silent = leaving(text)
    assert silent.keys() == usual.keys() - {"evaluate", "measure"}
    assert "numbers of rows" not in silent["describe"] and "nothing" in silent["layout"]
    assert "stays here: scores (scores = false), sums of columns (sums = false), numbers of rows" in text


def test_a_dry_run_says_in_plain_words_which_scores_leave(owner: Owner) -> None:
    line = leaving(owner.dry())["evaluate"]
    assert "accuracy" in line and "AUC" in line and "loss" in line
    assert "this site's own model" in line and "the global model" in line and "rows" in line


# ---- one verdict ----


def test_a_refused_dry_run_says_so_once_and_ends_with_another_code(owner: Owner, tmp_path: Path) -> None:
    owner.join(*owner.data)
    use(owner.kit)
    patients(1).to_csv(tmp_path / "a.csv", index=False)
    text = owner.dry(code=1)
    assert "refused: the table a.csv, or which of its columns are used, changed" in text
    assert "within this site's policy" not in text
    anew = owner.dry("--new-split")
    assert "within this site's policy" in anew and "hint: restore" not in anew
    found = json.loads(owner.dry("--json", code=1))
    assert any("changed since" in o for o in found["objections"])


def test_a_dry_run_of_a_new_split_says_if_too_few_rows_are_new(owner: Owner, tmp_path: Path) -> None:
    owner.join(*owner.data)
    use(owner.kit)
    frame = patients(0)
    frame.loc[:2, "age"] += 1.0
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert "training rows differ from a table of this site" in owner.dry("--new-split", code=1)
