"""An audit for a terminal, for a page and as a picture: what attackers learn of a run, and how surely.

Knows what audits kept with runs. Does not know how attacks work.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from motet.report.contributions import wrapped
from motet.report.figures import GREY, INK, PALETTE, WIDE, Draw, Picture
from motet.report.privacy_figures import epsilon_axis
from motet.report.read import ReportedRun
from motet.report.terminal import short
from motet.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEMBERSHIP = ("loss threshold", "shadow models", "LiRA")
_DELTA = 1e-5  # assumed where a run does not say with which delta its epsilon holds


def audit_text(found: Mapping[str, Any], width: int = 80) -> list[str]:
    """One block of lines for each attack, and what was not attacked."""
    figures = found.get("figures") or []
    narrow = width < 76
    lines = []
    for f in figures:
        value = f"{f['what'].split(' (')[0]} {cell(f)}"
        first = f"{f['attack']} on {f['on']}"
        if narrow or len(first) + len(value) + 2 > width:
            lines += [*wrapped(first, width), *textwrap.wrap(f"  {value}", width, subsequent_indent="    ")]
        else:
            lines.append(f"{first}{value:>{width - len(first)}}")
        lines += textwrap.wrap(
            f"by {f['by']}; {details(f)}", width, initial_indent="  ", subsequent_indent="  "
        )
    said = [f"guards: {found.get('guards', 'none')}; epsilon: {epsilon_text(found.get('epsilon'))}"]
    said += [f"not attacked: {k}: {printable(why)}" for k, why in (found.get("skipped") or {}).items()]
    if not found.get("same_bits", True):
        said.append("the replay gave other bits than the run: figures are of the replay")
    said.append(
        "in brackets: 95 % intervals; *: surely better than guessing, and no other figure proves safety"
    )
    return [*lines, "", *(line for s in said for line in wrapped(s, width))]


def cell(f: Mapping[str, Any]) -> str:
    """`+0.120 (+0.080 to +0.160)`, marked where it is surely better than guessing."""
    sign = "+" if f["what"] == "advantage" or "gained" in f["what"] else ""
    ends = "" if math.isnan(f["low"]) else f" ({f['low']:{sign}.3f} to {f['high']:{sign}.3f})"
    return f"{f['value']:{sign}.3f}{ends}{' *' if f['learns'] else ''}"


def details(f: Mapping[str, Any]) -> str:
    """Guessing, sizes, and what else is known."""
    more, said = f["more"], [f"guessing {f['guess']:.3f}", f["sizes"]]
    if "auc" in more:
        low, high = more["auc_interval"]
        said.append(f"AUC {more['auc']:.3f} ({low:.3f} to {high:.3f})")
        said += [f"{more['shadows']} shadow runs"] if "shadows" in more else []
        said += [f"epsilon at least {more['epsilon_at_least']:.2f}"] if more["epsilon_at_least"] > 0 else []
    if "correlation" in more:
        said.append(
            f"median correlation {more['correlation']:.2f}, of the mean example {more['guess_correlation']:.2f}"
        )
    if "distance" in more:
        said.append(f"distance {more['distance']:.3f}, guessing {more['guess_distance']:.3f}")
    return "; ".join(said)


def epsilon_text(epsilon: float | None) -> str:
    return "none spent (not differentially private)" if epsilon is None else f"{epsilon:.3g}"


# ---- on the page ----


def audits(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """For a page: a table of figures for each run that was audited."""
    return [
        {
            "label": run.label,
            "seed": run.seed,
            "guards": found.get("guards", "none"),
            "epsilon": epsilon_text(found.get("epsilon")),
            "rows": [
                (f["attack"], f["on"], f["by"], f["what"], cell(f), details(f)) for f in found["figures"]
            ],
            "skipped": [f"{k}: {why}" for k, why in found.get("skipped", {}).items()],
        }
        for run in runs
        if (found := run.facts.get("audit"))
    ]


# ---- pictures ----


def pictures_of_audits(found: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Picture]:
    """Membership advantage against epsilon, and the first inverted example; `found` has a label for each audit."""
    return [*_advantages(found), *(p for label, one in found for p in _inverted(label, one))]


def audit_pictures(runs: Sequence[ReportedRun]) -> list[Picture]:
    return pictures_of_audits([(r.label, r.facts["audit"]) for r in runs if r.facts.get("audit")])


def _advantages(found: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Picture]:
    import pandas as pd

    rows = [
        (label, one.get("epsilon"), f["on"], f["attack"], f["value"], f["low"], f["high"])
        for label, one in found
        for f in one["figures"]
        if f["attack"] in MEMBERSHIP
    ]
    if not rows:
        return []
    data = pd.DataFrame(rows, columns=["run", "epsilon", "model", "attack", "advantage", "low", "high"])
    private = data["epsilon"].notna()
    # a budget of whole clients is that of what leaves them: their own models are not covered
    levels = {one.get("level") for _, one in found}
    covered = [m for m in set(data["model"]) if "client" not in levels or not m.startswith("personal")]
    delta = max((float(one.get("delta") or _DELTA) for _, one in found if one.get("epsilon")), default=_DELTA)
    across = "against epsilon" if private.any() else "of each run"
    caption = (
        f"Advantage (true minus false positives) of membership inference {across}, with 95 % intervals. "
    )
    caption += "0 is guessing."
    if private.any() and covered:
        caption += (
            f" The line is the most that any attack can have under the run's epsilon (delta {delta:g})."
        )
    if private.any() and not private.all():
        caption += " Runs without differential privacy stand at the right."
    size = WIDE, 3.4
    return [
        Picture(
            "membership-advantage",
            "What membership inference finds",
            caption,
            _draw_advantages(data, covered, delta),
            size,
            data,
        )
    ]


def _draw_advantages(data: Any, covered: Sequence[str], delta: float) -> Draw:
    def draw(figure: Figure) -> None:
        models = sorted(set(data["model"]))
        panels = figure.subplots(1, len(models), squeeze=False)[0]
        for axes, model in zip(panels, models, strict=True):
            _panel(axes, data[data["model"] == model], model, delta if model in covered else None)
        panels[0].set_ylabel("advantage")
        panels[-1].legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))

    return draw


def _panel(axes: Axes, rows: Any, model: str, delta: float | None) -> None:
    known = sorted({float(e) for e in rows["epsilon"].dropna()})
    right = known[-1] * 4 if known else 1.0
    labels = list(dict.fromkeys(rows["run"]))
    for k, attack in enumerate(a for a in MEMBERSHIP if (rows["attack"] == a).any()):
        some = rows[rows["attack"] == attack]
        shift = 1 + 0.06 * (k - 1) if known else 0.0
        if known:
            at = [(float(e) if e == e and e is not None else right) * shift for e in some["epsilon"]]
        else:
            at = [labels.index(r) + 0.12 * (k - 1) for r in some["run"]]
        errors = [some["advantage"] - some["low"], some["high"] - some["advantage"]]
        mark = "os^"[k % 3]
        axes.errorbar(
            at,
            some["advantage"],
            yerr=errors,
            fmt=mark,
            ms=5,
            lw=1.1,
            capsize=2,
            color=PALETTE[k],
            label=attack,
        )
    axes.axhline(0.0, color=GREY, lw=0.8)
    low, high = float(rows["low"].min()), float(rows["high"].max())
    axes.set_ylim(min(-0.1, 1.2 * low), max(0.3, 1.3 * high))  # the bound may leave at the top
    axes.set_title(model, fontsize="medium", color=INK)
    if known:
        _budget_axis(axes, known, right, bool(rows["epsilon"].isna().any()), delta)
    else:
        axes.set_xticks(range(len(labels)), [short(v, 12) for v in labels])
        axes.set_xlim(-0.6, len(labels) - 0.4)


def _budget_axis(axes: Axes, known: list[float], right: float, plain: bool, delta: float | None) -> None:
    import numpy as np

    epsilon_axis(axes, known, right if plain else math.nan)
    if delta is not None:
        at = np.geomspace(known[0] / 2, known[-1] * 1.5, 60)
        # tanh(e / 2) is (exp(e) - 1) / (exp(e) + 1), for any e
        most = [min(1.0, math.tanh(e / 2) + delta * (1 - math.tanh(e / 2))) for e in at]
        axes.plot(at, most, color=GREY, lw=1.0, ls="--", label="bound by epsilon")


def _inverted(label: str, found: Mapping[str, Any]) -> list[Picture]:
    """The first example and what was found of it under each guard, where examples are images."""
    import pandas as pd

    some = [f["more"] for f in found["figures"] if f["attack"] == "gradient inversion"]
    if not some or len(side := _image(some[0]["first"]["shape"])) != 2:
        return []
    shown = [("example", some[0]["first"]["truth"]), *((m["guard"], m["first"]["found"]) for m in some)]
    caption = (
        "One training example, and what gradient inversion makes of the update of a client that trained with it alone: "
        "as it is, and as guards leave it. Brightness is matched to the example's."
    )
    data = pd.DataFrame([(name, i, v) for name, values in shown for i, v in enumerate(values)],
                        columns=["what", "pixel", "value"])  # fmt: skip
    name = f"gradient-inversion-{label}"
    return [
        Picture(
            name, "Gradient inversion of one example", caption, _draw_images(shown, side), (WIDE, 2.2), data
        )
    ]


def _image(shape: Sequence[int]) -> tuple[int, ...]:
    """Height and width of an image of one channel; a square table of pixels counts too."""
    if len(shape) == 3 and shape[0] == 1:
        return tuple(shape[1:])
    root = math.isqrt(shape[0]) if len(shape) == 1 else 0
    return (root, root) if root > 4 and root * root == shape[0] else ()


def _draw_images(shown: Sequence[tuple[str, Sequence[float]]], side: tuple[int, ...]) -> Draw:
    def draw(figure: Figure) -> None:
        import numpy as np

        truth = np.asarray(shown[0][1], float)
        for axes, (name, values) in zip(figure.subplots(1, len(shown)), shown, strict=True):
            picture = np.asarray(values, float).reshape(side)
            axes.imshow(picture, cmap="gray", vmin=truth.min(), vmax=truth.max())
            axes.set_title(textwrap.fill(name, 18), fontsize="small", color=INK)
            axes.axis("off")

    return draw
