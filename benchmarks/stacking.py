"""How much faster the stacking procedure is than the same one written plainly with scikit-learn.

Both compute a part of Figure 2's Census row (beta 1), one after the other. The plain side fits one forest after
another in one process: it fits the pooled stack's private model again, and every public model predicts anew for
every stack, as in scikit-learn's StackingClassifier. Ours computes it once in one process (computing time of both
sides is compared), then with a seed in each of several processes at once, as `motet reproduce` does (wall time).

    python benchmarks/stacking.py --clients 10 --repeats 5 --to benchmarks/results/stacking.md
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import balanced_accuracy_score

from motet.data.sets import census

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments" / "stacking"))
from paper_partition import Table, divide
from paper_procedure import How, divide_rows, outcomes

ROW = 4 * 10 * 5 * 10  # betas, seeds, repeats and clients of the whole row


def plainly(table: Table, seed: int, repeats: int) -> np.ndarray:
    """Baseline, held-out and pooled scores (clients, repeats, 3)."""
    rows = [(table.x[r], table.y[r]) for r in table.rows]
    public = [RandomForestClassifier(random_state=seed).fit(*xy) for xy in rows]
    scores = np.zeros((len(rows), repeats, 3))
    for i, (x, y) in enumerate(rows):
        for r in range(repeats):
            train, meta, test = divide_rows(y, seed * 5 + r)
            both = np.concatenate([train, meta])
            base = RandomForestClassifier(random_state=seed).fit(x[both], y[both])
            scores[i, r, 0] = balanced_accuracy_score(y[test], base.predict(x[test]))
            for k, (known, shown) in enumerate(((train, meta), (both, both)), 1):
                own = RandomForestClassifier(random_state=seed).fit(x[known], y[known])
                models = [own if j == i else m for j, m in enumerate(public)]
                z, zt = (
                    np.column_stack([m.predict_proba(x[at])[:, 1] for m in models]) for at in (shown, test)
                )
                top = RandomForestClassifier(random_state=seed).fit(z, y[shown])
                scores[i, r, k] = balanced_accuracy_score(y[test], top.predict(zt))
                _ = top.feature_importances_
    return scores


def divided(seed: int, clients: int) -> Table:
    whole = divide(census.load(), "quantity_skew", seed, clients=10, beta=1.0, least=500)
    some = {k: getattr(whole, k)[:clients] for k in ("names", "rows", "holds")}
    return Table(**vars(whole) | some)


def ours(seed: int, clients: int, repeats: int) -> None:
    outcomes(divided(seed, clients), seed, How(repeats=repeats))


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--clients", type=int, default=10)
    ask.add_argument("--repeats", type=int, default=5)
    ask.add_argument("--seed", type=int, default=1)
    ask.add_argument("--processes", type=int, default=2)
    ask.add_argument("--to", type=Path)
    args = ask.parse_args()
    table = divided(args.seed, args.clients)
    began = time.perf_counter()
    slow, plain = timed(lambda: plainly(table, args.seed, args.repeats))
    slow_wall = time.perf_counter() - began
    fast, found = timed(lambda: outcomes(table, args.seed, How(repeats=args.repeats))["all", 0.0])
    per = args.clients * args.repeats
    began = time.perf_counter()
    with ProcessPoolExecutor(args.processes) as pool:
        seeds = range(args.seed, args.seed + args.processes)
        list(pool.map(ours, seeds, repeat(args.clients), repeat(args.repeats)))
    each = (time.perf_counter() - began) / args.processes
    lines = [
        f"{args.clients} of 10 clients, {args.repeats} of 5 repeats, seed {args.seed}; computing time, one thread.",
        "",
        "| | seconds | a client and repeat | the whole row, minutes of one core | baseline | held-out gain |",
        "| --- | --- | --- | --- | --- | --- |",
        row("scikit-learn, plainly", slow, per, plain[..., 0].mean(), (plain[..., 1] - plain[..., 0]).mean()),
        row("experiments/stacking", fast, per, found.baseline.mean(), (found.held - found.baseline).mean()),
        "",
        f"Ratio {slow / fast:.2f} on one core. By the clock, with {args.processes} processes at once as `motet "
        f"reproduce` has it: {each:.1f} s for what plainly takes {slow_wall:.1f} s, ratio {slow_wall / each:.2f}.",
    ]
    text = "\n".join(lines)
    print(text)
    if args.to:
        args.to.write_text(text + "\n")


def row(name: str, seconds: float, per: int, baseline: float, gain: float) -> str:
    each = seconds / per
    return f"| {name} | {seconds:.1f} | {each:.2f} | {each * ROW / 60:.0f} | {baseline:.4f} | {gain:+.4f} |"


if __name__ == "__main__":
    main()
