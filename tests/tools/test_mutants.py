"""The mutants that the tests are tried on."""

import ast

from tools.mutants import mutants, sample

TEXT = """
def mean(values: list[int], least: int = 1) -> float:
    if len(values) < least and least:
        raise ValueError
    return sum(values) / len(values)
"""


def test_every_mutant_is_one_change_of_a_program():
    found = list(mutants("runs/x.py", TEXT))
    assert [mutant.change for mutant in found if "/" in mutant.change] == [
        "sum(values) / len(values) -> sum(values) * len(values)"
    ]
    changes = {mutant.change for mutant in found}
    assert {"len(values) < least -> len(values) <= least", "1 -> 2"} <= changes
    assert len(found) == 5
    whole = ast.unparse(ast.parse(TEXT))
    for mutant in found:
        compile(mutant.source, mutant.module, "exec")
        lines = [(a, b) for a, b in zip(whole.splitlines(), mutant.source.splitlines(), strict=True) if a != b]
        assert len(lines) == 1, mutant.change


def test_the_sample_is_the_same_each_time():
    assert [m.name for m in sample(["objective"], 2, 0)] == [m.name for m in sample(["objective"], 2, 0)]
    known = {mutant.change for mutant in sample(["runs"], 10_000, 0, "runs/supervised.py")}
    assert "total / number -> total * number" in known
