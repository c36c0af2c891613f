"""What asking a linear model under encryption costs, and how far its answers are from the plain ones.

    python benchmarks/encrypted_models.py

Half of breast_cancer trains the owner's model, the other half is asked. Needs the extra `privacy`.
"""

from __future__ import annotations

import time

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from motet import EncryptedModel, KeptModel, feature_defaults


def main() -> None:
    x, y = load_breast_cancer(return_X_y=True, as_frame=True)
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x[::2], y[::2])
    features = feature_defaults(x[::2], dict.fromkeys(x, "number"))
    owner = KeptModel.of(model, features, client="clinic", classes=("0", "1"), rows=len(x))
    asker, new = EncryptedModel(owner.manifest), x[1::2]
    at = [time.perf_counter()]
    question = asker.question(new)
    at.append(time.perf_counter())
    answer = owner.answer(question)
    at.append(time.perf_counter())
    found = asker.read(answer)
    plain = model.predict_proba(new)
    ask, reply = np.diff(at)
    print(f"{len(new)} rows of {x.shape[1]} columns")
    print(
        f"question {len(question) / 1e6:.1f} MB, {ask:.1f} s; answer {len(answer) / 1e6:.2f} MB, {reply:.1f} s"
    )
    print(f"probabilities differ by {np.abs(found - plain).max():.4f} at most")
    print(f"{(found.argmax(1) != plain.argmax(1)).sum()} classes differ")


if __name__ == "__main__":
    main()
