"""The actors of a run: which of them holds which shard, and what happens when one is lost.

Orders go to the actor that holds their shard, a few at a time, and results come back in the order of the orders. If an
actor is lost, its shards move to the others, and orders without a result are given again, from what clients kept before
them. A new actor is started in its place, and takes over shards when it is ready.
Knows actors and shards. Does not know what an order is for.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from motet.core import Client, Method
from motet.engines.owned_objects import Packed, packed, unpacked
from motet.engines.ray_actor import RayActor
from motet.engines.ray_cluster import Cluster, Handle, Lost, Ref
from motet.engines.ray_work import Inner, Order, Result, ShardName
from motet.errors import RunError

_READY = 90.0  # seconds in which the first actor must be there
_LATER = 10.0  # seconds that the others are waited for after that
_AT_ONCE = 16  # orders of shards that an actor is given together
_AHEAD = 2  # such groups that an actor has at most
_LOADS = 4  # shards whose rows are on their way to actors at a time

GiveOrder = Callable[[ShardName, int], Order]
"""Makes the order for a shard that an actor, by its number, holds."""


@dataclass(eq=False)
class CrewMember:
    """An actor, and what it has."""

    number: int
    handle: Handle
    ready: Ref
    shards: set[ShardName] = field(default_factory=set)
    methods: set[int] = field(default_factory=set)


@dataclass
class Shard:
    """Some clients' rows, made when they are sent."""

    rows: Callable[[], Packed]
    load: int  # rows
    home: CrewMember


@dataclass(frozen=True)
class Loss:
    """An actor that was lost while it had orders."""

    what: str  # it was doing, for people
    again: list[Client]  # who were asked again, because their answers were lost with it
    why: str  # as Ray says it


@dataclass
class UnderWay:
    """Orders that are under way for one job."""

    what: str  # the job, for people
    todo: dict[CrewMember, deque[int]] = field(default_factory=dict)
    given: dict[int, list[Client]] = field(default_factory=dict)  # whom an order was for
    flights: dict[Ref, tuple[CrewMember, list[int]]] = field(default_factory=dict)
    found: dict[int, Result] = field(default_factory=dict)


class Crew:
    """The actors that serve one run."""

    def __init__(self, cluster: Cluster, actors: int, cpus: float, inner: Inner) -> None:
        self.cluster, self.cpus, self.inner = cluster, cpus, inner
        self.wanted, self.numbers = actors, itertools.count()
        self.shards: dict[ShardName, Shard] = {}
        self.methods: dict[int, tuple[Method, Ref]] = {}
        self.members: list[CrewMember] = []
        self.coming: list[CrewMember] = []  # that are not ready yet
        self.losses: list[Loss] = []  # of actors; whoever writes them down takes them out
        self.loading: list[Ref] = []
        self.why = ""  # the last one was lost that was not ready yet
        # refuses a process that comes later, if its machine does not fit
        self.check: Callable[[CrewMember], None] = lambda member: None
        self.start_missing()
        self.await_first()

    # ---- who is there ----

    def start_missing(self) -> None:
        while len(self.members) + len(self.coming) < self.wanted:
            handle = self.cluster.start(RayActor, self.inner, cpus=self.cpus)
            self.coming.append(CrewMember(next(self.numbers), handle, handle.where.remote()))

    def await_first(self) -> None:
        """Wait for one actor, and for the others not much longer."""
        if not self.found_one():
            raise RunError(
                f"the cluster did not start a process for clients in {_READY:g} seconds; are its CPUs in use?"
                f"{self.why}\nhint: ray status shows what is free; engine.actors=1 needs one CPU"
            )
        if self.coming:
            self.cluster.ready([m.ready for m in self.coming], _LATER)
        self.welcome()

    def found_one(self) -> bool:
        """Whether an actor is there, or comes in time; one that is lost before it is ready is started again."""
        until = time.monotonic() + _READY
        while not self.members and (rest := until - time.monotonic()) > 0:
            self.start_missing()
            self.cluster.wait([m.ready for m in self.coming], rest)
            self.welcome()
        return bool(self.members)

    def welcome(self) -> None:
        """Let actors that have become ready take over shards."""
        done = set(self.cluster.wait([m.ready for m in self.coming], 0)) if self.coming else set()
        for member in [m for m in self.coming if m.ready in done]:
            self.coming.remove(member)
            try:
                self.admit(member)
            except Lost as e:
                self.why = f" The last one was lost: {e}."
                continue
            self.members.append(member)
            self.relieve(member)

    def admit(self, member: CrewMember) -> None:
        """Its machine may have joined the cluster after the others were looked at."""
        try:
            self.cluster.get(member.ready)
            self.check(member)
            for number in list(self.methods)[-1:]:
                self.teach(member, number)
        except BaseException:
            self.cluster.kill(member.handle)
            raise

    def relieve(self, newcomer: CrewMember) -> None:
        """Give a new actor its share of the shards that others hold."""
        share = sum(s.load for s in self.shards.values()) / len(self.members)
        for name in sorted(self.shards, key=lambda n: self.shards[n].load):
            others = self.load(self.shards[name].home)
            if self.load(newcomer) + self.shards[name].load <= share < others:
                self.move(name, newcomer)

    def load(self, member: CrewMember) -> int:
        return sum(self.shards[name].load for name in member.shards)

    def close(self) -> None:
        for member in (*self.members, *self.coming):
            self.cluster.kill(member.handle)
        self.members, self.coming = [], []

    # ---- what they hold ----

    def add(self, name: ShardName, rows: Callable[[], Packed], load: int) -> None:
        """A shard, for the actor that has least."""
        home = min(self.members, key=self.load)
        self.shards[name] = Shard(rows, load, home)
        self.move(name, home)

    def move(self, name: ShardName, to: CrewMember) -> None:
        shard = self.shards[name]
        shard.home.shards.discard(name)
        shard.home = to
        to.shards.add(name)
        self.loading.append(to.handle.hold.remote(name, self.cluster.put(shard.rows())))
        if len(self.loading) > _LOADS:  # so that the object store need not hold all of them
            self.cluster.wait([self.loading.pop(0)])

    def learn(self, method: Method) -> int:
        """The number under which actors know a method."""
        for number, (known, _) in self.methods.items():
            if known is method:
                return number
        number = next(self.numbers)
        self.methods[number] = method, self.cluster.put(packed(method))
        return number

    def check_method(self, method: Method) -> None:
        """Refuse a method whose code an actor lacks."""
        for member in self.members:
            self.teach(member, self.learn(method))

    def teach(self, member: CrewMember, number: int) -> None:
        """Send an actor a method, and hear whether it can read it."""
        if lacks := self.cluster.get(member.handle.learn.remote(number, self.methods[number][1])):
            raise RunError(
                f"a machine of the cluster cannot read the method, because it lacks code: {lacks}\n"
                "hint: put your own modules on every machine, into a folder that PYTHONPATH names when ray "
                "start is called there"
            )
        member.methods.add(number)

    # ---- work ----

    def work(
        self, method: Method, job: Packed, shards: Sequence[ShardName], give: GiveOrder, what: str
    ) -> Iterator[Result]:
        """Results in the order of the shards; `what` names the job for people."""
        self.welcome()
        number, key, ref = self.learn(method), next(self.numbers), self.cluster.put(job)
        asked = UnderWay(what)
        self.queue(asked, shards, range(len(shards)))
        for wanted in range(len(shards)):
            while wanted not in asked.found:
                self.send(asked, shards, give, (number, key, ref))
                self.collect(asked, shards)
            yield asked.found.pop(wanted)

    def queue(self, asked: UnderWay, shards: Sequence[ShardName], places: Sequence[int]) -> None:
        for place in places:
            home = self.shards[shards[place]].home
            asked.todo.setdefault(home, deque()).append(place)

    def send(
        self, asked: UnderWay, shards: Sequence[ShardName], give: GiveOrder, job: tuple[int, int, Ref]
    ) -> None:
        """Give orders to all actors that have room for more."""
        number, key, ref = job
        for member, places in asked.todo.items():
            busy = sum(m is member for m, _ in asked.flights.values())
            while places and busy < _AHEAD:
                some = [places.popleft() for _ in range(min(len(places), self.portion(places)))]
                orders = [give(shards[p], member.number) for p in some]
                asked.given |= {p: list(order.kept) for p, order in zip(some, orders, strict=True)}
                if number not in member.methods:
                    member.handle.learn.remote(number, self.methods[number][1])
                    member.methods.add(number)
                asked.flights[member.handle.work.remote(number, key, ref, packed(orders))] = member, some
                busy += 1

    def portion(self, places: Sequence[int]) -> int:
        """How many orders go together: few enough that an actor has the next ones before it is done with these."""
        return max(1, min(_AT_ONCE, len(places) // 2))

    def collect(self, asked: UnderWay, shards: Sequence[ShardName]) -> None:
        """Take results that are there, waiting for one at least."""
        for ref in self.cluster.wait(list(asked.flights)):
            if ref not in asked.flights:
                continue  # of an actor that was just found to be lost
            member, places = asked.flights[ref]
            try:
                answer = unpacked(self.cluster.get(ref))
            except Lost as e:
                self.lose(member, str(e))
                self.again(asked, member, shards, str(e))
                continue
            del asked.flights[ref]
            if isinstance(answer, BaseException):
                raise answer
            asked.found |= dict(zip(places, answer, strict=True))

    def again(self, asked: UnderWay, gone: CrewMember, shards: Sequence[ShardName], why: str) -> None:
        """Queue all that a lost actor had to do at the actors that hold its shards now."""
        mine = [ref for ref, (member, _) in asked.flights.items() if member is gone]
        places = [p for ref in mine for p in asked.flights.pop(ref)[1]]
        self.losses.append(Loss(asked.what, sorted(c for p in places for c in asked.given[p]), why))
        self.queue(asked, shards, sorted([*places, *asked.todo.pop(gone, ())]))

    def lose(self, gone: CrewMember, why: str) -> None:
        """Move the shards of a lost actor to the others, and start another one in its place."""
        self.cluster.kill(gone.handle)  # it may be one that does not answer, and would go on
        self.members.remove(gone)
        self.start_missing()
        if not self.found_one():
            raise RunError(
                f"the cluster lost the last process that held clients, and starts no other: {why}\n"
                "hint: when its machines are back, give the same command: it goes on from the last checkpoint"
            )
        for name in sorted(gone.shards, key=lambda n: -self.shards[n].load):
            if self.shards[name].home is gone:
                self.move(name, min(self.members, key=self.load))
