"""The commands `motet encrypted ...`: a linear model stays with its owner and scores rows that it cannot read.

Everything heavy is imported when a command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from motet.cli.command import Add, group, say


def encrypted_commands(add: Add) -> None:
    within = group(add, "encrypted", "score rows by a model that its owner keeps: the rows stay encrypted")
    p = within("ask", do_ask, "encrypt the rows of a file: a question for a model's owner")
    p.add_argument("table", metavar="new.csv", help="a .csv or .parquet file with the model's columns")
    _of_model(p, "a key that nobody else may read; made if it is not there")
    p.add_argument("--to", default="question.bin", metavar="FILE", help="default: question.bin")

    p = within("answer", do_answer, "answer a question with encrypted scores, as the model's owner")
    p.add_argument("question", metavar="question.bin")
    p.add_argument(
        "--model", required=True, metavar="FILE", help="CLIENT.linear, as motet.KeptModel saves it"
    )
    p.add_argument(
        "--rows", type=int, metavar="N",
        help="in this call, answer only if there are at most so many rows in all; 0: none (default: what the model "
        "allows, or half of the rows below those from which whoever asks can compute the weights)",
    )  # fmt: skip
    p.add_argument("--to", default="answer.bin", metavar="FILE", help="default: answer.bin")

    p = within("read", do_read, "decrypt an answer: predictions for the rows that were asked")
    p.add_argument("answer", metavar="answer.bin")
    _of_model(p, "the key that asked")
    p.add_argument("--to", metavar="FILE", help="where predictions go, as CSV (default: stdout)")


def _of_model(p: Any, key: str) -> None:
    p.add_argument("--of", required=True, metavar="CLIENT.json", help="the model's manifest, from its owner")
    p.add_argument("--key", required=True, metavar="FILE", help=key)


def do_ask(args: Any) -> None:
    import numpy as np

    from motet.data.table_files import read
    from motet.guard.private_models.encrypted_models import EncryptedModel, public_manifest
    from motet.guard.private_models.encrypted_scaling import standardised
    from motet.published.runner import columns
    from motet.published.text_columns import as_models_read

    manifest, frame = public_manifest(args.of), read(Path(args.table)).frame
    x, names = as_models_read(frame, manifest.names)
    rows = columns(manifest, x, names, np.float64)
    notes = question_notes(frame, manifest.names, rows)
    rows = np.where(np.isnan(rows), [f.default for f in manifest.features], rows)
    standardised(manifest, rows)  # what cannot be asked is refused before a key is made
    model = EncryptedModel(manifest, key=_key(Path(args.key)))
    Path(args.to).write_bytes(question := model.question(rows))
    for what in notes:
        say(f"note: {what}")
    print(args.to)
    say(f"{len(rows)} rows, {len(question) / 1e6:.1f} MB")
    say(f"next:  {manifest.client} runs motet encrypted answer {args.to} --model …")


def question_notes(frame: Any, features: Sequence[str], rows: Any) -> list[str]:
    """What stands in encrypted rows where cells are empty, of a category that the model does not know, or not there."""
    import numpy as np

    from motet.published.text_columns import source_of
    from motet.published.yes_no import EMPTY

    of = {n: n if n in frame.columns else source_of(n, map(str, frame.columns)) for n in features}
    texts = sorted({c for n, c in of.items() if c is not None and c != n})
    notes = (
        [f"{empty} empty cells of numbers; defaults stand there"]
        if (empty := int(np.isnan(rows).sum()))
        else []
    )
    for column in texts:
        here = [k for k, n in enumerate(features) if of[n] == column and n != f"{column}={EMPTY}"]
        gone = frame[column].isna().to_numpy()
        strange = int(((rows[:, here] == 0).all(1) & ~gone).sum())
        known = f"{column}={EMPTY}" in features
        how = "asked as empty" if known else "asked as of no known category"
        notes += [f"{int(gone.sum())} empty cells of {column}: {how}"] if gone.any() else []
        notes += (
            [f"{strange} cells of {column} are of categories that the model does not know"] if strange else []
        )
    lacking = [n for n, c in of.items() if c is None]
    return notes + (
        [f"columns that are not here: {', '.join(lacking)}; defaults stand there"] if lacking else []
    )


def _key(path: Path) -> bytes:
    """The key in the file; a new one if there is none."""
    from motet.guard.private_models.encrypted import Asker

    if path.exists():
        return path.read_bytes()
    key = Asker().key
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
    return key


def _message(path: str, what: str) -> bytes:
    from motet.errors import UsageError

    try:
        return Path(path).read_bytes()
    except OSError as e:
        maker = {
            "answer": "motet encrypted answer, at the model's owner,",
            "question": "motet encrypted ask",
        }[what]
        raise UsageError(f"the {what} {path} cannot be read: {e.strerror}\nhint: {maker} writes one") from e


def do_answer(args: Any) -> None:
    from filelock import FileLock

    from motet.guard.private_models.encrypted_models import KeptModel

    model, question = Path(args.model), _message(args.question, "question")
    with FileLock(model.with_name(f".{model.name}.lock")):  # two answers at once count both
        kept = KeptModel.load(model)
        before = kept.answered
        answer = kept.answer(question, args.rows)
        kept.write(model)  # the count first: an answer that is lost must not be free
    Path(args.to).write_bytes(answer)
    print(args.to)
    most = kept.limit if args.rows is None else args.rows
    said = f"{kept.answered} in all of at most {most}"
    say(f"{kept.answered - before} rows answered, {said}, {len(answer) / 1e6:.1f} MB")
    if most > kept.limit:
        say(f"note: the limit of {most} rows held for this call alone; the model's is {kept.limit}")
    if kept.answered >= kept.telling:
        say(f"note: scores of {kept.telling} rows tell the weights: treat them as known to whoever asked")


def do_read(args: Any) -> None:
    import pandas as pd

    from motet.errors import UsageError
    from motet.guard.private_models.encrypted_models import EncryptedModel, public_manifest
    from motet.report.export_table import safe_cells

    manifest, key = public_manifest(args.of), Path(args.key)
    if not key.exists():
        raise UsageError(f"there is no key {key}\nhint: an answer is read with the key that asked")
    answer = _message(args.answer, "answer")
    found = EncryptedModel(manifest, key=key.read_bytes()).read(answer)
    names = manifest.classes
    table = pd.DataFrame({"row": range(1, len(found) + 1)})
    if names:
        table["prediction"] = [names[k] for k in found.argmax(1)]
        table = table.assign(**{f"p({n})": found[:, k] for k, n in enumerate(names)})
    else:
        table["prediction"] = found[:, 0]
    safe_cells(table).to_csv(args.to or sys.stdout, index=False)
