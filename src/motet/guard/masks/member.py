"""A client's part in one masked sum: what it says at each step, and what it refuses.

    member = Member("a", session, sign, verify)
    note = member.keys()
    shares = member.share(terms, notes)
    masked = member.mask(numbers, weight, sealed)
    revealed = member.unmask(alive, gone, consents)

A member is for one sum. It masks once, so that no mask is ever on two inputs; it tells one of the two shares of each
neighbour, and of one list of survivors. Its secrets are in memory alone: a process that was killed has none any more,
and its client begins a new sum with new keys.
Knows one client's keys. Does not know what the numbers are, nor how messages are carried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from motet.guard.masks import keys as crypto
from motet.guard.masks.fixed_point import Words
from motet.guard.masks.keystream import add_mask
from motet.guard.masks.messages import KeyNote, ShareNote, SumTerms, UnmaskNote, consent_text
from motet.guard.masks.neighbours import complete_graph, neighbours_of, sparse_graph
from motet.guard.masks.refused import MaskRefused
from motet.guard.masks.shares import SEED, split

Sign = Callable[[bytes], bytes]
Verify = Callable[[KeyNote, bytes, bytes], bool]
"""Whether a signature over some bytes is that of the client whose keys these are, as its owner vouches for it."""
MIN_IN_SUM = 3


class Member:
    """One client in one sum."""

    def __init__(
        self,
        name: str,
        session: bytes,
        sign: Sign,
        verify: Verify,
        *,
        min_in_sum: int = MIN_IN_SUM,
        sparse: bool = False,  # whether it takes part where not everyone is everyone's neighbour
        certificate: bytes = b"",
    ) -> None:
        self.name, self.session, self.sign, self.verify = name, session, sign, verify
        self.min_in_sum, self.sparse, self.certificate = min_in_sum, sparse, certificate
        self.self_seed, self.key_seed = crypto.new_seed(), crypto.new_seed()
        self.mask_key = crypto.private_key(self.key_seed)
        self.share_key = crypto.private_key(crypto.new_seed())
        self.notes: dict[str, KeyNote] = {}
        self.held: dict[
            str, bytes
        ] = {}  # shares of others' secrets, by client: of the self mask, then of the key
        self.masked = False
        self.consented: frozenset[str] | None = None  # the one list of survivors that it goes by
        self.terms: SumTerms
        self.context = b""

    # ---- step 1 ----

    def keys(self) -> KeyNote:
        mask, share = crypto.public_bytes(self.mask_key), crypto.public_bytes(self.share_key)
        blank = KeyNote(self.name, mask, share, b"", self.certificate)
        return KeyNote(self.name, mask, share, self.sign(blank.signed(self.session)), self.certificate)

    # ---- step 2 ----

    def share(self, terms: SumTerms, notes: Sequence[KeyNote]) -> ShareNote:
        """Shares of this client's secrets, sealed for its neighbours, if terms and keys are in order."""
        if self.notes:
            raise MaskRefused("keys of this sum came before, and are not taken twice")
        found = {n.client: n for n in notes}
        self.check_terms(terms, found, len(notes))
        for other in self.neighbours_in(terms):
            self.check_key(found[other])
        self.terms, self.notes, self.context = terms, found, terms.context(found)
        holders = self.holders()
        pairs = zip(
            split(self.self_seed, terms.threshold, len(holders)),
            split(self.key_seed, terms.threshold, len(holders)),
            strict=True,
        )
        shares = dict(zip(holders, pairs, strict=True))
        self.held[self.name] = b"".join(shares[self.name])
        hashes = {c: crypto.mark(own) + crypto.mark(key) for c, (own, key) in shares.items()}
        return ShareNote({c: self.sealed(c, b"".join(shares[c])) for c in holders if c != self.name}, hashes)

    def check_terms(self, terms: SumTerms, notes: Mapping[str, KeyNote], many: int) -> None:
        names = terms.clients
        if terms.session != self.session:
            raise MaskRefused("the terms are those of another sum")
        if list(names) != sorted(set(names)) or set(names) != set(notes) or many != len(notes):
            raise MaskRefused("the keys that came are not one for each client of the sum")
        if self.name not in names:
            raise MaskRefused(f"{self.name} is not among the clients of the sum")
        if len(names) < self.min_in_sum:
            raise MaskRefused(
                f"a sum of {len(names)} replies was asked for, and min_in_sum is {self.min_in_sum}: "
                "whoever knows the others' replies knows the last one"
            )
        n = len(names)
        if terms.graph not in ([complete_graph(n), sparse_graph(n)] if self.sparse else [complete_graph(n)]):
            raise MaskRefused(
                f"the terms are unsafe: {terms.threshold} shares open a secret, and {terms.least} replies make a sum"
            )
        mine = notes[self.name]
        if (mine.mask_key, mine.share_key) != tuple(
            map(crypto.public_bytes, (self.mask_key, self.share_key))
        ):
            raise MaskRefused(f"the keys that are said to be those of {self.name} are others")
        every = [k for n in notes.values() for k in (n.mask_key, n.share_key)]
        if len(set(every)) != len(every):
            raise MaskRefused("two keys of the sum are the same: one of them is a copy")

    def check_key(self, note: KeyNote) -> None:
        if not self.verify(note, note.signed(self.session), note.signature):
            raise MaskRefused(
                f"the key of {note.client} is not signed by {note.client}: it was forged, or is old"
            )

    def sealed(self, other: str, share: bytes) -> bytes:
        about = crypto.route(self.context, self.name, other)
        return crypto.seal(self.share_key, self.notes[other].share_key, share, about)

    # ---- step 3 ----

    def mask(self, numbers: Words, weight: float, sealed: Mapping[str, bytes], sent: bytes = b"") -> bytes:
        """The numbers times the weight, with masks on them; `sealed` are the shares of those that still take part.

        `sent` is a hash of what this client was asked. Masks follow from it: of clients that were asked different
        things they do not cancel, so that a server cannot make all replies but one known beforehand.
        """
        if not self.notes or self.masked:
            raise MaskRefused("a mask is put on one reply only, after keys were exchanged: this one was used")
        own = 1.0 if self.terms.even else weight / self.terms.unit
        if not self.sparse and (why := self.terms.numbers.rounded_away(own)):
            raise MaskRefused(why)
        encoded = self.terms.numbers.encoded(numbers, own)
        self.masked = True
        neighbours = set(self.neighbours_in(self.terms))
        if odd := sorted(set(sealed) - neighbours):
            raise MaskRefused(f"a share of {odd[0]} came, who is no neighbour in this sum")
        if len(sealed) + 1 < self.terms.threshold:
            raise MaskRefused(
                f"{len(sealed) + 1} clients shared their keys, and {self.terms.threshold} must: nobody could be lost"
            )
        for other, share in sealed.items():
            self.held[other] = self.opened(other, share)
        add_mask(encoded, crypto.self_mask(self.self_seed, self.context))
        for other in sorted(sealed):
            key = crypto.pair_mask(self.mask_key, self.notes[other].mask_key, self.context + sent)
            add_mask(encoded, key, negative=self.name > other)
        return encoded.tobytes()

    def opened(self, other: str, sealed: bytes) -> bytes:
        about = crypto.route(self.context, other, self.name)
        share = crypto.unseal(self.share_key, self.notes[other].share_key, sealed, about)
        if share is None or len(share) != 2 * SEED:
            raise MaskRefused(
                f"the share of {other} cannot be opened: it was changed, or is for somebody else"
            )
        return share

    # ---- steps 4 and 5 ----

    def consent(self, alive: Sequence[str]) -> bytes:
        """This client's signature under the list of those whose replies are in the sum."""
        self.go_by(alive)
        return self.sign(consent_text(self.context, alive))

    def unmask(self, alive: Sequence[str], gone: Sequence[str], consents: Mapping[str, bytes]) -> UnmaskNote:
        """One share of each neighbour. Lists in which somebody was lost need the others' consent."""
        if both := sorted(set(alive) & set(gone)):
            raise MaskRefused(f"both shares of {both[0]} were asked for, which would show its reply")
        self.check_everybody(alive, gone)
        self.go_by(alive)
        if gone:
            self.check_consents(alive, consents)
        return UnmaskNote(
            {c: self.held[c][:SEED] for c in alive if c in self.held},
            {c: self.held[c][SEED:] for c in gone if c in self.held},
        )

    def check_everybody(self, alive: Sequence[str], gone: Sequence[str]) -> None:
        missing = set(self.held) - set(alive) - set(gone)
        strange = (set(alive) | set(gone)) - set(self.notes)
        if not self.masked or missing or strange:
            raise MaskRefused(
                "the lists of those in the sum and of those lost are not the clients of this sum"
            )

    def go_by(self, alive: Sequence[str]) -> None:
        """Take a list of survivors for the one of this sum, or refuse it."""
        now, many = frozenset(alive), len(set(alive))
        if not self.masked or self.name not in now:
            raise MaskRefused(
                f"{self.name} is said to be lost, and was asked: the list of survivors is false"
            )
        if not now <= set(self.notes):
            raise MaskRefused(
                f"{min(now - set(self.notes))} is said to be in the sum, and is no client of it"
            )
        if many < max(self.terms.least, self.min_in_sum):
            least = max(self.terms.least, self.min_in_sum)
            raise MaskRefused(f"{many} replies are left, and a sum needs {least}: nothing is unmasked")
        if self.consented is not None and self.consented != now:
            raise MaskRefused("another list of survivors came before: the server contradicts itself")
        self.consented = now

    def check_consents(self, alive: Sequence[str], consents: Mapping[str, bytes]) -> None:
        text = consent_text(self.context, alive)
        near = {*self.neighbours_in(self.terms), self.name}
        signed = [c for c in alive if c in near and c in consents]
        if false := [c for c in signed if not self.verify(self.notes[c], text, consents[c])]:
            raise MaskRefused(f"{false[0]} did not sign this list of survivors")
        if len(signed) < self.terms.threshold:
            raise MaskRefused(
                f"{len(signed)} clients signed the list of survivors, and {self.terms.threshold} must"
            )

    def holders(self) -> list[str]:
        """Who holds shares of this client's secrets: itself and its neighbours, in the order of names."""
        return sorted([self.name, *self.neighbours_in(self.terms)])

    def neighbours_in(self, terms: SumTerms) -> list[str]:
        return neighbours_of(self.name, terms.clients, terms.graph, terms.session)
