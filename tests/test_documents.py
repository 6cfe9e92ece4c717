"""The code in the documents does what the documents say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.S)


def execute(code, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(code)
    return subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)


def test_every_experiment_and_tool_that_a_document_names_is_there():
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/*.md"), ROOT / "Makefile"]
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("experiments/**/*.py"), *ROOT.glob("tools/*.py")]
    for document in (path for path in documents + sources if path.name != "CHANGELOG.md"):
        text = document.read_text()
        for module in re.findall(r"-m ((?:experiments|tools)\.[\w.]*\w)", text):
            assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), f"{document} names {module}"
        for path in re.findall(r"(?:experiments|tools)/[\w./-]*\w", text):
            assert (ROOT / path).exists() or not re.search(r"\.(py|jsonl)$", path), f"{document} names {path}"


@pytest.mark.parametrize("number", range(len(blocks("README.md"))))
def test_readme_examples_run(number, tmp_path):
    done = execute(blocks("README.md")[number], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_the_example_of_a_method_is_one_that_works(tmp_path):
    """The method of CONTRIBUTING.md is known by name, forgets less than naive with a strong penalty, and saves its state."""
    check = """
import torch
from hvcl.learners import create
from hvcl.runs import run
from hvcl.core.storage import load_state, save_state
from hvcl.streams import make_stream
from pathlib import Path

moved = {}
for strength in (0.0, 100.0):
    stream = make_stream("split-digits", seed=1, epochs=3)
    learner = create("l2", stream.problem, seed=1, hidden=(16,), strength=strength)
    events = iter(stream)
    for event in events:
        if not hasattr(event, "x"):
            learner.end_task()
            break
        learner.observe(event.x, event.y)
    for event in events:
        if not hasattr(event, "x"):
            break
        terms = learner.observe(event.x, event.y)
    moved[strength] = terms["l2"]
assert moved[100.0] < 0.1 * moved[0.0], moved
save_state(Path("state.json"), learner.state_dict())
other = create("l2", stream.problem, hidden=(16,))
other.load_state_dict(load_state(Path("state.json")))
assert other.anchor.keys() == learner.anchor.keys()
"""
    done = execute(blocks("CONTRIBUTING.md")[0] + check, tmp_path)
    assert done.returncode == 0, done.stderr
