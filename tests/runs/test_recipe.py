"""Recipes: every value explained, everything that is wrong said at once."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from motet.cli.main import main
from motet.runs import recipe
from motet.runs.recipe import GuardSettings, Recipe, RecipeError, check, parse_word, read


def test_a_recipe_has_a_comment_behind_every_value_and_reads_back_the_same() -> None:
    first = read(words=["method=fedprox", "net=mlp", "data=synthetic"])
    text = first.toml()
    values = [line for line in text.splitlines() if "=" in line and not line.startswith("#")]
    assert all("  # " in line for line in values), [line for line in values if "  # " not in line]
    again = recipe.check(tomllib.loads(text))
    assert again.settings == first.settings
    assert again.identity() == first.identity()


def test_words_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('seed = 1\n[method]\nname = "fedprox"\nlr = 0.5\nmu = 0.3\n')
    r = read(path, ["method.lr=0.05", "seed=3", "data=wine", "train.rounds=7"])
    assert (r.seed, r["method"]["lr"], r["method"]["mu"]) == (3, 0.05, 0.3)
    assert (r["data"]["name"], r.train.rounds) == ("wine", 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["train.rounds=2", "train.rounds=3"],
            "train.rounds is given twice: train.rounds=2 and train.rounds=3",
        ),
        (["data=digits", "data=wine"], "data.name is given twice: data=digits and data=wine"),
        (["data=digits", "data.name=wine"], "data.name is given twice: data=digits and data.name=wine"),
        (["method.agent.tau=0.1", "method.agent.tau=.2"], "method.agent.tau is given twice"),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["run", "compare", "recipe", "reproduce school/private"])
def test_a_setting_that_is_given_twice_on_a_command_line_is_refused(
    command: str,
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), *words]) == 2
    shown = capsys.readouterr().err
    assert said in shown and "hint: leave one of them out" in shown


def test_the_same_value_may_be_given_twice(capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipe", "data=wine", "data.name=wine", "method.lr=.1", "method.lr=0.1"])
    assert "lr = 0.1" in capsys.readouterr().out


def test_settings_have_the_short_names_that_they_have_in_python() -> None:
    from motet.runs.from_python import sections

    words = [
        "method=fedprox",
        "rounds=5",
        "lr=.1",
        "mu=.5",
        "clients=4",
        "batch=8",
        "hidden=[7]",
        "seed=2",
        "net=mlp",
    ]
    short = {"rounds": 5, "lr": 0.1, "mu": 0.5, "clients": 4, "batch": 8, "hidden": [7], "seed": 2}
    whole = [
        "train.rounds=5",
        "method.lr=.1",
        "method.mu=.5",
        "data.clients=4",
        "method.batch=8",
        "net.hidden=[7]",
    ]
    there = check(sections(None, short | {"method": "fedprox", "net": "mlp"}))
    assert (
        read(words=words).settings
        == there.settings
        == read(words=[*whole, "method=fedprox", "net=mlp", "seed=2"]).settings
    )


def test_a_short_name_counts_more_than_the_file_and_goes_by_the_files_method(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text('[method]\nname = "ditto"\nlam = 1.0\n[train]\nrounds = 3\n')
    found = read(path, ["lam=.25", "rounds=9"])
    assert (found["method"]["lam"], found.train.rounds) == (0.25, 9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rouns=5"], "unknown setting rouns\nhint: did you mean 'rounds'?"),
        (["learning_rate=1"], "unknown setting learning_rate\nhint: did you mean 'lr'?"),
        (["rounds=0"], "train.rounds is 0; it must be >= 1"),
        (["rounds=5", "train.rounds=6"], "rounds is 5, and train.rounds is 6\nhint: leave one out"),
        (["fedavgg=5"], "unknown setting fedavgg"),
        (["net=mlp", "net.hidden=64"], "net.hidden is 64; it must be a list\nhint: net.hidden=[64]"),
        (
            ["method=apfl", "alpha=3"],
            "alpha is a setting of method and of data\nhint: method.alpha=3 or data.alpha=3",
        ),
    ],
)
def test_a_wrong_short_name_is_refused_with_the_right_one(words: list[str], said: str) -> None:
    with pytest.raises(RecipeError) as e:
        read(words=words)
    assert said in str(e.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(RecipeError) as e:
        read(
            words=["method=fedproxx", "data=digts", "train.rounds=0", "train.report=first", "engin.name=vmap"]
        )
    said = str(e.value)
    for expected in (
        "unknown method fedproxx\nhint: did you mean 'fedprox'?",
        "did you mean 'digits'?",
        "train.rounds is 0; it must be >= 1",
        "train.report is 'first'; it must be one of best, last",
        "unknown section engin\nhint: did you mean 'engine'?",
    ):
        assert expected in said


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("method.lrr=0.1", "unknown setting method.lrr of fedavg\nhint: did you mean 'lr'?"),
        ("method.lr=-1", "method.lr is -1.0; it must be > 0"),
        ("method.lr=fast", "method.lr is 'fast'; it must be a number"),
        ("method.epochs=1.5", "method.epochs is 1.5; it must be a whole number"),
        ("method.momentum=2", "method.momentum is 2.0; it must be 0 to 1"),
        ("train.cohort=0", "train.cohort is 0.0; it must be a share"),
        ("train.patience=-3", "must be 0 or more"),
        ("data.clients=many", "data.clients is 'many'; it must be a whole number"),
        ("seed=x", "seed is 'x'; it must be a whole number"),
        ("seed=-1", "seed is -1; it must be a whole number, 0 or more"),
        ("data.unseen=some", "data.unseen is 'some'; it must be a number"),
        ("method.lr", "cannot read 'method.lr'; expected section.name=value"),
        ("net=resnet19", "did you mean 'resnet18'"),
        ("guard.trim=0.6", "guard.trim is 0.6; it must be 0 to 0.5"),
        ("guard.mean=krumm", "guard.mean is 'krumm'; it must be one of mean, median, trimmed, krum"),
        ("guard.chosen=-1", "guard.chosen is -1; it must be 0 or more"),
        ("guard.bits=7", "guard.bits is 7; it must be one of 32, 8"),
        ("guard.top=0", "guard.top is 0.0; it must be above 0, up to 1"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(word: str, said: str) -> None:
    with pytest.raises(RecipeError) as e:
        read(words=[word])
    assert said in str(e.value)


def test_a_missing_recipe_and_broken_toml_say_so(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no recipe"):
        read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("seed = = 3")
    with pytest.raises(RecipeError, match="not valid TOML"):
        read(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "tables or lists are nested more than 20 deep"),
        ("a = " + "{b = " * 5000 + "1" + "}" * 5000, "tables or lists are nested more than 20 deep"),
        ("[" + ".".join("a" * 500) + "]\nb = 1", "tables or lists are nested more than 20 deep"),
        ("seed = " + "9" * 5000, "a whole number has thousands of digits"),
        ("seed = 0x" + "f" * 5000, "a whole number has more than 64 bits"),
        ("seed = " + "9" * 400, "a whole number has more than 64 bits"),
        ("method.lr = " + "9" * 400, "a whole number has more than 64 bits"),
    ],
    ids=["lists", "tables", "a heading", "5000 digits", "hexadecimal", "400 digits", "a rate"],
)
def test_a_file_that_is_made_to_break_the_reader_is_refused_in_words(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r.toml").write_text(text)
    for command in ("run", "compare"):
        assert main([command, str(tmp_path / "r.toml")]) == 2
        err = capsys.readouterr().err
        assert f"r.toml is not valid TOML: {said}" in err and len(err) < 500


def test_what_is_no_text_or_no_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(RecipeError, match="not valid TOML"):
        read(tmp_path / "bytes.toml")
    with pytest.raises(RecipeError, match="cannot be read"):
        read(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "seed=" + "9" * 5000],
        ["run", "seed=" + "9" * 100],
        ["run", "data.seed=" + "9" * 5000],
        ["run", ".".join("a" * 3000) + "=1"],
        ["run", "method.lr=" + "[" * 3000],
        ["compare", "data=wine", "--seeds", "9" * 5000],
    ],
    ids=["5000 digits", "100 digits", "the split", "a long key", "lists", "seeds"],
)
def test_a_word_that_is_too_large_or_too_deep_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "error: " in err and "Traceback" not in err


def test_the_largest_seed_is_a_seed() -> None:
    assert read(words=[f"seed={2**63 - 1}"]).seed == 2**63 - 1
    with pytest.raises(RecipeError, match="seed has more than 64 bits"):
        recipe.check({"seed": 10**5000})


def test_the_identity_changes_with_results_and_with_nothing_else() -> None:
    base = read().identity()
    assert read(words=["save.checkpoint=1", "save.models=none", "engine.workers=2"]).identity() == base
    for word in (
        "seed=1",
        "method.lr=0.2",
        "data.alpha=0.1",
        "train.rounds=51",
        "engine.name=loop",
        "guard.mean=median",
    ):
        assert read(words=[word]).identity() != base, word


def test_a_robust_mean_and_a_masked_sum_exclude_each_other() -> None:
    with pytest.raises(RecipeError, match="(?s)needs every single reply, and a masked sum hides them.*hint:"):
        read(words=["guard.mean=median", "guard.masked=true"])


def test_the_word_nan_is_a_word() -> None:
    assert read(words=["guard.attack=nan"]).guard.attack == "nan"


def test_a_recipe_of_the_version_before_guards_is_the_same_recipe() -> None:
    now = read()
    before = Recipe({k: v for k, v in now.settings.items() if k != "guard"})
    assert before.identity() == now.identity() and before.guard == GuardSettings()
    assert before.toml() == now.toml() and before.digest() == now.digest()


def test_every_field_of_every_method_is_explained() -> None:
    for name in recipe.method_names():
        for field in recipe.known_fields("method", {"name": name})[1].values():
            assert field.comment, f"{name}.{field.name} has no comment"


@pytest.mark.parametrize(("written", "meant"), [(".05", 0.05), ("-.5", -0.5), ("0.05", 0.05), ("./x", "./x")])
def test_numbers_may_be_written_without_a_zero(written: str, meant: object) -> None:
    assert parse_word(f"method.lr={written}") == {"method": {"lr": meant}}


TWO_METHODS = """
from motet.core import Method

class {first}(Method):
    "One of two."

class {second}(Method):
    "The other."
"""


@pytest.fixture
def method_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a file of methods, which is found as if it lay in motet/methods."""
    import motet.methods

    monkeypatch.setattr(motet.methods, "__path__", [*motet.methods.__path__, str(tmp_path)])

    def write(name: str, text: str) -> None:
        monkeypatch.delitem(sys.modules, f"motet.methods.{name}", raising=False)
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()

    return write


def test_of_two_classes_in_a_method_file_the_one_with_the_files_name_is_the_method(
    method_file: Callable[[str, str], None],
) -> None:
    method_file("fed_two", TWO_METHODS.format(first="FedTwo", second="Later"))
    assert recipe.method_class("fed_two").__name__ == "FedTwo"


def test_a_method_file_that_leaves_open_which_class_is_meant_is_refused(
    method_file: Callable[[str, str], None],
) -> None:
    method_file("fedthree", TWO_METHODS.format(first="First", second="Second"))
    with pytest.raises(RecipeError, match=r"(?s)fedthree.py holds 2 methods: First, Second.*hint: "):
        read(words=["method=fedthree"])
    method_file("fednone", "x = 1\n")
    with pytest.raises(RecipeError, match=r"(?s)fednone.py holds no method.*hint: "):
        read(words=["method=fednone"])
