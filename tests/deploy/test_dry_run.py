"""A dry run at a site, as its owner sees it: it changes nothing, says what would really leave, and does not contradict
itself."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from motet.cli.main import main
from motet.deploy.agreement.column_sums import pooled
from motet.deploy.agreement.schema import merge
from motet.deploy.demo import free_port
from motet.deploy.flare.all_kits import create
from motet.deploy.flare.kits import FederationError
from motet.deploy.server.run_files import make_order
from motet.deploy.site.config import open_service
from motet.deploy.site.contract import turn_seed
from motet.deploy.site.ledger import Ledger, LedgerLine
from motet.engines.letters import Letter, Reply
from motet.published import Published

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
    assert service.rows.said_sums(
        "classes"
    )  # which leave in masked sums alone, as the policy of a new kit has it


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


@pytest.mark.parametrize("level", ["example", "client"])
def test_a_dry_run_of_a_private_recipe_shows_its_noise_and_what_is_left(owner: Owner, level: str) -> None:
    pytest.importorskip("opacus")
    more = {"client": 'noise = "clients"\n[guard]\nmasked = true\nclip = 1.0', "example": ""}[level]
    text = f'[train]\nrounds = 6\n[privacy]\nlevel = "{level}"\nnoise_multiplier = 30\n{more}\n'
    (recipe := owner.kit.parents[1] / "recipe.toml").write_text(text)
    words = ["--recipe", str(recipe), "--method", "fedavg"]
    said = owner.dry(*words, *owner.policy("epsilon = 9\n"))
    assert "noise_multiplier 30" in said and f"level {level}" in said and "within this site's policy" in said
    tight = owner.dry(*words, *owner.policy("epsilon = 0.01\n"), code=1)
    assert "refused: with this run epsilon" in tight


# ---- what would really leave ----


def test_a_dry_run_lists_what_the_policy_lets_leave_and_nothing_else(owner: Owner) -> None:
    usual = leaving(owner.dry(*owner.policy("")))
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


# ---- what is published ----


def published(kit: Path, classes: tuple[str, ...] = ("no", "yes")) -> None:
    """A model that the site's owner trained on its own table, in its outbox."""
    from sklearn.ensemble import RandomForestClassifier

    from motet import feature_defaults, publish, save_published

    frame = patients(0)
    x, kinds = frame[["age", "bp"]], {"age": "number", "bp": "number"}
    labels = np.array(classes)[(frame["ill"] == "yes").astype(int)]
    model = RandomForestClassifier(4, random_state=0).fit(x, labels)
    about: Any = {"client": "a", "task": "classes", "classes": classes, "family": "forest of my own"}
    save_published(publish(model, feature_defaults(x, kinds), **about), kit / "outbox")


def test_a_dry_run_names_the_model_that_would_be_published(owner: Owner) -> None:
    pytest.importorskip("onnxruntime")
    policy = owner.policy('learn = "collect"\npublish = "forest trees=7 columns=age"\n')
    said = owner.dry(*policy, "--method", "stacking")
    assert "published: a forest of 7 trees on 1 column, epsilon –, " in said
    private = owner.policy('learn = "collect"\npublish = "dp-linear epsilon=2"\nepsilon = 1\n')
    said = owner.dry(*private, "--method", "stacking", code=1)
    assert "refused: models of epsilon 2 would be published, and this site's policy has epsilon = 1" in said


def test_a_dry_run_names_the_model_of_the_outbox_or_says_why_it_may_not_be_published(owner: Owner) -> None:
    pytest.importorskip("onnxruntime")
    policy = [*owner.policy('learn = "collect"\npublish = "outbox"\n'), "--method", "stacking"]
    assert "outbox holds 0 models" in owner.dry(*policy, code=1)
    published(owner.kit)
    assert "published: a forest of my own on 2 columns, epsilon –, " in owner.dry(*policy)
    published(owner.kit, ("healthy", "sick"))
    assert "knows the class 'healthy', and this federation's are ['no', 'yes']" in owner.dry(*policy, code=1)
    (owner.kit / "outbox" / "model.pkl").write_bytes(b"\x80\x04")
    assert "is a pickle" in owner.dry(*policy, code=1)


def test_a_site_publishes_the_model_of_its_outbox_and_the_ledger_names_it(owner: Owner) -> None:
    pytest.importorskip("onnxruntime")
    from motet.runs.build import completed
    from motet.runs.recipe import read

    owner.join(*owner.data, *owner.policy('learn = "collect"\npublish = "outbox"\nsecret_orders = false\n'))
    published(owner.kit)
    service = open_service(owner.kit)
    source, policy = service.rows.source, service.policy
    measured = Reply.read(service.answer(Letter("measure", "r", send={"kind": "classes"}).pack())).tree
    layout = merge({"a": source.describe(policy)}, "stacking").layout("auto")
    layout = pooled(layout, {"a": source.own_layout("classes").columns}, {"a": measured})
    assert not Reply.read(service.answer(Letter("layout", "r", send=layout.tree()).pack())).refusal
    recipe = completed(read(more={"method": {"name": "stacking"}}), source.build_clients(layout))
    held = {"method": recipe["method"], "net": recipe["net"], "seed": recipe.seed}
    offered = Reply.read(service.answer(Letter("offer", "r", recipe=held, send={"rounds": 1}).pack()))
    assert offered.tree == {"accepted": True}, offered
    ask = Letter("verb", "r", 0, verb="publish", learn="all", seed=turn_seed(recipe.seed, 0), recipe=held)
    reply = Reply.read(service.answer(ask.pack()))
    manifest = Published.from_tree(reply.tree[0]).manifest
    assert manifest.classes == ("0", "1") and abs(manifest.features[0].default) < 1  # standardised
    assert "a forest of my own on 2 columns" in service.ledger.path.read_text()


def test_a_dry_run_before_the_first_join_shows_the_policy_that_the_join_writes(owner: Owner) -> None:
    """It is what an owner shows to a board."""
    before = json.loads(owner.dry("--json"))
    owner.join(*owner.data)
    after = json.loads(owner.dry("--json"))
    assert before["contract"]["scores"] == "masked" and before["contract"]["masked"]
    assert before == after


def test_a_site_can_try_the_recipe_that_the_run_is_to_have(owner: Owner, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[method]\nname = "fedavg"\n[data]\nfeatures = "common"\nscale = "client"\n[guard]\nmasked = true\n'
    )
    assert "within this site's policy" in owner.dry("--recipe", str(recipe))


def test_a_renewed_certificate_of_a_site_that_joined_asks_for_a_restart_alone(
    owner: Owner, capsys: pytest.CaptureFixture[str]
) -> None:
    care = owner.kit.parent
    for joined in (False, True):
        if joined:
            owner.join(*owner.data)
        assert main(["federation", "renew", str(care), "a"]) == 0
        assert main(["federation", "accept", str(owner.kit), str(care / "a.signed")]) == 0
        said = capsys.readouterr().err
        assert ("--data FILE --target COLUMN" in said) != joined
        assert f"motet federation join {owner.kit}" in said and ("start it anew" in said) == joined
