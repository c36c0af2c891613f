"""Evidence of a party of a federation, signed with its kit's key: the server from its run and from what it received,
a site from its ledger, its contract and its policy.

What a site's policy keeps at the site is not in its evidence either: numbers of rows, scores, reasons of refusals.
Knows kits, ledgers and contracts. Does not know FLARE.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

from motet.deploy.flare.kits import Kit, key_places, open_kit
from motet.deploy.server.offers import sites_recipe
from motet.deploy.server.received import ReceivedLine, read_received
from motet.deploy.site.config import KEPT, POLICY, read_policy
from motet.deploy.site.contract import Contract, policy_hash, recipe_hash
from motet.deploy.site.ledger import ASKS_FOR_FILES, LedgerLine, hashes_of_lines, read_ledger
from motet.deploy.site.policy import Policy
from motet.deploy.site.training_budget import spent_by
from motet.evidence.check_file import SERVER, SITE
from motet.evidence.document import EvidenceError
from motet.evidence.run_sections import (
    IN_THE_CLEAR,
    LEARNS,
    MASKED,
    Sections,
    asks_of_method,
    file_record,
    run_files,
    sections_of_run,
)
from motet.evidence.signing import EvidenceSigner, certified_signer
from motet.report.score_intervals import one_share
from motet.runs.model_files import read_facts
from motet.runs.recipe import Recipe
from motet.runs.run import Run
from motet.runs.versions import source_digest, versions
from motet.text import round_name
from motet.wire import unpack

_JOBS = {
    "describe": "names and types of columns, categories, classes", "measure": "sums of columns",
    "layout": "numbers of rows", "offer": "that it takes part", "evaluate": "scores", "evaluate_trained": "scores",
    "save_model": "nothing", "files": "nothing", "mask": "nothing: a step of a masked sum",
    "count": "numbers of rows, in a masked sum",
}  # fmt: skip
FIELDS = ("job", "verb", "learn", "round", "ask", "bytes", "sha256")


def kit_above(folder: Path) -> Kit | None:
    """The kit that holds a run's folder, or that a folder is; None for a run of nobody's kit."""
    path = folder.expanduser().resolve()
    for place in (path, path.parent.parent):
        if (place / "motet.json").is_file():
            return open_kit(place)
    return None


def signer_of(kit: Kit) -> EvidenceSigner:
    place, base = key_places(kit.party)[kit.party]
    root = kit.startup / "rootCA.pem"
    key, certificate = (kit.folder / place / f"{base}.{end}" for end in ("key", "crt"))
    return certified_signer(key, certificate, root, kit.party, kit.federation)


def run_of(kit: Kit, run: str) -> str:
    """The run that is meant: the one named, or the only one."""
    if kit.is_server:
        known = sorted(p.name for p in kit.runs.glob("*") if (p / "run.sqlite").exists())
    else:
        lines, _ = read_ledger(kit.folder / KEPT)
        known = sorted({line.run for line in lines if line.run and not line.clause})
    if run in known or (not run and len(known) == 1):
        return run or known[0]
    listed = ", ".join(known) or "none yet"
    what = f"has no run {run!r}" if run else f"has {len(known)} runs"
    raise EvidenceError(
        f"{kit.folder} {what}; there are: {listed}\nhint: motet evidence {kit.folder} --run NAME"
    )


# ---- the server ----


def sections_of_server(kit: Kit, run: str) -> Sections:
    """What the run's folder says, with every reply that the server received."""
    folder = kit.runs / run
    found, facts = dict(sections_of_run(folder)), Run(folder).facts
    lines, damage = read_received(folder)
    came = [line for line in lines if not line.refusal]
    found["run"] |= {
        "name": run,
        "recipe hash": recipe_hash(json.loads(json.dumps(sites_recipe(Recipe(facts["settings"]))))),
    }
    found["left"] = {
        "says": "What the server received from each site, before and in training; sizes are those of the replies.",
        "rows": by_ask(came, lambda line: line.site), "damage": damage, "ledger": None,
        "replies": [{"site": line.site} | row(line) for line in came],
    }  # fmt: skip
    found["refusals"] += [
        {
            "kind": "refused by a site",
            "text": f"{r.site}: {r.verb or r.job}, {round_name(r.round)}: {r.refusal}",
        }
        for r in lines
        if r.refusal and r.refusal != ASKS_FOR_FILES
    ]
    return list(found.items())


def row(line: LedgerLine | ReceivedLine) -> dict[str, Any]:
    return {name: getattr(line, name) for name in FIELDS}


def by_ask(lines: Iterable[Any], who: Any) -> list[dict[str, Any]]:
    """Messages and bytes by party and what was asked."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for line in lines:
        counts = found.setdefault((who(line), line.verb or line.job, learned(line)), [0, 0])
        counts[0] += 1
        counts[1] += line.bytes
    return [
        {"client": c, "verb": v, "learn": how, "messages": many, "up": size, "down": 0}
        for (c, v, how), (many, size) in sorted(found.items())
    ]


def learned(line: Any) -> str:
    """What the server learns of a reply, in a word."""
    return str(line.learn or _JOBS.get(line.job, "?"))


# ---- a site ----


def sections_of_site(kit: Kit, run: str) -> Sections:
    """What a site's own files say of a run."""
    kept, policy = kit.folder / KEPT, read_policy(kit)
    lines, damage = read_ledger(kept)
    own = [line for line in lines if line.run == run]
    left = [line for line in own if not line.clause]
    contract = contract_of(kept, run)
    hashes = hashes_of_lines(kept)
    return [
        ("run", about_site(kit, run, contract, left)),
        ("participants", [{"client": kit.party, "role": "trained"} | rows_of(contract, policy)]),
        ("left", {
            "says": f"What left {kit.party} in this run, by its ledger. A line is written before a reply leaves.",
            "rows": by_ask(left, lambda _: kit.party), "replies": [row(line) for line in left],
            "ledger": {"lines": len(hashes), "head": hashes[-1] if hashes else "", "damage": damage},
        }),
        ("learned", learned_at_site(contract)),
        ("policies", policies(kit, policy, contract, left)),
        ("guards", guards(policy, contract, left)),
        ("refusals", [refusal(line) for line in own if line.clause not in ("", ASKS_FOR_FILES)]),
        ("versions", site_versions(contract)),
        ("scores", site_scores(kit, run, policy)),
        ("models", site_cards(kept, run, policy)),
        ("files", site_files(kit, run)),
    ]  # fmt: skip


def refusal(line: LedgerLine) -> dict[str, str]:
    """The clause leaves; the reason may hold cells and names of files, and stays."""
    return {"kind": line.clause, "text": f"{line.verb or line.job or 'a message'}, {round_name(line.round)}"}


def contract_of(kept: Path, run: str) -> Contract | None:
    file = kept / "runs" / f"{quote(run, safe='')}.run" / "contract.json"
    return Contract.read(file.read_bytes()) if file.is_file() else None


def about_site(kit: Kit, run: str, contract: Contract | None, left: list[LedgerLine]) -> dict[str, Any]:
    rounds = {line.round for line in left if line.job == "verb" and line.round >= 0}
    return {
        "name": run, "federation": kit.federation, "method": contract.method if contract else "unknown",
        "data": f"the table of {kit.party}", "rounds": len(rounds), "status": "as far as this site took part",
        "offered rounds": contract.rounds if contract else None, "failure": "", "forgot": "",
        "recipe hash": contract.recipe if contract else "",
    }  # fmt: skip


def rows_of(contract: Contract | None, policy: Policy) -> dict[str, int | None]:
    known: Mapping[str, int] = contract.rows if contract and policy.counts is True else {}
    return {part: known.get(part) for part in ("train", "val", "test")}


def learned_at_site(contract: Contract | None) -> dict[str, Any]:
    """What the contract lets the server learn."""
    if contract is None:
        return {"rows": [], "beyond": ["No contract was made: nothing of training left this site."]}
    said = {(v, how): text for v, how, text in asks_of_method(contract.method)}
    rows = [
        {"verb": r.ask, "learn": r.learn, "does": said.get((r.ask, r.learn), ""), "learns": LEARNS.get(r.learn, ""),
         "asked": True, "fewest": 0}
        for r in contract.asks
    ]  # fmt: skip
    beyond = ["Before a run the site describes its columns, and sends sums of them where its policy lets it."]
    return {"rows": rows, "beyond": [*beyond, MASKED if contract.masked else IN_THE_CLEAR]}


def policies(kit: Kit, policy: Policy, contract: Contract | None, left: list[LedgerLine]) -> dict[str, Any]:
    """The site's policy and the run's contract with their hashes; other contracts that lines of the run name."""
    force = [
        {
            "name": "policy of this site",
            "hash": policy_hash(policy),
            "text": json.dumps(asdict(policy), indent=1),
        }
    ]
    says = [
        "A contract is made at the site from its own policy and its own code; every letter is held to it."
    ]
    if contract:
        text = (
            contract.text()
            if policy.counts is True
            else json.dumps(asdict(contract) | {"rows": "kept back"}, indent=1)
        )
        force.append({"name": "contract of this run", "hash": contract.hash, "text": text})
        if contract.policy != policy_hash(policy):
            says.append("The policy was changed after this contract was made.")
        others = {line.contract for line in left if line.contract} - {contract.hash}
        says += (
            [f"Lines of this run name other contracts too: {', '.join(sorted(others))}."] if others else []
        )
    return {"says": " ".join(says), "in force": force}


def guards(policy: Policy, contract: Contract | None, left: list[LedgerLine]) -> dict[str, str]:
    """What this site does to its replies, and what was spent."""
    noise = contract.noise if contract else 0.0
    spent = sum(line.numbers for line in left if not line.again)
    rounds = len({line.round for line in left if line.job == "verb"})
    return {
        "least rows behind a number": str(policy.least_rows),
        "largest share of one row": f"{policy.largest_share:g} allowed"
        + (f", {contract.share:.2g} in this run" if contract else ""),
        "noise on losses and sketches": f"Laplace, scale {noise:g}" if noise else "none",
        "losses and numbers of sketches": f"{spent:,} of {policy.losses:,} left in this run",
        "rounds": f"{rounds} of {policy.rounds:,}",
        "secret order of rows": "yes" if policy.secret_orders else "no",
        "clipping": f"L2 norm at most {contract.clip:g}" if contract and contract.clip else "none",
        "secure aggregation": masked_in(policy, contract, left), "privacy budget": privacy_budget(policy, left),
    }  # fmt: skip


def masked_in(policy: Policy, contract: Contract | None, left: list[LedgerLine]) -> str:
    """What of this site left in masked sums, and how many sums there were."""
    sums = len({(line.sum_for, line.sum_of) for line in left if line.sum_of})
    means = ["means"] if contract and contract.masked else []
    hidden = [*means, *(_HIDDEN[k] for k in policy.hidden)]
    return f"{', '.join(hidden)} leave in masked sums alone; {sums} sums in this run" if hidden else "none"


_HIDDEN = {"scores": "scores", "counts": "numbers of rows", "sums": "sums of columns"}


def privacy_budget(policy: Policy, left: list[LedgerLine]) -> str:
    """What published models and private training spent in this run."""
    most = f" of {policy.epsilon:g}" if policy.epsilon else ""
    models = {line.sha256: line for line in left if line.model}
    said = []
    if models:
        spent = sum(line.epsilon for line in models.values())
        said.append(f"epsilon {spent:g}{most} for {'; '.join(line.model for line in models.values())}")
    if replies := [x for x in left if x.steps and not x.again]:
        what = f"{len(replies)} replies that were privately trained"
        said.append(
            f"epsilon {spent_by(replies, policy.delta):.4g}{most} (delta {policy.delta:g}) for {what}"
        )
    return "; ".join(said) or "none"


def site_versions(contract: Contract | None) -> dict[str, Any]:
    return {
        "packages": versions(), "motet": contract.motet if contract else f"source {source_digest()[:12]}",
        "data": contract.layout if contract else "", "code": [], "recipe": "", "settings": "",
    }  # fmt: skip


def site_cards(kept: Path, run: str, policy: Policy) -> list[dict[str, str]]:
    """The card of the site's personal model, which holds numbers of rows and scores: only where they may leave."""
    card = kept / "models" / f"{quote(run, safe='')}.md"
    if not card.is_file() or not (policy.counts is True and policy.scores is True):
        return []
    return [{"client": "personal model of this site", "text": card.read_text(errors="replace")}]


def site_scores(kit: Kit, run: str, policy: Policy) -> dict[str, Any]:
    """What the site's personal model scores on its own test rows, where scores and numbers of rows may leave."""
    found: dict[str, Any] = {"metric": "", "trouble": "", "rows": [], "mean": None}
    facts = model_facts(kit.folder / KEPT / "models" / quote(run, safe=""))
    tested, rows = facts.get("test") or {}, (facts.get("examples") or {}).get("test", 0)
    metric = next((m for m in ("accuracy", "rmse", *sorted(tested)) if m in tested), "")
    if not metric or not (policy.counts is True and policy.scores is True):
        return found
    low, high = one_share(tested[metric], rows) if metric == "accuracy" else (None, None)
    one = {
        "client": kit.party,
        "test": rows,
        "personal": tested[metric],
        "low": low,
        "high": high,
        "global": None,
    }
    return found | {"metric": metric, "rows": [one]}


def model_facts(path: Path) -> dict[str, Any]:
    """What the file of a personal model says of it; nothing where there is none."""
    weights, other = (path.with_name(path.name + end) for end in (".safetensors", ".motet"))
    if weights.is_file():
        from safetensors import safe_open

        with safe_open(str(weights), "pt") as file:
            return dict(read_facts(file.metadata()["motet"]))
    return dict(json.loads(unpack(other.read_bytes())["facts"])) if other.is_file() else {}


def site_files(kit: Kit, run: str) -> dict[str, Any]:
    """The files of a run at a site, by path within the kit; the ledger has its own hash, because it grows."""
    name, kept = quote(run, safe=""), kit.folder / KEPT
    found = [
        *run_files(kept / "runs" / f"{name}.run"),
        *(kept / "models").glob(f"{name}.*"),
        kit.folder / POLICY,
    ]
    return {p.relative_to(kit.folder).as_posix(): file_record(p) for p in sorted(found) if p.is_file()}


def sections_of_party(kit: Kit, run: str) -> tuple[str, Sections]:
    """The kind of a party's evidence, and its sections."""
    name = run_of(kit, run)
    try:
        return (
            (SERVER, sections_of_server(kit, name)) if kit.is_server else (SITE, sections_of_site(kit, name))
        )
    except OSError as e:
        raise EvidenceError(f"evidence of {kit.folder} cannot be made: {e}") from e
