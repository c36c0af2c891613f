"""Shell completion: the script is the shell's own language, and knows every command."""

from __future__ import annotations

import subprocess

import pytest

from motet.cli.main import main


def test_bash_reads_the_script_and_it_knows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert all(word in script for word in ("compare", "advise", "federation"))


def test_another_shell_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["completion", "cmd"])
