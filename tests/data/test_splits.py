"""Every split deals rows as its formula says: none twice, none lost that should not be, the same for one seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from motet.data.federated import DataError, Pool
from motet.data.load import load
from motet.data.splits import Assignment, Rows, names, source
from motet.data.splits.assignment import client_names
from motet.data.splits.basic import iid, natural, vertical
from motet.data.splits.labels import classes, dirichlet, label_skew
from motet.data.splits.sizes import lognormal, quantity_skew, taken, whole

groups = source("groups")

seeds = st.integers(0, 10**6)
WHOLE = ("iid", "dirichlet", "classes", "quantity_skew", "lognormal")  # splits that assign every row


def labels(n: int, seed: int, many: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, many, n)


def counts(assignment: Assignment, y: np.ndarray) -> np.ndarray:
    """(clients, classes)"""
    table = np.zeros((len(assignment.clients), int(y.max()) + 1), int)
    np.add.at(table, (assignment.who, y[assignment.row]), 1)
    return table


@given(st.sampled_from(WHOLE), st.integers(60, 300), st.integers(2, 6), seeds, st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_row_is_dealt_exactly_once_and_everyone_has_some(name, n, many, seed, numbers):
    y = np.random.default_rng(seed).random(n) if numbers else labels(n, seed)
    least = 10 if numbers or name == "classes" else 1
    options = {"classes": {"per_client": 5 if numbers else 3}}.get(name, {})
    assignment = source(name)(Rows.of(y, seed), clients=many, **options)
    assert sorted(assignment.row) == list(range(n))
    assert np.bincount(assignment.who, minlength=many).min() >= min(least, 1)
    assert len(assignment.clients) == many


@given(st.integers(200, 400), st.integers(2, 5), seeds, st.booleans())
@settings(max_examples=60, deadline=None)
def test_label_skew_deals_no_row_twice_in_clients_of_one_size(n, many, seed, prior):
    y = labels(n, seed, 2)
    assignment = label_skew(Rows.of(y, seed), clients=many, alpha=10.0, prior=prior, least=2)
    assert len(set(assignment.row.tolist())) == len(assignment.row)
    assert set(np.bincount(assignment.who).tolist()) == {int(np.bincount(y).min()) // many}


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_groups_share_no_training_row(seed):
    y = np.repeat(np.arange(10), 400)
    assignment = groups(Rows.of(y, seed), rows=40)
    assert len(set(assignment.row.tolist())) == len(assignment.row)


@pytest.mark.parametrize("name", names())
def test_the_same_seed_gives_the_same_split_and_another_seed_another(name):
    y = np.repeat(np.arange(10), 500)

    def assigned(seed: int) -> bytes:
        options = {"rows": 60} if name == "groups" else {}
        assignment = source(name)(Rows(np.arange(5000), y, seed, owner=y), **options)
        return assignment.row.tobytes() + assignment.who.tobytes()

    assert assigned(3) == assigned(3)
    if name not in ("natural", "vertical"):  # these draw nothing
        assert assigned(3) != assigned(4)


# ---- by classes ----


def test_a_large_alpha_is_nearly_even_in_every_class():
    y = np.repeat(np.arange(3), 1000)
    for seed in range(5):
        assert (abs(counts(dirichlet(Rows.of(y, seed), clients=5, alpha=1e6), y) - 200) <= 5).all()


def test_a_dirichlet_share_has_the_formulas_mean_and_spread():
    """A share of Dirichlet(a) over n clients has mean 1/n and variance (n-1)/(n^2 (n a + 1))."""
    y, n, alpha = np.repeat(np.arange(2000), 200), 4, 0.5
    shares = counts(dirichlet(Rows.of(y, 1), clients=n, alpha=alpha, capped=False), y) / 200
    assert shares.mean() == pytest.approx(1 / n)
    assert shares.var() == pytest.approx((n - 1) / (n**2 * (n * alpha + 1)), rel=0.05)


def test_who_has_an_equal_share_gets_no_more():
    y = np.repeat(np.arange(100), 500)
    free = counts(dirichlet(Rows.of(y, 2), clients=100, alpha=0.3, capped=False), y).sum(1)
    capped = counts(dirichlet(Rows.of(y, 2), clients=100, alpha=0.3), y)
    assert capped.sum(1).std() < free.std()
    # What a client held before the last class it got anything of was below an equal share.
    before = capped.cumsum(1) - capped
    assert (before[capped > 0] < 500).all()
    assert capped.sum(1).min() >= 10


def test_label_skew_matches_dirichlet_in_expectation_symmetric_and_by_the_prior():
    y = np.repeat([0, 1], [60_000, 20_000])
    for prior, share in ((False, 0.5), (True, 0.25)):
        table = counts(label_skew(Rows.of(y, 5), clients=100, alpha=50.0, prior=prior, size=150), y)
        got = table[:, 1] / 150
        assert got.mean() == pytest.approx(share, abs=0.02)
        total = 50.0 * (1 if prior else 2)
        assert got.std() == pytest.approx((share * (1 - share) / (total + 1)) ** 0.5, rel=0.3)


def test_label_skew_of_the_census_has_1128_rows_each():
    y = np.repeat([0, 1], [46_643 - 11_280, 11_280])
    assignment = label_skew(Rows.of(y), clients=10, alpha=0.5)
    assert set(np.bincount(assignment.who).tolist()) == {1128}
    assert counts(assignment, y).min() >= 10


@given(seeds, st.integers(1, 10))
@settings(max_examples=20, deadline=None)
def test_every_client_holds_exactly_k_classes_and_classes_are_shared_evenly(seed, k):
    y = np.repeat(np.arange(10), 100)
    table = counts(classes(Rows.of(y, seed), clients=20, per_client=k), y)
    assert ((table > 0).sum(1) == k).all()
    holders = (table > 0).sum(0)
    assert holders.max() - holders.min() <= 1
    for column in table.T:
        assert np.ptp(column[column > 0]) <= 1


def test_too_few_clients_for_all_classes_are_refused():
    with pytest.raises(DataError, match="do not hold all 10 classes"):
        classes(Rows.of(np.repeat(np.arange(10), 9)), clients=4, per_client=2)
    with pytest.raises(DataError, match="per_client is 11; there are 10 classes"):
        classes(Rows.of(np.repeat(np.arange(10), 90)), clients=4, per_client=11)


# ---- by sizes ----


def test_quantity_skew_of_the_census_has_the_formulas_sizes():
    sizes = np.bincount(quantity_skew(Rows.of(np.zeros(46_643, int)), clients=10, beta=0.25).who)
    assert sizes.sum() == 46_643
    assert (sizes.min(), sizes.max()) == (1_582, 23_917)
    shares = np.sort(sizes - 500)[::-1] / 41_643
    assert shares == pytest.approx(
        [0.562, 0.106, 0.071, 0.055, 0.046, 0.039, 0.035, 0.031, 0.028, 0.026], abs=1e-3
    )


def test_quantity_skew_with_beta_one_is_even():
    sizes = np.bincount(quantity_skew(Rows.of(np.zeros(1007, int)), clients=10, beta=1.0).who)
    assert sizes.max() - sizes.min() <= 1


def test_lognormal_sizes_have_the_formulas_spread_and_classes_follow_each_clients_shares():
    y = np.repeat(np.arange(10), 100_000)
    table = counts(lognormal(Rows.of(y, 1), clients=400, sigma=0.7, alpha=0.3), y)
    sizes = table.sum(1)
    assert np.log(sizes).std() == pytest.approx(0.7, rel=0.1)
    biggest = (table / sizes[:, None]).max(1).mean()
    even = counts(lognormal(Rows.of(y, 1), clients=400, sigma=0.0, alpha=0.0), y)
    assert biggest > 0.4 > 0.15 > (even / 2500).max(1).mean()
    assert set(even.sum(1).tolist()) == {2500}


def test_a_client_takes_from_its_other_classes_when_one_has_run_out():
    rng = np.random.default_rng(0)
    assert taken(np.array([1.0, 0.0]), 5, np.array([2, 9]), rng).tolist() == [2, 3]


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20))
def test_whole_numbers_keep_the_sum_and_stay_within_one(shares):
    total = round(sum(shares))
    scaled = np.array(shares) * (total / sum(shares) if sum(shares) else 0)
    got = whole(scaled)
    assert got.sum() == total or sum(shares) == 0
    assert (abs(got - scaled) < 1 + 1e-6).all()


# ---- FedPerC's groups ----


def official(classes: int, train: int, test: int) -> Rows:
    """Targets of an official training and test set."""
    y, server_test_y = np.repeat(np.arange(classes), train), np.repeat(np.arange(classes), test)
    return Rows(
        np.arange(len(y)),
        y,
        0,
        server_test=len(y) + np.arange(len(server_test_y)),
        server_test_y=server_test_y,
    )


def test_fedperc_on_cifar_100_has_the_papers_test_sizes():
    all_rows = official(100, 500, 100)
    assignment = groups(all_rows)
    tests = np.bincount(assignment.who[assignment.part == 2], minlength=20)
    train = np.bincount(assignment.who[assignment.part == -1], minlength=20)
    assert set(tests.tolist()) <= {360, 352, 344} and (tests == 360).sum() >= 10
    assert (train == tests / 360 * 900).all() or set(train.tolist()) <= {900, 880, 860}
    y = np.concatenate([all_rows.y, all_rows.server_test_y])
    table = counts(assignment, y)
    shared = (table == 40 + 16).astype(int)
    assert (shared.sum(1) == 20).all()
    same_group = shared @ shared.T
    assert (same_group[:5, :5] == 20).all() and (same_group[:5, 5:] == 0).all()


def test_fedperc_on_cifar_10_has_80_percent_of_two_classes_and_20_of_another():
    all_rows = official(10, 5000, 1000)
    assignment = groups(all_rows)
    y = np.concatenate([all_rows.y, all_rows.server_test_y])
    table = counts(
        Assignment(
            assignment.row[assignment.part == -1], assignment.who[assignment.part == -1], assignment.clients
        ),
        y,
    )
    assert all(sorted(row[row > 0]) == [200, 400, 400] for row in table)
    assert (np.bincount(assignment.who[assignment.part == 2]) == 400).all()
    train = assignment.row[assignment.part == -1]
    assert len(set(train.tolist())) == len(train)


def test_groups_that_need_more_classes_or_rows_than_there_are_are_refused():
    with pytest.raises(DataError, match="need 8 classes; there are 4"):
        groups(Rows.of(labels(100, 0)), shared=2)
    with pytest.raises(DataError, match="training rows of one class are asked for"):
        groups(Rows.of(np.repeat(np.arange(10), 50)))


def test_the_most_rows_that_groups_can_have_are_named_and_work():
    few = Rows.of(np.repeat(np.arange(10), 50))
    with pytest.raises(DataError) as refused:
        groups(few)
    most = int(str(refused.value).split("hint: data.rows=")[1].split()[0])
    assert len(groups(few, rows=most).row)
    with pytest.raises(DataError, match=f"data.rows={most} is the most"):
        groups(few, rows=most + 1)


# ---- by columns ----


def test_vertical_clients_hold_all_rows_and_their_own_columns_and_nobody_trains_on_anothers_test():
    federation = load("breast_cancer", {"split": "vertical", "clients": 4, "features": 0.3, "unseen": 0})
    clients_data = list(federation.clients_data.values())
    held = [{c.name for c in h.columns if c.here} for h in clients_data]
    assert {len(h) for h in held} == {9}  # 0.3 of 30
    assert len(set(map(frozenset, held))) == 4
    for client_data in clients_data:
        absent = [not c.here for c in client_data.columns]
        assert (client_data.train.x[:, absent] == 0).all() and (
            client_data.train.x[:, [not a for a in absent]] != 0
        ).any()
        assert client_data.n + len(client_data.val) + len(client_data.test) == 569
        assert (client_data.test.y == clients_data[0].test.y).all()  # the same rows are tested everywhere


def test_a_hybrid_federation_divides_rows_and_columns():
    federation = load("breast_cancer", {"split": "iid", "clients": 5, "features": 0.5, "unseen": 0})
    assert sum(h.n + len(h.val) + len(h.test) for h in federation.clients_data.values()) == 569
    assert {sum(c.here for c in h.columns) for h in federation.clients_data.values()} == {15}


def test_flags_of_one_category_stay_together():
    from motet.client import Column
    from motet.data.partition import columns_of

    columns = tuple([Column(f"a={i}", "flag", "a") for i in range(3)] + [Column("b"), Column("c")])
    pool = Pool(np.zeros((4, 5), np.float32), np.array([0, 1, 0, 1]), "classes", ("x", "y"), columns)
    held = columns_of(pool, tuple("abcdefgh"), 0.7, 0)
    assert held is not None and (held[:, :3].all(1) | ~held[:, :3].any(1)).all()
    assert set((held[:, 0].astype(int) + held[:, 3] + held[:, 4]).tolist()) == {2}


def test_images_have_no_columns_to_divide():
    with pytest.raises(DataError, match="no columns to divide"):
        load("digits", {"features": 0.5})


# ---- the rest ----


def test_numbers_are_divided_by_quantiles():
    y = np.linspace(0, 1, 1000)
    assignment = dirichlet(Rows.of(y, 3), clients=5, alpha=0.1)
    means = [y[assignment.row[assignment.who == c]].mean() for c in range(5)]
    assert np.std(means) > 0.05  # an even split has about 0.02


def test_owners_are_sorted_by_name_whether_words_or_indices():
    for owner, known in ((np.array(["b", "a", "b"]), ()), (np.array([0, 1, 0]), ("b", "a"))):
        assignment = natural(Rows(np.arange(3), np.zeros(3, int), 0, owner, known))
        assert assignment.clients == ("a", "b") and assignment.who.tolist() == [1, 0, 1]


def test_names_sort_like_numbers():
    assert list(client_names(120)) == sorted(client_names(120))


def test_more_clients_than_rows_is_refused():
    with pytest.raises(DataError, match="3 rows cannot be divided among 4 clients.*\nhint: take at most 3"):
        iid(Rows.of(np.zeros(3, int)), clients=4)
    with pytest.raises(DataError, match="with at least 2 each"):
        dirichlet(Rows.of(np.zeros(7, int)), clients=4, least=2)
    with pytest.raises(DataError, match="clients is 0"):
        vertical(Rows.of(np.zeros(7, int)), clients=0)


def test_a_split_that_no_draw_makes_is_refused_with_a_hint():
    with pytest.raises(DataError, match="none of 100 draws.*\nhint: take fewer clients, a larger alpha"):
        dirichlet(Rows.of(np.repeat([0, 1], 50)), clients=40, alpha=0.01, capped=False)
    with pytest.raises(DataError, match="none of 100 draws gave every client 10 rows of two classes"):
        label_skew(Rows.of(np.repeat([0, 1], 500)), clients=10, alpha=0.01)


def test_shares_must_be_positive():
    with pytest.raises(DataError, match="alpha is 0; expected more than 0"):
        dirichlet(Rows.of(np.zeros(10, int)), clients=2, alpha=0)
    with pytest.raises(DataError, match="beta is -1"):
        quantity_skew(Rows.of(np.zeros(10, int)), clients=2, beta=-1)
