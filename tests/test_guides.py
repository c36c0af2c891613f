"""The code of README and guides: it imports from motet alone, and it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def inside(code: str) -> list[str]:
    """Lines that import from within the package."""
    return re.findall(r"^\s*(?:from motet\.\S+ import .*|import motet\..*)$", code, re.MULTILINE)


def is_file_of_the_package(page: Path, code: str) -> bool:
    """CONTRIBUTING shows whole files that go into the package; they begin with a docstring."""
    return page.name == "CONTRIBUTING.md" and code.startswith('"""')


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_users_code_imports_from_motet_alone(page: Path) -> None:
    own = [code for code in blocks(page) if not is_file_of_the_package(page, code)]
    assert [line for code in own for line in inside(code)] == []


def test_an_import_from_within_is_seen() -> None:
    assert inside("import motet\nfrom motet.core import verb\n  import motet.vec") == [
        "from motet.core import verb",
        "  import motet.vec",
    ]


def test_the_python_guide_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    known: dict[str, Any] = {"__name__": "__main__"}
    for code in blocks(ROOT / "docs" / "guides" / "python.md"):
        exec(compile(code, "guide", "exec", dont_inherit=True), known)
    said = capsys.readouterr().out
    assert "fedavg: round 2 of 2, {'" in said and "did you mean 'lr'?" in said
    assert list(known["model"].predict(known["patients"].head())) == ["prediction", "p(no)", "p(yes)"]
    assert set(known["run"].summary) >= {"personal", "global", "rounds"}


# ---- the other pages ----

# What a page takes as given, before its first block.
GIVEN = {
    "README": "",
    "advise": "",
    "networks": "",
    "studies": "",
    "any-loss": "import torch\n",
    "metrics": "",
    "publish-a-model": (
        "import numpy as np, pandas as pd\n"
        "draw = np.random.default_rng(0)\n"
        "x = pd.DataFrame({'age': draw.integers(17, 90, 80), 'hours': draw.integers(1, 99, 80), "
        "'married': draw.integers(0, 2, 80)}).astype(float)\n"
        "y = np.arange(80) % 2\n"
        "frame = pd.DataFrame({'age': x['age'], 'job': np.where(y, 'nurse', 'clerk')})\n"
    ),
    "survival": (
        "import numpy as np\n"
        "draw = np.random.default_rng(0)\n"
        "x1, x2 = (draw.standard_normal((40, 3)).astype('float32') for _ in range(2))\n"
        "days1, days2 = (draw.integers(20, 900, 40) for _ in range(2))\n"
        "died1, died2 = (draw.integers(0, 2, 40) for _ in range(2))\n"
    ),
    "your-own-data": (
        "import numpy as np\n"
        "draw = np.random.default_rng(0)\n"
        "def my_rows():\n"
        "    return [(n, draw.standard_normal((30, 2)), np.arange(30) % 2) for n in ('east', 'west')]\n"
    ),
}  # fmt: skip
# Blocks that are run elsewhere, by a line of them.
RUN_ELSEWHERE = {
    "class FedProx(FedAvg):": "tests/test_documents.py compares it with the file",
    "from ask_time import": "tests/benchmarks/test_ask_time.py",
    "from motet import StackedClassifier, gains": "with the models that the guide on publishing makes, below",
    "run = motet.Run(": "tests/deploy/test_own_models_guide.py runs that page",
}
SHORTER = (
    ("rounds=50", "rounds=2"), ("seeds=[0, 1, 2])", "seeds=[0, 1], rounds=2)"), ("rounds=20", "rounds=2"),
    ('method="ditto")', 'method="ditto", rounds=2)'), ('load_published("inbox")', 'load_published("outbox")'),
)  # fmt: skip
AFTER = {  # what is asked of the names that a page has made
    "networks": "assert build((1, 8, 8), 10)(__import__('torch').zeros(2, 1, 8, 8)).shape == (2, 10)",
    "any-loss": "assert even_handed(torch.eye(2), torch.tensor([0, 1]), torch.ones(2, 1)) >= 0",
    "publish-a-model": "assert list(predictions) == ['hospital-3'] and not more and kept",
    "survival": "assert set(run.test['client']) == {'east', 'west'} and 'cindex' in run.test",
}


def runnable(page: Path) -> list[str]:
    return [code for code in blocks(page) if not any(line in code for line in RUN_ELSEWHERE)]


def stack_names(known: dict[str, Any]) -> dict[str, Any]:
    """What the guide on stacking takes as given: rows with names of classes, and published models."""
    y = ["ill" if k else "healthy" for k in known["y"]]
    return known | {"frame": known["x"], "new": known["x"], "y": y}


@pytest.mark.parametrize("name", GIVEN)
def test_the_python_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = next(p for p in PAGES if p.stem == name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOTET_CACHE", str(tmp_path / "cache"))
    known: dict[str, Any] = {"__name__": "__main__"}
    for code in [GIVEN[name], *runnable(page), AFTER.get(name, "")]:
        for long, short in SHORTER:
            code = code.replace(long, short)
        exec(compile(code, name, "exec", dont_inherit=True), known)
    if name == "publish-a-model":
        stacking = blocks(ROOT / "docs/guides/stacking.md")[0].replace('"inbox"', '"outbox"')
        exec(
            compile(stacking, "stacking", "exec", dont_inherit=True),
            stack_names(known),
        )


def test_every_page_with_python_is_run() -> None:
    guides = [ROOT / "README.md", *(ROOT / "docs/guides").glob("*.md")]
    shown = {p.stem for p in guides if runnable(p)}
    assert shown == set(GIVEN) | {"python", "own-models"}
