"""Running a study: tune if asked, run everything, and say what was run, read and failed.

Knows studies, tuning and the runner. Does not know how results are shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from motet.errors import RunError
from motet.runs.jobs import Event, Job, Outcome
from motet.runs.parallel import AtOnce, Watch, default_jobs, perform
from motet.runs.study import Study
from motet.runs.study_record import StudyRecord, new_record, recorded
from motet.runs.tune import tune
from motet.runs.worker_process import end_template


@dataclass(frozen=True)
class StudyOutcome:
    """How the runs of a study ended, and what was tuned."""

    outcomes: list[Outcome]
    sentences: Mapping[Path, str]  # what tuning chose, by the folders of the runs that use it
    record: StudyRecord | None = None  # the file that says which runs belong together

    @property
    def folders(self) -> list[Path]:
        """The runs that can be read, failed ones too."""
        return [o.folder for o in self.outcomes if o.held and o.folder]

    def add_report(self, report: Path) -> None:
        """Write down which report lies beside the runs."""
        if self.record and self.folders and report.resolve().parent == self.folders[0].resolve().parent:
            self.record.report = report.name
            self.record.write(report.parent)

    @property
    def failures(self) -> dict[str, str]:
        return {o.job.name: o.failure for o in self.outcomes if o.failure}


def run_study(
    study: Study,
    base: str | Path = "runs",
    at_once: AtOnce = 0,
    watch: Watch | None = None,
    tuning: bool = False,
    fresh: bool = False,
) -> StudyOutcome:
    """Run a study in folders of `base`, `at_once` runs at a time; 0: as many as use all cores; "ray": as many as
    a Ray cluster has CPUs."""
    watch, sentences = watch or Watch(), dict[str, str]()
    at_once = at_once or default_jobs(study.jobs()[0].recipe)
    if study.why:
        watch.say(study.why)
    record = record_of(study, Path(base), tuning)
    try:
        with recorded(Path(base), record):
            if tuning:
                study, sentences = tune(study, base, at_once, watch, fresh)
            outcomes = perform(study.jobs(), base, at_once, Recording(watch, record, Path(base)), fresh)
            record.status = "done"
    finally:
        end_template()
    if not any(o.held for o in outcomes):
        raise RunError(outcomes[0].failure)
    labels = {
        study.name(row, seed, split): row.label
        for row in study.rows for seed in study.seeds for split in study.splits
    }  # fmt: skip
    said = {o.folder: sentences.get(labels[o.job.name], "") for o in outcomes if o.held and o.folder}
    return StudyOutcome(outcomes, {folder: text for folder, text in said.items() if text}, record)


def record_of(study: Study, base: Path, tuning: bool) -> StudyRecord:
    """The file that says which runs belong to a study; the same study has the same one."""
    jobs = study.jobs()
    what = [[row.label, row.settings] for row in study.rows], study.seeds, study.splits, tuning
    record = new_record(base, str(jobs[0].recipe["data"]["name"]), what, [j.name for j in jobs])
    record.status, record.tune = "tuning" if tuning else "running", tuning
    with suppress(TypeError, ValueError):  # objects of Python are in no file
        record.asked = json.loads(json.dumps(study.asked))
    return record


class Recording(Watch):
    """Writes down which runs a study has, while another watch shows them."""

    def __init__(self, watch: Watch, record: StudyRecord, base: Path) -> None:
        self.watch, self.record, self.base = watch, record, base
        self.say = watch.say  # type: ignore[method-assign]

    def on_begin(self, jobs: Sequence[Job]) -> None:
        self.record.status = "running"
        self.watch.on_begin(jobs)

    def on_event(self, job: Job, event: Event) -> None:
        if "folder" in event:
            self.write(job, Path(event["folder"]))
        self.watch.on_event(job, event)

    def on_end(self, outcome: Outcome) -> None:
        if outcome.failure:
            self.record.failures[outcome.job.name] = outcome.failure
        self.write(outcome.job, outcome.folder)
        self.watch.on_end(outcome)

    def write(self, job: Job, folder: Path | None) -> None:
        if folder and folder.is_dir():
            self.record.runs[job.name] = folder.name
        self.record.write(self.base)
