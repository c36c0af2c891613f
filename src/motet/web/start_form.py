"""The form that starts a run or a study: built from the fields of a recipe, checked as the command line checks.

What differs from a field's default becomes a word `section.name=value`; everything else stays as motet chooses.
Knows fields and words. What they mean is asked of another process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from motet.errors import MotetError
from motet.web.questions import Questions

NAMED = ("data", "net", "method")  # sections that name something
USUAL = {"data": "digits", "net": "auto", "method": "finetune"}
STANDARD = ("local", "fedavg", "fedprox", "ditto", "finetune")
# what people change most, which is shown at once; everything else is folded away
FIRST = ("train.rounds", "data.clients", "train.cohort", "method.lr", "method.epochs", "data.split", "data.alpha",
         "data.target", "data.client")  # fmt: skip


@dataclass
class StartForm:
    """A form with what was typed into it, and what is wrong with that."""

    given: Mapping[str, str]
    sections: list[dict[str, Any]] = field(default_factory=list)
    wrong: dict[str, str] = field(default_factory=dict)  # by field; "" is about all of it

    @property
    def kind(self) -> str:
        return "run" if self.given.get("kind") == "run" else "study"

    def name(self, section: str) -> str:
        return self.given.get(section, "").strip() or USUAL[section]

    @property
    def methods(self) -> list[str]:
        """Of a study: those that are ticked."""
        if "asked" not in self.given:
            return list(STANDARD)
        return [k.removeprefix("use.") for k in self.given if k.startswith("use.")]

    def value(self, row: Mapping[str, Any]) -> str:
        return self.given.get(row["name"], row["default"])

    def read_fields(self, questions: Questions, stranger: bool) -> None:
        """Ask what can be set; a name that is not known is said at its field, and the usual one is shown. A `stranger`
        has no token."""
        names = {s: self.name(s) for s in NAMED if s != "method" or self.kind == "run"}
        try:
            self.sections = questions.ask(
                "recipe_fields", names=names, split=self.given.get("data.split", ""), stranger=stranger
            )
        except MotetError as e:
            self.add_wrong(str(e))
            self.sections = questions.ask("recipe_fields", names={s: USUAL[s] for s in names})

    def words(self) -> list[str]:
        """What differs from the defaults, as on the command line."""
        found = [f"{s}={self.name(s)}" for s in NAMED if s != "method" or self.kind == "run"]
        for section in self.sections:
            if section["section"] == "method" and self.kind == "study":
                continue
            for row in section["fields"]:
                value = self.given.get(row["name"], "").strip()
                if value and value != row["default"] and not hidden(row["name"], self.kind):
                    found.append(f"{row['name']}={value}")
        if self.kind == "run" and (seed := self.given.get("seed", "").strip()):
            found.append(f"seed={seed}")
        return found + [w for w in self.given.get("more", "").split() if "=" in w]

    def check(self, questions: Questions, base: str) -> dict[str, Any]:
        """What the command line says of these words; {} where something is wrong."""
        try:
            if self.kind == "run":
                return dict(questions.ask("check_run", words=self.words()))
            if not self.methods:
                raise MotetError("no method is chosen\nhint: tick at least one")
            seeds, splits = self.given.get("seeds", ""), self.given.get("splits", "")
            given: dict[str, Any] = {
                "words": self.words(),
                "methods": self.methods,
                "seeds": seeds,
                "splits": splits,
            }
            return dict(questions.ask("check_study", base=base, **given))
        except MotetError as e:
            self.add_wrong(str(e))
            return {}

    def add_wrong(self, text: str) -> None:
        """Put each sentence at the field that it begins with; hints stay with the sentence before them."""
        at = ""
        for line in text.splitlines():
            if not line.startswith("hint:"):
                found = re.match(r"(?:unknown setting )?([a-z_]+(?:\.[a-z_]+)+|seeds?|splits)\b", line)
                known = {row["name"] for s in self.sections for row in s["fields"]} | {
                    "seed",
                    "seeds",
                    "splits",
                }
                at = found[1] if found and found[1] in known else ""
            self.wrong[at] = f"{self.wrong[at]}\n{line}" if at in self.wrong else line

    def command(self, found: Mapping[str, Any], base: str) -> list[str]:
        """The words of the process to start."""
        if self.kind == "run":
            return ["run", *self.words(), "--out", f"{base}/{found['name']}", "--quiet"]
        options = [("--seeds", self.given.get("seeds", "")), ("--splits", self.given.get("splits", ""))]
        more = [w for name, value in options if value.strip() for w in (name, value.strip())]
        return [
            "compare",
            *self.words(),
            "--methods",
            ",".join(self.methods),
            *more,
            "--out",
            base,
            "--quiet",
        ]


def hidden(name: str, kind: str) -> bool:
    """Whether another field of the form stands for this one."""
    return name.endswith(".name") or (kind == "study" and name in ("data.seed",))
