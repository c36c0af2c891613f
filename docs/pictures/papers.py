"""The pictures of docs/papers.md, from the tables of the experiments' READMEs: python docs/pictures/papers.py

A picture shows what its README says: when a README has new numbers, this draws them.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

HERE = Path(__file__).parent
EXPERIMENTS = HERE.parents[1] / "experiments"
BLUE, ORANGE, GREEN, GREY = "#0077BB", "#D55E00", "#009E73", "#808080"
Table = list[dict[str, str]]


def main() -> None:
    matplotlib.rcParams |= {"svg.hashsalt": "papers", "font.size": 9}
    for name, draw in {"stacking": stacking, "fedperc": fedperc, "page": page, "swarm": swarm}.items():
        figure, axes = pyplot.subplots(figsize=(6.4, 3.0))
        draw(axes)
        axes.grid(alpha=0.3)
        figure.tight_layout()
        figure.savefig(HERE / f"paper-{name}.svg", metadata={"Date": None})
        pyplot.close(figure)


# ---- numbers ----


def tables(readme: str) -> list[Table]:
    """The Markdown tables of a README, a dictionary for each row."""
    found: list[Table] = []
    for block in re.findall(r"(?:^\|.*\n)+", (EXPERIMENTS / readme).read_text(), re.MULTILINE):
        head, _, *rows = [
            [c.strip(" *") for c in line.strip("|\n").split("|")] for line in block.splitlines()
        ]
        found.append([dict(zip(head, row, strict=False)) for row in rows])
    return found


def table_with(readme: str, *columns: str) -> Table:
    """The first table that has these columns."""
    return next(t for t in tables(readme) if t and set(columns) <= set(t[0]))


def number(cell: str) -> float:
    """The first number of a cell: of its mean, where it has a spread.

    >>> number("+.0094 ± .0028"), number("–.0004"), number("25.2 ± 3")
    (0.0094, -0.0004, 25.2)
    """
    found = re.search(r"[-+]?\d*\.?\d+", cell.replace("–", "-").replace("**", ""))
    assert found, cell
    return float(found.group())


# ---- pictures ----


Points = list[tuple[str, float, float, str]]  # name, x, y, colour


def scattered(axes: Axes, points: Points, near: tuple[float, float]) -> None:
    """Points with their names; those that are near each other share one line of names."""
    together: list[Points] = []
    for point in points:
        close = (some for some in together if all(abs(point[i] - some[0][i]) < near[i - 1] for i in (1, 2)))
        if (some := next(close, None)) is None:
            together.append([point])
        else:
            some.append(point)
    middle = sum(p[1] for p in points) / len(points)
    for some in together:
        for _, x, y, colour in some:
            axes.scatter(x, y, color=colour)
        names, (_, x, y, _) = ", ".join(dict.fromkeys(p[0] for p in some)), some[-1]
        side = "left" if x <= middle else "right"
        axes.annotate(
            names, (x, y), xytext=(5 if side == "left" else -5, 5), textcoords="offset points", ha=side
        )
    axes.margins(0.15)


def stacking(axes: Axes) -> None:
    """What vertical stacks gain as published, and with tested rows held out of public models."""
    rows, p, found = table_with("stacking/figure4/README.md", "p", "public models"), "", {}
    for row in rows:
        p = row["p"] or p
        found[p, row["public models"].split(",")[0].split(" ")[0]] = number(row["epsilon 0"])
    shares = list(dict.fromkeys(share for share, _ in found))
    kinds = {"all": ("as published", ORANGE), "paper": ("the paper", GREY), "untested": ("clean", BLUE)}
    for shift, (kind, (label, colour)) in zip((-0.26, 0.0, 0.26), kinds.items(), strict=True):
        at = [i + shift for i in range(len(shares))]
        axes.bar(at, [found[share, kind] for share in shares], 0.24, color=colour, label=label)
    axes.set_xticks(range(len(shares)), [f"p = {share}" for share in shares])
    axes.set(
        ylabel="gain in balanced accuracy",
        title="Stacking, vertical: what test rows in public models are worth",
    )
    axes.legend()


def fedperc(axes: Axes) -> None:
    """Each method by what it gets right of shared and of own classes."""
    own, special = "a client's 5 own", {"FedPerC": ORANGE, "PFA": ORANGE, "GroupTune": BLUE}
    points: Points = []
    for row in table_with("fedperc/cifar100-small/README.md", "the 20 shared classes", own):
        name = row["accuracy in percent on images of"]
        points.append((name, number(row["the 20 shared classes"]), number(row[own]), special.get(name, GREY)))
    scattered(axes, points, (0.1, 0.1))
    axes.set(xlabel="classes that the group shares, percent right", ylabel="a client's own classes")
    axes.set_title("FedPerC: CIFAR-100 in small")


def page(axes: Axes) -> None:
    """Each method by its global and its clients' models."""
    points: Points = []
    for row in table_with("page/table1-synthetic/README.md", "method", "global", "local", "minutes"):
        if re.search(r"\d", row["global"]):
            colour = BLUE if row["method"].startswith("PAGE") else GREY
            points.append((row["method"].split(",")[0], number(row["global"]), number(row["local"]), colour))
    scattered(axes, points, (0.6, 0.35))
    axes.set(
        xlabel="global model, percent right", ylabel="clients' models", title="PAGE: Synthetic, 100 clients"
    )


def swarm(axes: Axes) -> None:
    """Accuracy against the number of messages."""
    points: Points = []
    for row in table_with("swarm/digits/README.md", "row", "global", "messages"):
        name = ", ".join(row["row"].split(" ([")[0].strip("*").split(", ")[:2]).removesuffix(
            ", one digit a client"
        )
        if row["messages"] and "iid" not in name and "squares" not in name:
            x, y = number(row["messages"].replace(",", "")), number(row["global"])
            points.append((name, x, y, BLUE if name.startswith("FSI") else GREY))
    scattered(axes, points, (1.0, 0.1))
    axes.set(xscale="log", xlabel="messages of a client", ylabel="test digits, percent right")
    axes.set_title("Swarm: one digit a client")


if __name__ == "__main__":
    main()
