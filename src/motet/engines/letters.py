"""Letters between a server and a client that live in different places: what is asked, what comes back.

An ask is named by (run, round, number of the ask within the round), and so is what a client keeps after
it. A letter names the version that the client is to come with (`base`), which is the last one whose reply
the server has used: where a reply was lost, both sides still mean the same keep.
Knows forms and bytes. Does not know how letters travel, nor what is done at a client.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from motet.core import Tree
from motet.wire import WireError, check_form, pack, unpack

Label = tuple[int, int]  # (round, number of the ask within it)
Job = Literal["describe", "measure", "layout", "offer", "verb", "evaluate", "evaluate_trained", "save_model"]
JOBS: tuple[str, ...] = get_args(Job)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "job": str, "run": str, "verb": str, "learn": str, "part": str,
    "round": int, "number": int, "seed": int, "recipe": dict, "base": (tuple, type(None)), "spare": tuple,
}  # fmt: skip


@dataclass(frozen=True)
class Letter:
    """What a server asks one client.

    >>> Letter.read(Letter("verb", "r1", 0, 0, verb="train", send=1.5).pack()).send
    1.5
    """

    job: str  # one of JOBS
    run: str = ""  # the run's name
    round: int = -1
    number: int = 0  # of the ask within its round, from 0
    seed: int = 0  # of the turn
    verb: str = ""  # its name, for the jobs `verb` and `rehearsal`
    learn: str = "mean"  # or "all"
    recipe: Tree = None  # {"method": {"name": ..., ...}, "net": {...}, "seed": ...}, or {} before a run
    send: Tree = ()
    base: Label | None = None  # the ask that made what the client comes with; None: it has just joined
    spare: tuple[Label, ...] = ()  # further versions that the server may go back to
    part: str = "val"  # which examples the judge takes: val or test

    def pack(self) -> bytes:
        return pack({f.name: getattr(self, f.name) for f in fields(self)} | {"recipe": self.recipe or {}})

    @classmethod
    def read(cls, message: bytes, limit: int | None = None) -> Letter:
        """The letter that the bytes hold; anything else is a WireError."""
        tree = unpack(message, limit)
        if not isinstance(tree, dict) or set(tree) != {f.name for f in fields(cls)}:
            raise WireError("the message is no letter: its fields are others")
        for name, kind in _KINDS.items():
            if not isinstance(tree[name], kind) or isinstance(tree[name], bool):
                raise WireError(f"the letter's {name} is {tree[name]!r:.80}")
        if (
            tree["job"] not in JOBS
            or tree["learn"] not in ("mean", "all")
            or tree["part"] not in ("val", "test")
        ):
            raise WireError(f"no such letter: job {tree['job']!r:.40}, learn {tree['learn']!r:.40}")
        if not all(_is_label(v) for v in (*tree["spare"], *([tree["base"]] if tree["base"] else []))):
            raise WireError("the letter names versions that are no pairs of round and number")
        return cls(**tree)

    @property
    def label(self) -> Label:
        return self.round, self.number


def _is_label(v: Any) -> bool:
    return isinstance(v, tuple) and len(v) == 2 and all(type(n) is int and abs(n) < 1 << 40 for n in v)


@dataclass(frozen=True)
class Reply:
    """What a client answers: a tree with its weight, or a refusal with the reason."""

    tree: Tree = ()
    n: int = 0  # its number of examples, which weigh a mean
    refusal: str = ""  # why there is no tree; "" if there is one
    spoilt: bool = False  # the reply was not finite: it is left out, and the client keeps what it had

    def pack(self) -> bytes:
        return pack({"tree": self.tree, "n": self.n, "refusal": self.refusal, "spoilt": self.spoilt})

    @classmethod
    def read(
        cls, message: bytes, limit: int | None = None, like: Tree = None, *, loose: bool = False
    ) -> Reply:
        """The reply that the bytes hold; anything else is a WireError. With `like`, its tree must be of the
        same form as that one (wire.format.unpack says what this means)."""
        tree = unpack(message, limit)
        if not isinstance(tree, dict) or set(tree) != {"tree", "n", "refusal", "spoilt"}:
            raise WireError("the message is no reply: its fields are others")
        if type(tree["n"]) is not int or not 0 <= tree["n"] < 1 << 48 or not isinstance(tree["refusal"], str):
            raise WireError(f"the reply's weight is {tree['n']!r:.80}; expected a number of examples")
        if type(tree["spoilt"]) is not bool:
            raise WireError("the reply does not say whether it is finite")
        if like is not None and not tree["refusal"] and not tree["spoilt"]:
            check_form(tree["tree"], like, loose=loose)
        return cls(**tree)
