"""From a name to a federation: homes that share no rows, one storage, a fingerprint."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from motet import nets
from motet.data.federated import DataError, Pool
from motet.data.load import DataSettings, as_pool, load
from motet.data.partition import partition
from motet.data.user_table import load as read
from motet.settings import fields_of
from motet.trusted_code import trust_names

shares = st.integers(0, 45).map(lambda percent: percent / 100)


def numbered(n: int = 120, classes: int = 3, **more) -> Pool:
    """Rows that hold their own number, so that they can be distinguished."""
    rng = np.random.default_rng(0)
    x = np.arange(n, dtype=np.float32)[:, None]
    words = tuple(map(str, range(classes)))
    return Pool(x, rng.integers(0, classes, n), "classes", words, **({"scaling": "none"} | more))


def rows(batch) -> list[int]:
    return batch.x[:, 0].long().tolist()


def everyone(federation):
    return [*federation.clients_data.values(), *federation.unseen.values()]


@given(st.integers(20, 200), st.integers(1, 6), st.integers(0, 99), shares, shares)
@settings(max_examples=40, deadline=None)
def test_no_rows_are_shared_and_everyone_has_one_to_train_on(n, clients, seed, val, test):
    assume(val + test == 0 or max(val, test) * (n // clients) >= 1)  # else nothing could be measured: refused
    common = DataSettings(seed, "iid", val=val, test=test, unseen=0.3)
    federation = partition("t", numbered(n), common, {"clients": clients})
    assigned = [r for h in everyone(federation) for b in (h.train, h.val, h.test) for r in rows(b)]
    assert sorted(assigned) == list(range(n))
    assert all(h.n >= 1 for h in everyone(federation))
    assert len(federation.unseen) == int(0.3 * clients + 1e-9)


def test_parts_are_stratified():
    pool = numbered(400, 2)
    pool.y[:] = np.arange(400) % 4 == 0  # a quarter of the rows
    federation = partition("t", pool, DataSettings(split="iid", unseen=0), {"clients": 2})
    for client_data in federation.clients_data.values():
        share = [float(b.y.float().mean()) for b in (client_data.train, client_data.val, client_data.test)]
        assert max(share) - min(share) < 0.04


def test_a_class_with_one_row_is_trained_on():
    pool = numbered(21, 2)
    pool.y[:] = np.arange(21) == 7
    client_data = partition("t", pool, DataSettings(5, "iid"), {"clients": 1}).clients_data["client-0"]
    assert client_data.train.y.sum() == 1


def test_a_client_with_one_row_trains_on_it_and_is_noted():
    owner = np.array(["big"] * 20 + ["one"])
    federation = partition("t", numbered(21, owner=owner), DataSettings(), {})
    one = federation.clients_data["one"]
    assert (one.n, len(one.val.x), len(one.test.x)) == (1, 0, 0)
    assert one.val.x.shape == (0, 1) and one.val.live.shape == (0,)
    assert "1 of 2 clients without test rows: one" in federation.notes


def test_a_federation_without_validation_or_test_rows_says_what_that_means():
    owner = np.array(["a"] * 20 + ["b"] * 20)
    federation = partition("t", numbered(40, owner=owner), DataSettings(val=0, test=0), {})
    assert (
        "no client has validation rows: the last round is reported, and no method is chosen"
        in federation.notes
    )
    assert "no client has test rows: nothing says how good the models are" in federation.notes


def test_a_clients_parts_do_not_depend_on_who_else_is_there():
    owner = np.array(["a"] * 30 + ["b"] * 30)
    both = partition("t", numbered(60, owner=owner), DataSettings(4), {}).clients_data["a"]
    pool = numbered(60, owner=owner)
    alone = Pool(pool.x[:30], pool.y[:30], "classes", pool.classes, owner=owner[:30], scaling="none")
    assert rows(partition("t", alone, DataSettings(4), {}).clients_data["a"].test) == rows(both.test)


def test_all_homes_are_views_of_one_tensor():
    federation = load("wine", {"clients": 8})
    batches = [b for h in everyone(federation) for b in (h.train, h.val, h.test)]
    assert len({b.x.untyped_storage().data_ptr() for b in batches}) == 1
    assert len({b.y.untyped_storage().data_ptr() for b in batches}) == 1
    assert len({b.live.untyped_storage().data_ptr() for b in batches}) == 1
    assert all(b.live.shape == (len(b.x),) and b.live.all() for b in batches)
    assert batches[0].x.dtype == torch.float32 and batches[0].y.dtype == torch.int64


def test_the_fingerprint_is_the_datas_and_changes_with_one_value():
    a, b = (load("wine", {"clients": 5, "seed": 1}) for _ in range(2))
    assert a.fingerprint() == b.fingerprint() != load("wine", {"clients": 5, "seed": 2}).fingerprint()
    b.clients_data["client-0"].train.x[0, 0] += 1e-6
    assert a.fingerprint() != b.fingerprint()
    b.clients_data["client-0"].train.x[0, 0] = a.clients_data["client-0"].train.x[0, 0]
    assert a.fingerprint() == b.fingerprint()
    b.clients_data["renamed"] = b.clients_data.pop("client-0")
    assert a.fingerprint() != b.fingerprint()


def test_pooled_rows_are_those_of_the_clients_that_take_part():
    federation = partition("t", numbered(), DataSettings(split="iid"), {"clients": 10})
    pooled = federation.pooled()
    for part in ("train", "val", "test"):
        apart = [r for h in federation.clients_data.values() for r in rows(getattr(h, part))]
        assert rows(getattr(pooled.clients_data["everyone"], part)) == apart
    assert not pooled.unseen and list(pooled.clients_data) == ["everyone"]


def test_fixed_parts_are_kept_and_clients_without_training_rows_are_dropped():
    part = np.array(["train", "test", "val", "server_test", "proxy", "test"])
    owner = np.array(["a", "a", "a", "a", "a", "b"])
    pool = numbered(6, 2, part=part, owner=owner)
    pool.y[:] = [0, 1, 0, 1, 0, 1]
    federation = partition("t", pool, DataSettings(), {})
    client_data = federation.clients_data["a"]
    assert [rows(b) for b in (client_data.train, client_data.val, client_data.test)] == [[0], [2], [1]]
    assert rows(federation.server_test) == [3] and rows(federation.proxy) == [4]
    assert list(federation.clients_data) == ["a"] and "1 of 2 clients dropped" in federation.notes[0]


def test_scaling_by_client_uses_each_clients_own_training_rows():
    federation = partition(
        "t", numbered(200, scaling="federation"), DataSettings(scale="client", split="iid"), {"clients": 4}
    )
    for client_data in federation.clients_data.values():
        assert abs(float(client_data.train.x.mean())) < 1e-5
        assert abs(float(client_data.train.x.std(correction=0)) - 1) < 1e-4


def test_images_are_not_scaled_by_column():
    with pytest.raises(DataError, match=r"scale = 'client' is for tables.*\(1, 8, 8\)"):
        load("digits", {"scale": "client"})


def test_unknown_names_and_options_are_corrected():
    with pytest.raises(DataError, match="no data set 'wnie'.\nhint: did you mean 'wine'"):
        load("wnie")
    with pytest.raises(DataError) as caught:
        load("wine", {"client": 5, "alpha": "big"})
    assert "unknown setting data.client of wine\nhint: did you mean 'clients'" in str(caught.value)
    assert "data.alpha is 'big'; it must be a number" in str(caught.value)


def test_impossible_shares_are_reported_together():
    with pytest.raises(DataError) as caught:
        load("wine", {"val": 0.6, "test": 0.4, "unseen": 1.0, "features": 0.0})
    assert str(caught.value).startswith("3 things are wrong")
    with pytest.raises(DataError, match="no split 'dirichelt'.\nhint: did you mean 'dirichlet'"):
        load("wine", {"split": "dirichelt"})


def test_a_natural_split_needs_owners():
    with pytest.raises(DataError, match="do not say which client"):
        load("wine", {"split": "natural"})


def test_a_persons_own_function_may_return_arrays_per_client(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_data_of_a_test.py").write_text(
        "import numpy as np\n"
        "def mine(n=8, seed=0):\n"
        "    x = np.full((n, 2), seed) + np.arange(n)[:, None]\n"
        "    return {c: (x, ['u', 'v'] * (n // 2)) for c in 'ba'}\n"
    )
    trust_names(["own_data_of_a_test:mine", "nowhere:mine"])
    federation = load("own_data_of_a_test:mine", {"n": 10, "scale": "none", "seed": 5})
    assert list(federation.clients_data) == ["a", "b"] and federation.classes == ("u", "v")
    assert min(rows(b)[0] for h in everyone(federation) for b in (h.train, h.val, h.test)) >= 5
    with pytest.raises(DataError, match="names the module 'nowhere'"):
        load("nowhere:mine")


def test_arrays_per_client_are_checked_together():
    with pytest.raises(DataError) as caught:
        as_pool({"a": (np.ones((2, 3)), [0]), "b": (np.ones((0, 3)), []), "c": 1}, "f")
    said = str(caught.value)
    assert (
        "client a has 2 examples" in said
        and "client b has no examples" in said
        and "client c has int" in said
    )


@pytest.mark.parametrize("f", [DataSettings, read, *map(nets.source, nets.names())])
def test_every_option_has_a_comment_on_its_own_line(f):
    lines = [line.strip() for line in inspect.getsource(f).splitlines()]
    for name in fields_of(f):
        assert any(re.match(rf"{name}: \S.* = .+  # \w", line) for line in lines), name


def test_importing_the_loader_imports_neither_pandas_nor_sklearn():
    code = "import sys, motet.data.load; print('pandas' in sys.modules or 'sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("options", "held"),
    [
        ({}, 0),
        ({"split": "natural"}, 0),
        ({"unseen": 0.2}, 2),
        ({"unseen": 0.0}, 0),
        ({"split": "dirichlet", "clients": 10}, 1),
        ({"split": "dirichlet", "clients": 10, "unseen": 0.0}, 0),
    ],
    ids=str,
)
def test_a_party_that_the_data_name_is_held_out_only_if_one_says_so(
    tmp_path: Path, options: dict[str, Any], held: int
) -> None:
    rows = [f"{i % 7},{'a' if i % 3 else 'b'},hospital-{i % 10}" for i in range(200)]
    (tmp_path / "d.csv").write_text("\n".join(["x,y,who", *rows]))
    found = load(str(tmp_path / "d.csv"), {"target": "y", "client": "who", **options})
    assert len(found.unseen) == held and found.unseen_share == pytest.approx(held / 10)
