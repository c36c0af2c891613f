"""The results as a page: reads results/<work>.json, writes results/README.md.

Knows medians and Markdown. Measures nothing. A side that failed has a row like the others, with its error.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

from runs import Run
from workloads import FAMILIES, WORKS

TOLERANCE = 0.03  # scores further apart than this are pointed out
SEVERAL_PROCESSES = ("flwr", "flwr-optim", "pfl")  # the clock sees the processor's time of one process
TITLES = {
    "W1": "W1: 100 clients, logistic regression 30→30, 105 steps each a round",
    "W2": "W2: 20 clients × 600 images 28×28, CNN, 19 steps each a round",
    "W3": "W3: 10 clients × 200 images 32×32, ResNet-18, 4 steps each a round",
    "W4": "W4: growth of W1 with the number of clients",
}


def steady(run: Run) -> float:
    """Median seconds of a round, the first ones left out as the workload says (at least one if there are more)."""
    seconds, skip = run["seconds"], WORKS[run["key"]["work"]].skip
    return median(seconds[skip:] or seconds[1:] or seconds)


def processor(run: Run) -> float | None:
    """The same of the processor's seconds; none for sides with several processes, and in older files."""
    if run["key"]["side"] in SEVERAL_PROCESSES or "processor" not in run:
        return None
    return steady({**run, "seconds": run["processor"]})


def brief(run: Run) -> str:
    """One line about a run that has just ended."""
    name = f"{run['key']['work']} {run['key']['side']}"
    if "error" in run:
        return f"{name}: failed: {run['error']}"
    return f"{name}: {steady(run):.3f} s a round, score {run['score']:.4f}, peak {run['peak_mib']:.0f} MiB"


def by_side(runs: list[Run]) -> dict[str, list[Run]]:
    sides: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run["key"]["repetition"]):
        sides.setdefault(run["key"]["side"], []).append(run)
    return sides


def bars(runs: list[Run]) -> dict[str, float]:
    """For every turn the seconds of the fastest plain loop: what others are compared with."""
    best: dict[str, float] = {}
    for run in runs:
        if run["key"]["side"].startswith("plain") and "error" not in run:
            best[run["turn"]] = min(best.get(run["turn"], float("inf")), steady(run))
    return best


def speed(runs: list[Run], best: dict[str, float]) -> str:
    """The median over turns of (fastest plain loop / this side); a side that took no turns meets the median bar."""
    ratios = [best[run["turn"]] / steady(run) for run in runs if run["turn"] in best]
    if not ratios and best and not runs[0]["turn"]:
        ratios = [median(best.values()) / steady(run) for run in runs]
    if len(ratios) > 1:
        return f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
    return f"{ratios[0]:.2f}" if ratios else "–"


def failed(side: str, runs: list[Run], columns: int) -> str:
    error = runs[-1]["error"].replace("|", "\\|")[:160]
    return f"| {side} | failed: {error} |" + " |" * (columns - 2)


def row(side: str, runs: list[Run], best: dict[str, float]) -> str:
    good = [run for run in runs if "error" not in run]
    if not good:
        return failed(side, runs, 9)
    every = [steady(run) for run in good]
    cells = [
        side, f"{median(every):.3f}", used(good), speed(good, best), f"{median(run['seconds'][0] for run in good):.2f}",
        f"{median(run['setup_seconds'] for run in good):.1f}", f"{max(run['peak_mib'] for run in good):.0f}",
        f"{median(run['score'] for run in good):.4f}", times(runs),
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def used(runs: list[Run]) -> str:
    found = [seconds for run in runs if (seconds := processor(run)) is not None]
    return f"{median(found):.3f}" if found else "–"


def times(runs: list[Run]) -> str:
    broken = sum("error" in run for run in runs)
    return f"{len(runs)}" + (f", {broken} failed" if broken else "")


def compared(runs: list[Run]) -> list[str]:
    """The table of W1, W2 or W3."""
    best, newest = bars(runs), max(runs, key=lambda run: run["date"])["key"]["code"]
    head = [
        "side",
        "s a round",
        "of the processor",
        "speed, fastest plain = 1",
        "first round s",
        "setup s",
        "peak MiB",
        "score",
        "runs",
    ]
    return [
        "| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1),
        *(row(side + age(some, newest), some, best) for side, some in by_side(runs).items()),
        "", agreement(runs),
    ]  # fmt: skip


def age(runs: list[Run], newest: str) -> str:
    """A mark for rows of which not every run was made with the newest code of the table."""
    return "" if all(run["key"]["code"] == newest for run in runs) else " (older code)"


def growth(runs: list[Run]) -> list[str]:
    """The table of W4."""
    head = "| clients | side | ms per client and round | peak MiB | setup s | score |"
    lines = [head, "| ---: | --- |" + " ---: |" * 4]
    for run in sorted(runs, key=lambda run: (WORKS[run["key"]["work"]].clients, run["key"]["side"])):
        clients, side = WORKS[run["key"]["work"]].clients, run["key"]["side"]
        if "error" in run:
            lines.append(f"| {clients:,} " + failed(side, [run], 5))
            continue
        lines.append(
            f"| {clients:,} | {side} | {1000 * steady(run) / clients:.3f} | {run['peak_mib']:.0f} "
            f"| {run['setup_seconds']:.1f} | {run['score']:.4f} |"
        )
    return lines


def agreement(runs: list[Run]) -> str:
    """Whether all sides have learnt about the same."""
    if runs[0]["key"]["work"] == "W3":
        return (
            "Scores are not compared: after W3's eight steps they still jump with the order of the examples."
        )
    scores = [run["score"] for run in runs if "error" not in run]
    if len(scores) < 2:
        return ""
    apart = max(scores) - min(scores)
    verdict = (
        "as they should" if apart <= TOLERANCE else "**too far: a side does other work than the others**"
    )
    return f"Scores lie {apart:.4f} apart, {verdict}."


def conditions(runs: list[Run]) -> str:
    """When, on what, with which code."""
    last = max(runs, key=lambda run: run["date"])
    box, codes = last["machine"], sorted({run["key"]["code"] for run in runs})
    rounds = sorted({run["key"]["rounds"] for run in runs})
    return (
        f"Last run {last['date']}, code {', '.join(codes)}, {' or '.join(map(str, rounds))} rounds. {box['cpu']}, "
        f"{box['cores']} cores, {box['memory_gib']} GiB, Python {box['python']}, {versions(runs)}; "
        f"load before a run {load(runs)}."
    )


def versions(runs: list[Run]) -> str:
    found = {f"{name} {number}" for run in runs for name, number in run.get("versions", {}).items()}
    return ", ".join(sorted(found))


def load(runs: list[Run]) -> str:
    loads = [run["load_before"] for run in runs if "load_before" in run]
    return f"{min(loads)}–{max(loads)}" if loads else "unknown"


def write(folder: Path, command: str) -> None:
    """The page of everything that was measured so far."""
    page = [
        "# Results", "", f"Written by `{command}`; what is measured and how: `benchmarks/README.md`.",
        "Seconds are medians of rounds, scoring included; the first rounds are left out, 5 in W1 and 1 elsewhere",
        "(in shorter runs at least one, if there are two).",
        "Speed is the fastest plain loop's seconds divided by the side's, within the same turn where sides took turns",
        "(median, smallest and largest); above 1 is faster than the fastest plain loop.",
    ]  # fmt: skip
    for family in FAMILIES:
        path = folder / f"{family}.json"
        if path.exists():
            runs = json.loads(path.read_text())["runs"]
            table = growth(runs) if family == "W4" else compared(runs)
            page += ["", f"## {TITLES[family]}", "", *table, "", conditions(runs)]
    (folder / "README.md").write_text("\n".join(page) + "\n")
