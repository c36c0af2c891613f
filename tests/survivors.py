"""Patients of a few hospitals with times of survival, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS = {"east": 40, "north": 60, "west": 30}


def survivors(seed: int = 0) -> pd.DataFrame:
    """Rows whose risk rises with age and dose; about a third is censored."""
    draw, parts = np.random.default_rng(seed), []
    for hospital, rows in HOSPITALS.items():
        age, dose = draw.normal(60, 10, rows).round(1), draw.normal(size=rows).round(3)
        time = draw.exponential(100 * np.exp(-0.08 * (age - 60) - dose))
        watched = draw.uniform(20, 300, rows)
        frame = pd.DataFrame({"hospital": hospital, "age": age, "dose": dose})
        parts.append(
            frame.assign(days=np.minimum(time, watched).round(1) + 1, died=(time <= watched).astype(int))
        )
    return pd.concat(parts, ignore_index=True)


def table(folder: Path, frame: pd.DataFrame | None = None) -> Path:
    path = folder / "survivors.csv"
    (survivors() if frame is None else frame).to_csv(path, index=False)
    return path


def words(path: Path) -> list[str]:
    named = [f"data={path}", "data.target=days", "data.event=died", "data.client=hospital", "data.unseen=0"]
    return [*named, "train.rounds=3", "engine.name=loop"]
