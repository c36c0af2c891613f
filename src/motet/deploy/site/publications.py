"""What a site publishes: chosen by its owner, made once, stored, and counted against its budget.

    own = Publications(folder, key, policy, ledger).of(federated, rows_hash)
    models = own.models(choice_of_the_recipe, make)

The same choice for the same rows gets the stored models, in whatever run or round it is asked for: noise that is drawn
again would tell more about the rows. The ledger counts the budgets of all that left. A ledger that lost lines must not
give budget back: what is stored counts, too, and the larger sum holds.
Knows choices, manifests and the policy. Does not know methods, nor letters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from motet.atomic import write_atomically
from motet.data.federated import FederatedData
from motet.deploy.site.ledger import Ledger
from motet.deploy.site.policy import Objection, Policy, RefusedByPolicy
from motet.deploy.site.storage import EncryptedState
from motet.deploy.site.training_budget import spent as spent_in_all
from motet.errors import UsageError
from motet.published import Published
from motet.published.manifest import Privacy
from motet.published.outbox import defaults_stand_for, from_outbox, in_terms, terms_of
from motet.published.public_choice import NOTHING, OUTBOX, PublicChoice, in_words
from motet.wire import pack, unpack

Make = Callable[[PublicChoice], list[Published]]
_LABEL, _FILE = (0, 0), "0.0.keep"  # of the models of a publication
_BUDGET = "epsilon"  # the file beside them
FOLDER, OUTBOX_FOLDER = "published", "outbox"  # in the site's folder `kept`, and beside it


@dataclass
class Announced:
    """What was published last, for the ledger."""

    what: str = ""
    epsilon: float = 0.0


@dataclass
class SitePublisher:
    """The models of one site for one layout of its rows. A `trial` stores nothing and draws no stored models."""

    policy: Policy
    federated: FederatedData
    rows: str  # hash of the rows and their layout
    outbox: Path
    folder: Path | None = None  # None: a trial
    key: bytes = b""
    spent: float = 0.0  # budgets of all models that left before, by the ledger
    trained: float = 0.0  # of all private training, by the ledger
    stored: Mapping[str, float] = field(default_factory=dict)  # budgets of all that is stored, by label
    choice: PublicChoice | None = None  # as it was last asked for
    said: Announced = field(default_factory=Announced)
    before: Path | None = None  # of a trial: where models lie that were published before

    def models(self, wanted: PublicChoice, make: Make) -> list[Published]:
        """What this site publishes where a recipe would have it publish `wanted`."""
        self.choice = choice = chosen(self.policy, wanted)
        if self.folder is None:
            return [] if choice.family == OUTBOX and self.objections() else self.made(choice, make)
        store = self.store(self.folder, choice)
        if (known := store.get(_LABEL)) is None:
            if wrong := choice_objections(self.policy, choice, self.spent_besides()):
                raise RefusedByPolicy(wrong[0].text, wrong[0].clause)
            models = self.made(choice, make)
            self.check(models)
            budget = budget_of(models, choice)
            write_atomically(store.folder / _BUDGET, repr(budget), private=True)
            store.put(_LABEL, pack([m.tree() for m in models]))
        else:
            models = [Published.from_tree(tree) for tree in unpack(known)]
        self.said = Announced(announcement(models), budget_of(models, choice))
        return models

    def spent_besides(self, label: str = "") -> float:
        """What private training and all other models spent: of models, the larger of what the ledger has and what is
        stored."""
        return self.trained + max(self.spent, sum(e for k, e in self.stored.items() if k != label))

    def check_new(self) -> None:
        """Refuse models that the ledger does not have and that are beyond the budget: they may be stored because a
        reply with them could not be written down, and other models may have left since."""
        if not self.policy.epsilon or not self.said.epsilon or self.choice is None:
            return
        spent = self.spent_besides(self.label(self.choice))
        if wrong := budget_objections(self.policy, self.said.epsilon, spent):
            raise RefusedByPolicy(wrong[0].text, wrong[0].clause)

    def objections(self) -> list[Objection]:
        """Why what was asked for in a trial may not be published here."""
        if self.choice is None:
            return []
        if self.was_published(self.choice):
            self.spent, self.trained, self.stored = 0.0, 0.0, {}  # the same model once more spends nothing
        wrong = choice_objections(self.policy, self.choice, self.spent_besides())
        return wrong or (self.of_outbox() if self.choice.family == OUTBOX else [])

    def was_published(self, choice: PublicChoice) -> bool:
        """Whether this very choice is stored, for these rows."""
        if self.before is None:
            return False
        try:
            return (self.before / FOLDER / self.label(choice) / _FILE).exists()
        except RefusedByPolicy:  # of an outbox that cannot be read
            return False

    def of_outbox(self) -> list[Objection]:
        """Why the model in the outbox may not be published."""
        try:
            model = self.own_model()
        except RefusedByPolicy as e:
            return [Objection("publish", str(e))]
        claim = model.manifest.privacy
        epsilon = None if claim.mechanism == Privacy().mechanism else claim.epsilon
        claimed = budget_objections(self.policy, epsilon, self.spent_besides())
        return (claimed if self.policy.epsilon else []) + size_objections(self.policy, [model])

    def made(self, choice: PublicChoice, make: Make) -> list[Published]:
        if choice.family == NOTHING:
            return []
        return [self.own_model()] if choice.family == OUTBOX else make(choice)

    def own_model(self) -> Published:
        """The model in the outbox, in the federation's terms; whatever is wrong with it is said at home."""
        try:
            return in_terms(from_outbox(self.outbox), terms_of(self.federated))
        except UsageError as e:
            raise RefusedByPolicy(str(e), "publish") from e

    def remarks(self) -> list[str]:
        """What the owner should know of the model in the outbox, where that is what is published."""
        if self.choice is None or self.choice.family != OUTBOX:
            return []
        said = defaults_stand_for(from_outbox(self.outbox), terms_of(self.federated))
        return [f"the outbox: {said}"] if said else []

    def label(self, choice: PublicChoice) -> str:
        own = self.own_model().manifest.sha256 if choice.family == OUTBOX else ""
        about = json.dumps([asdict(choice), self.rows, own], sort_keys=True)
        return sha256(about.encode()).hexdigest()[:32]

    def store(self, folder: Path, choice: PublicChoice) -> EncryptedState:
        label = self.label(choice)
        return EncryptedState(folder / FOLDER / label, f"published {label}", self.key)

    def check(self, models: Sequence[Published]) -> None:
        """Refuse a model that is larger than the policy allows, or whose budget is."""
        own = self.choice is not None and self.choice.family == OUTBOX
        if wrong := self.of_outbox() if own else size_objections(self.policy, models):
            raise RefusedByPolicy(wrong[0].text, wrong[0].clause)


class Publications:
    """All that one site publishes, over all runs."""

    def __init__(self, folder: Path, key: bytes, policy: Policy, ledger: Ledger) -> None:
        self.folder, self.key, self.policy, self.ledger = folder, key, policy, ledger

    def of(self, federated: FederatedData, rows: str, *, trial: bool = False) -> SitePublisher:
        place = None if trial else self.folder
        spent = sum(self.ledger.budgets.values())
        trained = spent_in_all(self.policy, self.ledger) - spent if self.policy.epsilon else 0.0
        outbox = self.folder.parent / OUTBOX_FOLDER
        before, stored = self.folder if trial else None, self.stored()
        return SitePublisher(
            self.policy, federated, rows, outbox, place, self.key, spent, trained, stored, before=before
        )

    def stored(self) -> dict[str, float]:
        """The budget of each stored publication, by its label."""
        found = (self.folder / FOLDER).glob(f"*/{_FILE}")
        return {p.parent.name: self.budget(p.parent) for p in found} if self.policy.epsilon else {}

    def budget(self, folder: Path) -> float:
        """As it was written beside the models; earlier versions wrote none, and then it is the sum of their claims."""
        if (file := folder / _BUDGET).exists():
            return float(file.read_text())
        known = EncryptedState(folder, f"published {folder.name}", self.key).get(_LABEL)
        models = [Published.from_tree(tree) for tree in unpack(known or pack([]))]
        return sum(m.manifest.privacy.epsilon or 0.0 for m in models)


# ---- what the policy says ----


def chosen(policy: Policy, wanted: PublicChoice) -> PublicChoice:
    """The owner's choice, or the recipe's where the owner has none."""
    choice = PublicChoice.of(policy.publish, wanted) if policy.publish else wanted
    return replace(choice, columns=policy.publish_columns) if policy.publish_columns else choice


def choice_objections(policy: Policy, choice: PublicChoice, spent: float) -> list[Objection]:
    """Why a choice may not be published here, before anything is made."""
    if choice.family == NOTHING:
        return []
    wrong = []
    if policy.families and choice.family not in policy.families:
        allowed = ", ".join(policy.families)
        text = f"a model of the family {choice.family} would be published, and this site's policy has families = "
        hint = f'hint: publish = "{policy.families[0]}" in the policy, or add the family to families'
        wrong.append(Objection("publish", f"{text}{allowed}\n{hint}"))
    if policy.epsilon and choice.family != OUTBOX:
        wrong += budget_objections(policy, choice.spent, spent)
    return wrong


def budget_objections(policy: Policy, epsilon: float | None, spent: float) -> list[Objection]:
    has = f"this site's policy has epsilon = {policy.epsilon:g}"
    if not epsilon:
        claim = "without a privacy budget" if epsilon is None else "that claims epsilon 0"
        hint = 'hint: publish = "dp-linear epsilon=…"; an own model states its budget: motet.publish(…, privacy=…)'
        return [Objection("publish", f"a model {claim} would be published, and {has}\n{hint}")]
    if spent + epsilon <= policy.epsilon * (1 + 1e-9):
        return []
    before = f" after epsilon {spent:g} of earlier models and private training" if spent else ""
    left = max(0.0, policy.epsilon - spent)
    hint = f"hint: {left:g} is left; publish a model within it, or let the policy's epsilon be larger"
    text = f"models of epsilon {epsilon:g} would be published{before}, and {has}\n{hint}"
    return [Objection("publish", text)]


def size_objections(policy: Policy, models: Sequence[Published]) -> list[Objection]:
    if not (large := [m for m in models if len(m.model) > policy.model_bytes]):
        return []
    what = announcement(large[:1])
    return [
        Objection(
            "publish",
            f"{what} is larger than this site's policy has as model_bytes, {policy.model_bytes:,}\n"
            "hint: fewer trees or columns, or a larger model_bytes",
        )
    ]


def budget_of(models: Sequence[Published], choice: PublicChoice) -> float:
    """The epsilon of all versions together."""
    claimed = [m.manifest.privacy.epsilon or 0.0 for m in models]
    return sum(claimed) - (len(models) - 1) * choice.for_defaults if choice.is_private else sum(claimed)


def announcement(models: Sequence[Published]) -> str:
    """All versions of a model in words."""
    return "; ".join(in_words(m.manifest) for m in models) or "nothing"
