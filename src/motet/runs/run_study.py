"""Running a study: tune if asked, run everything, and say what was run, read and failed.

Knows studies, tuning and the runner. Does not know how results are shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from motet.errors import RunError
from motet.runs.jobs import Outcome
from motet.runs.parallel import AtOnce, Watch, default_jobs, perform
from motet.runs.study import Study
from motet.runs.tune import tune
from motet.runs.worker_process import end_template


@dataclass(frozen=True)
class StudyOutcome:
    """How the runs of a study ended, and what was tuned."""

    outcomes: list[Outcome]
    sentences: Mapping[Path, str]  # what tuning chose, by the folders of the runs that use it

    @property
    def folders(self) -> list[Path]:
        """The runs that can be read, failed ones too."""
        return [o.folder for o in self.outcomes if o.held and o.folder]

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
    try:
        if tuning:
            study, sentences = tune(study, base, at_once, watch, fresh)
        outcomes = perform(study.jobs(), base, at_once, watch, fresh)
    finally:
        end_template()
    if not any(o.held for o in outcomes):
        raise RunError(outcomes[0].failure)
    labels = {
        study.name(row, seed, split): row.label
        for row in study.rows for seed in study.seeds for split in study.splits
    }  # fmt: skip
    said = {o.folder: sentences.get(labels[o.job.name], "") for o in outcomes if o.held and o.folder}
    return StudyOutcome(outcomes, {folder: text for folder, text in said.items() if text})
