"""Mutation testing: do the tests notice if the code is changed a little?

    python -m tools.mutants                          a fixed sample of every module of runs, gates, posteriors, layers, objective
    python -m tools.mutants --rooms runs --sample 4  fewer
    python -m tools.mutants --only layers/linear.py  one module

A mutant is the package with one operator, comparison or number changed (`+` and `-`, `/` and `*`, `<` and `<=`, `1` and `2`,
`and` and `or`, a condition and its opposite). Each runs the tests of its room, and those that `ROOMS` names, in a copy of the
sources, until one fails: then it is killed. What survives is listed; a mutant that computes the same as the original belongs into
`tools/mutants.json`, with the reason.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
PACKAGE = HERE / "src" / "hvcl"
EQUIVALENT = Path(__file__).with_name("mutants.json")

ROOMS = {
    "runs": ("tests/runs", "tests/rl/test_loop.py"),
    "gates": ("tests/gates",),
    "posteriors": ("tests/posteriors", "tests/layers"),
    "layers": ("tests/layers", "tests/optim"),
    "objective": ("tests/objective",),
}
"""The tests that a mutant of a room is given, those of its own first."""

WANTED = 0.95
"""The share of mutants that must be killed."""

SECONDS = 900
"""A mutant that takes longer never ends, and is killed."""

_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one module."""

    module: str
    """Its file, relative to the package."""
    line: int
    change: str
    """In words, e.g. "a / b -> a * b"."""
    source: str
    """The whole changed module."""

    @property
    def name(self) -> str:
        """The same as long as the line is."""
        return f"{self.module}:{self.line}: {self.change}"


def mutants(module: str, text: str) -> Iterator[Mutant]:
    """All mutants of a module."""
    tree = ast.parse(text)
    skipped = {id(node) for found in ast.walk(tree) for node in ast.walk(_annotation(found))}
    for node in [node for node in ast.walk(tree) if id(node) not in skipped]:
        for change in _changes(node):
            before = ast.unparse(node)
            undo = change()
            after = ast.unparse(node)
            yield Mutant(module, getattr(node, "lineno", 0), f"{_short(before)} -> {_short(after)}", ast.unparse(tree))
            undo()


def _annotation(node: ast.AST) -> ast.AST:
    """What of a node only type checkers read."""
    found = getattr(node, "annotation", None) or getattr(node, "returns", None)
    return found if isinstance(found, ast.AST) else ast.Module([], [])


def _changes(node: ast.AST) -> Iterator[_Change]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _OPERATORS:
        yield _Change(node, "op", _OPERATORS[type(node.op)]())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        yield _Change(node, "ops", [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.BoolOp):
        yield _Change(node, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield _Change(node, "value", node.value + 1)
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield _Change(node, "test", ast.UnaryOp(ast.Not(), node.test))


@dataclass
class _Change:
    """Sets an attribute of a node, and gives back what undoes it."""

    node: ast.AST
    name: str
    value: object

    def __call__(self) -> _Change:
        before = getattr(self.node, self.name)
        setattr(self.node, self.name, self.value)
        return _Change(self.node, self.name, before)


def _short(text: str) -> str:
    line = text.splitlines()[0]
    return line if len(line) <= 60 else line[:57] + "..."


def sample(rooms: list[str], count: int, seed: int, only: str | None = None) -> list[Mutant]:
    """The same `count` mutants of every module each time, of all if there are fewer."""
    chosen = []
    for room in rooms:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            module = path.relative_to(PACKAGE).as_posix()
            if only is None or module == only:
                found = list(mutants(module, path.read_text()))
                chosen += random.Random(f"{seed} {module}").sample(found, min(count, len(found)))
    return chosen


def survives(mutant: Mutant, folder: Path) -> bool:
    """Whether the tests pass with the mutant in `folder`, a copy of the sources."""
    path = folder / "src" / "hvcl" / mutant.module
    original = path.read_text()
    path.write_text(mutant.source)
    tests = ROOMS[mutant.module.split("/")[0]]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=SECONDS)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(original)


def main() -> int:
    """Exit code 1 if too many survive."""
    parser = argparse.ArgumentParser(description="Mutation testing.")
    parser.add_argument("--rooms", default=",".join(ROOMS), help=f"which ({','.join(ROOMS)})")
    parser.add_argument("--sample", type=int, default=4, help="mutants of each module (4)")
    parser.add_argument("--seed", type=int, default=0, help="of the choice (0)")
    parser.add_argument("--only", help="one module, e.g. layers/linear.py")
    parser.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    options = parser.parse_args()
    chosen = sample(options.rooms.split(","), options.sample, options.seed, options.only)
    if options.list:
        print(*(mutant.name for mutant in chosen), sep="\n")
        return 0
    equivalent = json.loads(EQUIVALENT.read_text())
    chosen = [mutant for mutant in chosen if mutant.name not in equivalent]
    survivors = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "copy"
        folder.mkdir()
        for name in ("src", "tests", "tools", "results", "docs", "experiments", "benchmarks"):
            if (HERE / name).is_dir():
                shutil.copytree(HERE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(HERE / "pyproject.toml", folder)
        for number, mutant in enumerate(chosen, 1):
            alive = survives(mutant, folder)
            survivors += [mutant] * alive
            print(f"{number}/{len(chosen)} {'SURVIVES' if alive else 'killed'}  {mutant.name}", flush=True)
    killed = 1 - len(survivors) / max(len(chosen), 1)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} killed ({100 * killed:.1f} %); wanted {100 * WANTED:.0f} %")
    for mutant in survivors:
        print(f"survivor: {mutant.name}")
    return int(killed < WANTED)


if __name__ == "__main__":
    raise SystemExit(main())
