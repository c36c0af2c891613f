"""FedPerC's split: clients of a group share classes, and each client has some classes of its own.

Knows classes and the server's test set, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from motet.data.federated import DataError
from motet.data.splits.assignment import Assignment, Rows, client_names


def groups(
    all_rows: Rows,
    *,
    clients: int = 20,  # number of clients; consecutive ones form a group
    groups: int = 4,  # number of groups
    shared: int = 0,  # classes that a group shares; 0: a fifth of all (2 of CIFAR-10's, 20 of CIFAR-100's)
    extra: int = 0,  # further classes that each client draws; 0: a twentieth of all, at least one
    rows: int = 0,  # training rows of each shared class, twice those of an extra class; 0: 800 in all
    tests: int = 0,  # the same of the server's test set; 0: 320 in all
) -> Assignment:
    """Yang et al. 2022: 20 clients in 4 groups; 80 % of a client's rows are of classes its group shares.

    Extra classes are drawn with replacement among those that the group does not share, and one that is
    drawn twice counts once. This follows from the sizes in the paper's accuracies (360 test images for most
    clients, 352 or 344 for some). Training rows are disjoint; test rows are used again
    where a class runs out. Rows that no client gets are not used.
    """
    many = int(all_rows.y.max()) + 1 if all_rows.y.dtype.kind in "iu" else 0
    shared, extra = shared or max(many // 5, 1), extra or max(many // 20, 1)
    if many < groups * shared or clients < groups:
        raise DataError(
            f"split 'groups': {groups} groups of {clients} clients with {shared} classes each need "
            f"{groups * shared} classes; there are {many}.\nhint: take fewer groups or a smaller shared"
        )
    rng = all_rows.generator("groups", clients, groups, shared, extra)
    holds = held_classes(clients, groups, shared, extra, many, rng)
    rows, tests = rows or max(800 // shared, 2), tests or max(320 // shared, 2)
    check_enough(all_rows.y, holds, rows)
    row, who = draw_rows(all_rows.rows, all_rows.y, holds, rows, np.resize, rng)
    part = np.full(len(row), -1)
    if len(all_rows.server_test):
        more, whose = draw_rows(all_rows.server_test, all_rows.server_test_y, holds, tests, np.resize, rng)
        row, who = np.concatenate([row, more]), np.concatenate([who, whose])
        part = np.concatenate([part, np.full(len(more), 2)])
    return Assignment(row, who, client_names(clients), part)


def held_classes(
    clients: int, groups: int, shared: int, extra: int, many: int, rng: np.random.Generator
) -> np.ndarray:
    """(clients, classes) 2 for a shared class, 1 for an extra one, 0 for the others."""
    common = rng.permutation(many)[: groups * shared].reshape(groups, shared)
    holds = np.zeros((clients, many), np.int64)
    for i in range(clients):
        mine = common[i * groups // clients]
        others = np.setdiff1d(np.arange(many), mine)
        if len(others):
            holds[i, rng.choice(others, extra)] = 1
        holds[i, mine] = 2
    return holds


Short = Callable[[np.ndarray, int], np.ndarray]


def draw_rows(
    places: np.ndarray, y: np.ndarray, holds: np.ndarray, full: int, short: Short, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and their clients: `full` rows of a shared class and half as many of an extra one.

    `short` is called if a class has fewer rows than are wanted.
    """
    row, who = [], []
    for c in range(holds.shape[1]):
        counts = holds[:, c] * full // 2
        pile = rng.permutation(places[y == c])
        if counts.sum() > len(pile):
            pile = short(pile, int(counts.sum()))
        row.append(pile[: counts.sum()])
        who.append(np.repeat(np.arange(len(counts)), counts))
    return np.concatenate(row), np.concatenate(who)


def check_enough(y: np.ndarray, holds: np.ndarray, rows: int) -> None:
    """Refuse more training rows than some class has, and say how many would do."""
    there = np.bincount(y, minlength=holds.shape[1])
    wanted = (holds * rows // 2).sum(0)
    if (wanted <= there).all():
        return
    fits = (r for r in range(rows - 1, 1, -1) if ((holds * r // 2).sum(0) <= there).all())
    most, worst = next(fits, 0), int((wanted - there).argmax())
    raise DataError(
        f"split 'groups': {wanted[worst]} training rows of one class are asked for, and there are {there[worst]}.\n"
        + (
            f"hint: data.rows={most} is the most that works"
            if most
            else "hint: take fewer clients: data.clients"
        )
    )
