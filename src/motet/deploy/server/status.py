"""The state of a federation: who is there, how its runs go; and stopping it.

Knows run folders and the server's answers. Does not know what a run computes.
"""

from __future__ import annotations

import time
from typing import Any

from msgspec.structs import asdict

from motet.deploy.flare.admin import UNSCHEDULED, AdminSession, Unreachable, unscheduled
from motet.deploy.flare.credentials import check_kit, ending_soon, unfit_sites
from motet.deploy.flare.kits import Kit
from motet.deploy.server.run_files import is_driven, note, read_report

_LIVE = ("starting", "agreeing", "running")
_OVER = ("stopped", "done", "failed")
_PATIENCE = 600  # seconds that a round may still take


def read_status(kit: Kit) -> dict[str, Any]:
    """The server's state, the sites it knows, and every run's."""
    found: dict[str, Any] = {"federation": kit.federation, "server": f"{kit.host}:{kit.port}"}
    folders = sorted(p for p in kit.runs.glob("*") if p.is_dir()) if kit.runs.is_dir() else []
    found["warnings"] = [*check_kit(kit), *ending_soon(kit)]
    found["runs"] = {p.name: asdict(read_report(p)) for p in folders}
    try:
        admin = AdminSession(kit)
    except Unreachable:
        return found | {"up": False, "sites": {}}
    last, alive = admin.registered(), admin.alive()
    late = {job: seconds for job, seconds in admin.not_begun().items() if seconds > UNSCHEDULED}
    admin.close()
    now = time.time()
    unfit = unfit_sites(kit)
    sites = {
        s: {"there": s in alive, "seconds": round(now - at, 1), "unfit": unfit.get(s, "")}
        for s, at in sorted(last.items())
    }
    log = kit.folder / "log.txt"
    return found | {"up": True, "sites": sites, "late": [unscheduled(j, s, log) for j, s in late.items()]}


def status_text(found: dict[str, Any]) -> str:
    late = found.get("late", [])
    up = "up, and it begins with no job" if late else "up" if found["up"] else "down"
    lines = [f"{found['federation']} at {found['server']}: {up}", *late]
    for site, s in found["sites"].items():
        there = "there" if s["there"] else "does not answer"
        unfit = f"; not taken in: {s['unfit']}" if s.get("unfit") else ""
        lines.append(f"  site {site}: {there}, last sign {s['seconds']:.0f} s ago{unfit}")
    for name, run in found["runs"].items():
        where = f", round {run['round']} of {run['rounds']}" if run["rounds"] else ""
        lines.append(f"  run {name}: {run['state'] or 'waiting'}{where}")
        gone = run["excluded"]
        lines += [f"    {site} is excluded: {why}" for site, why in gone.items()]
        lines += [f"    {site} is away: {why}" for site, why in run["away"].items() if site not in gone]
        lines += [
            f"    {site} takes part, and refuses something: {why}" for site, why in run["refused"].items()
        ]
        lines += (
            [f"    waiting for {', '.join(run['waiting'])}"]
            if run["waiting"] and run["state"] in _LIVE
            else []
        )
        lines += [f"    {run['why']}"] if run["why"] else []
    return "\n".join([*lines, *found.get("warnings", [])])


def stop(kit: Kit, *, everything: bool = False) -> str:
    """Let the current run stop after its round; with `everything`, end the server and all sites too. Runs that
    no process is at are not waited for: nobody would read the note."""
    folders = [p for p in sorted(kit.runs.glob("*")) if p.is_dir()]
    live = [p for p in folders if is_driven(p)]
    left = [p for p in folders if p not in live and read_report(p).state in _LIVE]
    for folder in live:
        note(folder, "stop")
    until = time.monotonic() + _PATIENCE
    while any(is_driven(p) and read_report(p).state not in _OVER for p in live) and time.monotonic() < until:
        time.sleep(0.2)
    lines = [f"{p.name}: {read_report(p).state}" for p in live]
    lines += [f"{p.name}: no process is at it any more; the same `run` goes on with it" for p in left]
    if everything:
        admin = AdminSession(kit)
        admin.shut_down()
        lines.append(f"{kit.federation} is shut down")
    return "\n".join(lines) or "nothing is running"
