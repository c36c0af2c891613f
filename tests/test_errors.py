"""One tree of errors for people: what the command line turns into a message, and how light it is."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

import motet
from motet import errors
from motet.cli import main as command_line


def test_every_error_of_the_tree_is_found_by_name_and_is_a_motet_error() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.MotetError), name
        assert name in dir(errors) and name in str(errors.__doc__).split()
    with pytest.raises(AttributeError, match="Nonsense"):
        _ = errors.Nonsense


def test_no_public_exception_of_the_package_stands_outside_the_tree() -> None:
    # of the pipe to the child process, of code that cannot be generated, of guards and of pipelines: caught inside of
    # the package and never shown to people
    internal = {"Ended", "Late", "CannotGenerate", "ArrivedWrong", "TellsEmptyCells"}
    outside = []
    for found in pkgutil.walk_packages(motet.__path__, "motet."):
        if found.name.startswith("motet.deploy.flare."):
            continue  # needs nvflare
        module = import_module(found.name)
        for name, thing in vars(module).items():
            own = inspect.isclass(thing) and issubclass(thing, Exception) and thing.__module__ == found.name
            if own and not name.startswith("_") and not issubclass(thing, errors.MotetError):
                outside.append(name)
    assert set(outside) <= internal


def test_an_error_type_that_nobody_has_heard_of_is_a_message_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class BrandNew(errors.MotetError):
        pass

    def fail(args: object) -> None:
        raise BrandNew("the moon is full\nhint: wait")

    monkeypatch.setattr(command_line, "do_list", fail)
    assert command_line.main(["list"]) == 2
    assert capsys.readouterr().err == "error: the moon is full\nhint: wait\n"
    with pytest.raises(BrandNew):
        command_line.main(["list", "--trace"])


def test_a_bug_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(args: object) -> None:
        raise ValueError("an index, say\nhint: none")

    monkeypatch.setattr(command_line, "do_list", fail)
    with pytest.raises(ValueError, match="an index"):
        command_line.main(["list"])


@pytest.mark.parametrize(
    "code",
    ["import motet, motet.errors; dir(motet)", "from motet.cli.main import main; main(['--help'])"],
    ids=["import motet", "motet --help"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    ask = f"import sys, contextlib\nwith contextlib.suppress(SystemExit):\n    {code}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "numpy", "pandas"} & set(loaded.split())
