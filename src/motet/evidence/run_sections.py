"""What evidence says of a run's folder: who took part, what left whom, what the server could learn, scores, files.

The same for a simulated run and for the server of a federation; what the server received is added by its kit
(party_evidence.py). Knows the store, reports and methods by name. Does not know keys, nor how a page looks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.errors import MotetError
from motet.evidence.document import digest
from motet.report.certainty import Interval, interval
from motet.report.read import ReportedRun, natural, read
from motet.report.score_intervals import score_intervals
from motet.report.spent_privacy import budget_sentence, noise_sentence
from motet.report.terminal import PERCENT
from motet.runs.method_asks import asks_in
from motet.runs.model_files import model_path
from motet.runs.recipe import method_class
from motet.runs.store import Store
from motet.runs.store_file import merge_log

if TYPE_CHECKING:
    import pandas as pd

SIMULATED = "simulated run"
COPY = "copy of a federation's run, outside of its kit"
NOTHING_LEFT = (
    "Simulated: all clients lived in one process of one owner. Nothing left any machine. The numbers say what would "
    "have left each client."
)
HELD_ALL = "In a simulation the process that plays the server holds every client's rows."
LEARNS = {
    "average": "the weighted mean of the replies; the method uses no single reply",
    "collect": "every single reply, by client",
    "scores": "numbers of rows, and metrics of predictions for them; no prediction",
    "nothing": "that it was done",
    "handshake": "what agreeing on columns and rows takes, before anything trains",
}
IN_THE_CLEAR = (
    "No secure aggregation was used: every reply reached the server's process by itself, also where only a mean is "
    "used. Whoever runs the server could have looked at single replies."
)
MASKED = (
    "Secure aggregation was used: replies that are averaged reached the server masked, and it learned their sum alone. "
    "This rests on fewer than a third of the sites working together with the server, and on the federation's root. Not "
    "hidden are the sums, names of columns, categories and classes, and who took part when. Scores, numbers of rows "
    "and sums of columns are hidden only where a site's policy says so (masked)."
)
_MOST_CARDS = 50  # model cards that are quoted; of others the hash stands in the list of files
LOGS = ("-wal", "-journal")  # of SQLite: what they hold is read as if it were in the database
_PASSING = ("lock", "chain.lock", "again", "stop")  # files that come and go
_ASKS = ["round", "client", "verb", "learn", "messages", "up", "down"]
_TROUBLES = (
    "refused",
    "left out",
    "excluded",
    "absent",
    "reset",
    "failed",
    "short",
    "learns",
    "attack",
    "unchecked",
    "forgot",
)
Sections = list[tuple[str, Any]]


def sections_of_run(folder: Path) -> Sections:
    """All that is said of a run, in the order in which people read it."""
    merge_log(folder)
    run = read([folder])[0]
    with closing(Store(folder)) as store:
        store.check()
        asks, events = store.frame("asks"), store.frame("events")
        asks = asks if "verb" in asks else asks.reindex(columns=_ASKS).iloc[:0]
        traffic, clients = store.frame("traffic"), store.frame("clients")
    facts = run.facts
    return [
        ("run", about(folder, facts, len(run.rounds))),
        ("participants", participants(clients)),
        ("left", what_left(asks, traffic, facts)),
        ("learned", what_was_learned(asks, facts)),
        ("policies", {"in force": [], "says": policies_say(facts)}),
        ("guards", guards(facts)),
        (
            "refusals",
            [{"kind": k, "text": t} for k, t in events[["kind", "text"]].itertuples(False) if k in _TROUBLES],
        ),
        ("versions", versions(facts)),
        ("scores", scores(run)),
        ("models", cards(folder, run)),
        ("files", files_in(folder)),
    ]


def about(folder: Path, facts: Mapping[str, Any], rounds: int) -> dict[str, Any]:
    kept = (
        "method",
        "data",
        "net",
        "seed",
        "split",
        "status",
        "failure",
        "metric",
        "reported",
        "created",
        "engine",
    )
    return {k: facts.get(k) for k in kept} | {
        "name": folder.resolve().name, "rounds": rounds, "identity": facts.get("identity", ""),
        "federation": facts.get("federation", ""), "forgot": (facts.get("forgot") or {}).get("client", ""),
    }  # fmt: skip


def participants(clients: pd.DataFrame) -> list[dict[str, Any]]:
    """Who took part; rows are not known where a site's policy keeps them back."""
    rows = clients.to_dict("records")
    return [
        {"client": str(r["client"]), "role": "trained" if r["seen"] else "held out of training"}
        | {part: int(r[part]) if r["train"] else None for part in ("train", "val", "test")}
        for r in sorted(rows, key=lambda r: natural(str(r["client"])))
    ]


# ---- what left, and what it tells ----


def what_left(asks: pd.DataFrame, traffic: pd.DataFrame, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Messages and bytes by client and verb, over all rounds; by client alone in runs of earlier versions."""
    by_verb = (
        asks.groupby(["client", "verb", "learn"], sort=True)[["messages", "up", "down"]].sum().reset_index()
    )
    total = traffic.groupby("client", sort=True)[["up", "down"]].sum().reset_index()
    says = "" if facts.get("federation") else NOTHING_LEFT
    if asks.empty and len(traffic):
        says = f"{says} The run is of an earlier version, which did not count by verb.".strip()
    rows = by_verb if len(by_verb) else total.assign(verb="all verbs", learn="", messages=None)
    return {"says": says, "ledger": None, "rows": [_ints(r) for r in rows.to_dict("records")]}


def _ints(row: Mapping[str, Any]) -> dict[str, Any]:
    counts = ("messages", "up", "down")
    return {str(k): int(v) if k in counts and v is not None else v for k, v in row.items()}


def what_was_learned(asks: pd.DataFrame, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Of each verb what the method's own text lets the server learn, and how many shared the smallest mean."""
    together = asks.groupby(["round", "verb", "learn"])["client"].nunique()
    fewest = together.groupby(["verb", "learn"]).min().to_dict()
    said = {(v, how): text for v, how, text in asks_of_method(str(facts.get("method", "")))}
    rows = [
        {"verb": v, "learn": how, "does": said.get((v, how), ""), "learns": LEARNS.get(how, ""),
         "asked": (v, how) in fewest, "fewest": int(fewest.get((v, how), 0))}
        for v, how in dict.fromkeys([*said, *fewest])
    ]  # fmt: skip
    beyond = [f"Beyond what the method asks for: {facts['learns']}."] if facts.get("learns") else []
    if any(r["learn"] == "average" and r["fewest"] == 1 for r in rows):
        beyond.append("A mean of one reply is that reply: in some round one client alone was asked.")
    beyond.append(
        "Scores: sums over sites of metrics on their validation and test rows, masked; no site's own."
        if facts.get("hides_scores")
        else "Scores: of every client the number of its rows and metrics on its validation and test rows."
    )
    masked = facts.get("settings", {}).get("guard", {}).get("masked")
    between = MASKED if masked else IN_THE_CLEAR
    return {"rows": rows, "beyond": [*beyond, between if facts.get("federation") else HELD_ALL]}


def asks_of_method(name: str) -> Iterator[tuple[str, str, str]]:
    """(verb, average or collect, what it does) as the installed method's text has them; nothing for code of a
    user's own, which is not imported for this."""
    if ":" in name:
        return
    try:
        method = method_class(name)
    except MotetError:  # a method of another version
        return
    for verb, how in asks_in(method):
        yield verb, how, (inspect.getdoc(getattr(method, verb)) or "").split("\n\n")[0].replace("\n", " ")


def policies_say(facts: Mapping[str, Any]) -> str:
    if facts.get("federation"):
        return "Every site has its own policy, which stays there; the site's own evidence has its hash."
    return "None: the clients of a simulation have one owner, and no policy limits what a verb may ask."


def guards(facts: Mapping[str, Any]) -> dict[str, str]:
    """What protected replies; what there was not is said as none."""
    settings = facts.get("settings", {})
    section, method = settings.get("guard", {}), settings.get("method", {})
    mean, attack = section.get("mean", "mean"), section.get("attack", "none")
    unused = set() if method.get("public", "dp-").startswith("dp-") else {"epsilon"}
    own = {
        k: f"method.{k} = {method[k]:g}"
        for k in ("clip", "noise", "epsilon")
        if method.get(k) and k not in unused
    }
    clipped = [f"guard.clip = {section['clip']:g}"] if section.get("clip") else []
    usual = {"bits": 32, "top": 1.0}
    compressed = [f"guard.{k} = {section[k]:g}" for k, v in usual.items() if section.get(k, v) != v]
    return {
        "aggregation": "plain weighted mean"
        if mean == "mean"
        else f"robust: {mean}, which shows single replies",
        "secure aggregation": "masked sums" if section.get("masked") else "none",
        "clipping": ", ".join([*clipped, *([own["clip"]] if "clip" in own else [])]) or "none",
        "compression": ", ".join(compressed) or "none",
        "noise": noise_sentence(facts)
        or ", ".join(own[k] for k in ("noise", "epsilon") if k in own)
        or "none",
        "privacy budget": budget_sentence(facts) or published_budget(facts) or own.get("epsilon", "none"),
        "simulated attack": f"{attack} by {', '.join(facts.get('attackers') or [])}"
        if attack != "none"
        else "none",
    }


def published_budget(facts: Mapping[str, Any]) -> str:
    """What published models claim of privacy, client by client; "" where none claims anything."""
    published = (facts.get("record") or {}).get("published") or {}
    private = {c: p for c, p in sorted(published.items()) if p["epsilon"]}
    arithmetic = any("arithmetic" in p["note"] for p in private.values())
    said = "; ".join(f"{c}: {p['what']}" for c, p in private.items())
    return said + ("; simulated: the noise is arithmetic and protects nobody" if arithmetic else "")


def versions(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Packages, and digests of code, data and recipe."""
    pieces, code = facts.get("identity_pieces") or {}, facts.get("code") or []
    return {
        "packages": facts.get("versions") or {}, "motet": pieces.get("motet", ""), "data": facts.get("fingerprint", ""),
        "code": [{k: str(row.get(k, "")) for k in ("name", "module", "digest")} for row in code],
        "recipe": facts.get("recipe", ""), "settings": digest_of_settings(facts),
    }  # fmt: skip


def digest_of_settings(facts: Mapping[str, Any]) -> str:
    settings = facts.get("settings")
    return digest(settings) if settings else ""


# ---- scores and models ----


def scores(run: ReportedRun) -> dict[str, Any]:
    """Test scores of the reported round by client, each with its interval, and their mean."""
    ends = score_intervals(run) if not run.trouble else {}
    personal, shared = run.of("personal"), run.of("global")
    sizes = run.test[run.test["side"] == "personal"].set_index("client")["n"]
    rows = []
    for c in sorted(personal.index, key=lambda c: natural(str(c))):
        low, high = ends.get(str(c), (None, None))
        shown = float(shared[c]) if c in shared else None
        one = {"client": str(c), "test": int(sizes[c]), "personal": float(personal[c]), "global": shown}
        rows.append(one | {"low": low, "high": high})
    mean = interval(personal.to_list(), list(personal.index), [0] * len(personal)) if len(personal) else None
    return {
        "metric": run.metric, "trouble": run.trouble, "rows": rows,
        "mean": within(mean, run.metric) if mean else None,
    }  # fmt: skip


def within(mean: Interval, metric: str) -> dict[str, float]:
    """A mean with its interval; no share is below 0 or above 1."""
    least, most = (0.0, 1.0) if metric in PERCENT else (-math.inf, math.inf)
    low, high = max(mean.low, least), min(mean.high, most)  # nan, where it is not known, stays nan
    return {"personal": mean.mean, "low": low, "high": high}


def cards(folder: Path, run: ReportedRun) -> list[dict[str, str]]:
    """Model cards as they were written; of very many, the first."""
    names = ["", *sorted(map(str, run.clients["client"]), key=natural)]
    there = [(name, model_path(folder, name).with_suffix(".md")) for name in names]
    found = [(name, path) for name, path in there if path.is_file()][:_MOST_CARDS]
    return [
        {"client": name or "global model", "text": path.read_text(errors="replace")} for name, path in found
    ]


# ---- files ----


def files_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of every file of a run, by path; evidence itself and files that come and go are not in it."""
    return {p.relative_to(folder).as_posix(): file_record(p) for p in sorted(run_files(folder))}


def run_files(folder: Path) -> Sequence[Path]:
    files = [p for p in folder.rglob("*") if p.is_file() and not p.name.endswith((".part", "-shm"))]
    emptied = {p for p in files if p.name.endswith(LOGS) and not p.stat().st_size}
    return [p for p in files if p.name not in _PASSING and p not in emptied and not is_evidence(p)]


def is_evidence(path: Path) -> bool:
    return path.name.endswith((".evidence.html", ".evidence.json"))


def file_record(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}
