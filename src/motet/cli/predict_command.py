"""The command `motet predict`: apply a saved model to new rows.

Everything heavy is imported when the command needs it, so that `motet --help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from motet.cli.command import Add, add_trust, consent_of, say


def predict_command(add: Add) -> None:
    p = add("predict", do_predict, "apply a saved model to the rows of a file")
    p.add_argument("table", metavar="new.csv", help="a .csv or .parquet file with the model's columns")
    p.add_argument("--model", required=True, metavar="FILE", help="a .safetensors or .onnx file of motet's")
    p.add_argument("--to", metavar="FILE", help="where predictions go, as CSV (default: stdout)")
    p.add_argument(
        "--missing",
        choices=("as_trained", "refuse", "mean"),
        default="as_trained",
        help="empty cells: as in training, refuse them, or fill in the mean (default: as_trained)",
    )
    add_trust(p, "the model's file")


def do_predict(args: Any) -> None:
    from motet.report.export_table import safe_cells
    from motet.runs.predict import predict

    table, notes = predict(Path(args.model), Path(args.table), missing=args.missing, trust=consent_of(args))
    for note in notes:
        say(f"note: {note}")
    safe_cells(table).to_csv(args.to or sys.stdout, index=False)
    if args.to:
        say(f"{len(table)} predictions: {args.to}")
