"""What a site's refusal means, in a plain sentence.

A refusal travels as one word, the clause that forbids what was asked; its text stays in the site's log and ledger.
Words that are not known here, and sentences of sites with another version, are shown as they came, cut and without
letters that a terminal obeys.
Knows words. Does not know what a site checks.
"""

from __future__ import annotations

from motet.text import printable

SENTENCES = {
    "caller": "it answers the server alone, and the letter came from somebody else",
    "recipe": "its policy does not allow this recipe, or the letter's recipe is not the one that was offered",
    "method": "its policy does not allow this method",
    "verb": "its policy does not allow a verb that the method asks for, or the method has no such verb",
    "publish": "its policy or its outbox does not allow the model that it would publish",
    "learn": 'the method shows the server single replies (collect), and its policy has learn = "average"',
    "asks": "it was asked more often than the method asks",
    "losses": "the losses and sketches that its policy allows are used up, or the run would send more of them",
    "rounds": "the rounds that its policy allows are used up, or the run has more of them",
    "bytes": "a reply would be larger than its policy allows",
    "letter": "it could not read the server's letter; its motet may be of another version",
    "layout": "the layout is not the one that it chose or agreed on (columns, shares of rows, seed, scaling)",
    "sums": "its policy lets no sums of columns leave; hint: data.scale=client",
    "counts": "its policy lets no numbers of rows leave",
    "scores": "its policy lets no scores leave",
    "categories": "a column of text has categories that may not leave: too rare, or nearly one for each row",
    "rows": "too few rows are behind a number that would leave",
    "weights": "it was sent weights that do not fit its network",
    "weight": "weights are, or may become, larger than its policy allows for a network of one layer; "
    "hint: for a swarm, method.bound; else a smaller method.lr",
    "limits": "a letter would take more time, memory or disk than its policy allows",
    "files": "it lacks files that the letter names, and its policy lets it store no more (stored_bytes)",
    "masks": "masked sums: its policy demands them, or too few sites take part, or what the server says of the others "
    "cannot be trusted; hint: guard.masked=true",
    "state": "what it keeps of this run cannot be read, or is not the version that was asked for",
    "reset": "it gave up what it kept of this run, and begins anew",
    "data": "its table cannot be read or used",
    "error": "an error at the site",
}
_PASSING = {"masks", "limits", "files", "state", "reset", "data", "error"}
LASTING = frozenset(SENTENCES) - _PASSING  # the same letter is refused for ever
WHERE = "hint: at the site, `motet federation ledger KIT` and KIT/JOB/log.txt give the reason"
_UNKNOWN = 80  # letters of a word that is not known here


def explained(refusal: str) -> str:
    """A sentence for a refusal; where to look further is the site's own log.

    >>> explained("scores")
    'its policy lets no scores leave (scores)'
    """
    if refusal in SENTENCES:
        return f"{SENTENCES[refusal]} ({refusal})"
    return printable(refusal, 300 if " " in refusal else _UNKNOWN)
