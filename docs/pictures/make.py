"""The picture of the README, from the study that `make run` runs: python docs/pictures/make.py"""

from __future__ import annotations

from pathlib import Path

import motet
from motet.report import figures, pictures

HERE = Path(__file__).parent


def main() -> None:
    found = motet.compare(recipe=HERE.parent / "study.toml", jobs=0)
    gains = next(p for p in pictures.pictures(found.runs, found.table) if p.name == "gains-of-methods")
    (HERE / "digits-gains.svg").write_bytes(figures.as_file(gains, "svg"))


if __name__ == "__main__":
    main()
