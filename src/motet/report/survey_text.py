"""A survey of clients' data as text: one line for each client, and sentences about all of them.

Knows the plain figures of a survey (dicts and lists). Does not know how they were counted, nor pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from motet.report.read import natural
from motet.report.terminal import WIDTH, printed, short, three_digits
from motet.text import LISTED

Plain = dict[str, Any]
Cell = Callable[[Plain], str]
MOST = 30  # clients shown in a terminal, unless all are asked for
SPARKS = "▁▂▃▄▅▆▇█"
MOST_SPARKS = 20  # labels that are drawn as little bars
APART = "set apart by (in sd)"
LEFT = ("client", "labels", APART)  # columns of text


def ordered(survey: Plain) -> list[Plain]:
    """Clients by name, the unseen ones last."""
    return sorted(survey["clients"], key=lambda c: (c["unseen"], natural(c["client"])))


# ---- clients ----


def columns(survey: Plain) -> dict[str, Cell]:
    """Headings of the table of clients, and what each shows."""
    found: dict[str, Cell] = {
        "client": lambda c: c["client"] + " *" * c["unseen"],
        "train": lambda c: f"{c['train']:,}",
        "val": lambda c: f"{c['val']:,}",
        "test": lambda c: f"{c['test']:,}",
        "labels": labels,
        "bits": lambda c: f"{c['entropy']:.2f}",
        "distance": lambda c: f"{c['distance']:.2f}",
    }
    if survey["kind"] == "survival":
        found |= {"events": events, "median time": lambda c: three_digits(c["target"]["median"])}
    if survey["kind"] == "numbers":
        found |= {"mean ± sd": targets("mean", "±", "std"), "from … to": targets("min", "…", "max")}
    return found | feature_columns(survey)


def feature_columns(survey: Plain) -> dict[str, Cell]:
    found: dict[str, Cell] = {}
    clients = survey["clients"]
    if any(c["columns"] != survey["columns"] for c in clients):
        found["columns"] = lambda c: f"{c['columns']} of {survey['columns']}"
    if survey["missing"]:
        found["missing"] = lambda c: f"{c['missing']:,}"
    if any(c["channels"] for c in clients):
        found["brightness"] = brightness
    if any(c["apart"] for c in clients):
        found[APART] = set_apart
    return found


def set_apart(client: Plain, width: int = 1000) -> str:
    """As many columns as fit into the width, the most unlike first."""
    parts = [f"{d['column']} {d['away']:+.1f}" for d in client["apart"]]
    while len(parts) > 1 and len(", ".join(parts)) > width:
        parts.pop()
    return short(", ".join(parts), width)


def labels(client: Plain) -> str:
    """Little bars, a dot for none; of very many classes, how many of them the client holds."""
    counts = client["counts"]
    if len(counts) > MOST_SPARKS:
        return f"{sum(n > 0 for n in counts)} of {len(counts)}"
    return sparks(counts)


def sparks(counts: Sequence[int]) -> str:
    """
    >>> sparks([0, 1, 4, 8])
    '·▁▄█'
    """
    most = max(counts) or 1
    return "".join(SPARKS[-(-n * len(SPARKS) // most) - 1] if n else "·" for n in counts)


def events(client: Plain) -> str:
    """How many rows had their event, and their share."""
    many, seen = sum(client["counts"]), client["counts"][1]
    return f"{seen:,} ({100 * seen / max(many, 1):.0f} %)"


def targets(first: str, between: str, second: str) -> Cell:
    """Two numbers on a client's targets."""
    return lambda c: f"{three_digits(c['target'][first])} {between} {three_digits(c['target'][second])}"


def brightness(client: Plain) -> str:
    """The mean, and each channel's if there are several."""
    each = client["channels"]
    mean = three_digits(sum(each) / max(len(each), 1))
    return mean if len(each) < 2 else f"{mean} ({', '.join(map(three_digits, each))})"


# ---- all of them ----


def facts(survey: Plain) -> list[tuple[str, str]]:
    """A name and a sentence for each thing that is known of all clients together."""
    return [
        ("clients", of_clients(survey)),
        ("features", of_features(survey)),
        ("entropy", of_entropy(survey)),
        ("distance", f"{of_range(survey['distance'])}; of a client's labels from everyone's (Jensen-Shannon): "
         "0 alike, 1 disjoint"),
        ("equal rows", of_shared(survey["duplicates"])),
        ("leaks", of_leaks(survey["duplicates"])),
        ("missing", of_missing(survey)),
        ("server", of_server(survey)),
    ]  # fmt: skip


def of_clients(survey: Plain) -> str:
    unseen = sum(c["unseen"] for c in survey["clients"])
    rows = survey["rows"]
    parts = f"{len(survey['clients']) - unseen:,} take part"
    parts += f", {unseen:,} never seen in training (*)" if unseen else ""
    total = sum(survey["counts"])
    return f"{parts}; {total:,} rows, {rows['min']:,.0f} to {rows['max']:,.0f} a client, Gini {survey['gini']:.2f}"


def of_features(survey: Plain) -> str:
    shape = " × ".join(map(str, survey["shape"]))
    what = {
        "table": f"a table of {survey['columns']:,} columns",
        "images": f"images, {shape} (channels × height × width)",
        "symbols": f"{shape} symbols",
        "other": f"numbers of shape {shape}",
    }[survey["features"]]
    if survey["kind"] == "numbers":
        return f"{what}; the target is a number, counted in {len(survey['labels'])} bins of equal size"
    if survey["kind"] == "survival":
        censored, seen = survey["counts"]
        return f"{what}; the target is a time: {seen:,} rows had their event, {censored:,} are censored"
    classes = f"{len(survey['labels']):,} classes"
    if len(survey["labels"]) <= LISTED:
        counts = zip(survey["labels"], survey["counts"], strict=True)
        classes += ": " + ", ".join(f"{name} {many:,}" for name, many in counts)
    return f"{what}; {classes}"


def of_entropy(survey: Plain) -> str:
    return f"{of_range(survey['entropy'])} bits; {100 * survey['evenness']['mean']:.0f} % of the largest possible"


def of_range(figure: Plain) -> str:
    low, high = f"{figure['min']:.2f} ({figure['least']})", f"{figure['max']:.2f} ({figure['most']})"
    return f"mean {figure['mean']:.2f}, from {low} to {high}"


def of_shared(duplicates: Plain) -> str:
    """Rows that several clients hold."""
    some, exact = duplicates["shared"], duplicates["shared_with_target"]
    if some is None:
        return "not compared: each client's features are standardised by themselves (data.scale=client)"
    sets = duplicates["column_sets"]
    kin = f"; only clients with the same columns are compared ({sets} sets of columns)" if sets > 1 else ""
    if not some["rows"]:
        return f"no row is held by two clients{kin}"
    return f"{some['rows']:,} are held by two clients or more, {of_found(some, exact)}{kin}"


def of_leaks(duplicates: Plain) -> str:
    """Test rows that are trained on."""
    some, exact = duplicates["leaked"], duplicates["leaked_with_target"]
    if not some["rows"]:
        found = "no test row equals one that its own client trains on"
    elif some["rows"] == 1:
        found = f"1 test row equals one that its own client trains on, {of_found(some, exact)}"
    else:
        found = (
            f"{some['rows']:,} test rows equal one that their own client trains on, {of_found(some, exact)}"
        )
    return found + of_elsewhere(duplicates.get("elsewhere"))


def of_elsewhere(some: Plain | None) -> str:
    """Test rows that another client trains on: models that clients share know their targets."""
    if not some or not some["rows"]:
        return ""
    named = ", ".join(f"{client} {rows:,}" for client, rows in some["most"])
    are = "test row is, target and all," if some["rows"] == 1 else "test rows are, target and all,"
    return f"; {some['rows']:,} {are} among another client's training rows (most: {named})"


def of_found(some: Plain, exact: Plain) -> str:
    named = ", ".join(f"{client} {rows:,}" for client, rows in some["most"])
    clients = f"{some['clients']:,} client{'s' * (some['clients'] > 1)}"
    return f"{exact['rows']:,} of them with the same target; {clients} (most: {named})"


def of_missing(survey: Plain) -> str:
    if not survey["missing"]:
        return "no cell was empty"
    most = sorted((c for c in survey["clients"] if c["missing"]), key=lambda c: -c["missing"])
    named = ", ".join(f"{c['client']} {c['missing']:,}" for c in most[:3])
    filled = f"{survey['missing']:,} cells were empty and are filled"
    return f"{filled}, with {len(most):,} clients (most: {named})"


def of_server(survey: Plain) -> str:
    named = {"proxy": "proxy", "server_test": "test"}
    held = [f"{survey[k]:,} {name} rows" for k, name in named.items() if survey[k] is not None]
    return " and ".join(held) or "holds no rows"


# ---- terminal ----


def as_text(survey: Plain, everyone: bool = False, width: int = WIDTH) -> str:
    """The table of clients and the sentences, for a terminal."""
    clients = ordered(survey)
    shown = clients if everyone else clients[:MOST]
    rest = len(clients) - len(shown)
    more = [f"… and {rest:,} more (--all shows them)"] if rest else []
    sentences = _listed([*facts(survey), *(("note", note) for note in survey["notes"])])
    return printed([_table(shown, columns(survey), width), *more, sentences], width)


def _table(clients: Sequence[Plain], cells: dict[str, Cell], width: int) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    texts = {name: [short(cell(c), 24) for c in clients] for name, cell in cells.items() if name != APART}
    left = width - sum(max(map(len, [name, *some])) + 2 for name, some in texts.items()) - 2
    if APART in cells and left >= len(APART):
        texts[APART] = [set_apart(c, left) for c in clients]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in texts:
        table.add_column(name, justify="left" if name in LEFT else "right", no_wrap=True, overflow="ellipsis")
    for row in zip(*texts.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


def _listed(pairs: Sequence[tuple[str, str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, text in pairs:
        table.add_row(Text(name), Text(text))
    return table
