"""The rooms of the house: which may import which. Walks the imports and says which sentence was broken."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "motet"
# room: what of ours it may import, what of others it must not import, and the sentence
RULES: dict[str, tuple[set[str], set[str], str]] = {
    "errors": (
        set(),
        {"torch", "numpy", "pandas"},
        "errors knows names of errors, and imports them when asked",
    ),
    "text": (set(), {"torch", "numpy", "pandas"}, "text knows strings only"),
    "atomic": (set(), {"torch", "numpy", "pandas"}, "atomic knows the file system only"),
    "checksums": (set(), {"torch", "numpy", "pandas"}, "checksums know bytes only"),
    "trusted_code": (
        set(),
        {"torch", "numpy", "pandas"},
        "trusted_code knows names of modules and where their files lie",
    ),
    "settings": (
        {"text", "trusted_code"},
        {"torch", "numpy", "pandas"},
        "settings knows Python signatures, and whose code may be imported",
    ),
    "survival": (set(), {"torch", "pandas"}, "survival knows arrays of times and risks only"),
    "core": (set(), {"torch", "numpy"}, "core knows the standard library and our errors"),
    "vec": (set(), {"ray", "nvflare"}, "vec knows tensors only"),
    "client": (
        {"vec", "survival", "trusted_code"},
        {"ray", "nvflare"},
        "client is one client's world: no engine",
    ),
    "parts": (
        {"core", "vec", "client", "settings"},
        {"ray", "nvflare"},
        "parts serve methods and know neither methods nor engines",
    ),
    "published": (
        {"vec", "client"},
        {"ray", "nvflare", "pickle"},
        "published models are checked and run without any method or engine",
    ),
    "stacking": (
        {"vec", "client", "published", "guard.private_models", "data"},
        {"ray", "nvflare", "pickle"},
        "stacking builds one party's stack: no method, engine or run",
    ),
    "methods": (
        {"core", "vec", "client", "parts", "stacking", "published"},
        {"ray", "nvflare", "os", "pathlib", "socket", "time", "logging", "random", "sqlite3"},
        "a method knows no engine, wire, file, network, clock or log",
    ),
    "guard": (
        {"core", "vec", "client", "published"},
        {"ray", "nvflare"},
        "guards protect replies of any method on any engine",
    ),
    "wire": (
        {"vec"},
        {"pickle", "marshal", "dill", "cloudpickle"},
        "the wire knows trees, and unpickles nothing",
    ),
    "engines": ({"core", "vec", "client", "wire", "guard"}, set(), "engines know no method and no run"),
    "data": ({"vec", "client", "survival"}, {"ray", "nvflare"}, "data knows no method, network or engine"),
    "nets": (
        {"vec", "client"},
        {"ray", "nvflare"},
        "networks know no data set and no method",
    ),
    "runs": (
        {"core", "vec", "client", "wire", "guard", "engines", "data", "nets"},
        set(),
        "runs know methods by name only, and neither the web nor the command line",
    ),
    "audits": (
        {"core", "vec", "client", "wire", "guard", "engines", "data", "runs", "stacking.contribution"},
        {"ray", "nvflare", "pickle"},
        "audits play runs again and attack them; they know methods by name only, and not how figures are shown",
    ),
    "deploy": (
        {"core", "vec", "client", "wire", "guard", "engines", "data", "nets", "runs", "published"},
        {"ray"},
        "a deployment knows methods by name only, and not the command line",
    ),
    "evidence": (
        {"report", "runs", "deploy", "wire"},
        {"ray", "nvflare"},
        "evidence reads what parties wrote down, and asks nobody anything",
    ),
    "advice": (
        {"core", "client", "data", "engines", "runs", "report"},
        {"ray", "nvflare"},
        "advice reads surveys and short runs, and knows methods by name only",
    ),
    "report": ({"runs.store", "survival"}, {"torch"}, "a report reads the store, and needs no torch"),
    "web": (
        {"report", "runs.store", "runs.study_record", "runs.model_registry", "__version__"},
        {"torch", "ray", "nvflare"},
        "the dashboard reads stores and small files, and asks another process for what needs torch",
    ),
}


# what every room may import but the first ones, which know nothing of ours, and methods, which know no files;
# errors everybody may import
SHARED = {"text", "atomic", "checksums", "settings", "trusted_code"}
ALONE = {"survival", "core", "vec", "client", "parts", "errors", "methods"} | SHARED


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imports(path: Path) -> list[str]:
    """Full names of what a file imports, also inside functions; not what only type checkers see."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names]
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which room they come from"
            found += [f"{node.module}.{a.name}" for a in node.names]
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_arrows_point_one_way(path: Path) -> None:
    room = room_of(path)
    if room not in RULES:
        return  # the front door: __init__, the command line
    ours, never, sentence = RULES[room]
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top != "motet":
            assert top not in never, f"{path} imports {name}, but {sentence}"
        else:
            shared = {"errors"} | (set() if room in ALONE else SHARED)
            allowed = rest.startswith(tuple(sorted(ours | {room} | shared)))
            assert allowed, f"{path} imports {name}, but {sentence}"


def test_every_room_is_guarded() -> None:
    front_door = {"__init__", "cli"}
    assert {room_of(p) for p in SOURCE.rglob("*.py")} <= set(RULES) | front_door


STORE = ("store_checks", "store_file", "client_columns")  # files that the store is made of


def test_the_store_needs_no_torch() -> None:
    light = ("motet.errors", "motet.checksums", *(f"motet.runs.{n}" for n in STORE))
    for name in ("store", *STORE):
        found = imports(SOURCE / "runs" / f"{name}.py")
        assert not any(n.startswith(("torch", "motet.")) and not n.startswith(light) for n in found)


def test_the_dashboard_loads_no_torch() -> None:
    files = ("study_record", "model_registry")
    for name in files:
        found = imports(SOURCE / "runs" / f"{name}.py")
        assert not any(n.startswith(("torch", "motet.runs", "motet.data", "motet.client")) for n in found)
    code = "import sys, motet.web.app; print(sorted({'torch', 'pandas', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_flare_is_known_in_the_files_that_are_named_after_it_and_where_kits_are_made() -> None:
    known = {p for p in SOURCE.rglob("*.py") if any(n.split(".")[0] == "nvflare" for n in imports(p))}
    assert {str(p.relative_to(SOURCE)) for p in known} == {
        "engines/group_calls.py",
        "deploy/flare/admin.py",
        "deploy/flare/server_entry.py",
        "deploy/flare/site_entry.py",
        "deploy/flare/kits.py",
        "deploy/flare/certificates.py",
        "deploy/flare/party_process.py",
    }


def test_lifelines_is_known_in_one_file() -> None:
    known = {p for p in SOURCE.rglob("*.py") if any(n.split(".")[0] == "lifelines" for n in imports(p))}
    assert {str(p.relative_to(SOURCE)) for p in known} == {"survival.py"}


def test_ray_is_known_in_one_file() -> None:
    known = {p for p in SOURCE.rglob("*.py") if any(n.split(".")[0] == "ray" for n in imports(p))}
    assert {str(p.relative_to(SOURCE)) for p in known} == {"engines/ray_cluster.py"}


def test_objects_are_pickled_for_one_owners_cluster_alone() -> None:
    pickling = {"pickle", "cloudpickle", "dill", "marshal"}
    known = {p for p in SOURCE.rglob("*.py") if pickling & {n.split(".")[0] for n in imports(p)}}
    assert {str(p.relative_to(SOURCE)) for p in known} == {"engines/owned_objects.py"}
    users = {p for p in SOURCE.rglob("*.py") if "owned_objects" in " ".join(imports(p))}
    assert {str(p.relative_to(SOURCE)) for p in users} == {
        "engines/ray.py",
        "engines/ray_actor.py",
        "engines/ray_crew.py",
    }


def test_pycryptodome_is_known_in_one_file() -> None:
    known = {p for p in SOURCE.rglob("*.py") if any(n.split(".")[0] == "Crypto" for n in imports(p))}
    assert {str(p.relative_to(SOURCE)) for p in known} == {"guard/masks/shares.py"}
