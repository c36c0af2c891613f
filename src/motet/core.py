"""A federated method is a conversation that the server holds, and verbs that clients perform at home.

This file knows what may be said between a server and its clients. It does not know tensors,
where clients live, or how anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self, TypeVar, dataclass_transform, overload

from motet.errors import MotetError

Client = str
Tree = Any  # nested dicts, lists and tuples of tensors, numbers, text and bytes; () is nothing
Verb = Callable[[Tree, Tree, Any], tuple[Tree, Tree]]  # (sent, keep, data) -> (reply, keep)
# Yields an Ask or a list of them, is sent the answer or a list of them, returns a state. An ask that nobody
# answers raises NoReply where it was yielded; in a list, it is answered with None.
Talk = Generator[Any, Any, Tree]
Part = Literal["val", "test"]  # which of its examples a client is scored on
SIDES = ("personal", "global")  # whose models are scored; also: constant, alone
Refusal = tuple[Client, str, int]  # whose reply was left out, to which verb, in which round
F = TypeVar("F", bound=Callable[..., Any])
# Does this ask and those that would follow from its answers at once, from what clients keep and their weights in the
# mean; returns how many asks it stands for, 0 where they must be asked one by one.
Fuse = Callable[[Mapping[Client, Tree], Mapping[Client, float]], int]

# What a hyper-parameter may be; recipes are checked against these words.
Positive = Annotated[float, "> 0"]
NotNegative = Annotated[float, ">= 0"]
Count = Annotated[int, ">= 1"]
Share = Annotated[float, "0 to 1"]
# Learning rates. A recipe may leave them open ("auto", its default): a rate that is safe for network and data is
# chosen when the run starts. A number behind "auto" is a share of that rate.
Rate = Annotated[float, "> 0", "auto"]
TenthRate = Annotated[float, "> 0", "auto", 0.1]
Epochs = Annotated[int, ">= 1", "auto"]
# Of a training whose result stays with the client: the curvature of a pull that acts only there, and the share of the
# rate that is taken there. Open, the share is 1, or where rates are open too, what is safe with the pull.
AT_HOME = "at home"
PullAtHome = Annotated[float, ">= 0", AT_HOME]
ShareAtHome = Annotated[float, "above 0, up to 1", "auto", AT_HOME]
NOT_A_SETTING = {"setting": False}  # metadata of a field that no recipe can set


@dataclass(frozen=True)
class Ask:
    """One question to some clients, and how much of the answers the server may learn."""

    verb: Verb
    to: Sequence[Client]
    send: Tree = ()  # one message for all of them, or
    each: Mapping[Client, Tree] | None = None  # a message for each of them
    learn: Literal["mean", "all"] = "mean"
    weights: Mapping[Client, float] | None = None  # of the mean; by default, numbers of examples
    fuse: Fuse | None = (
        None  # an engine that compiles, and whose clients live in its process, may answer `Fused`
    )

    def sent_to(self, client: Client) -> Tree:
        return self.send if self.each is None else self.each[client]

    def messages(self) -> dict[Client, Tree]:
        """What each client is sent, in the order of names, whatever the order of the ask."""
        return {c: self.sent_to(c) for c in sorted(self.to)}


@dataclass(frozen=True)
class Fused:
    """The answer to an ask that was done at once with those that follow from it."""

    asks: int  # so many asks
    sent: Tree  # as large as what each of them would have sent to a client
    reply: Tree  # and as a reply


def average(
    verb: Verb,
    to: Sequence[Client],
    send: Tree = (),
    *,
    each: Mapping[Client, Tree] | None = None,
    weights: Mapping[Client, float] | None = None,
    fuse: Fuse | None = None,
) -> Ask:
    """The server learns only the weighted mean of the replies, so they may be masked or noised."""
    return Ask(verb, to, send, each, "mean", weights, fuse)


def collect(
    verb: Verb, to: Sequence[Client], send: Tree = (), *, each: Mapping[Client, Tree] | None = None
) -> Ask:
    """The server learns every reply that came: {client: reply}."""
    return Ask(verb, to, send, each, "all")


@overload
def verb(f: F) -> F: ...
@overload
def verb(*, solo: bool = False, check: Callable[[Tree], Any] | None = None) -> Callable[[F], F]: ...
def verb(f: Any = None, *, solo: bool = False, check: Callable[[Tree], Any] | None = None) -> Any:
    """Mark what may run at a client. A `solo` verb is ordinary Python and is never vectorised; its replies may
    differ in form, so where clients are organisations `check` raises ValueError for what is no reply to it."""

    def mark(f: F) -> F:
        f.verb, f.solo, f.check = True, solo, check  # type: ignore[attr-defined]
        return f

    return mark(f) if f else mark


def is_verb(f: Callable[..., Any]) -> bool:
    return bool(getattr(f, "verb", False))


def is_solo(f: Callable[..., Any]) -> bool:
    return bool(getattr(f, "solo", False))


@dataclass(frozen=True)
class Turn:
    """What the server knows as a round begins."""

    number: int  # -1 while starting
    cohort: Sequence[Client]  # who takes part now
    clients: Sequence[Client]  # who belongs to the federation
    seed: int  # fresh every round
    proxy: Any = None  # examples that the server itself holds, if any


@dataclass_transform(frozen_default=True)
class Frozen:
    """A base whose subclasses become frozen dataclasses: their constructors only store."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        dataclass(frozen=True)(cls)


class Method(Frozen):
    """Fields are hyper-parameters. Write `round` and its verbs; override the rest where the paper does."""

    strength: ClassVar[str] = ""  # the one setting of its own that `motet compare --tune` tries, beside lr
    measuring: ClassVar[tuple[str, ...]] = ()  # verbs that reply with means over examples: losses, sketches
    variants: ClassVar[tuple[str, ...]] = ()  # other models that a client may make, scored at the end
    few_weights: ClassVar[bool] = False  # a network that a recipe leaves open is one linear layer
    has_public_models: ClassVar[bool] = False  # whether clients publish models, which everyone sees
    replies_updates: ClassVar[bool] = True  # whether averaged replies are models or updates, which can be cut
    counts_cohort: ClassVar[bool] = False  # whether the server's step depends on how many clients were asked
    # What of a client's rows a privacy budget would not cover, in words, where steps are not all that sees them.
    beyond_budget: ClassVar[str] = ""
    task: Any  # the network, its loss, and the weights w0 that everyone starts from

    @classmethod
    def filled(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Values for settings that a recipe leaves open ("auto") and that follow from other settings alone."""
        return {}

    def check(self) -> None:
        """Raise MethodUnfit where settings do not fit together; called before a run begins."""
        return

    def remarks(self) -> list[str]:
        """What a person should know of this method on this task before a run begins, each in a sentence."""
        return []

    def shows_differences(self) -> str:
        """Why the sums of one round, if they are masked, would show single replies by what they differ in; or ""."""
        return ""

    def start(self, turn: Turn) -> Tree | Talk:
        """The server's state before the first round; may talk with clients, say to group them."""
        return self.task.w0

    def round(self, state: Tree, turn: Turn) -> Tree | Talk:
        """One round: yield asks, receive answers, return the server's next state."""
        raise NotImplementedError(f"{type(self).__name__} has no round")

    def global_model(self, state: Tree) -> Tree | None:
        """The weights of the provider's one global model, or None where the method has none."""
        return state

    def download(self, state: Tree, client: Client) -> Tree:
        """What `client` may download of the server's state."""
        return state

    def for_visit(self) -> Self:
        """The method as a newcomer meets it: training has ended, and no schedule over its rounds holds."""
        return self

    def after_visit(self, before: Tree, after: Tree) -> Tree:
        """What stays of a round whose replies are discarded, say which group a newcomer belongs to."""
        return before

    def metrics(self, state: Tree) -> dict[str, float]:
        """Numbers for the record of the round that ended, of what the server knows anyway."""
        return {}

    def summary(self, state: Tree) -> dict[str, Any]:
        """What a report may show of the reported state, as JSON: groups, weights, whom clients trust."""
        return {}

    def record(self, reported: Tree, last: Tree) -> dict[str, Any]:
        """The summary of the reported state; `last` is that after the last round, whose history may be longer."""
        return self.summary(reported)

    def log(self, before: Tree, after: Tree) -> str:
        """What of a round is worth a line in the run's log; `before` is () for the start."""
        return ""

    def unfit_loss(self) -> str:
        """Why the method cannot train by its task's loss, with what would help; "" where it can."""
        return ""

    def unfit_weights(self) -> str:
        """Why the method cannot count rows by weights of the user's, with what would help; "" where it can."""
        return ""

    def join(self, data: Any) -> Tree:
        """What a client keeps, and never sends, before it is first asked anything."""
        return ()

    def personal(self, view: Tree, keep: Tree, data: Any) -> Callable[[Any], Any]:
        """This client's own predictor, x -> scores; may first train on `data`.

        It is a `functools.partial` over trees, so that it can be saved as plain data.
        """
        return partial(self.task.predict, view)

    def alone(self, view: Tree, keep: Tree, data: Any) -> Callable[[Any], Any] | None:
        """A model of the method's own kind that this client trains alone, to compare with; None where training
        alone is the method Local. As `personal`."""
        return None

    def variant_model(self, name: str, view: Tree, keep: Tree, data: Any) -> Callable[[Any], Any]:
        """One of `variants`, which this client makes from what `personal` is given. As `personal`."""
        raise NotImplementedError(f"{type(self).__name__} has no {name}")

    def described(self, own: Sequence[Tree]) -> dict[str, Any]:
        """What the card of a personal model says of its parts; `own` are the arguments of its predictor."""
        return {}

    def one_graph(self, own: Sequence[Tree], inputs: Mapping[str, Any], target: Mapping[str, Any]) -> bytes:
        """A personal model that is more than a network as one ONNX file; b"" where that cannot be made. `inputs`
        standardise raw columns, `target` is the unit of numbers."""
        return b""

    def suits(self) -> tuple[str, str]:
        """The engine that suits what its verbs do, and why; ("", "") where the network decides."""
        return "", ""

    def fused_asks(self) -> int:
        """How many asks of a round a compiled call may do at once; 0 = it has none."""
        return 0

    def epochs_at_evaluation(self) -> int:
        """Epochs that `personal` trains at each client: what a score costs besides predicting."""
        return 0

    def trained_model(self, sent: Tree, reply: Tree, keep: Tree, data: Any) -> Callable[[Any], Any]:
        """This client's model as the verb `train` left it: what it was sent, what leaves, what stays."""
        return self.personal(reply, keep, data)

    # ---- what an organisation must know before it takes part ----

    def most_asks(self) -> int:
        """How often one client is asked the same verb in a round, at most."""
        return 1

    def numbers_measured(self, verb: str, reply: int, rounds: int) -> int:
        """How many numbers one client sends by a measuring verb in a run, at most; its largest reply has `reply`."""
        return reply * self.most_asks() * (rounds + 1)

    def parts_trained(self, n: int) -> tuple[int, ...]:
        """How many of a client's n examples each training, or fit, behind a reply goes over."""
        return (n,)

    def rows_trained(self, n: int) -> int:
        """How many of a client's n examples a reply that was trained rests on, at least."""
        return min(self.parts_trained(n))

    def at_site(self, own: Any) -> Method:
        """The method as an organisation runs it. `own` has its choice of what it publishes, and stores that; noise
        of published models is then drawn so that nobody can draw it again."""
        return self

    def in_simulation(self, federated: Any) -> Method:
        """The method as a simulation runs it, where all clients' columns, classes and units are known."""
        return self

    def public_models(self, data: Any) -> Sequence[Any]:
        """The models that a client with these examples would publish, with manifests; none for most methods."""
        return ()

    def private_steps(self, n: int) -> int:
        """How many steps of `descend` see a client's n training rows for one round, where nothing else does; 0 where a
        privacy budget cannot cover the method. A class says so itself: what it inherits does not count."""
        return 0

    def bounded(self, most: float) -> Method:
        """The same method, in whose measuring verbs one example counts at most this much."""
        return self

    def noised(self, verb: str, sent: Tree, reply: Tree, draw: Callable[[Sequence[int]], Any]) -> Tree:
        """A reply of a measuring verb with noise of the client's own; `draw` gives, for a shape, noise for means
        over examples that count 1 at most. The same question in `sent` twice gets the same noise."""
        return reply


class Keeps(Protocol):
    """What clients keep between asks, by client and round."""

    def get(self, client: Client, upto: int | None = None) -> Tree | None:
        """The newest version, or the newest that a round up to `upto` made; None if there is none."""

    def put(self, client: Client, tree: Tree) -> None: ...
    def rewind(self, number: int) -> None:
        """Forget all that rounds after `number` made."""


class Engine(Protocol):
    """Where clients live: all that a run calls. The loop engine defines what is right; others agree with it."""

    @property
    def clients(self) -> Sequence[Client]: ...

    @property
    def keeps(self) -> Keeps: ...

    @property
    def refused(self) -> list[Refusal]:
        """Replies that were left out; whoever writes them down empties the list."""

    def begin(self, method: Method, turn: Turn) -> None:
        """Which method, round and seed the next asks belong to."""

    def ask(self, ask: Ask) -> Tree:
        """The answer to one ask: a mean, or every reply."""

    def evaluate(
        self,
        method: Method,
        state: Tree,
        turn: Turn,
        part: Part,
        sides: Sequence[str] = SIDES,
        see: Any = None,
    ) -> tuple[list[Client], Tree]:
        """All clients' metrics on `part` of their examples by side, stacked, as clients were after `turn`.
        `see(clients, predictions)` is shown predictions of clients that live here, a few clients at a time."""

    def evaluate_trained(self, method: Method, asks: list[Ask], turn: Turn) -> tuple[list[Client], Tree]:
        """Metrics on both parts of the models that clients trained in `turn`, from how they were before it."""

    def personal_models(self, method: Method, state: Tree, turn: Turn) -> Iterator[tuple[Client, Tree]]:
        """Every client's personal model, as it was after `turn`."""

    def model_function(self, method: Method, state: Tree, turn: Turn, client: Client) -> str:
        """The name of the function that a personal model's trees are arguments of."""

    def server_scores(self, task: Any, model: Tree, examples: Any) -> Any:
        """What a model predicts for examples of the server's own."""


class NoReply(MotetError):
    """Nobody, or too few, answered an ask."""


class MethodUnfit(MotetError, ValueError):
    """A method that cannot work on the task it was given; says why, and what would do."""
