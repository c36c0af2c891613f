"""What can be set, and what is wrong with it; small files and text tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from motet.atomic import write_atomically
from motet.runs.recipe import RecipeError, read
from motet.settings import checked, fields_of


class Plain:
    """A class that is no dataclass, as a network may be."""

    def __init__(self, shape: tuple[int, ...], width: float = 1.0, names=("a",), depth=2) -> None:  # type: ignore[no-untyped-def]
        pass


def test_a_plain_class_is_set_as_its_constructor_is_and_defaults_tell_types() -> None:
    known = fields_of(Plain)
    values, wrong = checked({"width": 2, "depth": 1.5, "names": [1], "wdth": 3}, known, "net", "plain")
    assert list(known) == ["width", "names", "depth"] and values["width"] == 2.0
    assert wrong == [
        "net.depth is 1.5; it must be a whole number",
        "net.names is 1; it must be text",
        "unknown setting net.wdth of plain\nhint: did you mean 'width'? there are: depth, names, width",
    ]


def test_a_setting_under_its_old_name_gets_the_new_one_as_a_hint() -> None:
    with pytest.raises(RecipeError, match="unknown setting train.local\nhint: it is now 'after_training'"):
        read(words=["train.local=true"])
    with pytest.raises(RecipeError, match="unknown setting data.exam of wine\nhint: it is now 'server_test'"):
        read(words=["data=wine", "data.exam=0.2"])


def test_a_file_is_replaced_whole_and_a_private_one_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_atomically(file, "old")
    write_atomically(file, b"new", private=True)
    assert file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_atomically(file, "old")
    with pytest.raises(TypeError):
        write_atomically(file, 5)  # type: ignore[arg-type]
    assert file.read_text() == "old"
