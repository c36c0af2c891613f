"""What a site allows: its owner's policy, and what a letter may name.

The policy is a TOML file at the site:

    methods = ["fedavg", "fedper"]  # without this line: any that is installed
    learn = "average"
    reply_bytes = 2_000_000
    rounds = 200

A letter names verbs, methods and networks of the site's own installed motet, and nothing else.
Knows names, sizes and rounds. Does not know data, nor who asks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch.utils import _pytree as pytree

from motet import nets
from motet.client import Task
from motet.core import Count, Method, NotNegative, Positive, Share, Tree, Verb, is_verb
from motet.errors import MotetError, UsageError
from motet.published.public_choice import NOTHING, PublicChoice
from motet.runs import recipe as recipes
from motet.runs.recipe import Recipe
from motet.runs.recipe_text import parse
from motet.runs.sections import GUARDS_AT_SITES, Inside
from motet.settings import checked, fields_of
from motet.text import unknown
from motet.trusted_code import AT_SITES, UntrustedCode, names_in, require_trust, trust_names
from motet.vec import Vec, leaves

Names = tuple[str, ...]
Masked = Literal["masked"]
_LARGEST = 1e15  # of a policy's numbers: what is larger is a slip, and no limit
_LETTERS = ("method", "net", "seed", "train", "guard", "privacy")  # what a letter's recipe may have


class RefusedByPolicy(MotetError):
    """Something that a site does not do, with the reason, which stays at the site; the clause leaves."""

    def __init__(self, text: str, clause: str = "error") -> None:
        super().__init__(text)
        self.clause = clause


class Objection(NamedTuple):
    """Why something may not be: the clause that is broken, and the reason for people."""

    clause: str
    text: str


class PolicyError(MotetError, ValueError):
    """A policy that cannot be read; all that is wrong with it at once."""


@dataclass(frozen=True)
class Need:
    """One thing that leaves a site: to which ask, how much the server learns, what it is."""

    verb: str
    learn: str  # average, collect, or "scores"
    leaves: tuple[tuple[str, str, tuple[int, ...]], ...] = ()  # (name, type, shape) of all that leaves
    up: int = 0  # bytes of one reply; the largest that was seen
    down: int = 0  # bytes of what is sent to the site
    seen: bool = True  # in the dry run; if not, only the method's text says so

    @property
    def numbers(self) -> int:
        """How many numbers leave in one reply."""
        return sum(math.prod(shape) for _, _, shape in self.leaves)


@dataclass(frozen=True)
class Policy:
    """What may leave a site; where names are listed, no names mean any that is installed."""

    methods: Names = ()  # methods that may run here
    verbs: Names = ()  # verbs that may run here, as train or fedavg.train
    learn: Literal["average", "collect"] = "average"  # collect: methods may use this site's own replies
    reply_bytes: Count = 64 << 20  # largest reply
    letter_bytes: Count = 256 << 20  # largest message that is read at all
    rounds: Count = 10_000  # rounds of training in all, over all runs
    masks: Literal["required", "allowed"] = (
        "allowed"  # required: what is averaged leaves masked, or not at all
    )
    min_in_sum: Count = 3  # fewest replies in a masked sum
    clip: NotNegative = 0.0  # longest update that leaves (L2 norm), whatever the recipe says; 0: any
    repeats: Count = 3  # how often an ask of a round may come with other content: a round may be repeated
    scores: bool | Masked = (
        True  # may scores leave: how many rows, and metrics of predictions for them; "masked": in masked sums alone
    )
    scorings: Count = (
        10_000  # letters that may score models over all runs; besides, four for a round of training
    )
    counts: bool | Masked = (
        True  # may numbers of rows leave; if not, this site weighs 1 in a mean; "masked": in masked sums alone
    )
    sums: bool | Masked = (
        True  # may sums of columns leave, for a federation's means and spreads; "masked": in masked sums alone
    )
    cohorts: Count = (
        5  # different sets of sites whose masked sums and counts before a run have this site's in them
    )
    least_rows: Count = 10  # rows behind every number that leaves, of training, validation and test rows each
    least_category: Count = 5  # rows of a category of text; rarer ones leave as "other"
    layouts: Count = 50  # different layouts of columns that may be used, over all runs: sites come and go
    round_sums: bool = False  # whether means, spreads and numbers of cells leave rounded
    largest_share: Share = 0.34  # of one row in a reply that was trained: an epoch's last batch may be small
    weights_per_row: NotNegative = 0.0  # most weights of a network for each training row; 0: any
    epochs: Count = 1000  # most passes over the rows that a setting of a recipe may ask for
    rate: Positive = 10.0  # largest learning rate
    weight: Positive = 30.0  # largest weight that may be sent for a network of one layer
    noise: NotNegative = (
        1.0  # rows by which a count stays uncertain that a twentieth of all losses is spent on
    )
    losses: Count = 20_000  # losses and numbers of sketches that may leave, over all runs
    loss_bound: Positive = 3.0  # with noise: largest loss of one row; larger ones are cut to it
    score_noise: NotNegative = 0.0  # rows by which every score stays uncertain; 0: scores leave as they are
    secret_orders: bool = True  # shuffle rows by this site's key, and not by the seed that the server knows
    letter_seconds: Positive = 600.0  # longest work for one letter
    letter_memory: Count = 4 << 30  # bytes that the work for one letter may take
    publish: str = (
        ""  # what this site publishes: words for a family, outbox, or nothing; "": as the recipe says
    )
    publish_columns: Names = ()  # columns that a published model may read; none: all
    families: Names = ()  # families of models that may be published, outbox among them
    epsilon: NotNegative = (
        0.0  # privacy budget of all that is published or privately trained, over all runs; 0: any, also none
    )
    delta: Inside = 1e-5  # with epsilon, for what is privately trained; below 1 / rows
    private: Literal["required", "allowed"] = (
        "allowed"  # required: training on these rows is private (privacy.level), or does not begin
    )
    model_bytes: Count = 64 << 20  # largest published model
    stored_bytes: Count = 2 << 30  # published models of others that are stored here, so that each comes once
    trusted: Names = ()  # the site's own module:name that a recipe may name

    @classmethod
    def read(cls, path: Path) -> Policy:
        try:
            values = parse(path.read_text())
        except FileNotFoundError:
            raise PolicyError(
                f"there is no policy {path}\nhint: an empty file is the default policy"
            ) from None
        except OSError as e:
            raise PolicyError(
                f"the policy {path} cannot be read: {e.strerror or e}\nhint: a policy is a TOML file"
            ) from e
        except ValueError as e:  # also for bytes that are no text
            raise PolicyError(f"{path} is not valid TOML: {e}") from e
        try:
            return cls.of(values)
        except PolicyError as e:
            raise PolicyError(f"{path}: {e}") from None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Policy:
        chosen, wrong = checked(values, fields_of(cls), "policy")
        wrong += [
            f"policy.{k} is {v:g}; expected a number up to {_LARGEST:g}"
            for k, v in chosen.items()
            if isinstance(v, int | float) and not v <= _LARGEST
        ]
        if wrong:
            raise PolicyError("\n".join(wrong))
        strange = [m for m in chosen.get("methods", ()) if ":" not in m and m not in recipes.method_names()]
        if strange:
            raise PolicyError(unknown("method", strange[0], recipes.method_names()))
        names = {k: tuple(v) for k, v in chosen.items() if isinstance(v, list)}
        return cls(**chosen | names).checked()

    def checked(self) -> Policy:
        """The policy, if it says what can be published, and how private training must be that it requires."""
        if self.private == "required" and not self.epsilon:
            raise PolicyError(
                'private = "required" and epsilon = 0: a recipe with next to no noise would do\n'
                "hint: epsilon = 3.0, the budget of all runs together"
            )
        try:
            for words in (self.publish, *self.families):
                PublicChoice.of(words or NOTHING)
        except UsageError as e:
            raise PolicyError(f"what this site publishes: {e}") from e
        return self

    @property
    def hidden(self) -> list[str]:
        """What leaves in masked sums alone."""
        return [k for k in ("sums", "counts", "scores") if getattr(self, k) == "masked"]

    def counted(self, masked: bool) -> bool:
        """Whether numbers of rows leave in the clear, or in a masked sum."""
        return self.counts is True or (masked and bool(self.counts))

    def objections(self, method: str, needs: Sequence[Need], rounds: int, spent: int) -> list[Objection]:
        """Why a whole run may not begin; nothing if it may."""
        wrong = self.of_method(method)
        for need in needs:
            if need.verb != "evaluate":
                wrong += self.of_verb(method, need.verb, need.learn)
            if need.up > self.reply_bytes:
                wrong.append(self.too_large(need.verb, need.up))
        if spent + rounds > self.rounds:
            before = f" after {spent} of earlier runs" if spent else ""
            text = f"the run has {rounds} rounds{before}, and this site's policy has rounds = {self.rounds}"
            wrong.append(Objection("rounds", text))
        return wrong

    def too_large(self, what: str, size: int) -> Objection:
        most = f"{self.reply_bytes:,}"
        text = f"the reply to {what} has {size:,} bytes, and this site's policy has reply_bytes = {most}"
        return Objection("bytes", text)

    def of_method(self, method: str) -> list[Objection]:
        if not self.methods or method in self.methods:
            return []
        text = f"this site's policy has methods = {list(self.methods)}, and {method} is none of them"
        return [Objection("method", text)]

    def of_verb(self, method: str, verb: str, learn: str) -> list[Objection]:
        wrong = []
        if self.verbs and not {verb, f"{method}.{verb}"} & set(self.verbs):
            text = f"this site's policy has verbs = {list(self.verbs)}, and {verb} is none of them"
            wrong.append(Objection("verb", text))
        if learn == "collect" and self.learn != "collect":
            text = (
                f"{method} asks for {verb} by `collect`, which shows the server this site's own reply, "
                'and this site\'s policy has learn = "average"'
            )
            wrong.append(Objection("learn", text))
        return wrong


# ---- what a letter may name ----


def find_verb(method: Method, name: str) -> Verb:
    """A verb of the method by its name; nothing else of it can be called, nor what every method has."""
    found = getattr(type(method), name, None) if name.isidentifier() else None
    if not callable(found) or not is_verb(found) or hasattr(Method, name):
        raise RefusedByPolicy(f"{name!r:.80} is no verb of {type(method).__name__}", "verb")
    bound: Verb = getattr(method, name)
    return bound


def read_recipe(given: Tree, policy: Policy) -> Recipe:
    """The recipe that a letter holds. It names things of this site's own motet; what would import modules
    by name is refused, unless the site's owner trusts it. `train` is there if it names a user's own metric."""
    sections = isinstance(given, dict) and {"method", "net", "seed"} <= set(given) <= set(_LETTERS)
    if not sections or not all(isinstance(given[k], dict) for k in given if k != "seed"):
        raise RefusedByPolicy(
            "the letter's recipe must have the sections method and net, and a seed", "recipe"
        )
    if set(given.get("train", {})) - {"metric"}:
        text = "the letter's recipe may name a metric in its section train, and nothing else"
        raise RefusedByPolicy(text, "recipe")
    if odd := sorted(set(given.get("guard", {})) - set(GUARDS_AT_SITES)):
        raise RefusedByPolicy(f"guard.{odd[0]!r:.40} is no guard of a site's replies", "recipe")
    words = [w for w in leaves([given[k] for k in given if k != "seed"]) if isinstance(w, str)]
    if odd := [w for w in words if ":" in w and w not in policy.trusted]:
        raise RefusedByPolicy(
            f"{odd[0]!r:.80} would import a module, and this site's policy does not trust it", "recipe"
        )
    if given["net"].get("weights") or any("weights=" in w for w in words):
        raise RefusedByPolicy(
            "net.weights names a file, and nobody but this site's owner may name files of this site", "recipe"
        )
    trust_names(names_in(policy.trusted))
    return recipes.check(given)


def recipe_to_try(policy: Policy, path: str | None, method: str | None) -> Recipe:
    """The recipe of a dry run, with the settings of data that a federation knows. As in a letter, code of it is
    imported only if the policy trusts it."""
    more: dict[str, Any] = {"data": AT_SITES} | ({"method": method} if method else {})
    if (
        path is None and policy.masks == "required"
    ):  # a method with its usual settings, and as this site demands
        more["guard"] = {"masked": True}
    settings = recipes.merged(recipes.parsed(path), more)
    trust_names(names_in(policy.trusted))
    try:
        require_trust(settings, path or "--method", False)
    except UntrustedCode as e:
        raise RefusedByPolicy(
            f"{str(e).splitlines()[0]}\nThis site's policy does not trust it, so nothing of it was imported.\n"
            'hint: read it; if you trust it, list it in the policy: trusted = ["module:name"]',
            "recipe",
        ) from None
    return recipes.check(settings)


def check_weights(method: Method, sent: Tree, most: float = 0.0) -> None:
    """Weights of a network that came in a letter must have the network's shapes, and be no larger than `most`, if it
    is not 0."""
    known = networks(method)
    parts = pytree.tree_leaves(sent, is_leaf=lambda t: isinstance(t, Vec))
    for vec in (t for t in parts if isinstance(t, Vec)):
        for name, v in vec.items():
            shapes = {tuple(w[name].shape) for w in known if name in w}
            if shapes and tuple(v.shape) not in shapes:
                want = " or ".join(map(str, sorted(shapes)))
                raise RefusedByPolicy(
                    f"weight {name!r:.80} has shape {tuple(v.shape)}; this network's has {want}", "weights"
                )
            if most and bool((v.abs() > most).any()):
                text = f"a weight of {name!r:.80} is larger than {most:g}, which this site's policy has as weight"
                raise RefusedByPolicy(text, "weight")


def networks(method: Method) -> list[Vec]:
    """The first weights of the method's network, and of those that its settings name."""
    task: Task = method.task
    named = {v for v in vars(method).values() if isinstance(v, str) and v in nets.names()}
    return [task.w0, *(task.other(name).w0 for name in sorted(named) if task.build)]
