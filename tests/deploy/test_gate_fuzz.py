"""An attacker's budget: letters drawn at random against a site of 60 rows, and what can be made of the replies.

The attacker is a server that knows motet's text, the seeds, all labels and the means of all columns by label, which
is what models are made of. It takes each trained reply for a sum of rows with weights that follow from the order of its
batches, and solves all these sums for the rows at once, with the amount of smoothing that happens to be best. It must
not do better than who guesses each row's column means.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sites
from motet.client import ClientData, seed_of
from motet.client.data import orders
from motet.deploy.site.contract import turn_seed
from motet.deploy.site.ledger import read_ledger
from motet.deploy.site.policy import Policy
from motet.deploy.site.service import SiteService
from motet.engines.letters import Letter, Reply
from motet.vec import Vec

METHODS = ("fedavg", "fedprox", "fedper", "scaffold", "fedrecon", "swarm", "pfa", "page", "stacking")
JOBS = ("verb",) * 40 + (
    "evaluate",
    "evaluate_trained",
    "save_model",
    "describe",
    "measure",
    "layout",
    "offer",
)
VERBS = ("train",) * 40 + ("loss_of_particles", "sparsity", "publish", "descend", "personal")
SCALES = (0.0, 0.01, 0.1, 1.0, 10.0, 1e6)
ROWS = (36, 12, 12)


class Attacker:
    """Draws letters, and keeps what was answered."""

    def __init__(self, folder: Path, seed: int, policy: Policy) -> None:
        self.draw = np.random.default_rng(seed)
        g = torch.Generator().manual_seed(seed)
        self.rows = ClientData(*(sites.examples(0, n, g) for n in ROWS))
        self.service = SiteService("a", folder, sites.federation({"a": self.rows}), policy, b"k" * 32)
        self.w0: dict[str, Vec] = {}  # of each network
        self.offers = [self.offer(f"run {i}", i) for i in range(10)]
        self.answered: list[tuple[Letter, Any]] = []
        self.trained: dict[str, int] = {}  # the next round of each run

    def pick(self, *of: Any) -> Any:
        return of[self.draw.integers(len(of))]

    def offer(self, run: str, number: int) -> Letter:
        """The first ones look honest; others have any settings."""
        recipe = sites.recipe("fedavg" if number < 4 else self.pick(*METHODS))
        method = recipe["method"]
        if number >= 4:
            wild = {
                "batch": self.pick(1, 16, 35),
                "epochs": self.pick(1, 3, 10**9),
                "lr": self.pick(1e-3, 0.1, 1e6),
            }
            method = method | {k: v for k, v in wild.items() if k in method}
        net = {"name": "logistic"} if number % 2 == 0 else recipe["net"]
        letter = Letter(
            "offer", run, recipe=recipe | {"method": method, "net": net}, send={"rounds": 9_000 // 10}
        )
        self.service.answer(letter.pack(), "server")
        return letter

    def letter(self) -> Letter:
        offer, job = self.pick(*self.offers[:4] * 4, *self.offers[4:]), self.pick(*JOBS)
        if job == "offer":
            return self.offer(f"wild {self.draw.integers(1000)}", 9)
        other = self.draw.random() < 0.1
        number = int(self.draw.integers(-2, 1000)) if other else self.trained.get(offer.run, 0)
        self.trained[offer.run] = number + 1 if not other else self.trained.get(offer.run, 0)
        seed = int(self.draw.integers(1 << 40)) if self.draw.random() < 0.1 else turn_seed(1, number)
        recipe = self.pick(*self.offers).recipe if self.draw.random() < 0.05 else offer.recipe
        sent = self.sent(offer.recipe)
        if job == "evaluate":
            sent = {"global": sent, "download": sent, "same": False, "sides": ["global", "personal"]}
        learn, part = self.pick("mean", "mean", "all"), self.pick("val", "test")
        return Letter(job, offer.run, number, 0, seed, self.pick(*VERBS), learn, recipe, sent, part=part)

    def sent(self, recipe: dict[str, Any]) -> Any:
        """Weights of the server's choice, or particles."""
        if recipe["method"]["name"] == "swarm":
            many, size = int(self.pick(1, 21, 234)), int(self.pick(21, 83))
            return {"theta": torch.from_numpy(self.draw.normal(0, self.pick(*SCALES), (1, many, size)))}
        name, scale = recipe["net"]["name"], self.pick(*SCALES)
        if name not in self.w0:
            self.w0[name] = sites.method(sites.recipe("fedavg") | {"net": recipe["net"]}).task.w0
        w0 = self.w0[name] if recipe["method"]["name"] in ("fedavg", "fedprox") else Vec({})
        return w0.map(lambda v, _: torch.from_numpy(self.draw.normal(0, scale, v.shape)).float())

    def play(self, letters: int) -> None:
        for _ in range(letters):
            letter = self.letter()
            reply = Reply.read(self.service.answer(letter.pack(), "server"))
            if not reply.refusal and not reply.spoilt:
                self.answered.append((letter, reply.tree))

    # ---- what can be made of the replies ----

    def equations(self) -> tuple[np.ndarray, np.ndarray]:
        """(equations, rows) and (equations, columns): sums of rows with known weights, and what they are."""
        left, right = [np.zeros(ROWS[0])], [np.zeros(sites.FEATURES)]
        for letter, tree in self.answered:
            if letter.job == "verb" and letter.recipe["net"]["name"] == "logistic" and isinstance(tree, Vec):
                method, (name, *_) = letter.recipe["method"], tree
                weights = batch_weights(letter, method["batch"], method["epochs"])
                moved = ((letter.send[name] - tree[name]) / method["lr"]).double().numpy()
                for j in range(sites.CLASSES):
                    left.append(weights * (1 / sites.CLASSES - (self.rows.train.take().y.numpy() == j)))
                    right.append(moved[j])
        return np.array(left), np.array(right)

    def means(self) -> np.ndarray:
        """(rows, columns): means of all rows with the same label."""
        x, y = self.rows.train.take().x.double().numpy(), self.rows.train.take().y.numpy()
        return np.stack([x[y == label].mean(0) for label in y])

    def errors(self) -> tuple[np.ndarray, np.ndarray]:
        """By row: of the best reconstruction, and of guessing the columns' means."""
        left, right = self.equations()
        true, means = self.rows.train.take().x.double().numpy(), self.means()
        size = np.linalg.norm(right, axis=1) + 1e-9  # equations of wild weights count less
        left, right = left / size[:, None], (right - left @ means) / size[:, None]
        found = [
            means + np.linalg.solve(left.T @ left + smooth * np.eye(ROWS[0]), left.T @ right)
            for smooth in np.logspace(-9, 3, 13)
        ]
        best = min(found, key=lambda x: np.square(x - true).sum())
        return np.linalg.norm(best - true, axis=1), np.linalg.norm(means - true, axis=1)


def batch_weights(letter: Letter, batch: int, epochs: int) -> np.ndarray:
    """How much each row counts in a reply, from the order that follows from the letter's seed."""
    n, seed = ROWS[0], torch.tensor(seed_of(letter.seed, "a"))
    found = np.zeros(n)
    for epoch in range(epochs):
        for at in orders(seed, epoch, torch.tensor(n), n).split(batch):
            found[at.numpy()] += 1 / len(at)
    return found


def check(attacker: Attacker, letters: int) -> None:
    attacker.play(letters)
    assert any(letter.job == "verb" for letter, _ in attacker.answered), "the honest part was answered"
    lines, damage = read_ledger(attacker.service.folder)
    assert damage == [] and len(lines) >= letters + 10
    miss, guess = attacker.errors()
    print(f"{len(attacker.answered)} answered; error {miss.mean():.3f}, of guessing {guess.mean():.3f}")
    assert np.square(miss).sum() >= 0.95 * np.square(guess).sum() and (miss >= 0.5 * guess).all()


def test_a_few_hundred_letters_give_no_row(tmp_path: Path) -> None:
    check(Attacker(tmp_path, 0, Policy()), 300)


@pytest.mark.long
def test_ten_thousand_letters_give_no_row(tmp_path: Path) -> None:
    check(Attacker(tmp_path, 1, Policy()), 10_000)


@pytest.mark.parametrize("secret", [True, False])
def test_the_same_weights_in_many_rounds_give_no_row_where_orders_are_secret(
    tmp_path: Path, secret: bool
) -> None:
    """Rows of an epoch's last batch count more: known orders make each round another sum of the same numbers."""
    attacker = Attacker(tmp_path, 0, Policy(secret_orders=secret))
    offer = attacker.offers[0]
    zeros = sites.method(offer.recipe).task.w0.zeros()
    for number in range(120):
        seed = turn_seed(1, number)
        letter = Letter("verb", offer.run, number, 0, seed, "train", "mean", offer.recipe, zeros)
        attacker.answered.append((letter, Reply.read(attacker.service.answer(letter.pack(), "server")).tree))
    miss, guess = attacker.errors()
    share = np.square(miss).sum() / np.square(guess).sum()
    assert share >= 0.95 if secret else share < 0.3
