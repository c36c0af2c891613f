"""Contributions: how important each client's model is to the others, as a graph, and policies built on it.

A client's importances measure how much its meta-model relies on each model, its own private one among them;
they sum to 1. All clients' importances together are `Trust`: {client: {owner: share}}, plain data. As a graph,
an edge leads from a client to an owner whose model it relies on; a client's contribution is the weight of the
edges that arrive at it.

Cantu-Cervini 2024, section 3, which leaves open which centralities are useful in a federation. Knows shares of
clients. Does not know how models are fetched, stored or sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from motet.errors import need

Array = np.ndarray[Any, Any]
Trust = Mapping[str, Mapping[str, float]]  # {client: {owner: share}}; a client's shares sum to 1
Shares = dict[str, float]
How = Literal["mdi", "permutation", "shapley"]
OWN = "private"  # the name of a client's own private model among the models of its stack
_HISTORY = 1000  # rounds of contributions that are remembered
_LEARNED = 0.05  # area under the ROC curve above chance from which a private model has learned something
_NO_SKILL = 0.4  # of private models' skill: less is nonsense, if
_OF_USE = 0.8  # no client finds this part of its own model's skill
_PERMUTATIONS = 5  # times that a column is shuffled
_ORDERS = 30  # random orders of the Shapley game's players, each forwards and backwards


# ---- importances of one meta-model ----


def importances(
    model: Any,
    z: Array,
    y: Array,
    group: Sequence[int],
    how: How = "mdi",
    *,
    seed: int = 0,
    weight: Array | None = None,
) -> Array:
    """How much a fitted meta-model relies on each group of its columns, summing to 1.

    `group[c]` is which model column c of `z` came from. mdi: mean decrease of impurity of trees, or |weight| times
    spread of a linear model; permutation: what the Brier score (or R squared) loses when a group is shuffled;
    shapley: Shapley values of the score, where absent groups are at their means. The last two use rows (z, y) with
    their weights, which should not have taught the model.
    """
    many = max(group) + 1
    if how == "mdi":
        raw = np.bincount(group, _weights(model, z), minlength=many)
    else:
        f, rng = _permuted if how == "permutation" else _shapley, np.random.Generator(np.random.PCG64(seed))
        raw = f(lambda x: _score(model, x, y, weight), z, np.asarray(group), many, rng)
    raw = np.maximum(raw, 0.0)
    return np.asarray(raw / raw.sum() if raw.sum() > 0 else np.full(many, 1 / many))


def _score(model: Any, z: Array, y: Array, weight: Array | None) -> float:
    """The Brier score, turned round: of a few rows it says more than how many are right. R squared of numbers."""
    if not hasattr(model, "predict_proba"):
        return float(model.score(z, y) if weight is None else model.score(z, y, sample_weight=weight))
    right = np.asarray(model.classes_)[None] == np.asarray(y)[:, None]
    return -float(np.average(((model.predict_proba(z) - right) ** 2).sum(1), weights=weight))


def _weights(model: Any, z: Array) -> Array:
    """Of a search the model that it chose, of a pipeline the last step and what that step sees."""
    model = getattr(model, "best_estimator_", model)
    if hasattr(model, "steps"):
        return _weights(model[-1], model[:-1].transform(z) if len(model.steps) > 1 else z)
    if hasattr(model, "feature_importances_"):
        return np.asarray(model.feature_importances_)
    if hasattr(model, "coef_"):
        return np.asarray(np.abs(np.atleast_2d(model.coef_)).sum(0) * z.std(0))
    raise ValueError(
        f"a {type(model).__name__} has neither feature_importances_ nor coef_.\n"
        "hint: importance='permutation' or 'shapley' work with any model"
    )


def _permuted(
    worth: Callable[[Array], float], z: Array, group: Array, many: int, rng: np.random.Generator
) -> Array:
    whole, lost = worth(z), np.zeros(many)
    for g in range(many):
        for _ in range(_PERMUTATIONS):
            shuffled = z.copy()
            shuffled[:, group == g] = z[rng.permutation(len(z))][:, group == g]
            lost[g] += (whole - worth(shuffled)) / _PERMUTATIONS
    return lost


def _shapley(
    worth: Callable[[Array], float], z: Array, group: Array, many: int, rng: np.random.Generator
) -> Array:
    """Mean gain of a group when it is added, over random orders and their reverses; exact for two groups."""
    mean, known = z.mean(0), dict[frozenset[int], float]()

    def value(here: frozenset[int]) -> float:
        if here not in known:
            known[here] = worth(np.where(np.isin(group, list(here)), z, mean))
        return known[here]

    gain = np.zeros(many)
    for _ in range(_ORDERS):
        order = rng.permutation(many)
        for way in (order, order[::-1]):
            here = frozenset[int]()
            for g in way.tolist():
                gain[g] += (value(here | {g}) - value(here)) / (2 * _ORDERS)
                here |= {g}
    return gain


def normalised(shares: Mapping[str, float]) -> Shares:
    """Shares that sum to 1; negative ones, which no honest client sends, count as 0.

    >>> normalised({"a": 3.0, "b": 1.0, "c": -1.0})
    {'a': 0.75, 'b': 0.25, 'c': 0.0}
    """
    some = {k: max(float(v), 0.0) for k, v in shares.items()}
    total = sum(some.values())
    return {k: v / total if total > 0 else 1 / len(some) for k, v in some.items()}


# ---- the federation ----


def members(trust: Trust) -> list[str]:
    return sorted({*trust, *(j for row in trust.values() for j in row)})


def self_importance(trust: Trust) -> Shares:
    """How much each client relies on its own private model."""
    return {i: float(row.get(i, 0.0)) for i, row in trust.items()}


def in_strength(trust: Trust) -> Shares:
    """Each client's part of what others rely on; the parts sum to 1. A client's word counts by how it divides its
    trust among others, not by how much it leaves for them; who relies on itself alone says nothing about others. So
    nobody gains by saying so.

    >>> in_strength({"a": {"a": 0.9, "b": 0.1}, "b": {"a": 0.5, "c": 0.5}, "c": {"b": 0.5}})["b"]
    0.6666666666666666
    """
    said = {i: row for i in trust if (row := _among_others(trust, i))}
    got = {j: _mean([row.get(j, 0.0) for i, row in said.items() if i != j]) for j in members(trust)}
    total = sum(got.values())
    return {j: v / total if total > 0 else 0.0 for j, v in got.items()}


def _among_others(trust: Trust, client: str) -> Shares:
    """How a client divides its trust among others, summing to 1; {} if it gives them none."""
    row = {j: float(w) for j, w in trust[client].items() if j != client and w > 0}
    return normalised(row)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def graph(trust: Trust) -> Any:
    """A networkx.DiGraph: an edge from client to owner with its `weight`, and `own` at each node."""
    need("a graph of contributions", "stacking", "networkx")
    import networkx

    found = networkx.DiGraph()
    own, strength = self_importance(trust), in_strength(trust)
    for j in members(trust):
        found.add_node(j, own=own.get(j, 0.0), contribution=strength[j])
    for i, row in trust.items():
        found.add_weighted_edges_from((i, j, float(w)) for j, w in row.items() if i != j and w > 0)
    return found


def centralities(trust: Trust) -> dict[str, Shares]:
    """Contribution by several measures: in-strength weighs all clients alike, PageRank gives more weight to clients
    on which others rely; hubs rely on authorities; betweenness counts shortest paths, where trust is nearness."""
    g = graph(trust)
    import networkx

    far = {(i, j): 1 / w for i, j, w in g.edges(data="weight")}
    networkx.set_edge_attributes(g, far, "far")
    hubs, authorities = networkx.hits(g, max_iter=1000) if g.size() else ({}, {})
    found = {
        "in_strength": in_strength(trust),
        "pagerank": dict(networkx.pagerank(g, weight="weight")),
        "authority": {j: float(authorities.get(j, 0.0)) for j in g},
        "hub": {j: float(hubs.get(j, 0.0)) for j in g},
        "betweenness": dict(networkx.betweenness_centrality(g, weight="far")),
    }
    # an eigenvector's zeros are -0.0 or -6e-19 at times
    return {k: {j: max(0.0, v) if v > 1e-15 else 0.0 for j, v in of.items()} for k, of in found.items()}


def giving_little(
    history: Sequence[Mapping[str, float]], clients: Collection[str], share: float = 0.2, rounds: int = 3
) -> list[str]:
    """Clients whose in-strength was less than `share` of an equal part in each of the last rounds."""
    last = history[-rounds:]
    if len(last) < rounds:
        return []
    return sorted(j for j in clients if all(s.get(j, 0.0) < share / max(len(s), 1) for s in last))


# ---- what the server keeps, in words and numbers ----


def trust_of(client: str, shares: Mapping[str, float], served: Mapping[str, Any]) -> Shares:
    """Contribution scores by client: the private model's are the client's own; models not served count nothing."""
    others = {owner: float(v) for owner, v in shares.items() if owner in served}
    return normalised({client: float(shares.get(OWN, 0.0)), **others})


def metrics(state: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a round."""
    own = self_importance(state["trust"])
    models = sum(map(bool, state["catalogue"].values()))
    return {
        "models": models,
        "self_importance": sum(own.values()) / max(len(own), 1),
        "free_riders": len(free_riders(named(state))),
    }


def remembered(history: Sequence[Shares], trust: Trust) -> list[Shares]:
    """All rounds' contributions, the last ones of very many."""
    return [*history, in_strength(trust)][-_HISTORY:]


def summary(state: Mapping[str, Any]) -> dict[str, Any]:
    """What a report shows: the graph, its measures, how they came to be, and who is named for what."""
    trust, history, found = state["trust"], state["history"], named(state)
    return {
        "trust": trust,
        "self_importance": self_importance(trust),
        "centralities": centralities(trust),
        "history": history,
        "gives_little": giving_little(history, list(trust)),
        "free_riders": free_riders(found),
        "named": found,
        "refused": state["refused"],
    }


def named(state: Mapping[str, Any]) -> dict[str, str]:
    """Clients whose models are of no use to others, and why: in the words of what others found on their own rows."""
    catalogue = state["catalogue"]
    seen = {c: s for c, s in state.get("seen", {}).items() if c in catalogue}
    found = {c: "free rider: it publishes nothing" for c, models in catalogue.items() if not models}
    for owner in catalogue:
        skills = [s["skill"][owner] for c, s in seen.items() if owner in s["skill"] and c != owner]
        if skills and all(abs(skill - 0.5) < 1e-9 for skill in skills):
            found[owner] = "free rider: its model answers the same for all rows"
        elif _is_nonsense(parts := relative_skills(seen, owner)):
            found[owner] = (
                f"nonsense: its model has {np.mean(parts):.0%} of the skill that others' own models have"
            )
    return found | _duplicates(seen)


def free_riders(found: Mapping[str, str]) -> list[str]:
    """Of clients that are `named`, those that publish nothing, or what answers the same for all rows."""
    return sorted(c for c, why in found.items() if why.startswith("free rider"))


def relative_skills(seen: Mapping[str, Any], owner: str) -> list[float]:
    """How well an owner's model orders the rows of each other client, beside that client's own private model, where
    that one has learned anything: 1 is as well, 0 is chance."""
    others = [s["skill"] for c, s in seen.items() if c != owner and owner in s["skill"]]
    found_out = [skill for skill in others if skill.get(OWN, 0.5) > 0.5 + _LEARNED]
    return [(skill[owner] - 0.5) / (skill[OWN] - 0.5) for skill in found_out]


def _is_nonsense(parts: Sequence[float]) -> bool:
    """Little skill among all, and nobody to whom the model is nearly as good as their own: it may be of use to few."""
    return len(parts) > 1 and float(np.mean(parts)) < _NO_SKILL and max(parts) < _OF_USE


def _duplicates(seen: Mapping[str, Any]) -> dict[str, str]:
    """Models that most clients which were served both found to be the same. A client counts once for each pair, and
    not if it was not served both; where one alone can tell, its name is said."""
    saw = {c: {*s.get("served", s["skill"])} - {c} for c, s in seen.items()}
    said = {c: {tuple(sorted(p)) for p in s["alike"] if {*p} <= saw[c]} for c, s in seen.items()}
    found = dict[str, str]()
    for a, b in sorted({pair for pairs in said.values() for pair in pairs}):
        who = [c for c, pairs in said.items() if (a, b) in pairs]
        if 2 * len(who) > sum({a, b} <= names for names in saw.values()):
            alone = f", as {who[0]} alone says" if len(who) == 1 else ""
            found[a] = f"duplicate: its model answers as {b}'s{alone}"
            found[b] = f"duplicate: its model answers as {a}'s{alone}"
    return found


# ---- policies ----


def served(trust: Trust, clients: Sequence[str], threshold: float) -> list[str]:
    """The clients that may fetch models: new ones, and those that contribute at least `threshold` equal parts. Where
    nobody relies on anybody there is nothing to compare, and all may."""
    got, known = in_strength(trust), set(members(trust))
    if not any(got.values()):
        return list(clients)
    return [c for c in clients if c not in known or got[c] * len(known) >= threshold]


def tier(trust: Trust, client: str, versions: int) -> int:
    """The version of a model that a client is served, from the most private (0) to the least private.

    The more it contributes, the less noise. An equal part earns the middle version; new clients start at 0.

    >>> [tier({"a": {"b": 1.0}, "b": {"a": 0.2, "c": 0.8}, "c": {"b": 1.0}}, c, 3) for c in "abc"]
    [0, 2, 1]
    """
    got = in_strength(trust)
    parts = got.get(client, 0.0) * len(got)  # 1 is an equal part
    return min(int(parts / 2 * versions), versions - 1)


def policies_in_use(
    trust: Trust, served_models: Mapping[str, Collection[str]], threshold: float, versions: int
) -> dict[str, Any]:
    """What each client is served by its contribution: how many models, and which version of them."""
    got = in_strength(trust)
    return {
        "threshold": threshold,
        "versions": versions,
        "clients": {
            c: {
                "models": len(models),
                "version": tier(trust, c, versions) + 1,
                "contribution": got.get(c, 0.0) * len(got),  # in equal parts
            }
            for c, models in served_models.items()
        },
    }


# ---- export ----


def to_json(trust: Trust, history: Sequence[Trust] = ()) -> str:
    """All contributions as JSON."""
    found = {
        "trust": {i: dict(row) for i, row in trust.items()},
        "self_importance": self_importance(trust),
        "centralities": centralities(trust),
        "gives_little": giving_little([in_strength(t) for t in history], list(trust)),
        "history": [in_strength(t) for t in history],
    }
    return json.dumps(found, indent=1)


def to_graphml(trust: Trust) -> str:
    """The graph for Gephi, yEd, Cytoscape and the like."""
    import networkx

    return "\n".join(networkx.generate_graphml(graph(trust)))
