"""Methods of installed packages, found by their entry points. In processes of their own: what is registered stays registered."""

import os
from pathlib import Path

import pytest

from tests.processes import run_python

SOURCE = Path(__file__).resolve().parents[2] / "src"

MINE = '''
from dataclasses import dataclass
from hvcl.learners import GradientConfig, GradientLearner, register


@dataclass(frozen=True)
class MineConfig(GradientConfig):
    """Mine."""

    strength: float = 1.0
    """Does nothing."""


@register("mine", MineConfig)
class Mine(GradientLearner):
    """A method from outside."""
'''


@pytest.fixture
def packages(tmp_path):
    """Installs packages with entry points into a folder, and runs code with it on the path."""

    def install(name, entry_points, **modules):
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(entry_points)
        for module, code in modules.items():
            (tmp_path / f"{module}.py").write_text(code)

    def execute(*arguments):
        return run_python(*arguments, cwd=tmp_path, PYTHONPATH=os.pathsep.join([str(SOURCE), str(tmp_path)]))

    install.execute = execute
    return install


def test_an_installed_method_is_known_by_name_and_runs_from_the_command_line(packages, tmp_path):
    packages("my-method", "[hvcl.methods]\nmine = my_method\n", my_method=MINE)
    known = packages.execute("-c", "import hvcl; print(sorted(hvcl.learners.known_methods()))")
    assert "'mine'" in known.stdout, known.stderr
    done = packages.execute(
        "-m", "hvcl", "run", "split-digits", "--method", "mine", "--strength", "2", "--epochs", "1", "--hidden", "8"
    )
    assert done.returncode == 0, done.stderr
    assert "mine" in done.stdout


def test_known_methods_are_not_slowed_down_by_plugins(packages):
    packages("my-method", "[hvcl.methods]\nmine = my_method\n", my_method=MINE)
    code = "import sys, hvcl; hvcl.learners.method('naive'); print('my_method' in sys.modules)"
    assert packages.execute("-c", code).stdout.strip() == "False"
    code = "import sys, hvcl; print(hvcl.learners.method('mine').name, 'my_method' in sys.modules)"
    assert packages.execute("-c", code).stdout.strip() == "mine True"


def test_a_broken_package_is_a_warning_and_the_others_count(packages):
    packages("broken-one", "[hvcl.methods]\nbad = broken_one\n", broken_one="import nothing_of_the_kind\n")
    packages("empty-one", "[hvcl.methods]\nvoid = empty_one\n", empty_one="")
    packages("thief", "[hvcl.methods]\nnaive2 = thief\n", thief=MINE.replace('"mine"', '"naive"'))
    packages("my-method", "[hvcl.methods]\nmine = my_method:Mine\n", my_method=MINE)
    code = "from hvcl.learners import known_methods as k; k(); print('mine' in k(), 'bad' in k())"
    done = packages.execute("-c", code)
    assert done.stdout.strip() == "True False"
    assert done.stderr.count("'bad' of the package 'broken-one' is left out (ModuleNotFoundError") == 1
    assert "'void' of the package 'empty-one' is left out (importing empty_one registers no such name)" in done.stderr
    assert "'naive2' of the package 'thief' is left out (InputError: the method name 'naive' is taken" in done.stderr
    assert "Traceback" not in done.stderr


def test_agents_have_entry_points_of_their_own(packages):
    code = '''
from hvcl.rl import SAC, SACConfig
from hvcl.rl.methods import register


@register("my-agent", SACConfig)
class Mine(SAC):
    """An agent from outside."""
'''
    packages("my-agent", "[hvcl.rl_methods]\nmy-agent = my_agent\n", my_agent=code)
    done = packages.execute("-c", "import hvcl; print(type(hvcl.rl.create('my-agent', 2, 1)).__name__)")
    assert done.stdout.strip() == "Mine", done.stderr
