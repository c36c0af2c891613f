"""Private models: clipping and noise by hand, budgets as accounted for, and answers that agree everywhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")

from motet.guard.private_models.membership import attack, log_losses, most
from motet.guard.private_models.ranges import Ranges, bounds_of
from motet.published import Feature, defaults, predict, publish

NAMES = ("age", "wage", "sex")
BOUNDS = bounds_of(NAMES, {"age": (0, 100), "wage": (0, 100_000)})
FEATURES = (Feature("age", default=40.0), Feature("wage", default=2000.0), Feature("sex", "flag", 1.0))


def people(rows: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = np.stack([rng.uniform(18, 90, rows).round(), rng.lognormal(7, 1, rows), rng.random(rows) < 0.5], 1)
    return x.astype(np.float32), (x[:, 0] / 60 + x[:, 2] + rng.normal(0, 0.3, rows) > 1.4).astype(int)


X, Y = people()


# Ranges.


def test_columns_go_to_0_to_1_and_wide_ones_by_logarithm() -> None:
    z = Ranges.of(BOUNDS, 3).scaled(np.array([[50, 0, 1], [-7, 99_999_999, 0], [np.nan, 99, 1]]))
    expected = [[0.5, 0, 1], [0, 1, 0], [0.5, math.log(100) / math.log(100_001), 1]]
    np.testing.assert_allclose(z, expected, atol=1e-6)


def test_bounds_that_are_not_ordered_are_refused() -> None:
    with pytest.raises(ValueError, match="2 pairs"):
        Ranges.of([(0, 1), (1, 1)], 2)


# DP-SGD.


def network(**settings: object) -> object:
    pytest.importorskip("opacus")
    from motet.guard.private_models.dp_network import DPNetwork

    return DPNetwork(bounds=BOUNDS, **{"epochs": 5, "batch": 64, "random_state": 0} | settings)


def test_each_example_s_gradient_is_clipped_before_the_sum() -> None:
    from motet.guard.private_models.dp_network import clipped

    net = torch.nn.Linear(1, 2)
    w = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
    x, y = torch.tensor([[3.0], [0.0]]), torch.tensor([1, 0])
    # At w = 0, d loss / d scores = p - onehot: (.5, -.5) and (-.5, .5), times x for the weights, times 1 for the bias.
    first, second = math.sqrt(0.5 * (9 + 1)), math.sqrt(0.5)
    total = clipped(net, w, x, y, 1.0)
    np.testing.assert_allclose(total["weight"], [[1.5 / first], [-1.5 / first]], atol=1e-6)
    assert second < 1  # is left as it is
    np.testing.assert_allclose(total["bias"], [0.5 / first - 0.5, -0.5 / first + 0.5], atol=1e-6)


@settings(deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 10))
def test_one_row_more_moves_the_sum_by_the_clipping_length_at_most(seed: int, length: float) -> None:
    from motet.guard.private_models.dp_network import clipped

    chance = torch.Generator().manual_seed(seed)
    net = torch.nn.Linear(3, 2)
    w = {"weight": torch.randn(2, 3, generator=chance), "bias": torch.randn(2, generator=chance)}
    x, y = 100 * torch.randn(4, 3, generator=chance), torch.randint(2, (4,), generator=chance)
    all_, fewer = clipped(net, w, x, y, length), clipped(net, w, x[:-1], y[:-1], length)
    assert sum(float((all_[k] - fewer[k]).square().sum()) for k in w) ** 0.5 <= length * 1.001 + 1e-5


def test_less_budget_needs_more_noise_and_what_is_spent_is_within_it() -> None:
    pytest.importorskip("opacus")
    from motet.guard.accounting import NoisySteps, epsilon_of, noise_for

    sigmas = [noise_for(e, 1e-5, 0.1, 50, "rdp") for e in (0.5, 2.0, 8.0)]
    assert sigmas[0] > sigmas[1] > sigmas[2]
    for e, sigma in zip((0.5, 2.0, 8.0), sigmas, strict=True):
        assert 0.9 * e < epsilon_of([NoisySteps(sigma, 0.1, 50)], 1e-5, "rdp") <= e


@pytest.mark.parametrize("hidden", [(), (8,)])
def test_a_private_network_learns_and_answers_strangers_as_at_home(hidden: tuple[int, ...]) -> None:
    model = network(hidden=hidden, epsilon=8.0).fit(X, Y)
    fresh, truth = people(seed=1)
    assert (model.predict(fresh) == truth).mean() > 0.75
    made = publish(model, FEATURES, client="a", task="classes", classes=("no", "yes"), privacy=model.privacy)
    fresh[::5, 1] = np.nan
    said, refused = predict([made], fresh, NAMES)
    assert not refused
    np.testing.assert_allclose(said["a"], model.predict_proba(fresh), atol=1e-5)
    assert made.manifest.privacy.mechanism == "DP-SGD"
    assert 7 < made.manifest.privacy.epsilon <= 8
    assert "seed" in made.manifest.privacy.note


def test_a_private_logistic_regression_is_an_estimator_of_scikit_learn() -> None:
    pytest.importorskip("opacus")
    from sklearn.base import clone

    from motet.guard.private_models.dp_network import DPLogistic

    model = clone(DPLogistic(epsilon=4.0, bounds=BOUNDS, epochs=3, batch=100, random_state=1))
    assert model.get_params()["epsilon"] == 4.0
    again = clone(model).fit(X, Y).predict_proba(X)
    np.testing.assert_array_equal(model.fit(X, Y).predict_proba(X), again)


def test_without_a_seed_no_two_private_models_are_the_same() -> None:
    a, b = (network(random_state=None, epochs=1).fit(X, Y) for _ in range(2))
    assert not np.array_equal(a.predict_proba(X), b.predict_proba(X))
    assert "seed" not in a.privacy.note


def test_classes_that_a_client_never_saw_may_be_named() -> None:
    model = network(classes=(0, 1, 2), epochs=1).fit(X, Y)
    assert model.predict_proba(X).shape == (len(X), 3)
    with pytest.raises(ValueError, match="not among"):
        network(classes=(1, 2)).fit(X, Y)


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"delta": 1.5}])
def test_a_budget_that_is_none_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        network(**wrong).fit(X, Y)


# Private boosting.


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_private_boosting_answers_strangers_as_at_home(task: str) -> None:
    pytest.importorskip("interpret")
    from motet.guard.private_models.dp_boosting import DPBoostingClassifier, DPBoostingRegressor

    more = {"bounds": BOUNDS, "max_rounds": 30, "epsilon": 4.0, "random_state": 0}
    fresh, truth = people(seed=1)
    fresh[::5, 0] = np.nan
    if task == "classes":
        model = DPBoostingClassifier(**more).fit(X, Y)
        client_data, classes = model.predict_proba(fresh), ("no", "yes")
        assert (model.predict(fresh) == truth).mean() > 0.6
    else:
        model = DPBoostingRegressor((0, 100), **more).fit(X, X[:, 0])
        client_data, classes = model.predict(fresh)[:, None], ()
    made = publish(model, FEATURES, client="a", task=task, classes=classes, privacy=model.privacy)
    np.testing.assert_allclose(predict([made], fresh, NAMES)[0]["a"], client_data, atol=1e-5, rtol=1e-5)
    assert (made.manifest.privacy.mechanism, made.manifest.privacy.epsilon) == ("DP-EBM", 4.0)


def test_private_boosting_of_three_classes_is_refused() -> None:
    pytest.importorskip("interpret")
    from motet.guard.private_models.dp_boosting import DPBoostingClassifier

    with pytest.raises(ValueError, match="two classes, and there are 3"):
        DPBoostingClassifier(bounds=BOUNDS).fit(X, np.arange(len(X)) % 3)


# Encrypted questions.


def test_encrypted_scores_are_the_plain_ones() -> None:
    pytest.importorskip("tenseal")
    from motet.guard.private_models.encrypted import Asker, Owner

    rng = np.random.default_rng(0)
    x, w, b = rng.normal(size=(5000, 3)), rng.normal(size=(2, 3)), rng.normal(size=2)
    asker = Asker()
    question = asker.ask(x)
    assert question["rows"] == [4096, 904]
    np.testing.assert_allclose(
        asker.read(Owner(w, b, rows=5000, flood=0.0).answer(question)), x @ w.T + b, atol=1e-5
    )
    off = asker.read(Owner(w, b, rows=5000).answer(question)) - (x @ w.T + b)
    assert 0.9e-3 < off.std() < 1.1e-3


def test_an_owner_does_not_answer_rows_enough_to_tell_its_weights() -> None:
    pytest.importorskip("tenseal")
    from motet.guard.private_models.encrypted import Asker, Owner

    owner, asker = Owner(np.ones((1, 5)), np.zeros(1)), Asker()
    owner.answer(asker.ask(np.ones((2, 5))))  # 4 with those in imaginary parts, and 6 tell the weights
    with pytest.raises(ValueError, match="reveal the weights"):
        owner.answer(asker.ask(np.ones((1, 5))))
    with pytest.raises(ValueError, match="other columns"):
        owner.answer(asker.ask(np.ones((1, 2))))


def test_places_beyond_the_announced_rows_are_not_answered() -> None:
    pytest.importorskip("tenseal")
    from motet.guard.private_models.encrypted import Asker, Owner

    asker = Asker()
    question = asker.ask(np.full((4096, 2), 5.0)) | {"rows": [1]}
    answer = Owner(np.ones((1, 2)), np.zeros(1), rows=1, flood=0.0).answer(question)
    places = asker._decrypted(answer["scores"][0][0])
    np.testing.assert_allclose(places, [10.0] + [0.0] * 4095, atol=1e-5)


def test_imaginary_parts_of_scores_have_as_much_noise_as_real_ones() -> None:
    """Or an asker that hides a second row there would be answered without any."""
    seal = pytest.importorskip("tenseal.sealapi")
    from motet.guard.private_models.encrypted import Asker, Owner, _loaded

    asker = Asker()
    answer = Owner(np.ones((1, 2)), np.zeros(1), rows=1).answer(asker.ask(np.ones((1, 2))))
    context, plain = asker._keys.seal_context().data, seal.Plaintext()
    found = _loaded(answer["scores"][0][0], context)
    seal.Decryptor(context, asker._keys.secret_key().data).decrypt(found, plain)
    places = np.array(seal.CKKSEncoder(context).decode_complex(plain))
    assert 0.9e-3 < places.imag.std() < 1.1e-3 and 0.9e-3 < places.real[1:].std() < 1.1e-3


def test_an_answer_to_another_key_is_refused() -> None:
    pytest.importorskip("tenseal")
    from motet.guard.private_models.encrypted import Asker, Owner

    asker = Asker()
    answer = Owner(np.ones((1, 2)), np.zeros(1), rows=1).answer(asker.ask(np.ones((1, 2))))
    with pytest.raises(ValueError, match="made for another key"):
        Asker().read(answer)
    assert Asker(asker.key).read(answer).shape == (1, 1)


def test_a_question_with_the_secret_key_is_sent_back() -> None:
    pytest.importorskip("tenseal")
    from motet.guard.private_models.encrypted import Asker, Owner

    asker = Asker()
    question = asker.ask(np.ones((1, 2)))
    question["keys"] = asker._keys.serialize(save_secret_key=True)
    with pytest.raises(ValueError, match="secret key"):
        Owner(np.ones((1, 2)), np.zeros(1), rows=1).answer(question)


# Membership.


def test_losses_are_those_of_the_own_class() -> None:
    p = np.array([[0.9, 0.1], [0.25, 0.75]])
    np.testing.assert_allclose(log_losses(p, np.array([0, 0])), [-math.log(0.9), -math.log(0.25)])


def test_members_with_lower_losses_are_told_and_equal_ones_are_not() -> None:
    assert attack(np.zeros(5), np.ones(3)).auc == 1.0
    assert attack(np.zeros(5), np.zeros(3)).auc == 0.5
    assert attack(np.zeros(5), np.zeros(3)).advantage == 0.0


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20)
)
def test_the_auc_is_the_share_of_pairs_in_order(members: list[int], others: list[int]) -> None:
    pairs = [1.0 if m < o else 0.5 if m == o else 0.0 for m in members for o in others]
    assert attack(np.array(members), np.array(others)).auc == pytest.approx(np.mean(pairs))


def test_differential_privacy_bounds_every_attack() -> None:
    assert most(math.log(3)) == pytest.approx(0.5)
    assert most(1e6) == pytest.approx(1.0)


def test_a_model_that_remembers_its_rows_is_found_out() -> None:
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    model = DecisionTreeClassifier().fit(x[:100], y[:100])
    losses = log_losses(model.predict_proba(x), y)
    assert attack(losses[:100], losses[100:]).auc > 0.65


# Defaults with differential privacy.


def test_private_defaults_are_near_the_middle_and_within_the_bounds() -> None:
    pytest.importorskip("opendp")
    kinds = {"age": "number", "wage": "number", "sex": "flag"}
    bounds = {"age": (0.0, 100.0), "wage": (0.0, 100_000.0)}
    age, wage, sex = (f.default for f in defaults(X[:, :3], kinds, "dp", 30.0, bounds=bounds))
    assert abs(age - np.median(X[:, 0])) < 10
    assert 0 <= wage <= 5000
    assert sex in (0.0, 1.0)


def test_private_defaults_want_public_bounds_and_a_budget() -> None:
    pytest.importorskip("opendp")
    with pytest.raises(ValueError, match="no bounds are given for age"):
        defaults(X[:, :1], {"age": "number"}, "dp", 1.0)
    with pytest.raises(ValueError, match="epsilon is 0.0"):
        defaults(X[:, :1], {"age": "number"}, "dp")
