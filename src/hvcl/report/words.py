"""The report's words and number formats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

MISSING = "–"

SCENARIOS: Mapping[str, tuple[str, str]] = {
    "task": ("Task-IL", "At test time the learner is told which task an example is from; every task has its own output."),
    "domain": (
        "Domain-IL",
        "At test time the learner is not told the task; all tasks share one output, such as “even or odd”.",
    ),
    "class": ("Class-IL", "At test time the learner is not told the task and must tell all classes of all tasks apart."),
}
"""Name and meaning of each scenario."""

SUPERVISIONS: Mapping[str, tuple[str, str]] = {
    "boundaries": ("Boundaries", "In training the learner is told when one task ends and the next begins."),
    "task-free": ("Task-free", "In training the learner sees batches and labels and nothing else; no one tells of tasks."),
}
"""Name and meaning of each kind of supervision."""

TERMS: Mapping[str, str] = {
    "loss": "Loss",
    "utility": "Utility",
    "expert_kl": "KL of the experts",
    "gate_kl": "KL of the gate",
    "conditional_entropy": "H(M|X) of the gate",
    "marginal_entropy": "H(M) of the gate",
    "diversity": "Diversity",
}
"""Titles of the loss terms in the order in which they are shown; others follow under their own name."""


def scenario_name(scenario: str) -> str:
    """The name of a scenario as it is written in the literature."""
    return SCENARIOS[scenario][0] if scenario in SCENARIOS else scenario


def memory_words(memory: str) -> str:
    """Memory as it stands beside a number: "memory: 200 examples", "no memory"."""
    return "no memory" if memory == "none" else f"memory: {memory}"


def term_title(name: str) -> str:
    """The heading of a loss term."""
    return TERMS.get(name, name.replace("_", " "))


def term_order(names: Sequence[str]) -> list[str]:
    """The loss terms in the order in which they are shown."""
    known = list(TERMS)
    return sorted(set(names), key=lambda name: (known.index(name) if name in known else len(known), name))


def percent(value: float, digits: int = 2) -> str:
    """A fraction in percent, without the sign: 0.975 is "97.50"."""
    return decimal(100 * value, digits)


def signed_percent(value: float, digits: int = 2) -> str:
    """A difference of fractions in percentage points, always with its sign."""
    text = percent(value, digits)
    return f"+{text}" if value > 0 and float(text) else text


def decimal(value: float, digits: int = 3) -> str:
    """A number with a fixed number of decimals and a true minus sign."""
    if not math.isfinite(value):
        return MISSING
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if not float(text.replace(",", "")) else text.replace("-", "−")


def significant(value: float) -> str:
    """A number with about three significant digits, for axes and tooltips of any magnitude."""
    if not math.isfinite(value):
        return MISSING
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
        return decimal(value, digits)
    return f"{value:.1e}".replace("-", "−")


def whole(value: float) -> str:
    """A count with thousands separated."""
    return decimal(value, 0)


def size(value: float) -> str:
    """A number of bytes in decimal units."""
    for unit in ("B", "kB", "MB"):
        if abs(value) < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} GB"


def duration(seconds: float) -> str:
    """A time span, to about two digits."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def counted(number: int, noun: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listing(items: Sequence[str]) -> str:
    """Items in a sentence: "a, b and c"."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def distinct(labels: Sequence[str]) -> list[str]:
    """The labels, those that occur more than once with a number: "a", "b #1", "b #2"."""
    return [
        f"{label} #{labels[:place].count(label) + 1}" if labels.count(label) > 1 else label for place, label in enumerate(labels)
    ]


def setting(value: object) -> str:
    """A value of a configuration as text."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(setting(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {setting(item)}" for name, item in value.items())
    return str(value)
