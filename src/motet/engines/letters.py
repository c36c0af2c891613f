"""Letters between a server and a client that live in different places: what is asked, what comes back.

An ask is named by (run, round, number of the ask within the round), and so is what a client keeps after
it. A letter names the version that the client is to start from (`base`), which is the last one whose reply
the server has used: where a reply was lost, both sides still mean the same version.
Knows fields and bytes. Does not know how letters are carried, nor what is done at a client.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from motet.core import Tree
from motet.text import printable
from motet.wire import WireError, check_form, pack, record, unpack

PROTOCOL = 5  # of letters and replies: parties that speak another one do not understand each other

Number = Annotated[int, Meta(gt=-(1 << 40), lt=1 << 40)]
Label = tuple[Number, Number]  # (round, number of the ask within it)
LetterJob = Literal[
    "describe",
    "measure",
    "layout",
    "offer",
    "verb",
    "evaluate",
    "evaluate_trained",
    "save_model",
    "files",
    "mask",
    "count",
]
BEFORE = -2  # the round of letters that sum what sites say before a run
BEGINS_ANEW = "reset"  # a refusal: the client gave up what it kept, and starts as one that has just joined
LACKS_FILES = "files"  # a refusal: the letter names files that the client does not have; its tree says which
JOB_LEARNS = {
    "evaluate": "scores", "evaluate_trained": "scores", "save_model": "nothing", "files": "nothing", "mask": "nothing",
}  # fmt: skip
REPLY_BYTES: dict[LetterJob, int] = {  # largest replies that a server reads; of verbs, see the engine
    "describe": 16 << 20, "measure": 16 << 20, "layout": 64 << 10, "offer": 64 << 10, "evaluate": 1 << 20,
    "evaluate_trained": 1 << 20, "save_model": 64 << 10, "files": 64 << 10, "mask": 16 << 20, "count": 1 << 20,
}  # fmt: skip
_REFUSAL = 300  # letters of a refusal that are kept
LEARN = {"mean": "average", "all": "collect"}  # what asks are called in policies and ledgers


class Letter(Struct, frozen=True):
    """What a server asks one client.

    >>> Letter.read(Letter("verb", "r1", 0, 0, verb="train", send=1.5).pack()).send
    1.5
    """

    job: LetterJob
    run: str = ""  # the run's name
    round: Number = -1
    number: Number = 0  # of the ask within its round, from 0
    seed: int = 0  # of the turn
    verb: str = ""  # its name, for the jobs `verb` and `evaluate_trained`
    learn: Literal["mean", "all"] = "mean"
    recipe: dict[str, Any] = {}  # {"method": {"name": ..., ...}, "net": {...}, "seed": ...}; {} before a run
    send: Any = ()
    base: Label | None = None  # the ask that made what the client starts from; None: it has just joined
    spare: tuple[Label, ...] = ()  # further versions that the server may go back to
    part: Literal["val", "test"] = "val"  # which examples are scored
    masked: dict[str, Any] = {}  # of a verb in a masked sum: its session, and shares for this client

    def pack(self) -> bytes:
        return pack(asdict(self))

    @classmethod
    def read(cls, message: bytes, limit: int | None = None) -> Letter:
        """The letter that the bytes hold; anything else is a WireError."""
        return record(unpack(message, limit, files=True), cls, "letter")

    @property
    def digest(self) -> str:
        """Tells a repeated ask from another one with the same label."""
        return sha256(replace(self, spare=(), masked={}).pack()).hexdigest()

    @property
    def label(self) -> Label:
        return self.round, self.number


def parts_scored(letter: Letter) -> tuple[str, ...]:
    """Which rows a letter that scores models needs; models as training would leave them are scored on both parts."""
    return ("val", "test") if letter.verb else (letter.part,)


def content_hash(verb: str, send: Tree) -> bytes:
    """Of what a verb was asked with, the same at the server and at a site: both read it as it is on the wire."""
    return sha256(pack(unpack(pack({"verb": verb, "send": send})))).digest()


def asked_for(job: str, part: str, send: Tree) -> bytes:
    """Of a letter that asks for masked scores, sums of columns or counts. A part counts where rows are chosen by it."""
    return content_hash(f"{job} {part if job == 'evaluate' else ''}", send)


def asked_in(letter: Letter, asked: bytes) -> bytes:
    """What masks follow from besides keys: what was asked, in which run and round, and with which recipe. Sites that
    were offered other settings under one name could otherwise be made to reply what is known beforehand."""
    where = {k: getattr(letter, k) for k in ("run", "round", "seed", "verb", "recipe")}
    return sha256(content_hash("", where) + asked).digest()


class Reply(Struct, frozen=True):
    """What a client answers: a tree with its weight, or a refusal with the reason."""

    tree: Any = ()
    n: Annotated[int, Meta(ge=0, lt=1 << 48)] = 0  # its number of examples: its weight in a mean
    refusal: str = ""  # why there is no tree; "" if there is one
    spoilt: bool = False  # the reply was not finite: it is left out, and the client keeps what it had

    def pack(self) -> bytes:
        return pack(asdict(self))

    @classmethod
    def read(
        cls, message: bytes, limit: int | None = None, like: Tree = None, *, loose: bool = False
    ) -> Reply:
        """The reply that the bytes hold; anything else is a WireError. With `like`, its tree must be of the
        same form as that one (see wire.check_form). A refusal is text of somebody else's, and made harmless."""
        reply = record(unpack(message, limit), cls, "reply")
        if reply.refusal == LACKS_FILES:
            return cls(tree=file_hashes(reply.tree), refusal=LACKS_FILES)
        if reply.refusal:
            return cls(refusal=printable(reply.refusal, _REFUSAL).strip() or "a refusal without a word")
        if like is not None and not reply.spoilt:
            check_form(reply.tree, like, loose=loose)
        return reply

    @classmethod
    def read_for(cls, job: LetterJob, message: bytes) -> Reply:
        """The reply to a job that is no verb: small, and never spoilt."""
        reply = cls.read(message, REPLY_BYTES[job])
        if reply.spoilt:
            raise WireError(
                f"the reply to {job} says that it is not finite, which only a verb's reply can be"
            )
        return reply


def file_hashes(tree: Tree) -> list[str]:
    """The files that a client says that it lacks, as far as these are hashes."""
    return [v for v in tree if isinstance(v, str) and len(v) == 64] if isinstance(tree, list) else []
