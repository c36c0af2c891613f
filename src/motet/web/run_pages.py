"""The page of a run and the page of one client of it."""

from __future__ import annotations

import re
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from motet.errors import MotetError
from motet.report.contributions import contributions_of, history_of
from motet.report.read import natural
from motet.runs.store import Store
from motet.web import curves_of_runs as curves
from motet.web.dashboard import Dashboard
from motet.web.live import mark_of
from motet.web.processes import writer_of
from motet.web.run_index import RunEntry, lineage
from motet.web.run_reading import RunReading, plain_file, stamp_of
from motet.web.starting import last_of

_SHOWN = 50  # clients on a page
_EVENTS = 30
_CARD = 20_000  # characters of a model card
_LOG = 20_000  # bytes of a log that are shown
ORDERS = ("name", "worst", "best", "rows", "gain")


class RunPages:
    """A run, and each of its clients."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        self.started = dashboard.started

    def run(self, request: Request) -> Response:
        if self.dashboard.index.run(request.path_params["run"]) is None:
            return self.dashboard.beginning(request, request.path_params["run"])
        entry = self.dashboard.run(request)
        seen = mark_of(self.stamp(entry.folder))  # taken before anything is read
        return self.dashboard.page(request, "run.html", **self.shown_run(entry, request), seen=seen)

    @staticmethod
    def stamp(folder: Path) -> object:
        """Differs whenever a run's page has something new to show."""
        return stamp_of(folder), writer_of(folder / "lock") is None

    def shown_run(self, entry: RunEntry, request: Request) -> dict[str, Any]:
        run = self.dashboard.reader.read(entry.folder)
        asked = request.query_params
        order = asked.get("order", "name") if asked.get("order") in ORDERS else "name"
        rows = client_rows(run, asked.get("client", ""), order)
        everything = self.dashboard.index.runs()
        return self.shown_live(entry) | {
            "clients": rows[:_SHOWN], "many": len(rows), "order": order, "orders": ORDERS,
            "client_words": asked.get("client", ""), "lineage": lineage(entry, everything),
            "recipe": str(run.facts.get("recipe") or ""), "events": run.events[::-1][:_EVENTS],
            "log": self.started.log_of(entry.folder.name).exists(),
            "has_global": (entry.folder / "global.safetensors").exists(),
            "study": next((s for s in self.dashboard.index.studies() if s.name in entry.studies), None),
        }  # fmt: skip

    def shown_live(self, entry: RunEntry) -> dict[str, Any]:
        """What changes while a run trains."""
        run = self.dashboard.reader.read(entry.folder)
        up, down = (sum(int(r[i]) for r in run.rounds) for i in (3, 4))
        latest = {s: curve[-1][1].mean for s in run.sides() if s != "constant" and (curve := run.curve(s))}
        return {
            "entry": entry, "run": run, "chart": curves.validation(run), "seconds": curves.seconds(run),
            "extra": curves.said_by_method(run), "spent": sum(float(r[1]) for r in run.rounds),
            "up": up, "down": down, "latest": latest, "tested": tested_sides(run),
        }  # fmt: skip

    def client(self, request: Request) -> Response:
        entry = self.dashboard.run(request)
        name = request.query_params.get("name", "")
        run = self.dashboard.reader.read(entry.folder)
        if name not in run.clients and not any(name in s.places for s in run.scored.values()):
            raise HTTPException(404, "there is no such client in this run")
        shown = client_facts(run, name) | {"traffic": traffic_of(entry.folder, name), "entry": entry}
        others = sorted(run.seen, key=natural)
        place = others.index(name) if name in others else -1
        near: dict[str, Any] = {
            "previous": others[place - 1] if place > 0 else "",
            "next": others[place + 1] if 0 <= place < len(others) - 1 else "",
        }
        return self.dashboard.page(request, "client.html", **shown, **near)

    def log(self, request: Request) -> Response:
        """What the process of a run printed, its end."""
        path = self.started.log_of(self.dashboard.run(request).folder.name)
        if not plain_file(path, self.dashboard.index.base):
            raise HTTPException(404, "this run was not started here: there is no log")
        return PlainTextResponse(last_of(path, _LOG))


def tested_sides(run: RunReading) -> dict[str, tuple[float, int]]:
    """Mean test score and number of clients, by side, of the reported round."""
    found = {}
    for side in run.sides("test"):
        if scored := run.reported(side):
            found[side] = scored.mean, int((scored.rows > 0).sum())
    return found


def client_rows(run: RunReading, words: str, order: str) -> list[dict[str, Any]]:
    """The clients that take part, with their scores: test scores of a finished run, else the last validation."""
    part = "test" if run.reported("personal") else "val"
    own = run.reported("personal") or last(run, "personal")
    shared = run.reported("global") or last(run, "global")
    rows = []
    for name, (seen, train, val, test, _) in run.clients.items():
        if not seen or words.lower() not in name.lower():
            continue
        mine = own.of(name) if own else float("nan")
        ours = shared.of(name) if shared else float("nan")
        rows.append({
            "client": name, "train": train, "val": val, "test": test, "personal": mine, "global": ours,
            "gain": (mine - ours) * run.better, "part": part, "address": urlencode({"name": name}),
        })  # fmt: skip
    return sorted(rows, key=lambda row: order_key(row, order, run.better))


def last(run: RunReading, side: str) -> Any:
    curve = run.curve(side)
    return curve[-1][1] if curve else None


def order_key(row: dict[str, Any], order: str, better: int) -> tuple[float, Any]:
    """Clients without a number stand last."""
    keys = {
        "name": 0.0, "worst": row["personal"] * better, "best": -row["personal"] * better,
        "rows": -float(row["train"]), "gain": row["gain"],
    }  # fmt: skip
    value = keys[order]
    return (value if np.isfinite(value) else float("inf")), natural(row["client"])


# ---- one client ----


def client_facts(run: RunReading, name: str) -> dict[str, Any]:
    seen, train, val, test, labels = run.clients.get(name, (1, 0, 0, 0, {}))
    scores = {side: scored.of(name) for side in run.sides("test") if (scored := run.reported(side))}
    own = run.reported("personal")
    rank = (
        1 + int(((own.score - own.of(name)) * run.better > 0).sum()) if own and name in own.places else None
    )
    return {
        "name": name, "run": run, "seen": bool(seen), "rows": {"training": train, "validation": val, "test": test},
        "labels": label_bars(run, labels), "scores": scores, "rank": rank, "ranked": len(own.clients) if own else 0,
        "chart": curves.of_client(run, name), "card": card_of(run.folder, name), "help": help_of(run, name),
        "guards": guards_of(run, name), "has_model": has_model(run.folder, name),
        "refusals": [e for e in run.events if e[1] == "refused" and name in e[2]][:20],
    }  # fmt: skip


def label_bars(run: RunReading, labels: dict[str, int]) -> list[dict[str, Any]]:
    """The client's classes, with its share and that of all clients, in 100 parts of the largest."""
    classes = [str(c) for c in run.facts.get("classes") or []]
    mine, all_mine = labels, sum(labels.values()) or 1
    everybody: dict[str, int] = {}
    for row in run.clients.values():
        for label, many in row[4].items():
            everybody[label] = everybody.get(label, 0) + many
    total = sum(everybody.values()) or 1
    found: list[dict[str, Any]] = [
        {
            "label": named_class(k, classes),
            "many": mine.get(k, 0),
            "share": mine.get(k, 0) / all_mine,
            "all": n / total,
        }
        for k, n in sorted(everybody.items(), key=lambda p: natural(p[0]))
    ]
    most = max((max(f["share"], f["all"]) for f in found), default=1.0) or 1.0
    return [
        f | {"wide": round(100 * f["share"] / most, 1), "at": round(100 * f["all"] / most, 1)}
        for f in found[:40]
    ]


def named_class(label: str, classes: list[str]) -> str:
    """Labels are numbers of classes, or the names themselves."""
    return (
        classes[int(label)]
        if label.isdecimal() and label not in classes and int(label) < len(classes)
        else label
    )


def model_names(folder: Path, client: str) -> Path:
    return folder / "models" / quote(client, safe=" ")


def card_of(folder: Path, client: str) -> list[tuple[str, list[str]]]:
    """The model card as headings, lists and paragraphs; it is text of ours with names of others in it."""
    path, text = model_names(folder, client), ""
    card = path.with_name(path.name + ".md")
    with suppress(OSError, ValueError):
        text = card.read_text()[:_CARD] if plain_file(card, folder) else ""
    found: list[tuple[str, list[str]]] = []
    for line in filter(str.strip, text.splitlines()):
        kind = "head" if line.startswith("#") else "list" if line.startswith("- ") else "text"
        said = re.sub(r"\\([^A-Za-z0-9\s])", r"\1", line.lstrip("#- ").strip())
        if kind == "list" and found and found[-1][0] == kind:
            found[-1][1].append(said)
        else:
            found.append((kind, [said]))
    return found


def has_model(folder: Path, client: str) -> bool:
    path = model_names(folder, client)
    with suppress(OSError, ValueError):
        return (
            path.with_name(path.name + ".safetensors").exists() or (folder / "models" / "index.json").exists()
        )
    return False


def help_of(run: RunReading, client: str) -> dict[str, Any] | None:
    """Who helped a client and whom it helped, as the run recorded it."""
    found = contributions_of(run.facts)
    if not found:
        return None
    trust = found["trust"]
    by = sorted(((v, c) for c, v in (trust.get(client) or {}).items() if c != client), reverse=True)
    to = sorted(
        ((row.get(client, 0.0), c) for c, row in trust.items() if c != client and row.get(client)),
        reverse=True,
    )
    return {
        "by": by[:20], "to": to[:20], "own": (found.get("self_importance") or {}).get(client),
        "history": history_of(found, client), "published": (found.get("published") or {}).get(client),
    }  # fmt: skip


def guards_of(run: RunReading, client: str) -> list[tuple[str, str]]:
    """What protects this client's replies, and what the run says of its privacy budget."""
    settings = run.facts.get("settings") or {}
    guard = dict(settings.get("guard") or {}) if isinstance(settings, dict) else {}
    words = {
        "mean": "how replies are averaged", "clip": "longest update that leaves", "bits": "bits of a number",
        "top": "share of an update that leaves", "masked": "masked sums (secure aggregation)",
    }  # fmt: skip
    usual = {
        ("clip", 0.0): "no limit",
        ("top", 1.0): "all of it",
        ("masked", False): "no",
        ("masked", True): "yes",
    }
    found = [(text, usual.get((k, guard[k]), str(guard[k]))) for k, text in words.items() if k in guard]
    learns = run.facts.get("learns")
    found.append(("the server learns beyond the method", str(learns) if learns else "nothing"))
    if client in (run.facts.get("attackers") or []):
        found.append(("simulated attack", str(run.facts.get("attack"))))
    return found + budget_of(run.facts.get("privacy"), client)


def budget_of(privacy: Any, client: str) -> list[tuple[str, str]]:
    """What a client has spent of its privacy budget, as the run wrote it down; nothing without one."""
    spent = (privacy.get("clients") or {}).get(client) if isinstance(privacy, dict) else None
    if not isinstance(spent, int | float):
        return []
    what = {"example": "a row", "client": "all rows of this client"}.get(str(privacy.get("level")), "?")
    terms = f"epsilon {spent:.3g}, delta {privacy.get('delta')}, of {what}"
    return [("privacy budget spent", f"{terms}; noise: {privacy.get('noise')}")]


def traffic_of(folder: Path, client: str) -> dict[str, Any]:
    """Bytes and messages of a client by verb; SQLite adds them up."""
    sql = (
        "SELECT verb, learn, SUM(messages), SUM(up), SUM(down), COUNT(DISTINCT round) FROM asks WHERE client = ? "
        "GROUP BY verb, learn ORDER BY SUM(up) DESC"
    )
    try:
        with closing(Store(folder)) as store:
            rows = store.db.execute(sql, (client,)).fetchall() if store.columns("asks") else []
    except (MotetError, OSError, ValueError) as e:
        return {"rows": [], "trouble": str(e).splitlines()[0]}
    return {"rows": rows, "trouble": ""}
