"""How a federation is: who is there, how its runs go; and stopping it. Reads run folders and asks the server."""

from __future__ import annotations

import time
from typing import Any

from motet.deploy.flare.admin import AdminSession, Unreachable
from motet.deploy.flare.kits import Kit
from motet.deploy.server.run_files import note, read_report

_LIVE = ("starting", "agreeing", "running")
_PATIENCE = 600  # seconds that a round may still take


def look(kit: Kit) -> dict[str, Any]:
    """The server's state, the sites it knows, and every run's."""
    found: dict[str, Any] = {"federation": kit.federation, "server": f"{kit.host}:{kit.port}"}
    folders = sorted(p for p in kit.runs.glob("*") if p.is_dir()) if kit.runs.is_dir() else []
    found["runs"] = {p.name: read_report(p) or {"state": "waiting"} for p in folders}
    try:
        admin = AdminSession(kit)
    except Unreachable:
        return found | {"up": False, "sites": {}}
    heard, alive = admin.registered(), admin.alive()
    admin.close()
    now = time.time()
    sites = {s: {"there": s in alive, "heard": round(now - at, 1)} for s, at in sorted(heard.items())}
    return found | {"up": True, "sites": sites}


def status_text(found: dict[str, Any]) -> str:
    lines = [f"{found['federation']} at {found['server']}: {'up' if found['up'] else 'down'}"]
    for site, s in found["sites"].items():
        there = "there" if s["there"] else "does not answer"
        lines.append(f"  site {site}: {there}, last heard of {s['heard']:.0f} s ago")
    for name, run in found["runs"].items():
        where = f", round {run['round']} of {run['rounds']}" if run.get("rounds") else ""
        lines.append(f"  run {name}: {run['state']}{where}")
        lines += [f"    {site} is away: {why}" for site, why in (run.get("away") or {}).items()]
        lines += [f"    {run['why']}"] if run.get("why") else []
    return "\n".join(lines)


def stop(kit: Kit, *, everything: bool = False) -> str:
    """Let the run at hand stop after its round; with `everything`, end the server and all sites too."""
    live = [p for p in kit.runs.glob("*") if read_report(p).get("state") in _LIVE]
    for folder in live:
        note(folder, "stop")
    until = time.monotonic() + _PATIENCE
    while any(read_report(p).get("state") in _LIVE for p in live) and time.monotonic() < until:
        time.sleep(0.2)
    said = [f"{p.name}: {read_report(p).get('state')}" for p in live]
    if everything:
        admin = AdminSession(kit)
        admin.shut_down()
        said.append(f"{kit.federation} is shut down")
    return "\n".join(said) or "nothing is running"
