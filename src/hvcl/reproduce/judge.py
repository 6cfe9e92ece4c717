"""Verdicts that follow from numbers, by the same rules everywhere.

A difference of means counts if it is larger than two standard errors, sqrt(s_a^2 / n_a + s_b^2 / n_b). A smaller one is
undecided, and so is any with fewer than three seeds on a side, whose deviation says next to nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from hvcl.report.statistic import Statistic
from hvcl.reproduce.outcome import Finding, Row, Verdict

ERRORS = 2.0
"""Standard errors that a difference must exceed to count."""
FEWEST = 3
"""Seeds on each side of a difference that counts."""


def text(value: Statistic, digits: int = 2) -> str:
    """Mean and standard deviation in words."""
    spread = "" if value.sd is None else f" ± {value.sd:.{digits}f}"
    return f"{value.mean:.{digits}f}{spread}"


def standard_error(a: Statistic, b: Statistic) -> float | None:
    """Of the difference of two means; None if a side has too few seeds."""
    if a.sd is None or b.sd is None or min(a.seeds, b.seeds) < FEWEST:
        return None
    return math.sqrt(a.sd**2 / a.seeds + b.sd**2 / b.seeds)


def compared(larger: Statistic, smaller: Statistic) -> Verdict:
    """Whether the first mean is larger."""
    difference, error = larger.mean - smaller.mean, standard_error(larger, smaller)
    if error is None or abs(difference) <= ERRORS * error:
        return "undecided"
    return "holds" if difference > 0 else "does not hold here"


def claim_larger(
    claim: str, names: tuple[str, str], larger: Statistic | None, smaller: Statistic | None, digits: int = 2
) -> Finding:
    """A claim that one thing is larger than another."""
    if larger is None or smaller is None:
        return Finding(claim, "not measured", f"there is no figure of {names[0] if larger is None else names[1]}")
    verdict = compared(larger, smaller)
    because = f"{names[0]} {text(larger, digits)}, {names[1]} {text(smaller, digits)}; {_doubt(larger, smaller)}"
    return Finding(claim, verdict, because)


def _doubt(a: Statistic, b: Statistic) -> str:
    """The number of seeds, and why a difference does not count, if it does not."""
    error = standard_error(a, b)
    if error is None:
        return f"{seeds_of(a, b)}, too few to tell"
    return seeds_of(a, b) + (", the difference is within two standard errors" if abs(a.mean - b.mean) <= ERRORS * error else "")


def claim_extreme(
    claim: str, wanted: str, values: Mapping[str, Statistic], which: Literal["highest", "lowest"], digits: int = 2
) -> Finding:
    """A claim that one setting has the highest (or lowest) value of all."""
    if wanted not in values or len(values) < 2:
        return Finding(claim, "not measured", f"there is no figure of {wanted}")
    sign = 1.0 if which == "highest" else -1.0
    others = [name for name in values if name != wanted]
    rival = max(others, key=lambda name: sign * values[name].mean)
    ours, theirs = values[wanted], values[rival]
    verdict = compared(ours, theirs) if sign > 0 else compared(theirs, ours)
    listed = ", ".join(f"{name} {text(value, digits)}" for name, value in values.items())
    return Finding(claim, verdict, f"{listed}; {_doubt(ours, theirs)}")


def seeds_of(*values: Statistic) -> str:
    """How many seeds, in words."""
    numbers = sorted({value.seeds for value in values})
    return f"{' to '.join(map(str, numbers))} seed{'' if numbers == [1] else 's'}"


def level(rows: Sequence[Row], key: str, claim: str, digits: int = 2) -> Finding:
    """How many rows agree with the paper's level: within two joint standard deviations, or one point where there is none."""
    pairs = [(row, ours, row.paper[key]) for row in rows if key in row.paper and (ours := row.values.get(key)) is not None]
    if not pairs:
        return Finding(claim, "not measured", "no row has both a figure of ours and one of the paper's")
    close = [row for row, ours, paper in pairs if abs(ours.mean - paper.mean) <= _tolerance(ours, paper)]
    row, ours, paper = max(pairs, key=lambda pair: abs(pair[1].mean - pair[2].mean))
    verdict: Verdict = "holds" if len(close) == len(pairs) else "in part" if close else "does not hold here"
    because = (
        f"{len(close)} of {len(pairs)} rows lie within two standard deviations of the paper's figure; furthest is {row.label} on "
        f"{row.benchmark}: {text(ours, digits)} here, {text(paper, digits)} there"
    )
    return Finding(claim, verdict, because)


def _tolerance(ours: Statistic, paper: Statistic) -> float:
    return max(1.0, ERRORS * math.hypot(ours.sd or 0.0, paper.sd or 0.0))


def order(rows: Sequence[Row], key: str, claim: str) -> Finding:
    """How many pairs of rows of one benchmark and scenario stand in the same order here and in the paper."""
    known = [(row, ours, row.paper[key]) for row in rows if key in row.paper and (ours := row.values.get(key)) is not None]
    same = total = 0
    for (first, ours, paper), (second, other, others) in itertools.combinations(known, 2):
        if (first.benchmark, first.scenario) == (second.benchmark, second.scenario) and paper.mean != others.mean:
            total += 1
            same += (ours.mean - other.mean) * (paper.mean - others.mean) > 0
    if not total:
        return Finding(claim, "not measured", "no two rows of one benchmark and scenario have figures of both")
    verdict: Verdict = "holds" if same == total else "in part" if 2 * same > total else "does not hold here"
    return Finding(
        claim, verdict, f"{same} of {total} pairs of rows of one scenario stand in the paper's order (half would be chance)"
    )
