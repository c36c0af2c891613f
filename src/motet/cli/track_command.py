"""`motet track`: send what runs hold to TensorBoard, MLflow, Weights & Biases or trackio."""

from __future__ import annotations

from typing import Any

from motet.cli.command import Add, say

_SECONDS = 2.0  # between two looks at a run that trains


def track_command(add: Add) -> None:
    p = add("track", do_track, "send a run's numbers to TensorBoard, MLflow, Weights & Biases or trackio")
    p.add_argument("runs", nargs="+", metavar="RUN", help="runs' folders")
    p.add_argument(
        "--with", dest="tracker", required=True, metavar="NAME", help="tensorboard, mlflow, wandb, trackio"
    )
    p.add_argument(
        "--to",
        default="",
        metavar="PLACE",
        help="a folder (tensorboard), an address or folder (mlflow), or a project",
    )
    p.add_argument("--clients", action="store_true", help="every client's scores too")
    p.add_argument("--follow", action="store_true", help="go on while the run trains; one run at a time")


def do_track(args: Any) -> None:
    from motet.cli.report_commands import run_folders
    from motet.errors import UsageError
    from motet.report.trackers import every, follow, settings, tracker_named

    make = tracker_named(args.tracker)
    names = run_folders(args.runs)
    if args.follow and len(names) > 1:
        raise UsageError(
            f"--follow follows one run, and {len(names)} are given\nhint: start one command for each"
        )
    folders = [name.resolve() for name in names]  # `.` has a name too
    for folder in folders:
        settings(folder)  # what is no run is said before anything is sent
    for name, folder in zip(names, folders, strict=True):
        tracker = make(folder, args.to)
        try:
            wait = every(_SECONDS) if args.follow else (lambda: False)
            sent = follow(folder, tracker, clients=args.clients, wait=wait)
        finally:
            tracker.close()
        say(f"{name}: {sent:,} numbers sent to {args.tracker}")
