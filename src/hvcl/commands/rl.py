"""hvcl rl run, list, report."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hvcl.commands.main import parse_seeds, print_options, print_settings, settings_of
from hvcl.core.errors import InputError
from hvcl.rl.loop import TrainingProtocol
from hvcl.rl.methods import known_methods, method
from hvcl.rl.report import write_rl_report
from hvcl.rl.sequences import SEQUENCES
from hvcl.runs import execute
from hvcl.runs.reinforcement import RLConfig

USAGE = """usage: hvcl rl list [--json]
       hvcl rl run [--sequence S] [--method M] [--steps N] [--seeds 1,2] [--out DIR] [--resume] [--force] [settings]
       hvcl rl report DIR... [--out FILE] [--frames]
"""
EXAMPLE = """
for example
  hvcl rl run --method hvcl-growing --steps 5000 --out runs/growing    the small chain, classic
  hvcl rl run --method ewc --help                                      every setting of a method
  hvcl rl run --sequence Pendulum-v1,MountainCarContinuous-v0          a chain of one's own
  hvcl rl report runs/growing --frames                                 one HTML page"""


def run_command(known: argparse.Namespace, rest: list[str]) -> int:
    """hvcl rl: returns the exit code."""
    if known.action is None or (known.help and known.action != "run"):
        print(USAGE + EXAMPLE)
        return 0
    if known.action == "list":
        if rest:
            raise InputError(f"unknown argument {rest[0]!r} (see hvcl rl --help)")
        return _list(known.json)
    if known.action == "report":
        unknown = next((word for word in rest if word.startswith("-")), None)
        if unknown:
            raise InputError(f"unknown option {unknown}: hvcl rl report DIR... [--out FILE] [--frames]")
        if not rest:
            raise InputError("which runs? hvcl rl report DIR... [--out FILE] [--frames]")
        folders = [Path(word) for word in rest]
        print(f"report: {write_rl_report(folders, known.out or folders[0] / 'report.html', known.frames)}")
        return 0
    return _run(known, rest)


def _list(as_json: bool) -> int:
    sequences = {name: text for name, (_, text) in SEQUENCES.items()}
    methods = {name: found.description for name, found in sorted(known_methods().items())}
    if as_json:
        print(json.dumps({"sequences": sequences, "methods": methods}))
        return 0
    for title, entries in (("sequences", sequences), ("methods", methods)):
        print(f"{title}:")
        for name, description in entries.items():
            print(f"  {name:<16} {description}")
    return 0


def _run(known: argparse.Namespace, rest: list[str]) -> int:
    config_class = method(known.method).config
    if known.help:
        print(USAGE)
        print(f"  {'--sequence S':<24} {', '.join(SEQUENCES)}, or gymnasium ids with commas between them (classic)")
        print_options(method="hvcl-growing", command="hvcl rl", out="runs/rl-SEQUENCE-METHOD")
        print_settings(("protocol", f"method {known.method}"), (TrainingProtocol, config_class))
        return 0
    if known.frames:
        raise InputError("--frames is for the report: hvcl rl report DIR --frames")
    protocol, agent = settings_of(rest, TrainingProtocol, config_class, command="hvcl rl run", others=("--sequence",))
    config = RLConfig.make(known.sequence, known.method, parse_seeds(known.seeds), protocol, agent)
    out = known.out or Path("runs") / re.sub(r"[^\w.-]+", "-", f"rl-{config.sequence}-{config.method}")
    first = getattr(config.agent, "warmup", 0) or getattr(config.agent, "rollout", 0)
    if config.protocol.steps < first:
        print(
            f"hvcl: note: nothing is learned before step {first} of a task, and there are {config.protocol.steps}",
            file=sys.stderr,
        )
    console = Console(stderr=True)
    results = execute(config, out, workers=known.workers, resume=known.resume, force=known.force, progress=console)
    if known.json:
        print(json.dumps({"sequence": config.sequence, "method": config.method, "results": results, "out": str(out)}))
    else:
        _print_table(results)
        print(f"run folder: {out}   report: hvcl rl report {out}")
    return 0


def _print_table(results: list[dict[str, Any]]) -> None:
    table = Table("seed", "J", "average performance", "forgetting", *results[0]["task_names"])
    for result in results:
        returns = [f"{value:.0f}" for value in result["returns_at_the_end"]]
        scores = [result["cumulative_reward"], result["average_performance"], result["forgetting"]]
        table.add_row(str(result["seed"]), *("-" if score is None else f"{score:.3f}" for score in scores), *returns)
    Console(width=None if Console().is_terminal else 140).print(table)
