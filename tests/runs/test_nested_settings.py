"""Nested settings, [method.agent]: tables in TOML, dotted names on the command line, dicts in Python."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from motet import settings as check
from motet.methods.dapfl import DapFL
from motet.methods.page import PAGE
from motet.parts.agents import AgentSettings
from motet.runs import recipe
from motet.runs.recipe import RecipeError


def agent(*words: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = recipe.read(None, ["method.name=page", *words], more)["method"]["agent"]
    return found


def test_the_settings_of_an_agent_have_the_defaults_that_their_method_gives_them() -> None:
    assert (agent()["gamma"], agent()["tau"]) == (0.0, 0.005)
    assert recipe.read(None, ["method=dapfl"])["method"]["agent"]["tau"] == 0.001


def test_dotted_words_set_single_fields_and_leave_the_others() -> None:
    found = agent("method.agent.gamma=0.5", "method.agent.actor=[3]")
    assert (found["gamma"], found["actor"], found["noise_decay"]) == (0.5, [3], 200)


def test_a_dict_and_a_table_in_a_file_mean_the_same_and_words_override_them(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('[method]\nname = "page"\n[method.agent]\ngamma = 0.5\ntau = 0.1\n')
    file = recipe.read(path, ["method.agent.tau=0.2"])
    given = recipe.read(None, (), {"method": {"name": "page", "agent": {"gamma": 0.5, "tau": 0.2}}})
    assert file.settings == given.settings and file["method"]["agent"]["gamma"] == 0.5


def test_a_recipe_holds_plain_data_and_reads_back_the_same() -> None:
    found = recipe.read(None, ["method.name=page", "method.agent.gamma=0.5"])
    assert json.loads(json.dumps(found.settings)) == found.settings
    text = found.toml()
    assert recipe.check(tomllib.loads(text)).settings == found.settings
    table = text.split("[method.agent]")[1].split("\n\n")[0].splitlines()
    assert len(table) == 1 + len(found["method"]["agent"])
    assert all("  # " in line for line in table)
    assert "agent.gamma=0.5" in found.digest()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "method.agent.gama=0.5",
            "unknown setting method.agent.gama of page\nhint: did you mean 'agent.gamma'?",
        ),
        ("method.gamma=0.5", "hint: did you mean 'agent.gamma'?"),
        ("method.agnet.gamma=0.5", "unknown setting method.agnet of page\nhint: did you mean 'agent'?"),
        ("method.agent.tau=3", "method.agent.tau is 3.0; it must be 0 to 1"),
        ("method.agent.capacity=-1", "method.agent.capacity is -1; it must be >= 0"),
        ("method.agent=3", "method.agent is 3; it must be a table, say method.agent.actor=…"),
        ("method.agent.state_layers=3", "never see the action.\nhint: state_layers must be 0 to 2"),
    ],
)
def test_what_is_wrong_in_a_nested_setting_is_said_with_its_full_name(word: str, said: str) -> None:
    with pytest.raises(RecipeError) as e:
        agent(word)
    assert said in str(e.value)


@pytest.mark.parametrize("method", [PAGE, DapFL])
def test_a_method_is_given_an_object(method: Any) -> None:
    values = check.with_objects(method, {"batch": 5, "agent": {"gamma": 0.5}})
    assert values == {"batch": 5, "agent": AgentSettings(gamma=0.5)}
