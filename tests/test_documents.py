"""The code in the documents does what the documents say."""

import re
import textwrap
from pathlib import Path

import pytest

import hvcl
from tests.processes import run_python

ROOT = Path(__file__).resolve().parent.parent


def blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.S)


def execute(code, tmp_path):
    script = tmp_path / "example.py"
    script.write_text(code)
    return run_python(script, cwd=tmp_path)


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


@pytest.mark.parametrize("number", range(len(blocks("docs/estimators/README.md"))))
def test_the_examples_of_the_estimators_run(number, tmp_path):
    if number == len(blocks("docs/estimators/README.md")) - 1:
        pytest.importorskip("river")
    done = execute(blocks("docs/estimators/README.md")[number], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_the_stream_of_the_documents_goes_as_it_is_printed(tmp_path):
    """The lines of the table stand at the same rows, and the drift is found where it is said."""
    pytest.importorskip("pandas")
    page = (ROOT / "docs/streams/README.md").read_text()
    make, other = blocks("docs/streams/README.md")
    assert execute(make, tmp_path).returncode == 0
    command, printed = re.search(r"```\n\$ hvcl (stream .*?)\n(.*?)```", page, flags=re.S).groups()
    done = run_python("-m", "hvcl", *command.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first = [[line.split()[0], "drift" in line] for line in (done.stderr + done.stdout).splitlines()]
    assert first == [[line.split()[0], "drift" in line] for line in printed.splitlines()]
    assert (tmp_path / "runs/stream-payments.html").exists()
    done = execute(other, tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_example_of_the_package_runs(tmp_path):
    lines = hvcl.__doc__.splitlines()
    code = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ") or not line).strip("\n"))
    assert code.startswith("import hvcl")
    done = execute(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "average accuracy" in done.stdout


def test_the_example_of_a_method_is_one_that_works(tmp_path):
    """The method of CONTRIBUTING.md is known by name, moves less than naive with a strong penalty, and keeps the contract."""
    check = """
from hvcl.learners import create
from hvcl.streams import make_stream
from hvcl.testing import check_learner

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
check_learner(L2, hidden=(16,), learning_rate=0.01)
"""
    done = execute(blocks("CONTRIBUTING.md")[0] + check, tmp_path)
    assert done.returncode == 0, done.stderr
