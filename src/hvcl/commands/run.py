"""hvcl run: one method on one benchmark."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hvcl.commands.options import (
    Parser,
    UsageError,
    add_run_options,
    add_settings,
    check_run_options,
    method_in,
    option_of,
    settings_of,
    value_in,
)
from hvcl.commands.output import print_runs
from hvcl.core.files import read_json
from hvcl.learners import chosen_method, known_methods, method
from hvcl.results import BUDGETS, IDENTITY
from hvcl.runs import RunConfig, execute
from hvcl.settings import Resolved, Setting, resolve
from hvcl.settings.resolve import GIVEN
from hvcl.streams import BENCHMARKS, StreamConfig, benchmark


def parser(words: Sequence[str]) -> Parser:
    """The options of running, of the stream and of the method that `words` name."""
    name = method_in(words, "hvcl")
    name = chosen_method(name, {setting: value_in(words, option_of(setting)) for setting in method(name).choices})
    found = Parser(
        prog="hvcl run",
        usage="hvcl run BENCHMARK [--method M] [--seeds 1,2,3] [--out DIR] [--json] [--resume] [--force] [settings]",
        description="One method on one benchmark. With --method M, --help shows M's own settings.",
    )
    found.add_argument(
        "benchmark", nargs="?", help="name of the benchmark (see hvcl list), or folder:DIR, which has a folder a class"
    )
    add_run_options(found, "hvcl", known_methods(), "runs/BENCHMARK-SCENARIO-METHOD")
    found.add_argument("--budget", help="quick, standard or paper: epochs as in hvcl compare (those of the settings)")
    found.add_argument("--explain", action="store_true", help="print every setting, its value and its origin; run nothing")
    note = "(a benchmark may bring defaults of its own)"
    add_settings(found, f"settings of the stream {note}", StreamConfig, "stream")
    add_settings(found, f"settings of the method {name} {note}", method(name).config, "learner")
    found.values |= {"benchmark": tuple(BENCHMARKS), "--budget": BUDGETS}
    return found


def run(options: argparse.Namespace) -> int:
    """Run it, and print a table or JSON."""
    if options.benchmark is None:
        raise UsageError("which benchmark? hvcl run BENCHMARK (see hvcl list)")
    benchmark(options.benchmark)
    stream, learner = settings_of(options, "stream"), settings_of(options, "learner")
    config = RunConfig.make(options.benchmark, options.method, options.seeds, stream, learner, options.budget)
    if options.explain:
        _explain(resolve(options.benchmark, options.method, stream, learner, options.budget), options.json)
        return 0
    supervision = "-task-free" if config.stream.task_free else ""
    name = re.sub(r"[^\w.-]+", "-", config.benchmark)
    out = options.out or Path("runs") / f"{name}-{config.stream.scenario}{supervision}-{config.method}"
    console = Console(stderr=True)
    check_run_options(options)
    results = execute(config, out, workers=options.workers, resume=options.resume, force=options.force, progress=console)
    if options.json:
        print(json.dumps(_json_result(out, results), allow_nan=False))
    else:
        print_runs([out])
        print(f"run folder: {out}   report: hvcl report {out}")
    return 0


def _explain(resolved: Resolved, as_json: bool) -> None:
    """Every setting, its value and its origin."""
    if as_json:
        parts = {"stream": resolved.stream, "method": resolved.learner}
        print(json.dumps({part: {name: _as_json(setting) for name, setting in found.items()} for part, found in parts.items()}))
        return
    settings = [*resolved.stream.items(), *resolved.learner.items()]
    lines = [("setting", "value", "origin"), *((option_of(name), _shown(s.value), _origin(s)) for name, s in settings)]
    widths = [max(len(line[column]) for line in lines) for column in (0, 1)]
    for option, value, origin in lines:
        print(f"{option:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


def _origin(setting: Setting) -> str:
    return "command line" if setting.origin == GIVEN else setting.origin


def _as_json(setting: Setting) -> dict[str, Any]:
    value = list(setting.value) if isinstance(setting.value, tuple) else setting.value
    return {"value": value, "origin": _origin(setting)}


def _shown(value: Any) -> str:
    """As it would be given: 256,256 for a list; none where there is nothing."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _json_result(out: Path, results: list[dict[str, Any]]) -> dict[str, Any]:
    config = read_json(out / "config.json")
    shown = {key: config[key] for key in IDENTITY}
    accuracies = [result["average_accuracy"] for result in results]
    return shown | {"mean_accuracy": sum(accuracies) / len(accuracies), "results": results, "out": str(out)}
