"""Runs as a report sees them: what the store holds, and a name for each row of a table.

Knows the store's tables, and by which settings of a recipe two runs of one method differ.
Does not know how runs are made. Validation scores are averaged over clients while reading,
because with many clients they are by far the largest table.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.errors import UsageError
from motet.report.sample import sample_notes
from motet.runs.store import Store, metric_of
from motet.text import ALL_SITES

if TYPE_CHECKING:
    import pandas as pd

POOLED = "centralised"  # all rows in one place: no federated method
ALONE = "local"  # training alone
CONSTANT = "constant"  # a client's own majority class or mean, as a side of the scores and as a row
NOT_ALWAYS = (
    "auc",
    "f1",
    "r2",
    "ece",
    "own",
    "cindex",
)  # metrics that a sound client may lack: all rows of one class
SENDS = {
    "nan": "nan",
    "zero": "zeros",
    "flip": "updates with their sign flipped",
    "idle": "no update",
    "replay": "the last round's update",
    "noise": "noise",
    "inflate": "ten times its number of examples",
}
EXPERIMENT = ("data", "net", "method", "train")  # sections of a recipe that make another experiment


@dataclass(frozen=True)
class ReportedRun:
    """One run: its facts, and the frames that reports are made of."""

    folder: Path
    label: str  # the row that it belongs to: its method, and settings where two runs of it differ
    facts: dict[str, Any]
    clients: pd.DataFrame  # client, seen, train, val, test, labels
    rounds: pd.DataFrame  # round, seconds, cohort, up, down
    test: pd.DataFrame  # side, client, seen, n, score, and all metrics: reported models with test rows
    val: pd.DataFrame  # round, side, score: mean over clients
    metrics: pd.DataFrame  # round, name, value: what the method says of its rounds
    notes: tuple[str, ...] = ()  # what a reader must know of how the replies were treated

    @property
    def method(self) -> str:
        return str(self.facts.get("method", "unknown"))

    @property
    def seed(self) -> int:
        return int(self.facts.get("seed", 0))

    @property
    def split(self) -> int:
        """The seed that drew the clients' rows; in earlier versions a run had one seed for everything."""
        return int(self.facts.get("split", self.seed))

    @property
    def natural(self) -> bool:
        """Whether a client's name is the same party in every split."""
        return bool(self.facts.get("natural", False))

    @property
    def fixed_tests(self) -> bool:
        """Whether the data say which rows of each client are for the test, so that every split has the same ones."""
        return self.natural and bool(self.facts.get("given_tests", False))

    @property
    def metric(self) -> str:
        """The metric's name; of a user's own metric `module:function`."""
        return metric_of(self.facts)

    @property
    def better(self) -> int:
        """+1 where a larger score is better, -1 where a smaller one is."""
        return int(self.facts.get("better", 1))

    @property
    def code(self) -> list[str]:
        """Code that is not motet's, in short: name, file and the first digits of its digest. Folders are private."""
        rows = [r for r in self.facts.get("code") or [] if isinstance(r, dict)]
        said = [[str(r.get(k, "")) for k in ("name", "file", "digest")] for r in rows]
        return [f"{name} ({Path(file).name or 'no file'}, {mark[:8]})" for name, file, mark in said]

    @property
    def weighted(self) -> bool:
        """Whether rows count by weights."""
        data = (self.facts.get("settings") or {}).get("data") or {}
        return bool(self.facts.get("weighted") or data.get("weight"))

    @cached_property
    def trouble(self) -> str:
        """Why this run counts in no average; empty for a sound run."""
        status = self.facts.get("status", "running")
        if status == "failed":
            return str(self.facts.get("failure") or "failed, and left no reason")
        if status != "done":
            return f"not finished: {len(self.rounds)} of {self.facts.get('rounds', '?')} rounds"
        return self._missing_scores()

    @property
    def failed(self) -> bool:
        return bool(self.trouble) and self.facts.get("status") in ("failed", "done")

    def _missing_scores(self) -> str:
        import numpy as np

        if not (self.test["side"] == "personal").any():
            return "done, and has no test scores of personal models"
        own = self.test[self.test["side"] != CONSTANT]
        bad, many = (
            own.loc[~np.isfinite(_proof(own, self.metric)), "client"].nunique(),
            own["client"].nunique(),
        )
        return f"diverged: test scores of {bad} of {many} clients are no numbers" if bad else ""

    @property
    def validation(self) -> float:
        """The mean over clients of personal validation scores in the reported round: all choices go by it."""
        rows = self.val[(self.val["side"] == "personal") & (self.val["round"] == self.facts.get("reported"))]
        return float(rows["score"].iloc[0]) if len(rows) else float("nan")

    @property
    def hidden(self) -> bool:
        """Whether sites' scores came in masked sums: then one client stands for all sites, with their mean."""
        return bool(self.facts.get("hides_scores"))

    @property
    def sites(self) -> int:
        """How many sites' scores are in the mean, where that is all that is known of them; else 0."""
        found = (self.facts.get("site_scores") or {}).get("test") or {}
        return int(found.get("sites", 0)) if self.hidden else 0

    def known_spread(self, side: str) -> tuple[float, float] | None:
        """Standard deviation and worst tenth of clients, where only sums of them are known; else None."""
        if not self.hidden:
            return None
        found = ((self.facts.get("site_scores") or {}).get("test") or {}).get("sd") or {}
        column = str(self.facts.get("metric", "accuracy"))
        return float((found.get(side) or {}).get(column, float("nan"))), float("nan")

    def of(self, side: str, *, seen: bool = True) -> pd.Series[float]:
        """Test scores of one side by client, of the clients that took part or of those never seen."""
        none = self.test["score"][:0].astype(float)
        return self._scores.get((side, int(seen)), none)

    @cached_property
    def _scores(self) -> dict[tuple[str, int], pd.Series[float]]:
        """Test scores by client, of every side and kind of clients; tables and figures ask for them many times."""
        scores = self.test.set_index("client")["score"].astype(float)
        keys = [self.test[k].to_numpy() for k in ("side", "seen")]
        return {(str(s), int(n)): found for (s, n), found in scores.groupby(keys, sort=False)}


def may_lack(metric: str) -> bool:
    """Whether a sound client may have no score of this metric; of a user's own metric it always may."""
    return metric in NOT_ALWAYS or ":" in metric


def _proof(rows: pd.DataFrame, metric: str) -> pd.Series[float]:
    """Numbers that every sound client has: its score, or its loss where a score may be missing."""
    score = rows["score"].astype(float)
    if not may_lack(metric):
        return score
    loss = rows["loss"].astype(float) if "loss" in rows else score
    return loss.where(score.isna(), score)


def read(folders: Sequence[Path]) -> list[ReportedRun]:
    """The runs in these folders, in the order given, named so that every row of a table is one experiment."""
    if not folders:
        raise UsageError("no runs given\nhint: name the folders of one or more runs")
    runs = [_read(Path(folder)) for folder in folders]
    return [replace(run, label=label) for run, label in zip(runs, _labels(runs), strict=True)]


def _read(folder: Path) -> ReportedRun:
    store = Store(folder)
    try:
        facts, clients, rounds = store.facts(), store.frame("clients"), store.frame("rounds")
        scores, events, metrics = store.frame("scores"), store.frame("events"), store.frame("metrics")
    finally:
        store.close()
    metric, column = metric_of(facts), str(facts.get("metric", "accuracy"))
    clients = _one_for_all(clients, facts) if facts.get("hides_scores") else clients
    # a column without any number is not in the frame
    scores["score"] = scores[column] if column in scores else float("nan")
    scores = scores[scores["n"] > 0]
    test = _test(scores, clients, facts.get("reported"))
    return ReportedRun(
        folder, str(facts.get("method", "unknown")), facts, clients, rounds, test, _val(scores, metric), metrics,
        (*_notes(facts, events), *sample_notes(facts, test, metric)),
    )  # fmt: skip


def _one_for_all(clients: pd.DataFrame, facts: dict[str, Any]) -> pd.DataFrame:
    """One row in place of sites whose scores came in masked sums."""
    totals = facts.get("totals") or {}
    rows = {part: totals.get(part, 0) for part in ("train", "val", "test")}
    return clients[:1].assign(client=ALL_SITES, seen=1, **rows)


def _notes(facts: dict[str, Any], events: pd.DataFrame) -> list[str]:
    """What the method said of itself on this task, and what guards did, in sentences; nothing for most runs."""
    found = [f"{str(r)[0].upper()}{str(r)[1:]}." for r in facts.get("remarks") or []]
    if counts := facts.get("untrained"):
        many, scored = counts
        found.append(
            f"{many:,} of {scored:,} scored clients had not trained by the reported round (train.cohort, "
            "train.rounds): their own models are as the method begins them."
        )
    if facts.get("hides_scores"):
        found.append(
            "Sites' scores are masked: each score is the mean over sites. No site's own score or gain is known here; "
            "its owner sees it there, with motet federation scores KIT."
        )
    if facts.get("learns"):
        found.append(f"The server saw every reply, because guard.mean = {facts.get('guard')}.")
    if who := facts.get("attackers"):
        does = SENDS
        sent = does.get(facts.get("attack", ""), "false replies")
        are = "1 client was" if len(who) == 1 else f"{len(who):,} clients were"
        found.append(f"Simulated attack: {are} made to send {sent} (guard.attack); all clients are scored.")
    small = events.loc[events["kind"] == "left out", "text"]
    if len(small):
        found.append(
            f"Clients were left out of masked sums {len(small):,} times, the first time in {small.iloc[0]}."
        )
    refused = events.loc[events["kind"] == "refused", "text"]
    if len(refused):
        odd = refused.str.endswith("is not finite; left out")
        if len(spoilt := refused[odd]):
            many = "1 reply was" if len(spoilt) == 1 else f"{len(spoilt):,} replies were"
            found.append(f"{many} not finite and left out, the first in {spoilt.iloc[0].split('; ')[0]}.")
        if len(said := refused[~odd]):
            many = "Something was refused once" if len(said) == 1 else f"Sites refused {len(said):,} times"
            found.append(f"{many}, the first time by {said.iloc[0].partition(chr(10))[0]}.")
    lost = events.loc[events["kind"] == "lost", "text"]
    if len(lost):
        many = "1 process was" if len(lost) == 1 else f"{len(lost):,} processes were"
        first = lost.iloc[0].partition("\n")[0]
        found.append(f"{many} lost, and others did the work again, which changes no result; {first}.")
    return found


def rates_halved(facts: dict[str, Any]) -> str:
    """How often rates that motet chose were halved, at whom training diverged, and what the rates were and are.

    >>> facts = {"settings": {"method": {"lr": 0.1}}, "halvings": [{"whose": "client a", "rates": {"lr": 0.05}}]}
    >>> rates_halved(facts)
    'rate halved once after divergence at client a (lr 0.1 -> 0.05)'
    """
    if not (halvings := facts.get("halvings")):
        return ""
    often = "once" if len(halvings) == 1 else f"{len(halvings)} times"
    where = ", ".join(dict.fromkeys(str(h["whose"]) for h in halvings))
    first, last = (facts.get("settings") or {}).get("method") or {}, halvings[-1]["rates"]
    rates = ", ".join(f"{k} {first.get(k, 0.0):g} -> {v:g}" for k, v in last.items())
    return f"rate halved {often} after divergence at {where} ({rates})"


def _test(scores: pd.DataFrame, clients: pd.DataFrame, reported: int | None) -> pd.DataFrame:
    """Scores of the reported round; a visit of newcomers is a round of its own, after it."""
    rows = scores[scores["part"] == "test"]
    if reported is not None:
        rows = rows[(rows["round"] == reported) | (rows["side"] == "visit")]
    seen = rows["client"].map(clients.set_index("client")["seen"]).fillna(1).astype(int)
    return rows.assign(seen=seen).drop(columns=["round", "part"])


def _val(scores: pd.DataFrame, metric: str) -> pd.DataFrame:
    rows = scores.loc[scores["part"] == "val", ["round", "side", "score"]]
    means = rows.groupby(["round", "side"])["score"].agg(lambda s: s.mean(skipna=may_lack(metric)))
    return means.astype(float).reset_index()


def _labels(runs: Sequence[ReportedRun]) -> list[str]:
    """The method's name, with the settings in which its runs differ, and the folder of repeated runs."""
    settings = [settings_of(run) for run in runs]
    names = []
    for run, own in zip(runs, settings, strict=True):
        peers = [s for r, s in zip(runs, settings, strict=True) if r.method == run.method]
        telling = sorted({k for s in peers for k in s.keys() | own.keys() if s.get(k) != own.get(k)})
        parts = ", ".join(f"{k.split('.')[-1]}={own.get(k, '-')}" for k in telling)
        names.append(f"{run.method} ({parts})" if parts else run.method)
    many = Counter((name, run.split, run.seed) for name, run in zip(names, runs, strict=True))
    return [
        f"{name} [{run.folder.name}]" if many[name, run.split, run.seed] > 1 else name
        for name, run in zip(names, runs, strict=True)
    ]


# the loss of runs of earlier versions, which could not choose one
_USUAL_LOSS = {"net.loss": "auto", "net.class_weights": "none", "net.gamma": 2.0, "net.quantile": 0.5}


def settings_of(run: ReportedRun) -> dict[str, Any]:
    """`section.name: value` of these sections; another seed, split, engine or saving is the same experiment.

    What was left open counts as open: rates that are chosen for each split are not another experiment.
    """
    recipe = run.facts.get("asked") or run.facts.get("settings") or _parsed(str(run.facts.get("recipe", "")))
    parts = {s: recipe[s] for s in EXPERIMENT if isinstance(recipe.get(s), dict)}
    flat = {f"{s}.{k}": v for s, part in parts.items() for k, v in part.items() if (s, k) != ("data", "seed")}
    flat |= _USUAL_LOSS | flat if flat else {}
    flat |= _guard(recipe.get("guard", {})) | _privacy(recipe.get("privacy", {})) if flat else {}
    return flat or {"net": run.facts.get("net")}


def _guard(part: dict[str, Any]) -> dict[str, str]:
    """The mean and the attack, with what matters to each; as by default where a run has none."""
    mean, attack = part.get("mean", "mean"), part.get("attack", "none")
    plain = " unmixed" if mean in ("median", "trimmed") and not part.get("mix") else ""
    number = {"trimmed": "trim", "krum": "hostile"}.get(mean)
    ways = {"masked": False, "mask_bits": 64, "clip": 0.0, "bits": 32, "top": 1.0}
    left = [f"{k}={part[k]:g}" for k, usual in ways.items() if part.get(k, usual) != usual]
    return {
        "guard.leaving": " ".join(left) or "as it is",
        "guard.attack": f"{attack} by {part.get('attackers')}" if attack != "none" else "none",
        "guard.mean": mean + (f" {part.get(number)}" if number else "") + plain,
    }


def _privacy(part: dict[str, Any]) -> dict[str, str]:
    """What of privacy makes another experiment; as by default where a run has none."""
    if part.get("level", "none") == "none":
        return {"privacy": "none"}
    given = [f"{k}={part[k]:g}" for k in ("epsilon", "delta", "noise_multiplier") if part.get(k)]
    return {"privacy": " ".join([part["level"], *given, f"length={part.get('max_grad_norm')}"])}


def _parsed(recipe: str) -> dict[str, Any]:
    try:
        return tomllib.loads(recipe)
    except (ValueError, RecursionError):  # a stranger's may be anything
        return {}


def check_comparable(runs: Sequence[ReportedRun]) -> None:
    """Runs on other data or with another score do not belong in one table."""
    for what in ("data", "metric"):
        known = [run for run in runs if run.facts.get(what) is not None]
        found = sorted({run.metric if what == "metric" else str(run.facts[what]) for run in known})
        if len(found) > 1:
            raise UsageError(
                f"these runs cannot be compared: their {what} differs ({', '.join(found)})\n"
                f"hint: make one report for each {what}"
            )


def differing_clients(runs: Sequence[ReportedRun]) -> list[int]:
    """Splits in which the runs did not divide the rows among clients in the same way."""
    splits: dict[int, set[str]] = {}
    for run in runs:
        rows = run.clients[["client", "train", "val", "test"]].sort_values("client")
        mark = run.facts.get("fingerprint") or rows.to_csv(index=False)
        splits.setdefault(run.split, set()).add(str(mark))
    return sorted(split for split, found in splits.items() if len(found) > 1)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which client-2 comes before client-10."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in parts if p)
