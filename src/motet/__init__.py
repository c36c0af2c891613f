"""motet: a model of its own for every client, learned from all of them, while data stay at home.

This module is the public interface; everything else may move. Nothing heavy is imported before it is used.

>>> import motet
>>> sorted(name for name in motet.__all__ if name.islower())[:4]
['advise', 'audit', 'average', 'bounds_of']

- Ask whether it pays: `advise`, which gives an `Advice`.
- Train: `run`, `compare`, `verify`, `forget`; what they give back: `Run`, `Comparison`, `RoundEnd`, `Model`,
  `Forgotten`.
- Look back at a run: `contributions`, `audit`.
- Write a method: `Method`, `verb`, `average`, `collect`, `Ask`, `Turn`, `Vec`, `Data`, `Batch`, `Task`, `descend`;
  for its settings `Positive`, `NotNegative`, `Count`, `Share`; the methods there are: `methods`.
- Bring data by a function: `FederatedData`, `Pool`, `Column`.
- Stack models of others: `StackedClassifier`, `StackedRegressor`, `gains`.
- Publish a model and use those of others: `publish`, `Published`, `Feature`, `feature_defaults`, `Privacy`, `Limits`,
  `save_published`, `load_published`, `predict_published`; private models: `DPLogistic`, `DPNetwork`,
  `DPBoostingClassifier`, `DPBoostingRegressor`, `bounds_of`.
- Catch errors: `MotetError` and its tree in `errors`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
# A second thread waits: drawing initial weights and recording steps change global state of torch.
_one_at_a_time = threading.RLock()

if TYPE_CHECKING:
    from motet import errors, methods
    from motet.advice import Advice
    from motet.client import Batch, Column, Data, Task, descend
    from motet.core import Ask, Count, Method, NotNegative, Positive, Share, Turn, average, collect, verb
    from motet.data.federated import FederatedData, Pool
    from motet.errors import MotetError
    from motet.guard.private_models.dp_boosting import DPBoostingClassifier, DPBoostingRegressor
    from motet.guard.private_models.dp_network import DPLogistic, DPNetwork
    from motet.guard.private_models.encrypted_models import EncryptedModel, KeptModel
    from motet.guard.private_models.ranges import bounds_of
    from motet.nets.frozen import FrozenEncoder
    from motet.published import Feature, Limits, Privacy, Published, publish
    from motet.published import defaults as feature_defaults
    from motet.published import predict as predict_published
    from motet.published.folder import load_all as load_published
    from motet.published.folder import save as save_published
    from motet.report.comparison import Comparison
    from motet.runs.callback import RoundEnd
    from motet.runs.forget import Forgotten
    from motet.runs.predict import Model
    from motet.runs.run import Run
    from motet.stacking.estimators import StackedClassifier, StackedRegressor, gains
    from motet.vec import Vec

__all__ = [
    "Advice",
    "Ask",
    "Batch",
    "Column",
    "Comparison",
    "Count",
    "DPBoostingClassifier",
    "DPBoostingRegressor",
    "DPLogistic",
    "DPNetwork",
    "Data",
    "EncryptedModel",
    "Feature",
    "FederatedData",
    "Forgotten",
    "FrozenEncoder",
    "KeptModel",
    "Limits",
    "Method",
    "Model",
    "MotetError",
    "NotNegative",
    "Pool",
    "Positive",
    "Privacy",
    "Published",
    "RoundEnd",
    "Run",
    "Share",
    "StackedClassifier",
    "StackedRegressor",
    "Task",
    "Turn",
    "Vec",
    "advise",
    "audit",
    "average",
    "bounds_of",
    "collect",
    "compare",
    "contributions",
    "descend",
    "errors",
    "feature_defaults",
    "forget",
    "gains",
    "load_published",
    "methods",
    "predict_published",
    "publish",
    "run",
    "save_published",
    "verb",
    "verify",
]

_PLACES = {
    "motet.advice.advise": "Advice",
    "motet.client": "Batch Column Data Task descend",
    "motet.core": "Ask Count Method NotNegative Positive Share Turn average collect verb",
    "motet.data.federated": "FederatedData Pool",
    "motet.errors": "MotetError",
    "motet.guard.private_models.dp_boosting": "DPBoostingClassifier DPBoostingRegressor",
    "motet.guard.private_models.dp_network": "DPLogistic DPNetwork",
    "motet.guard.private_models.encrypted_models": "EncryptedModel KeptModel",
    "motet.guard.private_models.ranges": "bounds_of",
    "motet.published": "Feature Limits Privacy Published publish",
    "motet.report.comparison": "Comparison",
    "motet.nets.frozen": "FrozenEncoder",
    "motet.runs.predict": "Model",
    "motet.runs.callback": "RoundEnd",
    "motet.runs.forget": "Forgotten",
    "motet.runs.run": "Run",
    "motet.stacking.estimators": "StackedClassifier StackedRegressor gains",
    "motet.vec": "Vec",
}
_RENAMED = {  # name: its module, and what it is called there
    "feature_defaults": ("motet.published", "defaults"),
    "load_published": ("motet.published.folder", "load_all"),
    "predict_published": ("motet.published", "predict"),
    "save_published": ("motet.published.folder", "save"),
}


def run(
    recipe: str | Path | None = None,
    *,
    out: str | Path | None = None,
    on_round: Callable[[RoundEnd], object] | None = None,
    progress: bool = False,
    fresh: bool = False,
    trust: bool = False,
    **settings: Any,
) -> Run:
    """Run one method on one federation, or continue a run that was stopped. One that is done already (same settings,
    data, code, versions) is read and not run again: its `was_read` is true.

    Args:
        recipe: a TOML file that the keywords change.
        out: the run's folder, by default one below `runs/`.
        on_round: called after every round with a `RoundEnd`; an exception in it ends the call.
        progress: show the rounds on stderr.
        fresh: delete what the folder holds, and run anew.
        trust: let code run that the file names as `module:name`; what keywords name or hold may run anyway.
        **settings: `method`, `data`, `net` (names or objects), `seed`, single settings (`lr=0.1`), or whole sections.

    Data: a name or path, a pandas frame (with `target=` and perhaps `client=`), a dict by client of `(x, y)` arrays,
    frames or torch Datasets, or a function; objects are copied into motet's cache (MOTET_CACHE). A net: a name, an
    nn.Module class, a function `(shape, outputs) -> Module`, or a module. A method: a name or a class.

    >>> import motet, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     motet.run(method="ditto", data="wine", rounds=2, lr=0.1, out=folder).summary["status"]
    'done'
    """
    from motet.cli.progress import Progress
    from motet.runs import build, callback, from_python
    from motet.runs import recipe as recipes
    from motet.runs.run import log_if_read, run

    with _one_at_a_time, Progress(quiet=not progress) as bars:
        build.forget_data()
        made = recipes.check(from_python.sections(recipe, settings, trust=trust))
        return log_if_read(run(made, out, callback.Callback(on_round, bars.observer(made)), fresh=fresh))


def compare(
    methods: Sequence[Any] = (),
    *,
    recipe: str | Path | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | str | Sequence[int] | None = None,
    splits: int | str | Sequence[int] | None = None,
    jobs: int | str = 1,
    tune: bool = False,
    fresh: bool = False,
    base: str | Path = "runs",
    on_round: Callable[[RoundEnd], object] | None = None,
    progress: bool = False,
    trust: bool = False,
    **settings: Any,
) -> Comparison:
    """Run several methods on one federation, and local to measure them against.

    `methods` are names, classes, or dicts with settings (`{"name": "ditto", "lam": 1.0}`), by default six. `grid`
    makes a row for each combination of values (`{"ditto.lam": [0.1, 1]}`). `seeds` draw weights and batches, `splits`
    who holds which rows: numbers, or "0-4". `jobs` runs go at a time, in processes of their own if not 1; 0: one per
    core; "ray": on a cluster. `tune` finds rates and strengths on validation rows. All else as for `run`.

    >>> import motet, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = motet.compare(["finetune"], data="wine", rounds=1, base=folder)
    ...     sorted(found.table["method"])
    ['finetune', 'local', 'majority class']
    """
    from motet.cli.compare_command import comparison_of
    from motet.cli.study_progress import StudyProgress
    from motet.runs.build import forget_data
    from motet.runs.callback import StudyCallback
    from motet.runs.from_python import study
    from motet.runs.run_study import run_study

    with _one_at_a_time, StudyProgress(quiet=not progress) as bars:
        forget_data()
        planned = study(recipe, methods, settings, grid or {}, seeds, splits, trust)
        return comparison_of(run_study(planned, base, jobs, StudyCallback(on_round, bars), tune, fresh))


def advise(
    recipe: str | Path | None = None, *, rounds: int = 0, trust: bool = False, **settings: Any
) -> Advice:
    """Whether it is worth trying to federate: how much clients differ, what their test rows can show, which methods
    fit. With `rounds`, these methods are trained for so many rounds and scored on validation rows, and each client's
    gain over training alone is predicted. Test rows are neither looked at nor scored. Data and settings as for `run`.

    >>> import motet
    >>> motet.advise(data="wine").skew.words
    'moderate'
    """
    from motet.advice import advise
    from motet.runs.build import forget_data
    from motet.runs.from_python import sections
    from motet.runs.recipe import check

    with _one_at_a_time:
        forget_data()
        return advise(check(sections(recipe, settings, trust=trust)), rounds, lambda said: None)


def verify(folder: str | Path, *, trust: bool = False) -> list[str]:
    """Run a finished run again; what differs, which should be nothing. `trust` lets code run that the folder names.

    >>> import motet, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     motet.verify(motet.run(data="wine", rounds=1, out=folder).folder)
    []
    """
    from motet.runs.build import forget_data
    from motet.runs.run import verify as verify_folder

    with _one_at_a_time:
        forget_data()
        return verify_folder(folder, trust=trust)


def forget(
    folder: str | Path,
    client: str,
    *,
    out: str | Path | None = None,
    delete_old: bool = False,
    progress: bool = False,
    trust: bool = False,
) -> Forgotten:
    """Play a run again as if a client had never been there, and measure what that costs the others: what
    `motet forget` does. The new run, `after`, lies beside the old one or in `out`; what was begun is continued.

    `price` has the mean change of the others and a row for each of them, None where the old run was not finished.
    `delete_old` deletes the old run once the new one is done. The data are not touched.

    >>> import motet, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     old = motet.run(data="wine", rounds=1, out=f"{folder}/old")
    ...     done = motet.forget(old.folder, "client-03", out=f"{folder}/new")
    ...     "client-03" in [row["client"] for row in done.price["clients"]]
    False
    """
    from motet.cli.forget_command import forgotten
    from motet.cli.progress import Progress
    from motet.runs.build import forget_data
    from motet.runs.forget import delete_old as delete
    from motet.runs.forget import log

    with _one_at_a_time, Progress(quiet=not progress) as bars:
        forget_data()
        done = forgotten(folder, client, out, bars.observer(None), log.warning, trust)
    if delete_old:
        delete(done.before.folder)
    return done


def contributions(
    folder: str | Path,
    *,
    shapley: str = "auto",
    leave_one_out: bool = True,
    by: str = "loss",
    side: str = "auto",
    seed: int = 0,
    trust: bool = False,
) -> dict[str, Any]:
    """Play a run again and measure what each client contributed to it, on validation rows: what `motet contributions`
    does. `values` has each client's Shapley value with its stated error, and what others lose without it; `trust` the
    graph, `named` who is named for what. It stays with the run: `Run.contributions` reads it.

    >>> import motet, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = motet.run(method="fedavg", data="wine", clients=4, rounds=1, out=folder)
    ...     found = motet.contributions(run.folder, leave_one_out=False)
    ...     sorted(found["values"]) == sorted(run.contributions["values"])
    True
    """
    from motet.audits.measure_contributions import measure
    from motet.runs.build import forget_data

    with _one_at_a_time:
        forget_data()
        how: dict[str, Any] = {"shapley": shapley, "by": by, "side": side, "seed": seed}
        return measure(folder, leave_out=leave_one_out, trust=trust, **how)


def audit(
    folder: str | Path,
    *,
    attacks: Sequence[str] = ("membership", "inversion", "labels", "property"),
    shadows: int = 16,
    examples: int = 10,
    trust: bool = False,
) -> dict[str, Any]:
    """Attack a run, as `motet audit` does: `figures` has a row for each attack, with its value, its 95 % interval and
    what guessing finds. `shadows` are runs that are trained to learn the attack from; `examples` are inverted.

    >>> import motet, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = motet.run(method="fedavg", data="wine", clients=4, rounds=1, out=folder)
    ...     found = motet.audit(run.folder, attacks=["membership"], shadows=0)
    ...     [f["attack"] for f in found["figures"]]
    ['loss threshold']
    """
    from motet.audits.run_audit import audit as audit_folder
    from motet.runs.build import forget_data

    with _one_at_a_time:
        forget_data()
        return audit_folder(folder, attacks=attacks, shadows=shadows, examples=examples, trust=trust)


def __getattr__(name: str) -> Any:
    if name in ("errors", "methods"):
        return import_module(f"motet.{name}")
    module = next((m for m, names in _PLACES.items() if name in names.split()), None)
    module, inside = (module, name) if module else _RENAMED.get(name, (None, name))
    if module is None:
        raise AttributeError(f"module 'motet' has no attribute {name!r}")
    return getattr(import_module(module), inside)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
