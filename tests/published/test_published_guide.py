"""The guide's code runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("onnxruntime")

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "publish-a-model.md"


def test_the_guide_publishes_refuses_and_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = np.stack([rng.uniform(17, 90, 200), rng.uniform(1, 99, 200), rng.random(200) < 0.5], 1).astype(
        np.float32
    )
    known: dict[str, Any] = {"x": x, "y": (x[:, 0] > 50).astype(int)}
    publishing, text, running, private, kept = re.findall(
        r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL
    )
    exec(publishing, known)
    pytest.importorskip("xgboost")
    frame = pd.DataFrame({"age": x[:, 0], "job": np.where(x[:, 2] > 0, "nurse", "clerk")})
    exec(text, known | {"frame": frame})
    Path("outbox").rename("inbox")
    Path("inbox/mallory.onnx").write_bytes(b"no model")
    exec(running, known)
    assert known["predictions"]["hospital-3"].shape == (200, 2)
    assert set(known["refused"]) == {"mallory"}
    pytest.importorskip("opacus")
    exec(private, known | {"features": known["made"].manifest.features})
    pytest.importorskip("tenseal")
    exec(kept, {k: known[k] for k in ("x", "y")} | {"features": known["made"].manifest.features})
    assert Path("kept/clinic.linear").exists() and Path("kept/clinic.json").exists()
