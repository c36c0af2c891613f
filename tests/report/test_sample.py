"""A sample of clients: its mean is right on average, and its interval counts who was left out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd
import pytest

from motet.report.sample import extremes_text, interval, sample_notes, sample_of

SCORES = np.array([0.1, 0.4, 0.5, 0.7, 0.9, 1.0, 0.2])


def test_over_all_samples_the_mean_is_the_federations_and_the_error_is_as_said() -> None:
    samples = [SCORES[list(some)] for some in combinations(range(7), 3)]
    means = np.array([s.mean() for s in samples])
    assert means.mean() == pytest.approx(SCORES.mean())
    reach = (
        np.array([interval(s, 7)[1] - s.mean() for s in samples]) / 4.302652729911275
    )  # Student's t, 2 degrees
    assert (reach**2).mean() == pytest.approx(means.var())


def test_an_interval_by_hand() -> None:
    low, high = interval(np.array([1.0, 2.0, 3.0]), 9)
    assert high - 2 == pytest.approx(4.302652729911275 * (1 / 3 * 6 / 9) ** 0.5)
    assert low == pytest.approx(4 - high)


def test_a_sample_of_everyone_has_no_error() -> None:
    assert interval(SCORES, 7) == (pytest.approx(SCORES.mean()), pytest.approx(SCORES.mean()))


def test_one_client_says_nothing_of_others() -> None:
    assert np.isnan(interval(SCORES[:1], 7)).all()


def table() -> pd.DataFrame:
    return pd.DataFrame(
        {"side": "personal", "client": list("abcdefg"), "seen": 1, "n": 5, "score": SCORES},
    )


def test_a_run_says_how_many_of_how_many_were_scored() -> None:
    facts = {"population": 70, "scored": 7}
    found = sample_of(facts, table())
    assert found and found["scored"] == 7 and found["clients"] == 70
    assert found["personal"]["low"] < SCORES.mean() < found["personal"]["high"]
    (said,) = sample_notes(facts, table(), "accuracy")
    assert said.startswith("Scored over 7 of 70 clients") and "personal 54.3 (" in said
    assert sample_of({}, table()) is None and sample_notes({}, table(), "accuracy") == []


def test_many_clients_are_shown_by_quantiles_and_by_their_ends() -> None:
    frame = pd.DataFrame(
        {"client": [f"c{i:03}" for i in range(500)], "train": 9, "ditto": np.arange(500) / 500}
    )
    text = extremes_text(frame, "accuracy", 1)
    worst, best = text[text.index("worst") :].split("best")
    assert "c000" in worst and "c009" in worst and "c010" not in worst
    assert "c499" in best and "c490" in best and "c489" not in best
    assert "49.9" in text and len(text.splitlines()) < 32
