"""The completion scripts: that of bash is run, the others are looked at."""

import shutil
import subprocess

import pytest

from hvcl.commands.completion import bash, entries, fish
from hvcl.commands.main import COMMANDS
from hvcl.learners import known_methods
from hvcl.streams import BENCHMARKS


@pytest.fixture(scope="module")
def found():
    return dict(entries())


@pytest.fixture(scope="module")
def complete(found, tmp_path_factory):
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    script = tmp_path_factory.mktemp("completion") / "hvcl.bash"
    script.write_text(bash(found) + 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hvcl; printf "%s\\n" "${COMPREPLY[@]}"\n')

    def ask(*words):
        done = subprocess.run(["bash", str(script), "hvcl", *words], capture_output=True, text=True, check=True)
        assert not done.stderr
        return set(done.stdout.split())

    return ask


def test_every_command_is_known(found, complete):
    assert set(COMMANDS) <= set(found)
    assert complete("") == {*COMMANDS, "--help", "--version"}
    assert complete("--v") == {"--version"}


def test_names_and_values(complete):
    assert complete("run", "") == set(BENCHMARKS)
    assert complete("run", "split-mnist", "--method", "") == set(known_methods())
    assert complete("run", "split-mnist", "--scenario", "") == {"task", "domain", "class"}
    assert complete("compare", "split-digits", "--budget", "q") == {"quick"}
    assert complete("data", "get", "mni") == {"mnist"}
    assert complete("rl", "") == {"run", "list", "report"}
    assert complete("rl", "run", "--sequence", "b") == {"bullet"}
    assert complete("completion", "") == {"bash", "zsh", "fish"}


def test_options_follow_the_method(complete):
    assert complete("run", "split-mnist", "--method", "ewc", "--strengt") == {"--strength"}
    assert complete("run", "split-mnist", "--method", "naive", "--strengt") == set()
    assert complete("run", "split-mnist", "--expert") == {"--experts"}  # of hvcl, the default
    assert complete("rl", "run", "--method", "ewc", "--strengt") == {"--strength"}
    assert complete("rl", "report", "--f") == {"--frames"}


def test_what_cannot_be_listed_is_left_to_the_shell(complete):
    assert complete("run", "split-mnist", "--out", "") == set()
    assert complete("run", "split-mnist", "--method", "ewc", "--strength", "") == set()


def test_zsh_runs_the_script_of_bash_and_fish_has_its_own(found):
    assert "bashcompinit" in bash(found, "zsh")
    lines = fish(found).splitlines()
    assert any('-n "__hvcl_at run; and __hvcl_method hvcl ewc" -l strength -r' in line for line in lines)
    assert any('-n "__hvcl_at run" -l scenario -x -a "task domain class"' in line for line in lines)
    assert any('-n "__hvcl_at data" -a "list get verify' in line for line in lines)
