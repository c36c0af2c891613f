"""The command `motet reproduce`: run a paper's experiment, and compare our numbers with the paper's."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from motet.cli.command import Add, add_trust, consent_of, is_number, listed, say
from motet.cli.compare_command import jobs_word
from motet.errors import RunError


def reproduce_command(add: Add) -> None:
    p = add("reproduce", do_reproduce, "run a paper's experiment, and print our numbers and the paper's")
    p.add_argument("name", nargs="?", help="an experiment; without a name, list them all")
    p.add_argument(
        "--list",
        action="store_true",
        help="list experiments: paper, table or figure, what was run when and at which commit; a name, "
        "or the beginning of one, lists those alone",
    )
    p.add_argument("words", nargs="*", metavar="section.name=value", help="settings changed for all rows")
    p.add_argument(
        "--scale",
        choices=("quick", "desk", "full"),
        default="quick",
        help="quick: minutes, one seed; desk: hours, resumable; full: as published (default: quick)",
    )
    p.add_argument(
        "--rows",
        action="append",
        metavar="A,B,…",
        help="only these rows, separated by commas or in several --rows (default: all of the scale)",
    )
    p.add_argument(
        "--seeds", nargs="+", action="append", metavar="0-4", help="seeds (default: those of the scale)"
    )
    p.add_argument(
        "--jobs", type=jobs_word, default=0, metavar="N | ray",
        help="runs at a time (default: as many as use all cores); ray: on a Ray cluster",
    )  # fmt: skip
    p.add_argument(
        "--out",
        default="runs/reproduce",
        metavar="FOLDER",
        help="for the runs (default: runs/reproduce)",
    )
    p.add_argument("--to", metavar="FILE.md", help="also write the table to this file")
    p.add_argument("--json", action="store_true", help="the table, or the list, as JSON on stdout")
    add_trust(p, "an experiment that is not motet's own")


def do_reproduce(args: Any) -> None:
    from motet.report import paper_numbers
    from motet.runs import experiment as experiments
    from motet.runs.parallel import FOLLOWS
    from motet.runs.recipe_text import check_given_once

    args.seeds = ",".join(listed(args.seeds, args.words, is_number))
    if args.name is None and args.words and "=" not in args.words[0]:
        args.name = args.words.pop(0)  # it stood behind --seeds
    if args.list or args.name is None:
        return show_list(args)
    check_given_once(args.words)
    found = experiments.find(args.name, consent_of(args))
    base = Path(args.out) / args.name / args.scale
    table, done = (follow if found.is_procedure else run)(found, base, args)
    rows = table["rows"].values()
    reasons = {why for row in rows for why in row["failures"] if not why.startswith(FOLLOWS)}
    if len(reasons) == 1 and not any(values for row in rows for values in row["values"].values()):
        raise RunError(reasons.pop())  # there is nothing to show: data are missing, say
    table["scale"] = args.scale
    print(json.dumps(table) if args.json else paper_numbers.as_text(table))
    if drawing := experiments.module_of(found, "show"):
        print("\n".join(drawing.show(done, table, base)), file=sys.stderr if args.json else sys.stdout)
    if args.to:
        command = shlex.join(["motet", "reproduce", args.name, *args.words, "--scale", args.scale])
        command += "".join(f" --rows {shlex.quote(row)}" for row in args.rows or [])
        command += f" --seeds {args.seeds}" * bool(args.seeds)
        Path(args.to).write_text(paper_numbers.as_markdown(table, command, commit(found.folder)))
    say(f"\nruns:   {base}" + (f"\nnext:   motet show {done[0].folder} --clients" if done else ""))


def show_list(args: Any) -> None:
    from motet.report import experiment_list
    from motet.report.terminal import width_here
    from motet.runs import experiment as experiments
    from motet.runs.recipe_text import RecipeError

    if args.words:
        raise RecipeError(
            f"--list changes no settings, and {' '.join(args.words)} was given\n"
            f"hint: motet reproduce --list {args.name}, or leave out --list"
        )
    listed = [e.listing for e in experiments.beginning(args.name or "")]
    print(json.dumps(listed) if args.json else experiment_list.as_text(listed, width_here()))


def chosen(found: Any, args: Any) -> tuple[list[str], list[int], list[str]]:
    """Rows, seeds and settings as asked for; empty where the scale says."""
    from motet.runs.experiment import row_names
    from motet.runs.study import whole_numbers

    rows = [row for said in args.rows or [] for row in row_names(said, found.settings["rows"])]
    return rows, list(whole_numbers(args.seeds, "seeds")) if args.seeds else [], args.words


def run(found: Any, base: Path, args: Any) -> tuple[dict[str, Any], list[Any]]:
    """Each row and seed as a run of its own."""
    from motet.report.read import read
    from motet.report.tables import summary
    from motet.runs import experiment as experiments
    from motet.runs.parallel import default_jobs

    planned = found.plan(args.scale, *chosen(found, args), base)
    jobs = args.jobs or default_jobs(planned[0].recipe)
    how = f"{jobs} at a time" if isinstance(jobs, int) else "on a Ray cluster"
    say(f"{found.title}\n{len(planned)} runs in {base}, {how}")
    done = experiments.perform(planned, base, jobs, show_done)
    return experiments.results(found, done, lambda f: summary(read([f])[0])), done


def follow(found: Any, base: Path, args: Any) -> tuple[dict[str, Any], list[Any]]:
    """The experiment's own procedure."""
    from motet.engines.cores import cores
    from motet.runs import experiment as experiments
    from motet.runs.recipe_text import RecipeError

    if isinstance(args.jobs, str):
        raise RecipeError(
            f"--jobs is {args.jobs}, and {args.name} is a procedure of its own, which runs on this machine\n"
            "hint: --jobs with a number"
        )
    base.mkdir(parents=True, exist_ok=True)
    settings, jobs = found.at(args.scale, *chosen(found, args)), args.jobs or cores()
    say(f"{found.title}\nin {base}, {jobs} at a time")
    rows = experiments.module_of(found, "procedure").perform(settings, base, jobs, say)
    return experiments.table(found, rows), []


def show_done(done: Any) -> None:
    said = done.failure.split("\n")[0] or "done"
    say(f"  {done.planned.row}, seed {done.planned.seed}: {said}")


def commit(folder: Path) -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"
