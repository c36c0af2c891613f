"""How many letters may score models at a site: in proportion to the rounds in which it trained, over all runs.

Scores of models that a server makes up are counts of rows. A run's name costs nothing, so that a budget of each run
would be none. Training is what a run is for: scores are earned by it.
Knows a ledger's counts and the policy. Does not know scores.
"""

from __future__ import annotations

from motet.deploy.site.ledger import Ledger
from motet.deploy.site.policy import Policy, RefusedByPolicy
from motet.engines.letters import Letter

_ALWAYS, _OF_RUN, _OF_ROUND = 16, 8, 4  # before any training, for a run that trains, for a round of it
TEST_SCORINGS = 8  # of a run: it is tested once, at its end; a few more where it was stopped and went on


def check_scorings(known: Ledger, letter: Letter, policy: Policy) -> None:
    """Refuse scorings out of proportion to training, and of test rows more than a few in a run."""
    most = scorings_allowed(len(known.trained), len(known.rounds), policy)
    if known.scorings >= most:
        raise RefusedByPolicy(
            f"{known.scorings} letters scored models after {len(known.rounds)} rounds of training; {most} may "
            f"(scorings = {policy.scorings} in this site's policy, and some for each round)",
            "asks",
        )
    if letter.job == "evaluate" and letter.part == "test" and known.tests[letter.run] >= TEST_SCORINGS:
        raise RefusedByPolicy(f"test rows of a run may be scored {TEST_SCORINGS} times, and were", "asks")


def scorings_allowed(runs: int, rounds: int, policy: Policy) -> int:
    """How many letters may score models over all runs, after so many runs and rounds in which this site trained.

    >>> scorings_allowed(0, 0, Policy()), scorings_allowed(20, 20 * 200, Policy())
    (16, 10000)
    """
    return min(_ALWAYS + _OF_RUN * runs + _OF_ROUND * rounds, policy.scorings)
