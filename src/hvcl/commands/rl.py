"""hvcl rl run, list, report: continual reinforcement learning."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from hvcl.commands.options import Parser, add_run_options, add_settings, check_run_options, method_in, settings_of
from hvcl.commands.output import print_lists, print_rows
from hvcl.core.errors import InputError
from hvcl.report import write_report

try:
    from hvcl.rl.loop import TrainingProtocol
    from hvcl.rl.methods import known_methods, method
    from hvcl.rl.sequences import SEQUENCES
    from hvcl.runs import execute
    from hvcl.runs.frames import frames_of
    from hvcl.runs.reinforcement import RLConfig
except ModuleNotFoundError as error:
    raise InputError(f"hvcl rl needs more packages: pip install 'hvcl[rl]' ({error})") from None

EXAMPLES = """for example
  hvcl rl run --method hvcl-growing --steps 5000 --out runs/growing    the small sequence, classic
  hvcl rl run --method ewc --help                                      every setting of a method
  hvcl rl run --sequence Pendulum-v1,MountainCarContinuous-v0          a sequence of one's own
  hvcl rl report runs/growing --frames                                 one HTML page"""


def parser(words: Sequence[str]) -> Parser:
    """The options of the three actions."""
    found = Parser(
        prog="hvcl rl",
        description="One method on a sequence of tasks: run one, list what there is, report on runs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = found.add_subparsers(dest="action", metavar="ACTION", parser_class=Parser)
    usage = "hvcl rl run [--sequence S] [--method M] [--steps N] [--seeds 1,2] [--out DIR] [--resume] [--force] [settings]"
    run = actions.add_parser("run", usage=usage, help="hvcl rl run [--sequence S] [--method M]: one method on one sequence")
    name = method_in(words, "hvcl-growing")
    sequences = f"{', '.join(SEQUENCES)}, or gymnasium ids with commas between them (classic)"
    run.add_argument("--sequence", metavar="S", default="classic", help=sequences)
    add_run_options(run, "hvcl-growing", known_methods(), "runs/rl-SEQUENCE-METHOD")
    add_settings(run, "settings of the protocol", TrainingProtocol, "protocol")
    add_settings(run, f"settings of the method {name}", method(name).config, "agent")
    run.values["--sequence"] = tuple(SEQUENCES)
    listing = actions.add_parser("list", help="hvcl rl list: sequences and methods")
    listing.add_argument("--json", action="store_true", help="as JSON")
    report = actions.add_parser("report", help="hvcl rl report DIR... [--frames]: one HTML page from run folders")
    report.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders that hold some")
    report.add_argument("--out", metavar="FILE", type=Path, help="where to write it (DIR/report.html of the first DIR)")
    report.add_argument("--frames", action="store_true", help="pictures of what each agent does in each task")
    report.add_argument(
        "--import",
        dest="modules",
        metavar="MODULE",
        action="append",
        default=[],
        help="frames: a module that environments named MODULE:NAME may be imported from; none is unless it is named here",
    )
    return found


def run(options: argparse.Namespace) -> int:
    """Run, list or report; without an action, help."""
    match options.action:
        case "run":
            return _run(options)
        case "list":
            sequences = {name: found.description for name, found in SEQUENCES.items()}
            methods = {name: found.description for name, found in sorted(known_methods().items())}
            print_lists({"sequences": sequences, "methods": methods}, options.json)
        case "report":
            output = options.out or options.folders[0] / "report.html"
            episodes = partial(frames_of, modules=options.modules) if options.frames else None
            print(f"report: {write_report(options.folders, output, episodes=episodes)}")
        case _:
            parser([]).print_help()
    return 0


def _run(options: argparse.Namespace) -> int:
    check_run_options(options)
    protocol, agent = settings_of(options, "protocol"), settings_of(options, "agent")
    config = RLConfig.make(options.sequence, options.method, options.seeds, protocol, agent)
    out = options.out or Path("runs") / re.sub(r"[^\w.-]+", "-", f"rl-{config.sequence}-{config.method}")
    first = getattr(config.agent, "warmup", 0) or getattr(config.agent, "rollout", 0)
    if config.protocol.steps < first:
        print(
            f"hvcl: note: nothing is learned before step {first} of a task, and there are {config.protocol.steps}",
            file=sys.stderr,
        )
    console = Console(stderr=True)
    results = execute(config, out, workers=options.workers, resume=options.resume, force=options.force, progress=console)
    if options.json:
        print(json.dumps({"sequence": config.sequence, "method": config.method, "results": results, "out": str(out)}))
    else:
        _print_results(results)
        print(f"run folder: {out}   report: hvcl rl report {out}")
    return 0


def _print_results(results: list[dict[str, Any]]) -> None:
    rows = []
    for result in results:
        scores = [result["cumulative_reward"], result["average_performance"], result["forgetting"]]
        returns = [f"{value:.0f}" for value in result["returns_at_the_end"]]
        rows.append([str(result["seed"]), *("-" if score is None else f"{score:.3f}" for score in scores), *returns])
    print_rows(("seed", "J", "average performance", "forgetting", *results[0]["task_names"]), rows)
