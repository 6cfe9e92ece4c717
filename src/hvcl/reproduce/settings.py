"""What a budget means for supervised runs."""

from __future__ import annotations

from typing import Any

from hvcl.reproduce.base import Budget, Planned, Scale
from hvcl.runs import RunConfig
from hvcl.settings import method_settings

EMBEDDED = "split-digits"
"""The data of the quick budget, which need no download."""

OWN_EPOCHS = ("dgr", "dgr-distill", "rtf", "bir", "curl", "hvcl-replay", "hvcl-growing")
"""Methods whose settings say how long they train, at the standard budget."""

_COST = {
    "hvcl-replay": 8.0,
    "dgr": 8.0,
    "dgr-distill": 8.0,
    "rtf": 8.0,
    "bir": 8.0,
    "curl": 8.0,
    "ncl": 3.0,
    "gem": 3.0,
    "hal": 3.0,
    "joint": 2.0,
    "bcl": 5.0,
    "ccl-fp": 4.0,
    "cldr": 4.0,
    "hibnn": 8.0,
    "sam": 4.0,
    "den": 2.0,
    "cn-dpm": 15.0,
    "merlin": 20.0,
    "pathnet": 6.0,
}


def benchmark_of(budget: Budget, name: str) -> str:
    """The benchmark that stands for `name` with this budget."""
    return EMBEDDED if budget == "quick" else name


def supervised(
    scale: Scale,
    key: str,
    benchmark: str,
    method: str,
    stream: dict[str, Any] | None = None,
    learner: dict[str, Any] | None = None,
    effort: float = 1.0,
) -> Planned:
    """One supervised run: at the quick budget on the embedded digits, with as many epochs as are standard there."""
    place = benchmark_of(scale.budget, benchmark)
    budget: str | None = "standard" if scale.budget == "quick" else scale.budget
    if scale.budget == "standard" and method in OWN_EPOCHS:
        budget = None
    if place == EMBEDDED and method == "hvcl-replay":  # it has no settings of its own there
        learner = method_settings("split-mnist", method) | (learner or {})
    config = RunConfig.make(place, method, scale.seeds, {"scenario": "domain"} | (stream or {}), learner, budget)
    return Planned(key, config, effort * _COST.get(method, 1.0))
