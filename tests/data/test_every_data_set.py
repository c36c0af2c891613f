"""What every data set must be, found by existing: a file in motet/data/sets is tested because it is there."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import asdict

import numpy as np
import pytest

from motet.data.federated import Pool
from motet.data.files import cache
from motet.data.load import load, names, source
from motet.data.survey import survey
from motet.settings import fields_of

every = pytest.mark.parametrize("name", names())
SOURCE = re.compile(
    r"\b(19|20)\d\d\b|scikit-learn|UCI|Kaggle|Coursera"
)  # a publication's year, or who gives it


def pool_of(name: str) -> Pool:
    if not cache.status(name).here:
        pytest.skip(f"the files of {name} are not here: set MOTET_DATA, or motet data fetch {name}")
    f = source(name)
    return f(seed=0) if "seed" in inspect.signature(f).parameters else f()


@every
def test_its_docstring_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    text = importlib.import_module(f"motet.data.sets.{name}").__doc__ or ""
    first = text.strip().splitlines()[0]
    assert first.endswith(".") and len(first) <= 117
    assert SOURCE.search(text), "name the publication with its year, or who gives the data"


@every
def test_its_options_have_defaults_and_comments(name: str) -> None:
    f = source(name)
    assert set(fields_of(f)) == set(inspect.signature(f).parameters) - {"seed"}
    assert [k for k, field in fields_of(f).items() if not field.comment] == []


@every
def test_it_is_a_pool_without_problems(name: str) -> None:
    pool = pool_of(name)
    assert isinstance(pool, Pool) and pool.problems() == []
    assert len({c.name for c in pool.columns}) == len(pool.columns)


@every
def test_each_of_its_classes_and_clients_has_rows(name: str) -> None:
    pool = pool_of(name)
    is_text = (
        pool.x.dtype == np.uint8 and pool.pixels is None
    )  # its classes are an alphabet, rare letters included
    if pool.kind == "classes" and not is_text:
        counts = np.bincount(pool.y, minlength=len(pool.classes))
        assert len(counts) == len(pool.classes) and (counts > 0).all()
    if pool.owner is not None and pool.names:
        assert (np.bincount(pool.owner, minlength=len(pool.names)) > 0).all()


@every
def test_loading_it_twice_gives_the_same_rows_to_the_same_clients(name: str) -> None:
    pool_of(name)  # skips where the files are not here
    first, again = (load(name, {"seed": 3}).fingerprint() for _ in range(2))
    assert first == again


@every
def test_it_can_be_surveyed_and_no_row_is_lost(name: str) -> None:
    if cache.origin(name):
        pytest.skip("it has files, and may be large")
    data = load(name)
    found, clients = survey(data), data.clients_data | data.unseen
    assert asdict(found)["name"] == name and [c.client for c in found.clients] == list(clients)
    assert sum(found.counts) == sum(len(c.train) + len(c.val) + len(c.test) for c in clients.values())
    assert all(sum(c.counts) == c.rows and 0 <= c.evenness <= 1 + 1e-12 for c in found.clients)
