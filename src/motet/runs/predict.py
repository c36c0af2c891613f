"""Using a saved model on new rows: columns are found by name, and nothing but the model's file is needed.

A model's file is data: weights, and facts in JSON. Networks and methods are looked up by name in this motet;
a file that names a module of its own is refused unless the caller trusts it.
Knows models' files and tables. Does not know runs, nor where a model came from.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from motet import nets
from motet.client import Task
from motet.core import Tree
from motet.data.federated import DataError, refuse
from motet.data.new_rows import NewRows, category_sources
from motet.data.table_files import FRAME, SourceTable, read
from motet.data.table_settings import SIGNS
from motet.data.text_codes import NewTexts
from motet.data.tidy_cells import HowWritten, tidy
from motet.errors import RunError, need
from motet.runs.model_files import read_facts, read_whole, stored
from motet.runs.recipe import OF_ANY_NET, method_class
from motet.runs.sections import LossSettings
from motet.runs.training_ranges import TrainingRanges
from motet.runs.tree_layout import rebuilt
from motet.settings import fields_of, with_objects
from motet.trusted_code import Consent, require_trust
from motet.vec import Vec
from motet.wire import unpack

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("motet")
_SLICE = 4096  # rows predicted at once


@dataclass(frozen=True)
class Model:
    """A saved model: it predicts raw rows, and says in `facts` what it was trained on."""

    facts: dict[str, Any]
    scores: Callable[[Tensor], Tensor]  # rows to class scores, or to numbers in the target's own unit
    standardise: bool = True  # whether rows are to be standardised first; ONNX files do so themselves

    @property
    def columns(self) -> list[str]:
        return list(self.facts["columns"])

    def predict(self, rows: Any, *, missing: str = "as_trained") -> pd.DataFrame:
        """A prediction for each row of a frame or array; for classes, also how likely each of them is. Models of
        survival give the logarithm of a relative risk (`log_risk`).

        A frame's columns are found by name; the target need not be among them. Empty cells are filled as they were
        in training; where there were none, they are refused unless `missing="mean"`.
        """
        if (self.columns or "text" in self.reading) and not isinstance(rows, np.ndarray):
            how = HowWritten(self.sign, self.missing_values, untyped=False, likely=self.likely_sign)
            frame = tidy(rows, how).frame
            named = self.rows_of(SourceTable(frame, [FRAME], [len(rows)]), missing)
            return self.table_with_warnings(named.values(), named.notes)
        shape = (len(self.columns),) if self.columns else tuple(self.facts["shape"])
        found = np.asarray(rows)
        if found.shape[1:] != shape:
            raise DataError(f"examples have the shape {found.shape[1:]}; this model expects {shape}")
        if flags := self.facts.get("flags", ()):
            import pandas as pd

            frame = pd.DataFrame(found, columns=self.columns)
            new = NewRows(SourceTable(frame, [FRAME], [len(frame)]), self.columns)
            for name in flags:
                new.expect_truths(name, frame[name].to_numpy(np.float64))
            refuse(new.problems)
        return self.table_with_warnings(found, [])

    def rows_of(self, table: SourceTable, missing: str) -> NewRows | NewTexts:
        """A table's rows in this model's columns, or its texts as codes."""
        if "text" in self.reading:
            return NewTexts(table, self.reading["text"])
        if not self.columns:
            raise RunError(
                f"this model takes examples of shape {tuple(self.facts['shape'])}, not rows of a table"
            )
        absent, day_first = self.facts.get("absent", ()), self.reading.get("day_first", {})
        flags = self.facts.get("flags", ())  # models of earlier versions do not say
        return NewRows(table, self.columns, absent, self.fill_in_words(missing), day_first, flags)

    @property
    def reading(self) -> dict[str, Any]:
        """How the table of the training rows was read; models of earlier versions do not say."""
        found: dict[str, Any] = self.facts.get("reading", {})
        return found

    @property
    def sign(self) -> str:
        return SIGNS.get(self.reading.get("decimal", "auto"), "auto")

    @property
    def likely_sign(self) -> str:
        """The decimal sign of the training rows, for new rows that do not tell theirs."""
        return str(self.reading.get("likely_sign", ""))

    @property
    def missing_values(self) -> tuple[str, ...]:
        return tuple(map(str, self.reading.get("missing_values", ())))

    def fill_in_words(self, missing: str) -> str:
        """What fills empty cells; "" if they are refused."""
        if missing == "refuse" or (missing == "as_trained" and "fill" not in self.facts["inputs"]):
            return ""
        how = self.reading.get("missing", "mean") if "fill" in self.facts["inputs"] else "mean"
        words = {"median": "the training median", "most_frequent": "the most frequent value in training"}
        return words.get(how, "the training mean")

    def table_with_warnings(self, rows: np.ndarray, notes: list[str]) -> pd.DataFrame:
        """Predictions for a caller in Python, who is told in the log what to know of them."""
        answers = self.table(rows)
        for note in notes + self.remarks(rows, answers):
            log.warning(note)
        return answers

    def remarks(self, rows: np.ndarray, answers: pd.DataFrame) -> list[str]:
        """Which rows and predictions lie elsewhere than those of training; models of earlier versions cannot tell."""
        try:
            ranges = msgspec.convert(self.facts.get("ranges", {}), TrainingRanges)
        except msgspec.ValidationError as e:
            raise RunError(
                f"what the model says of the ranges of its training rows cannot be read: {e}"
            ) from None
        predicted = answers["prediction"].to_numpy() if self.facts["kind"] == "numbers" else None
        return ranges.remarks(self.columns, rows, predicted)

    def table(self, rows: np.ndarray) -> pd.DataFrame:
        """Predictions for rows in this model's columns."""
        import pandas as pd

        x = torch.from_numpy(self.ready(rows))
        with torch.no_grad():
            scores = torch.cat([self.scores(part) for part in x.split(_SLICE)]).double()
        if self.facts["kind"] != "classes":
            name = "log_risk" if self.facts["kind"] == "survival" else "prediction"
            return pd.DataFrame({name: scores.reshape(-1).numpy()})
        names = self.facts["classes"]
        found = pd.DataFrame({"prediction": [names[i] for i in scores.argmax(-1).tolist()]})
        chances = torch.softmax(scores, -1).numpy()
        return found.assign(**{f"p({name})": chances[:, i] for i, name in enumerate(names)})

    def ready(self, rows: np.ndarray) -> np.ndarray:
        """Empty cells filled as in training, or with training means, and all columns standardised. A column that the
        owner did not hold was 0 in training, as the mean is after standardising."""
        inputs = self.facts["inputs"]
        mean, std = (np.asarray(inputs.get(k, v)) for k, v in (("mean", 0.0), ("std", 1.0)))
        fill = np.asarray(inputs.get("fill", mean))
        absent = np.isin(self.columns, self.facts.get("absent", ())) if self.columns else False
        rows = np.where(np.isnan(rows), np.where(absent, mean, fill), rows)
        return ((rows - mean) / std).astype(np.float32) if self.standardise else rows

    def __repr__(self) -> str:
        f = self.facts
        whose = f"client {f['client']}" if f.get("client") else "global"
        return f"Model({whose}, {f.get('method', {}).get('name')} on {f.get('data')})"


# ---- the model's file ----


def open_model(path: Path, *, trust: Consent = False) -> Model:
    """The model that `motet run`, `motet export` or a site of a federation wrote; code that it names needs `trust`."""
    if not stored(path):
        raise RunError(
            f"there is no model {path}.\nhint: models lie in a run's folder models/, or in that of a site"
        )
    reader = {".onnx": read_onnx, ".motet": read_trees}.get(path.suffix, read_weights)
    if path.suffix == ".onnx" and is_published(path):
        raise RunError(
            f"{path} is a published model, and not one that a run or motet export wrote.\n"
            "hint: models, _ = motet.load_published(folder); motet.predict_published(models, frame)"
        )
    facts, trees = reader(path)
    wanted = ("kind", "classes", "columns", "shape", "inputs", "target", "net", "seed")
    if absent := [k for k in wanted if k not in facts]:
        raise RunError(f"{path} is a model of an earlier motet: it does not say its {', '.join(absent)}")
    if path.suffix == ".onnx":
        return Model(facts, onnx_scores(trees[0]), standardise=False)
    require_trust([network_facts(facts), facts.get("method")], path, trust)
    return Model(facts, predictor(path, facts, trees))


def is_published(path: Path) -> bool:
    """Whether a manifest of a published model lies beside an ONNX file."""
    manifest = path.with_name(path.name.removesuffix(".onnx") + ".json")
    return manifest.is_file() and b'"sha256"' in manifest.read_bytes()[: 1 << 20]


def read_weights(path: Path) -> tuple[dict[str, Any], Sequence[Tree]]:
    from safetensors import SafetensorError, safe_open

    where, own = stored(path) or (path, {})
    read_whole(where)
    try:
        with safe_open(str(where), "pt") as file:
            facts = read_facts((file.metadata() or {}).get("motet"))
            weights = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, OSError) as e:
        raise RunError(f"{path} is no model: {e}.\nhint: expected a .safetensors or .onnx file") from None
    if not isinstance(facts, dict):
        raise RunError(f"{path} was not written by motet: it does not describe its model")
    return facts | own, [Vec(weights)]


def read_trees(path: Path) -> tuple[dict[str, Any], Sequence[Tree]]:
    """A model that is more than weights, in motet's wire format."""
    content = read_whole(path)
    try:
        given = unpack(content)
        facts, trees = json.loads(given["facts"]), tuple(given["trees"])
    except (LookupError, TypeError, ValueError) as e:  # a WireError is among these
        raise RunError(f"{path} is no model: {e}") from None
    return facts, trees


def predictor(path: Path, facts: dict[str, Any], trees: Sequence[Tree]) -> Callable[[Tensor], Tensor]:
    """The function that the file names, applied to the file's trees."""
    task = Task(network_of(facts), facts["kind"], len(facts["classes"]) or 1)
    call, target = facts.get("call", "predict"), facts["target"]
    if "layout" in facts:
        trees = laid_out(path, facts["layout"], trees[0])
    elif len(trees) == 1 and isinstance(trees[0], Vec) and set(trees[0]) != set(task.w0):
        trees = trees_of(trees[0])
    if call == "predict" and (len(trees) != 1 or set(trees[0]) != set(task.w0)):
        raise RunError(f"{path} is not a single network, and does not say which function uses its parts")
    owner: Any = task if call == "predict" else method_of(facts, task)
    f = getattr(owner, str(call), None)
    if not callable(f) or str(call).startswith("_"):
        raise RunError(f"{path} says that {call!r:.80} uses its parts, and there is no such function")
    return lambda x: in_unit(applied(path, f, trees, x), target)


def method_of(facts: Mapping[str, Any], task: Task) -> Any:
    """The method that a file names, with the file's settings."""
    method = facts["method"]
    found = method_class(method["name"])
    return found(task, **with_objects(found, {k: v for k, v in method.items() if k != "name"}))


def laid_out(path: Path, layout: Any, tensors: Mapping[str, Tensor]) -> Sequence[Tree]:
    """The arguments that a file's layout makes of its tensors."""
    try:
        return tuple(rebuilt(layout, tensors))
    except (LookupError, TypeError, ValueError) as e:
        raise RunError(f"{path} is no model: its layout does not fit its tensors ({e})") from None


def applied(path: Path, f: Callable[..., Tensor], trees: Sequence[Tree], x: Tensor) -> Tensor:
    try:
        return f(*trees, x)
    except KeyError as e:
        raise RunError(
            f"{path} does not hold the part {e} that its method predicts with: an earlier motet left it out.\n"
            "hint: motet run … --fresh writes a run's models anew"
        ) from None


def in_unit(outputs: Tensor, target: Mapping[str, Any]) -> Tensor:
    """A network's outputs as predictions in the target's own unit."""
    linked = outputs.exp() if target.get("link") == "exp" else outputs
    return linked * float(target["scale"]) + float(target["offset"])


def network_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """What names the network; the loss that trained it is not needed to use it."""
    return {k: v for k, v in facts["net"].items() if k not in fields_of(LossSettings)}


def network_of(facts: dict[str, Any]) -> nn.Module:
    """The network that a file was written for, with other weights."""
    net, outputs = facts["net"], len(facts["classes"]) or 1
    options = {k: v for k, v in net.items() if k not in ("name", *OF_ANY_NET)}
    return nets.build(net["name"], options, tuple(facts["shape"]), outputs, facts["kind"], facts["seed"])


def trees_of(weights: Mapping[str, Tensor]) -> list[Vec]:
    """Weights by name; where there are several trees, names start with the tree's number."""
    if not all(k.split(".", 1)[0].isdigit() for k in weights):
        return [Vec(weights)]
    many = max(int(k.split(".", 1)[0]) for k in weights) + 1
    rest = [{k.split(".", 1)[1]: v for k, v in weights.items() if k.startswith(f"{i}.")} for i in range(many)]
    return [Vec(one) for one in rest]


def read_onnx(path: Path) -> tuple[dict[str, Any], Sequence[Any]]:
    """Facts, and the session that predicts."""
    session = session_of(path, read_whole(path))
    props = session.get_modelmeta().custom_metadata_map
    if "motet" not in props:
        raise RunError(f"{path} was not written by motet: it does not describe its model")
    return read_facts(props["motet"]), [session]


def session_of(path: Path, content: bytes) -> Any:
    """A session of one thread: with more, trees are added in another order, and a stack's meta-model may take another
    branch for a row that lies at a threshold."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else onnxruntime reports the model to its maker
    need("an ONNX model", "stacking", "onnxruntime", error=RunError)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as e:  # noqa: BLE001 onnxruntime has no error of its own
        raise RunError(f"{path} is no model: {e}") from None


def onnx_scores(session: Any) -> Callable[[Tensor], Tensor]:
    """Rows to scores; rows in 32 bits, or in 64 where the model reads them so."""
    wide = session.get_inputs()[0].type == "tensor(double)"

    def scores(x: Tensor) -> Tensor:
        given = x.double() if wide else x.float()
        return torch.from_numpy(session.run(None, {"x": given.numpy()})[0])

    return scores


# ---- both together ----


def predict(
    model: Path, table: Path, *, missing: str = "as_trained", trust: Consent = False
) -> tuple[pd.DataFrame, list[str]]:
    """Predictions for a file's rows, in their order, and what a person should know of them. `row` is each row's number
    in the file, from 1 below the names; rows without a cell are left out and counted."""
    found = open_model(model, trust=trust)
    texts = category_sources(found.columns)
    source = read(table, found.sign, found.missing_values, texts=texts, likely=found.likely_sign)
    rows = found.rows_of(source, missing)
    try:
        values = rows.values()
    except DataError as e:
        raise DataError(f"{table}: {e}") from None
    import pandas as pd

    answers = found.table(values)
    notes = source.notes + rows.notes + found.remarks(values, answers)
    return pd.concat([source.rows_in_files(), answers], axis=1), notes
