"""The command `motet compare`: methods x settings x seeds x splits on one federation, and one table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from motet.cli.command import Add, add_trust, consent_of, is_method, is_number, listed, say, split_words
from motet.cli.report_commands import add_to, checked

if TYPE_CHECKING:
    from motet.report.comparison import Comparison
    from motet.runs.run_study import StudyOutcome
    from motet.runs.study import Study

EXAMPLES = """
examples:
  motet compare data=digits
      six standard methods, one table, one report
  motet compare data=patients.csv data.target=died data.client=hospital
  motet compare data=digits --methods fedavg,ditto --seeds 0-4
  motet compare data=digits --methods ditto --grid ditto.lam=0.01,0.1,1
      three rows of ditto; --grid method.lr=0.05,0.1 varies all methods,
      --grid train.rounds=50,300 every run; several --grid are multiplied
  motet compare data=digits --methods fedavg,ditto --tune
      first find each method's learning rate and strength on validation rows
  motet compare study.toml --jobs 4
      a recipe's sections, and beside them:
        methods = ["fedavg", { name = "ditto", lam = 1.0 }]
        seeds = "0-4"
        splits = [0, 1, 2]
        [grid]
        ditto.lr = [0.05, 0.1]

A run that is done is read and not run again. After Ctrl-C or a kill the same
command goes on. Exit code: 0, 1 if a run failed, 2 for wrong input, 130 if
it was stopped.
"""


def compare_command(add: Add) -> None:
    p = add("compare", do_compare, "run several methods on the same data, and print one table")
    p.formatter_class, p.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    p.usage = "motet compare [study.toml] [section.name=value …] [options]"
    p.add_argument("words", nargs="*", metavar="study.toml | section.name=value", help="as for run")
    p.add_argument(
        "--methods",
        nargs="+",
        action="append",
        metavar="A,B",
        help="local is always added (default: local, fedavg, fedprox, ditto, finetune, centralised)",
    )
    p.add_argument(
        "--grid", action="append", default=[], metavar="SECTION.NAME=a,b,…",
        help="one row for each value; may be given several times",
    )  # fmt: skip
    p.add_argument(
        "--seeds", nargs="+", action="append", metavar="0-4",
        help="of initial weights, batches, cohorts (default: 0)",
    )  # fmt: skip
    p.add_argument(
        "--splits", nargs="+", action="append", metavar="0-4",
        help="who holds which rows, data.seed (default: 5 or 15 for few rows of named clients, else one)",
    )  # fmt: skip
    p.add_argument(
        "--tune", action="store_true", help="the same small budget for every method to find settings"
    )
    p.add_argument(
        "--jobs", type=jobs_word, default=0, metavar="N | ray",
        help="runs at a time (default: one per core); ray: on a Ray cluster, ray:HOST:PORT: on the one there",
    )  # fmt: skip
    p.add_argument("--fresh", action="store_true", help="run everything anew, also what is done")
    p.add_argument("--out", metavar="FOLDER", default="runs", help="where the runs are kept (default: runs)")
    p.add_argument("--report", metavar="FILE", help="the HTML report (default: in the folder of the runs)")
    add_to(p, "beside the report")
    p.add_argument("--wide", action="store_true", help="also scores of unseen clients, seconds and traffic")
    p.add_argument("--json", action="store_true", help="verdict, table and failures as JSON on stdout")
    p.add_argument("--quiet", action="store_true", help="no progress")
    add_trust(p, "the study's file")


def jobs_word(text: str) -> int | str:
    """A number of runs, or ray, perhaps with an address."""
    return text if text.partition(":")[0] == "ray" else at_least_one(text)


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number, 1 or more, or ray")
    return int(text)


def do_compare(args: Any) -> int:
    from motet.runs.worker_process import template

    if isinstance(args.jobs, int) and args.jobs != 1:
        template()  # loads libraries while the study is read; a cluster is asked for none before that
    from motet.cli.study_progress import StudyProgress
    from motet.runs.run_study import run_study

    files, study = checked(args.to), study_of(args)
    with StudyProgress(quiet=args.quiet) as progress:
        done = run_study(study, args.out, args.jobs, progress, args.tune, args.fresh)
    show(done, args, files)
    return 1 if done.failures else 0


def study_of(args: Any) -> Study:
    """The study that the command line asks for."""
    from motet.runs import study as studies

    words = list(args.words)
    seeds, splits = (listed(given, words, is_number) for given in (args.seeds, args.splits))
    methods = listed(args.methods, words, names_a_method)
    path, settings = split_words(words)
    numbers = (",".join(some) if some else None for some in (seeds, splits))
    asked = studies.Asked(methods, studies.grid_words(args.grid), *numbers)
    return studies.read(path, settings, asked, consent_of(args))


def names_a_method(word: str) -> bool:
    """Whether a word behind --methods is one of them, and neither a setting nor a recipe's path."""
    known, there = is_method(word), Path(word).is_file()
    if known and there:
        say(f"{word} is a method and a file here: taken as the method; ./{word} is the file")
    return known or not (there or "=" in word or word.endswith(".toml"))


def show(done: StudyOutcome, args: Any, files: Sequence[Path]) -> None:
    """The verdict and the table on stdout, and where everything lies on stderr."""
    from motet.report import terminal

    found = comparison_of(done)
    lines, table = found.verdict, found.table
    if args.json:
        rows = json.loads(json.dumps(terminal.as_records(table), default=str))
        print(
            json.dumps({"verdict": lines, "rows": rows, "tuned": dict(found.tuned), "failed": done.failures})
        )
    else:
        print(terminal.as_text(table, lines, terminal.width_here(), wide=args.wide))
    for label, sentence in found.tuned.items():
        say(f"tuned:  {label}: {sentence}")
    for file in files:
        say(f"table:  {found.save(file)}")
    report, chosen = found.report(args.report), found.chosen
    done.add_report(report)
    say(f"\nreport: {report}\nruns:   {args.out}/\nnext:   motet show {chosen[0].folder} --clients")
    if len(found.folders) > 1:
        runs = f"the first of its {len(chosen)} runs: " if len(chosen) > 1 else ""
        say(f"        ({chosen[0].label}, {runs}split {chosen[0].split}, seed {chosen[0].seed})")


def comparison_of(done: StudyOutcome) -> Comparison:
    """The runs of a study with what tuning chose, by the labels of their rows."""
    from motet.report.comparison import Comparison

    found = Comparison(done.folders)
    if not done.sentences:
        return found
    tuned = {run.label: done.sentences[run.folder] for run in found.runs if run.folder in done.sentences}
    return Comparison(done.folders, tuned)
