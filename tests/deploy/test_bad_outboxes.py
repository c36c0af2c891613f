"""A site that cannot publish its model says why and what would help, at home; the federation goes on without it."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("skl2onnx")

from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from living import table
from motet import Privacy, feature_defaults, publish, save_published
from motet.deploy.agreement.layout import Split
from motet.deploy.server.job import run_job
from motet.deploy.server.run_files import JobReport, make_order, read_report
from motet.deploy.site.ledger import read_ledger
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.deploy.site.storage import site_key
from motet.deploy.site.table import SiteTable
from motet.errors import UsageError
from motet.runs.run import Run

SITES, BAD = ("a", "b", "c"), "b"
WORDS = ["method=stacking", "method.trees=3", "train.rounds=2", "train.patience=0", "net.name=linear"]
OPEN = Policy(learn="collect", least_rows=5, largest_share=1.0)
OWN = replace(OPEN, publish="outbox")


def squares(x: Any) -> Any:
    return np.square(x)


def rows() -> tuple[Any, Any]:
    frame = table(SITES.index(BAD))
    return frame.drop(columns="y"), (frame["y"] == "yes").astype(int)


def put(folder: Path, model: Any = None, classes: tuple[str, str] = ("no", "yes"), **about: Any) -> None:
    """A model of the site's own into its outbox."""
    x, y = rows()
    model = model or RandomForestClassifier(5, random_state=0).fit(x, y)
    features = feature_defaults(x, dict.fromkeys(x.columns, "number"))
    made = publish(model, features, client=BAD, task="classes", classes=classes, sample=x, **about)
    save_published(made, folder)


# ---- what lies in the outbox ----


def other_labels(outbox: Path) -> None:
    put(outbox, classes=("healthy", "ill"))


def a_pipeline_that_cannot_be_converted(outbox: Path) -> None:
    x, y = rows()
    with pytest.raises(UsageError, match="cannot be converted to ONNX(.|\n)*hint: "):
        put(outbox, make_pipeline(FunctionTransformer(squares), LogisticRegression()).fit(x, y))


def a_pickle(outbox: Path) -> None:
    x, y = rows()
    outbox.mkdir(parents=True)
    (outbox / "model.pkl").write_bytes(pickle.dumps(LogisticRegression().fit(x, y)))


def onnx_of_another_model(outbox: Path) -> None:
    x, y = rows()
    one, two = (LogisticRegression(C=c).fit(x, y) for c in (1.0, 1e-4))
    put(outbox, two)
    with pytest.raises(UsageError, match="given as maker(.|\n)*hint: "):
        put(outbox / "never", (outbox / f"{BAD}.onnx").read_bytes(), maker=one)
    save_other(outbox, one)


def save_other(outbox: Path, model: Any) -> None:
    """The manifest of one model beside the bytes of another."""
    put(outbox.parent / "other", model)
    shutil.copy(outbox.parent / "other" / f"{BAD}.onnx", outbox)


def an_epsilon_above_the_policy(outbox: Path) -> None:
    put(outbox, privacy=Privacy("DP-SGD", 2.0, 1e-5))


def an_epsilon_of_zero(outbox: Path) -> None:
    put(outbox, privacy=Privacy("DP-SGD", 0.0, 1e-5))


def an_epsilon_without_a_mechanism(outbox: Path) -> None:
    put(outbox, privacy=Privacy("none", 0.5))


def nothing(outbox: Path) -> None:
    return


CASES: dict[str, tuple[Callable[[Path], None], Policy, str, str]] = {
    "labels": (other_labels, OWN, "knows the class 'healthy', and this federation's are ['no', 'yes']", "classes=…"),
    "pipeline": (a_pipeline_that_cannot_be_converted, OWN, "holds 0 models as .onnx", "motet.publish(model"),
    "pickle": (a_pickle, OWN, "is a pickle: reading it could run any code", "motet.publish(model"),
    "another model": (onnx_of_another_model, OWN, "its model", "motet.publish(model"),
    "own epsilon": (
        an_epsilon_above_the_policy, replace(OWN, epsilon=1.0), "models of epsilon 2 would be published", "1 is left"
    ),
    "zero": (an_epsilon_of_zero, replace(OWN, epsilon=1.0), "a model that claims epsilon 0 would", "states its budget"),
    "no mechanism": (
        an_epsilon_without_a_mechanism, replace(OWN, epsilon=1.0), "a model without a privacy budget would",
        "states its budget",
    ),
    "epsilon": (
        nothing, replace(OPEN, publish="dp-linear epsilon=2", epsilon=1.0), "models of epsilon 2 would be published",
        "1 is left",
    ),
}  # fmt: skip


class ThreeSites:
    """Sites with tables of their own, one of which has something odd in its outbox."""

    def __init__(self, folder: Path, bad: Policy) -> None:
        self.folder, self.run = folder, folder / "run"
        self.run.mkdir(parents=True)
        make_order("town", None, WORDS, 2, 0, 60.0).write(self.run)
        self.services = {s: self.service(s, bad if s == BAD else OPEN) for s in SITES}

    def service(self, site: str, policy: Policy) -> SiteService:
        place = self.folder / site
        place.mkdir()
        table(SITES.index(site)).to_csv(place / "table.csv", index=False)
        source = SiteTable(site, place / "table.csv", "y", split=Split(val=0.2))
        return SiteService(site, place / "kept", source, policy, site_key(place / "key"))

    def go(self) -> JobReport:
        def post(letters: Any) -> Any:
            return {s: self.services[s].answer(letter) for s, letter in letters.items()}, {}

        run_job(self.run, post, SITES)
        return read_report(self.run)


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_with_words_at_home_and_the_others_go_on(case: str, tmp_path: Path) -> None:
    fill, policy, why, hint = CASES[case]
    town = ThreeSites(tmp_path, policy)
    fill(tmp_path / BAD / "outbox")
    report = town.go()
    assert report.state == "done", report.why
    assert list(report.excluded) == [BAD] and report.excluded[BAD].endswith("(publish)")
    refused = [line for line in read_ledger(tmp_path / BAD / "kept")[0] if line.clause == "publish"]
    assert len(refused) == 1 and why in refused[0].text and "hint: " in refused[0].text
    assert hint in refused[0].text
    assert sorted(Run(town.run).contributions["published"]) == ["a", "c"]


def test_a_sound_model_of_the_same_site_is_published(tmp_path: Path) -> None:
    town = ThreeSites(tmp_path, replace(OWN, epsilon=2.0))
    put(tmp_path / BAD / "outbox", privacy=Privacy("DP-SGD", 2.0, 1e-5))
    report = town.go()
    published = Run(town.run).contributions["published"]
    assert report.state == "done" and not report.excluded
    assert published[BAD]["what"].startswith("a RandomForestClassifier on 4 columns, epsilon 2")
