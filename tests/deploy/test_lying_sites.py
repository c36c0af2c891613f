"""A site that lies in every reply of every job: the run ends or goes on without it, with the reason, each time."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from msgspec.structs import asdict

import sites
from lying import HONEST, LIAR, LyingFederation, lie_in, tree_in
from motet.deploy.agreement.refusals import LASTING, SENTENCES, explained
from motet.deploy.demo import difference
from motet.deploy.flare.kits import Kit
from motet.deploy.server.job_chain import JobChain
from motet.deploy.server.run_files import JobReport, make_order, read_report
from motet.deploy.server.status import status_text
from motet.deploy.site.policy import Policy
from motet.engines.driver import play, start
from motet.engines.expected_replies import ExpectedReplies
from motet.engines.flare import Flare
from motet.engines.letters import Letter, Reply
from motet.engines.loop import all_finite
from motet.runs.run import Run
from motet.runs.store import Store
from motet.text import printable
from motet.vec import Vec
from motet.wire import pack, unpack

MANY = (1 << 48) - 1


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> LyingFederation:
    return LyingFederation(tmp_path_factory.mktemp("town"))


@pytest.fixture(scope="module")
def everybody(town: LyingFederation) -> Run:
    return town.on_the_loop_engine("a", "b", "c")


@pytest.fixture(scope="module")
def others(town: LyingFederation) -> Run:
    return town.on_the_loop_engine(*HONEST)


def equal(found: Run, same: Run) -> bool:
    """Whether two runs have the same scores and the same state, to the bit."""
    last = int(found.rounds["round"].max())
    return difference(found, same) == 0 and Store(found.folder).state(last) == Store(same.folder).state(last)


# ---- what was found: each of these was taken for true ----


def test_without_a_lie_the_run_is_that_of_the_loop_engine(town: LyingFederation, everybody: Run) -> None:
    report = town.begin()
    assert (report.state, report.excluded) == ("done", {})
    assert equal(town.result(), everybody)


def test_a_reply_weighs_what_was_agreed_on_whatever_n_it_says(town: LyingFederation, everybody: Run) -> None:
    assert town.begin(lie_in("verb", lambda r: r | {"n": MANY})).state == "done"
    assert equal(town.result(), everybody), "the mean is not the liar's"


def test_numbers_of_rows_that_cannot_be_exclude_the_site(town: LyingFederation, others: Run) -> None:
    report = town.begin(tree_in("layout", lambda t: t | {"train": MANY}))
    assert report.state == "done" and str(MANY) in report.excluded[LIAR]
    assert equal(town.result(), others), "and the others are on their own, to the bit"


def test_an_accuracy_above_one_chooses_no_round(town: LyingFederation) -> None:
    report = town.begin(tree_in("evaluate", scored(accuracy=1e8)))
    assert report.state == "done" and "its accuracy is 1e+08" in report.excluded[LIAR]
    assert town.result().scores["accuracy"].max() <= 1


def test_scores_of_more_rows_than_agreed_count_as_agreed(town: LyingFederation, everybody: Run) -> None:
    assert town.begin(tree_in("evaluate", scored(n=1e6))).state == "done"
    assert equal(town.result(), everybody)


def test_a_score_that_is_no_number_chooses_no_round(town: LyingFederation) -> None:
    for lie in (scored(accuracy=math.nan), scored(loss=math.nan)):
        report = town.begin(tree_in("evaluate", lie))
        assert report.state == "done" and LIAR in report.excluded
        assert set(town.result().scores["client"]) == set(HONEST)


def test_huge_sums_do_not_reach_the_scaling(town: LyingFederation, others: Run) -> None:
    for sums in (1e30, 1e12):
        report = town.begin(tree_in("measure", lambda t, v=sums: t | {"total": t["total"] * 0 + v}))
        assert report.state == "done" and "out of all proportion" in report.excluded[LIAR]
        assert equal(town.result(), others)


def test_one_odd_reply_is_one_job_with_a_reason(town: LyingFederation) -> None:
    """The next job, with the liar there again, does not ask it again; nor does the run command take it in."""
    report = town.begin(tree_in("layout", lambda t: {"train": "x"}))
    assert report.state == "done" and "training, validation and test rows" in report.excluded[LIAR]
    report = town.begin(tree_in("layout", lambda t: {"train": "x"}), min_sites=3)
    assert report.state == "failed" and "site b" in report.why and "--min-sites is 3" in report.why


# ---- a lie in every reply of every job ----


def scored(**scores: float) -> Callable[[Any], Any]:
    """Other scores, on every side."""

    def change(tree: Any) -> Any:
        false = {k: torch.tensor(v, dtype=torch.float64) for k, v in scores.items()}
        return {side: metrics | false for side, metrics in tree.items()}

    return change


def first_column(**to: Any) -> Callable[[Any], Any]:
    return lambda t: t | {"columns": [t["columns"][0] | to, *t["columns"][1:]]}


def sums(**to: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda t: t | {k: change(t[k]) for k, change in to.items() if k in t}


def with_classes(t: Any) -> Any:
    return t | {"target": t["target"] | {"classes": [str(k) for k in range(1001)]}, "counts": {}}


def shifted(by: float) -> Callable[[Any], Any]:
    """Sums of other numbers."""

    def change(t: Any) -> Any:
        more = {"total": t["total"] + by * t["many"]} if "total" in t else {}
        return t | more | ({"squares": t["squares"] + by**2 * t["rows"]} if "squares" in t else {})

    return change


CATEGORIES = [str(k) for k in range(300)]
LIES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a number for a table": ("describe", lambda t: 7, "no description"),
    "a table without columns": ("describe", lambda t: {k: v for k, v in t.items() if k != "columns"}, "fields"),
    "an older protocol": ("describe", lambda t: t | {"protocol": 0, "motet": "0.0.1"}, "too old for this server"),
    "no protocol": ("describe", lambda t: {k: v for k, v in t.items() if k != "protocol"}, "too old"),
    "a newer protocol": ("describe", lambda t: t | {"protocol": 99, "motet": "9.9"}, "update the server's motet"),
    "a protocol that is text": ("describe", lambda t: t | {"protocol": "one"}, "too old"),
    "fewer rows than none": ("describe", lambda t: t | {"counts": {"rows": -5, "classes": []}}, "-5"),
    "rows beyond all tables": ("describe", lambda t: t | {"counts": {"rows": 1 << 70}}, "rows"),
    "more of a class than rows": ("describe", lambda t: t | {"counts": {"rows": 9, "classes": [90, 9]}}, "fit"),
    "counts that are text": ("describe", lambda t: t | {"counts": {"rows": "many"}}, "numbers of rows are none"),
    "categories without end": ("describe", first_column(kind="text", values=CATEGORIES), "300 categories"),
    "a name that a terminal obeys": ("describe", first_column(name="\x1b]0;x\x07"), "cannot be shown"),
    "half a letter": ("describe", first_column(name="\ud800"), "cannot be shown"),
    "a column twice": ("describe", lambda t: t | {"columns": [*t["columns"], t["columns"][0]]}, "different"),
    "a thousand classes": ("describe", with_classes, "most tables"),
    "fewer cells than none": ("measure", sums(many=lambda v: v - 10_000), "rows of a column"),
    "more cells than rows": ("measure", sums(rows=lambda v: v * 0, total=lambda v: v * 0), "than rows"),
    "rows that were not described": ("measure", sums(rows=lambda v: v + 10**6), "rows of a column"),
    "sums that are no numbers": ("measure", sums(total=lambda v: v * math.nan), "column"),
    "sums of other columns": ("measure", sums(total=lambda v: v[:1]), "column"),
    "sums that are text": ("measure", lambda t: "sums", "no sums"),
    "squares below zero": ("measure", sums(squares=lambda v: -1 - v), "sum of squares"),
    "squares beyond measure": ("measure", sums(squares=lambda v: v * 0 + 1e30), "out of all proportion"),
    "a list of rows": ("layout", lambda t: [1, 2], "are none"),
    "rows that are no number": ("layout", lambda t: t | {"train": math.nan}, "are none"),
    "rows below zero": ("layout", lambda t: t | {"val": -1}, "-1 validation"),
    "other rows than described": ("layout", lambda t: t | {"test": 5000}, "and described"),
    "neither yes nor no": ("offer", lambda t: {"accepted": "perhaps"}, "neither accepted nor refused"),
    "text for weights": ("verb", lambda t: "weights", "not what was asked for"),
    "weights of another shape": ("verb", lambda t: t.map(lambda v, _: v.flatten().repeat(2)), "not what was asked"),
    "weights out of all proportion": ("verb", lambda t: t.map(lambda v, _: v * 0 + 3e38), "as large as 3e+38"),
    "scores without a side": ("evaluate", lambda t: {"personal": t["personal"]}, "not what was asked for"),
    "a loss below zero": ("evaluate", scored(loss=-1.0), "a loss is 0 at least"),
    "an accuracy that its loss denies": ("evaluate", scored(accuracy=0.0, loss=0.01), "do not fit each other"),
    "pairs of rows that are not there": ("evaluate", scored(pairs=1e12), "pairs of rows"),
    "a loss that no model has": ("evaluate", scored(loss=1e9), "no sound model"),
    "other scores after training": ("evaluate_trained", lambda t: {"val": t["val"]}, "another form"),
    "text for a model saved": ("save_model", lambda t: {"saved": "yes"}, "whether it saved"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_the_run_goes_on_without_a_liar_and_says_why(lie: str, town: LyingFederation) -> None:
    job, change, reason = LIES[lie]
    report = town.begin(tree_in(job, change))
    assert report.state == "done" and reason in report.excluded[LIAR]
    assert report.present == list(HONEST)
    events = Store(town.run).frame("events")
    assert events[events["kind"] == "excluded"]["text"].tolist() == [f"site {LIAR}: {report.excluded[LIAR]}"]


@pytest.mark.parametrize("job", ["describe", "measure", "layout", "offer", "evaluate", "evaluate_trained"])
def test_only_a_verbs_reply_can_be_spoilt(job: str, town: LyingFederation) -> None:
    report = town.begin(lie_in(job, lambda r: r | {"spoilt": True}))
    assert report.state == "done" and "not finite" in report.excluded[LIAR]


def test_a_reply_larger_than_its_job_ever_needs_is_not_read(town: LyingFederation) -> None:
    report = town.begin(lambda letter, reply: reply + bytes(2 << 20) if letter.job == "evaluate" else reply)
    assert report.state == "done" and "larger than the limit of 1048576" in report.excluded[LIAR]


def test_who_lied_once_is_not_asked_again_by_the_next_job(town: LyingFederation) -> None:
    def end_this_job(letter: Letter, reply: bytes) -> bytes:
        if letter.job == "verb":
            (town.run / "again").touch()
        return pack(unpack(reply) | {"tree": "x"}) if letter.job == "verb" else reply

    report = town.begin(end_this_job)
    assert (report.state, set(report.excluded)) == ("again", {LIAR})
    (town.run / "stop").touch()
    report = town.job(there=HONEST)
    assert (report.state, set(report.excluded)) == ("stopped", {LIAR}), "also if it is not there now"
    (town.run / "stop").unlink()
    asked: list[str] = []

    def count(letter: Letter, reply: bytes) -> bytes:
        asked.append(letter.job)
        return reply

    report = town.job(count)
    assert (report.state, set(report.excluded), asked) == ("done", {LIAR}, [])


def test_a_site_that_comes_back_with_other_numbers_of_rows_is_excluded(town: LyingFederation) -> None:
    def end_this_job(letter: Letter, reply: bytes) -> bytes:
        (town.run / "again").touch()
        return reply

    assert town.begin(end_this_job).state == "again"
    report = town.job(tree_in("layout", lambda t: t | {"train": t["train"] + 40, "val": 0}))
    assert report.state == "done" and "when it came" in report.excluded[LIAR]


def test_a_newcomer_is_held_to_the_same_checks(town: LyingFederation) -> None:
    """It comes between two jobs: with the server's protocol and as many rows as it says from then on, or not at all."""
    lies = {"describe": lambda t: t | {"protocol": 0}, "layout": lambda t: t | {"train": -1}}
    for job, lie in lies.items():
        town.begin(there=HONEST)
        report = town.job(tree_in(job, lie))
        assert report.state == "done" and LIAR in report.excluded


# ---- sites that say no numbers of rows ----


def test_a_site_that_lets_no_counts_leave_weighs_one_whatever_it_says(tmp_path: Path) -> None:
    quiet = LyingFederation(tmp_path, **{LIAR: Policy(counts=False)})
    assert quiet.begin().state == "done"
    honest = Store(quiet.run).state(1)
    lie = lie_in("verb", lambda r: r | {"n": MANY})
    assert quiet.begin(lie).state == "done" and Store(quiet.run).state(1) == honest
    assert (quiet.result().clients.set_index("client")["train"] > 0).to_dict() == {
        "a": True,
        "b": False,
        "c": True,
    }


# ---- a robust mean covers the handshake ----


def test_with_a_robust_mean_the_middle_site_scales(tmp_path: Path) -> None:
    robust = LyingFederation(tmp_path, "guard.mean=median")
    lie = tree_in("measure", shifted(40.0))
    assert robust.begin(lie).state == "done"
    layout = unpack((robust.run / "layout.motet").read_bytes())
    x = np.concatenate(
        [
            np.loadtxt(robust.folder / "tables" / f"{s}.csv", delimiter=",", skiprows=1, usecols=0)
            for s in HONEST
        ]
    )
    assert abs(float(layout["middle"][0]) - x.mean()) < x.std()
    assert "the middle site's" in read_report(robust.run).agreement


def test_people_are_told_of_a_mean_that_is_far_from_the_others(town: LyingFederation) -> None:
    report = town.begin(
        tree_in("measure", sums(total=lambda v: v + 1000.0 * 38, squares=lambda v: v + 1e6 * 38))
    )
    assert report.state == "done" and not report.excluded
    assert "at site b is far from the others'" in report.agreement and "data.scale=client" in report.agreement


def test_people_are_told_of_a_site_with_nearly_all_rows(town: LyingFederation) -> None:
    described = tree_in("describe", lambda t: t | {"counts": {"rows": 10**6, "classes": [10**6, 0]}})
    laid_out = tree_in("layout", lambda t: t | {"train": 10**6})
    report = town.begin(lambda letter, reply: laid_out(letter, described(letter, reply)))
    assert "site b says that it has 1000000 of all 1000220 rows" in report.agreement
    report = town.begin(described)
    assert "it lays 110 rows out, and described 1000000" in report.excluded[LIAR]


# ---- refusals ----


def test_every_clause_has_a_sentence_and_other_words_are_shown_cut() -> None:
    words = "caller recipe method verb learn asks rounds bytes letter layout sums counts scores categories rows weights"
    assert {
        *words.split(),
        "losses",
        "publish",
        "weight",
        "limits",
        "files",
        "masks",
        "state",
        "reset",
        "data",
        "error",
    } == set(SENTENCES)
    assert all(explained(w).endswith(f" ({w})") for w in SENTENCES)
    assert explained("x" * 999) == "x" * 79 + "…"
    assert len(explained("a b" * 999)) == 300
    assert not LASTING & {"limits", "state", "data", "error"}


def test_a_refusal_reaches_files_and_terminals_in_one_plain_line(town: LyingFederation) -> None:
    shout = "\x1b[2J\x1b]0;owned\x07stop\n\u202enow" + "x" * (1 << 20)
    report = town.begin(lie_in("verb", lambda r: {"tree": (), "n": 0, "refusal": shout, "spoilt": False}))
    assert report.state == "done" and not report.excluded
    (said,) = Store(town.run).frame("events").query("kind == 'refused'")["text"]
    assert said.startswith("site b: stop nowxxx") and len(said) <= 320


def test_a_policy_that_refuses_for_good_keeps_the_site_out_and_a_passing_trouble_does_not(
    town: LyingFederation,
) -> None:
    def refuse(word: str) -> Any:
        return lie_in("verb", lambda r: {"tree": (), "n": 0, "refusal": word, "spoilt": False})

    report = town.begin(refuse("rounds"))
    assert report.state == "done" and report.excluded == {LIAR: explained("rounds")}
    report = town.begin(refuse("error"))
    assert report.state == "done" and not report.excluded
    report = town.begin(refuse("rounds"), min_sites=3)
    assert report.state == "failed" and explained("rounds") in report.why


def test_text_of_others_is_made_harmless() -> None:
    assert printable("\x9b31mred\x1bc \udcff\tend") == "red  end"
    assert printable("a\nb", lines=True) == "a\nb"
    assert printable("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\") == "link"


# ---- methods whose replies differ in form ----


@pytest.mark.parametrize(
    ("verb", "odd"),
    [
        ("publish", "a model"),
        ("publish", [{"manifest": 1}]),
        ("stack", {"trust": "x"}),
        ("stack", {"trust": {"private": 1e9}, "refused": {}}),
        ("stack", {"trust": {}, "refused": {"a": 1}}),
    ],
)
def test_stacking_goes_on_without_a_site_that_replies_anything(verb: str, odd: Any, tmp_path: Path) -> None:
    settings = sites.recipe("stacking")
    method = sites.method(settings)
    services = {s: sites.service(s, tmp_path / s) for s in sites.SITES}

    def post(letters: Any) -> Any:
        found = {s: services[s].answer(m) for s, m in letters.items()}
        lies = {s for s, m in letters.items() if s == LIAR and Letter.read(m).verb == verb}
        return {s: Reply(odd, 5).pack() if s in lies else r for s, r in found.items()}, {}

    expect = ExpectedReplies(method.task, (sites.FEATURES,))
    engine = Flare(sites.SITES, post, "r", settings, expect=expect)
    turn = sites.turn(1)
    state = play(engine, method, start(engine, method, sites.turn(-1)), turn)
    assert set(HONEST) <= set(state["trust"])
    assert LIAR in engine.excluded or LIAR in state["refused"], "a model that is none is refused by itself"
    assert not (LIAR in engine.excluded and LIAR in state["trust"])


def test_replies_without_a_known_form_must_have_that_of_most() -> None:
    method = sites.method(sites.recipe("fedavg"))
    w = method.task.w0
    replies = {"a": Reply(w, 5), "b": Reply({"other": 1.0}, 5), "c": Reply(w, 7)}
    engine = Flare(sites.SITES, lambda letters: ({s: replies[s].pack() for s in letters}, {}), "r")
    got = play(engine, method, w, sites.turn(1))
    assert all(torch.equal(got[k], w[k]) for k in w) and "another form" in engine.excluded["b"]


def test_a_loss_below_zero_does_not_reach_pages_rewards(tmp_path: Path) -> None:
    settings = sites.recipe("page")
    method = sites.method(settings)
    services = {s: sites.service(s, tmp_path / s) for s in sites.SITES}

    def post(letters: Any) -> Any:
        found = {s: Reply.read(services[s].answer(m)) for s, m in letters.items()}
        lie = torch.tensor(-float(method.eps))  # type: ignore[attr-defined]
        return {
            s: Reply(r.tree | {"f": lie}, 5).pack() if s == LIAR else r.pack() for s, r in found.items()
        }, {}

    engine = Flare(sites.SITES, post, "r", settings, expect=ExpectedReplies(method.task, (sites.FEATURES,)))
    state = play(engine, method, start(engine, method, sites.turn(-1)), sites.turn(1))
    assert all_finite(state)


# ---- one cause, one job ----


def test_jobs_that_get_no_further_end_the_run_with_the_last_reason(tmp_path: Path) -> None:
    said: list[str] = []
    order = make_order("town", None, ["method.name=fedavg"], 2, 0, 60.0)
    chain = JobChain(cast(Kit, None), order, tmp_path, said.append, 0.0)
    pauses = [chain.pause_after(JobReport("short", why="site b did not answer", round=4)) for _ in range(21)]
    assert pauses[:4] == [0, 1, 3, 7] and max(pauses) == 60
    report = read_report(tmp_path)
    assert report.state == "failed" and "20 jobs in a row got no further than round 4" in report.why
    assert "site b did not answer" in report.why and len(said) == 21
    assert chain.pause_after(JobReport("running", round=5)) == 0 and "without a word" in said[-1]


def test_status_says_who_is_excluded_and_why() -> None:
    report = asdict(JobReport("running", away={"a": "timed out", "b": "it lies"}, excluded={"b": "it lies"}))
    found = {"federation": "care", "server": "here:1", "up": True, "sites": {}, "runs": {"r": report}}
    assert status_text(found).splitlines()[-2:] == ["    b is excluded: it lies", "    a is away: timed out"]


# ---- drawn lies ----


def drawn_value(draw: random.Random) -> Any:
    """Anything that a reply could hold."""
    shape = [draw.choice([0, 1, 2, 5]) for _ in range(draw.choice([0, 1, 1, 2, 3]))]
    dtype = draw.choice([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool])
    number = draw.choice([0.0, -1.0, 1e-9, 0.5, 1e8, 1e300, math.nan, math.inf, -math.inf])
    deep: Any = "x"
    for _ in range(draw.choice([3, 30])):
        deep = [deep]
    return draw.choice([
        None, True, False, 0, 1, -1, 7, MANY, 1 << 70, number, "", "x", "\x1b[2J" * 9, "\ud800", "y" * 5000, b"\xff",
        [], (), {}, {"": 0}, {"train": 1}, [number] * 3, deep, torch.full(shape, number, dtype=torch.float64).to(dtype),
        torch.zeros(shape, dtype=dtype), Vec({"fc1.weight": torch.zeros(shape)}),
    ])  # fmt: skip


def changed(tree: Any, draw: random.Random) -> Any:
    """The tree with one thing in it, at any depth, replaced, removed, added or scaled."""
    if isinstance(tree, dict) and tree and draw.random() < 0.8:
        key = draw.choice(list(tree))
        how = draw.random()
        if how < 0.1:
            return {k: v for k, v in tree.items() if k != key}
        if how < 0.2:
            return dict(tree) | {draw.choice(["extra", "n", "\x1b", ""]): drawn_value(draw)}
        inside = dict(tree) | {key: changed(tree[key], draw)}
        return (
            Vec(inside)
            if isinstance(tree, Vec) and all(isinstance(v, torch.Tensor) for v in inside.values())
            else inside
        )
    if isinstance(tree, list | tuple) and tree and draw.random() < 0.8:
        at = draw.randrange(len(tree))
        return type(tree)([*tree[:at], changed(tree[at], draw), *tree[at + 1 :]])
    if isinstance(tree, torch.Tensor) and draw.random() < 0.6:
        factor = draw.choice([-1.0, 0.0, 1e-30, 2.0, 1e6, 1e30, math.nan])
        return (tree.double() * factor).to(
            draw.choice([tree.dtype, torch.float64, torch.int64, torch.float32])
        )
    return drawn_value(draw)


def drawn_lie(draw: random.Random, job: str, at: int) -> Any:
    """A lie in one job from its `at`-th letter on: of the reply's fields, of its tree, or of its bytes."""
    if draw.random() < 0.15:
        cut, noise = draw.random(), draw.randbytes(draw.choice([1, 50]))
        broken = draw.choice([
            lambda r: r[: int(cut * len(r))], lambda r: noise, lambda r: r + noise, lambda r: b"",
            lambda r: r[: int(cut * len(r))] + noise + r[int(cut * len(r)) + len(noise) :], lambda r: "text",
        ])  # fmt: skip
        return lambda letter, reply: broken(reply) if letter.job == job else reply
    seed = draw.random()
    if draw.random() < 0.3:
        return lie_in(job, lambda r: encodable(changed(r, random.Random(seed))), at)
    return tree_in(job, lambda t: encodable(changed(t, random.Random(seed))), at)


def encodable(tree: Any) -> Any:
    """A tree that can be sent at all, which a liar's must be."""
    try:
        pack(tree)
    except (ValueError, OverflowError):
        return "x"
    return tree


JOBS = ("describe", "measure", "layout", "offer", "verb", "evaluate", "evaluate_trained", "save_model")


def check_drawn_lie(town: LyingFederation, seed: int) -> str:
    draw = random.Random(seed)
    job, at = JOBS[seed % len(JOBS)], draw.choice([0, 0, 1])
    lie, min_sites = drawn_lie(draw, job, at), draw.choice([2, 2, 3])
    report = town.begin(lie, min_sites)
    if report.state == "short":  # a refusal, which may pass; the next job ends no further, and says the same
        assert "b:" in report.why
        return "short"
    assert report.state in ("done", "failed"), report
    words = [report.why, report.agreement, *report.excluded.values(), *report.away.values()]
    assert all(w == printable(w, 100_000, lines=True) for w in words), "nothing that a terminal obeys"
    assert all(len(w) <= 1000 for w in report.away.values())
    if report.state == "failed":
        assert report.why and "error of motet's" not in report.why, report.why
        return "failed"
    scores = town.result().scores
    assert scores["accuracy"].between(0, 1).all() and (scores["loss"] >= 0).all()
    assert set(report.excluded) <= {LIAR} and all(report.excluded.values())
    return "excluded" if report.excluded else "harmless"


def test_drawn_lies_end_the_run_or_exclude_the_liar(town: LyingFederation) -> None:
    outcomes = [check_drawn_lie(town, seed) for seed in range(16)]
    assert "excluded" in outcomes


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_a_thousand_drawn_lies_end_the_run_or_exclude_the_liar(town: LyingFederation) -> None:
    outcomes = [check_drawn_lie(town, seed) for seed in range(1000)]
    assert outcomes.count("excluded") > 500
