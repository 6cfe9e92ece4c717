"""One function that decides every setting of a run and says where it came from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hvcl.core.configuration import field_types
from hvcl.core.errors import InputError
from hvcl.learners import chosen_method, method
from hvcl.settings.files import EVERY, load_settings
from hvcl.streams import StreamConfig, benchmark

GIVEN = "given"
"""The origin of what a caller sets; at the command line, its options."""


@dataclass(frozen=True)
class Setting:
    """A value, and where it came from."""

    value: Any
    origin: str
    is_default: bool = False
    """Whether it is the configuration's own default, which nothing has changed."""


@dataclass(frozen=True)
class Resolved:
    """Every setting of a run by name."""

    stream: dict[str, Setting]
    """Of `StreamConfig`."""
    learner: dict[str, Setting]
    """Of the method's configuration."""


def resolve(
    benchmark_name: str,
    method_name: str,
    stream: dict[str, Any] | None = None,
    learner: dict[str, Any] | None = None,
    budget: str | None = None,
) -> Resolved:
    """Every setting of a method on a benchmark. What is named later here goes before what is named earlier.

    The stream: defaults of `StreamConfig`; the benchmark's; one epoch for methods that learn in one pass; the method's file of
    settings; the epochs of the `budget` (quick, standard, paper), except for one pass; `stream`.
    The method: defaults of its configuration; what the benchmark asks of every method; the method's file of settings, first what
    was chosen by hand, then what was searched; `learner`.
    """
    method_name = chosen_method(method_name, learner or {})
    chosen, by_name = benchmark(benchmark_name), method(method_name)
    if budget is not None and budget not in chosen.epochs:
        raise InputError(f"budget must be one of {', '.join(chosen.epochs)}, got {budget!r}")
    own = load_settings(method_name).get(benchmark_name, {})
    every = load_settings(EVERY).get(benchmark_name, {}).get("learner", {})
    fields = field_types(by_name.config)
    name = f"settings/{method_name}.json"
    return Resolved(
        _layered(
            StreamConfig,
            "default of the stream",
            ("benchmark", chosen.stream),
            ("method: one pass", {"epochs": 1} if by_name.one_pass else {}),
            (name, own.get("stream", {})),
            (f"budget {budget}", {} if budget is None or by_name.one_pass else {"epochs": chosen.epochs[budget]}),
            (GIVEN, stream or {}),
        ),
        _layered(
            by_name.config,
            "default of the method",
            (f"settings/{EVERY}.json", {key: value for key, value in every.items() if key in fields}),
            (name, own.get("learner", {})),
            (f"{name} (searched)", own.get("searched", {})),
            (GIVEN, learner or {}),
        ),
    )


def _layered(config: type[Any], default: str, *layers: tuple[str, dict[str, Any]]) -> dict[str, Setting]:
    found = {
        field.name: Setting(field.default, default, True)
        for field in dataclasses.fields(config)
        if field.default is not dataclasses.MISSING
    }
    for origin, values in layers:
        found |= {name: Setting(value, origin) for name, value in values.items()}
    return found
