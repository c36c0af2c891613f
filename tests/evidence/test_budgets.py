"""Evidence names the privacy budgets of published models, and whether their noise protects."""

from __future__ import annotations

from motet.deploy.site.ledger import LedgerLine
from motet.deploy.site.policy import Policy
from motet.evidence.party_evidence import privacy_budget
from motet.evidence.run_sections import published_budget

WHAT = "a private logistic regression on 3 columns, epsilon 1, 1.2 kB"


def test_a_site_s_evidence_counts_a_model_once_however_often_it_left() -> None:
    line = LedgerLine(job="verb", verb="publish", model=WHAT, epsilon=0.998, sha256="a")
    assert privacy_budget(Policy(epsilon=4.0), [line, line]) == f"epsilon 0.998 of 4 for {WHAT}"
    assert privacy_budget(Policy(), [LedgerLine(job="verb", verb="train")]) == "none"


def test_a_simulated_run_s_evidence_says_that_its_noise_protects_nobody() -> None:
    published = {
        "a": {
            "what": WHAT,
            "epsilon": [0.998],
            "note": "the noise is arithmetic: it follows from the run's seed",
        },
        "b": {"what": "a linear model on 3 columns, epsilon –, 1.0 kB", "epsilon": [], "note": ""},
    }
    said = published_budget({"record": {"published": published}})
    assert said == f"a: {WHAT}; simulated: the noise is arithmetic and protects nobody"
    assert published_budget({"record": None}) == ""
