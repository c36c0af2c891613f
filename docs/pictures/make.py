"""The picture of the README, from the runs that `make run` makes: python docs/pictures/make.py"""

from __future__ import annotations

from pathlib import Path

import motet
from motet.report import figures, tables
from motet.report.read import read


def main() -> None:
    runs = read(motet.compare(data="digits").folders)
    table, clients = tables.comparison(runs), tables.client_scores(runs)
    look = figures.looks(list(table["method"]))
    svg = figures.gains(clients, ["finetune", "fedavg"], look, table.attrs["metric"], table.attrs["better"])
    Path(__file__).with_name("digits-gains.svg").write_text(svg)


if __name__ == "__main__":
    main()
