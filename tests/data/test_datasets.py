"""The built-in data sets hold what they say."""

import numpy as np
import pytest

from motet.data.federated import DataError
from motet.data.load import load, names
from motet.data.sets import synthetic


@pytest.fixture(scope="module")
def page():
    return load("synthetic", {"unseen": 0.0, "seed": 3})


def parts(client_data):
    return client_data.train, client_data.val, client_data.test


def test_page_has_100_clients_with_210_30_and_60_rows_and_2500_and_5000_at_the_server(page):
    assert len(page.clients_data) == 100 and page.shape == (30,) and page.outputs == 30
    assert {tuple(len(b.x) for b in parts(h)) for h in page.clients_data.values()} == {(210, 30, 60)}
    assert len(page.proxy.x) == 2500 and len(page.server_test.x) == 5000


def test_page_labels_are_the_argmax_of_one_labeller(page):
    w, b = synthetic.labeller(3, 30, 30)
    batches = [b for h in page.clients_data.values() for b in parts(h)] + [page.proxy, page.server_test]
    for batch in batches:
        scores = batch.x.numpy().astype(np.float64) @ w + b
        assert (scores.argmax(1) == batch.y.numpy()).all()


def test_page_inputs_spread_as_j_to_the_minus_1_2(page):
    within = np.mean([h.train.x.numpy().var(0, ddof=1) for h in page.clients_data.values()], axis=0)
    assert np.allclose(within, np.arange(1, 31) ** -1.2, rtol=0.05)


def test_page_clients_are_the_same_whether_others_follow(page):
    few = load("synthetic", {"unseen": 0.0, "clients": 20, "seed": 3})
    assert (few.clients_data["client-07"].train.x == page.clients_data["client-07"].train.x).all()
    assert (few.clients_data["client-07"].train.y == page.clients_data["client-07"].train.y).all()


def test_page_counts_follow_the_number_of_samples():
    assert synthetic.parts(375) == (210, 30, 60, 25, 50)
    assert synthetic.parts(750) == (420, 60, 120, 50, 100)
    assert all(sum(synthetic.parts(n)) == n and min(synthetic.parts(n)) >= 1 for n in range(15, 400))


def test_held_out_clients_give_the_server_no_proxy_rows():
    federation = load("synthetic", {"clients": 20, "unseen": 0.1})
    assert len(federation.unseen) == 2 and len(federation.clients_data) == 18
    assert len(federation.proxy.x) == 18 * 25 and len(federation.server_test.x) == 20 * 50


def test_fedprox_has_60_features_10_classes_and_capped_sizes():
    federation = load(
        "synthetic", {"generator": "fedprox", "clients": 60, "alpha": 1.0, "cap": 500, "seed": 1}
    )
    sizes = [sum(len(b.x) for b in parts(h)) for h in federation.clients_data.values()]
    assert federation.shape == (60,) and federation.outputs == 10
    assert min(sizes) >= 50 and max(sizes) == 500 and len(set(sizes)) > 20
    assert any("cut to 500 rows" in n for n in federation.notes)


def test_synthetic_refuses_what_it_cannot_draw():
    with pytest.raises(DataError, match="samples is 3; expected at least 15"):
        load("synthetic", {"samples": 3})
    with pytest.raises(DataError, match="generator is 'pge'"):
        load("synthetic", {"generator": "pge"})


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "rows"),
    [
        ("digits", (1, 8, 8), 10, 1797),
        ("breast_cancer", (30,), 2, 569),
        ("wine", (13,), 3, 178),
        ("diabetes", (10,), 1, 442),
    ],
)
def test_sklearn_sets_keep_all_their_rows(name, shape, outputs, rows):
    federation = load(name, {})
    clients_data = [*federation.clients_data.values(), *federation.unseen.values()]
    assert name in names() and federation.shape == shape and federation.outputs == outputs
    assert len(federation.clients_data) == 18 and len(federation.unseen) == 2
    assert sum(len(b.x) for h in clients_data for b in parts(h)) == rows


def test_digits_are_images_from_0_to_1_and_are_not_scaled():
    x = load("digits", {"clients": 2}).clients_data["client-0"].train.x
    assert x.min() == 0 and x.max() == 1


def test_tables_are_standardised_by_the_training_rows_of_those_who_take_part():
    clients_data = load("wine", {"clients": 10}).clients_data.values()
    x = np.concatenate([h.train.x.numpy() for h in clients_data])
    assert np.allclose(x.mean(0), 0, atol=1e-5) and np.allclose(x.std(0), 1, atol=1e-5)


def test_targets_that_are_numbers_come_back_with_scale_and_offset():
    federation = load("diabetes", {"clients": 5})
    clients_data = [*federation.clients_data.values(), *federation.unseen.values()]
    y = np.concatenate([b.y.numpy() for h in clients_data for b in parts(h)])
    back = np.sort(y.astype(np.float64) * federation.scale + federation.offset)
    from sklearn.datasets import load_diabetes

    assert np.allclose(back, np.sort(load_diabetes().target), atol=1e-3)
