"""The command line: hvcl demo, run, compare, table, check, rl, list, report, data."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from hvcl.core.errors import HvclError, InputError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code. Bad use ends with one line on standard error and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _dispatch(words)
    except HvclError as error:
        print(f"hvcl: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("hvcl: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_INTERRUPTED
    except OSError as error:  # a folder that cannot be written, a full disk
        print(f"hvcl: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        return EXIT_USAGE


def _dispatch(words: list[str]) -> int:
    parser = _Parser(prog="hvcl", description="Hierarchical variational continual learning.", allow_abbrev=False)
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    _add_run(commands)
    _add_compare(commands)
    _add_rl(commands)
    demo = commands.add_parser("demo", help="five tasks in a row: naive, hvcl, exact and joint on split-digits, then a report")
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder of the runs and the report (runs/demo)")
    demo.add_argument("--seeds", default="1,2,3", help="seeds, e.g. 1,2,3")
    lister = commands.add_parser("list", help="benchmarks and methods")
    lister.add_argument("--json", action="store_true", help="as JSON")
    report = commands.add_parser("report", help="one HTML page from run folders")
    report.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders that hold some")
    report.add_argument("--output", "-o", type=Path, help="where to write it (DIR/report.html of the first DIR)")
    report.add_argument("--title", help="title of the page")
    data = commands.add_parser("data", help="data sets: what is there, fetch, verify")
    data.add_argument("action", choices=("list", "get", "verify"), help="list all, get one, verify one (or all that are there)")
    data.add_argument("names", nargs="*", metavar="NAME", help="data sets, e.g. mnist")
    data.add_argument("--force", action="store_true", help="get: replace files that are damaged")

    known, rest = parser.parse_known_args(words)
    if known.version:
        from importlib.metadata import version

        print(version("hvcl"))
        return 0
    if known.command is None:
        parser.print_help()
        return 0
    if known.command == "run":
        return _run(known, rest)
    if known.command == "rl":
        from hvcl.rl.command import run_command

        return run_command(known, rest)
    if rest:
        raise InputError(f"unknown argument {rest[0]!r} (see hvcl {known.command} --help)")
    actions = {
        "demo": _demo,
        "compare": _compare,
        "table": _table,
        "check": _check,
        "list": _list,
        "report": _report,
        "data": _data,
    }
    return actions[known.command](known)


# -- hvcl run -------------------------------------------------------------------------------------------------------------


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="one method on one benchmark",
        description="Run one method on one benchmark. Give --method M before --help to see M's own settings.",
        add_help=False,
    )
    run.add_argument("benchmark", nargs="?", help="name of the benchmark (see hvcl list)")
    run.add_argument("--method", default="hvcl", help="name of the method (hvcl)")
    run.add_argument("--seeds", default="1", help="seeds, e.g. 1,2,3 (1)")
    run.add_argument("--out", type=Path, help="run folder (runs/BENCHMARK-SCENARIO-METHOD)")
    run.add_argument("--json", action="store_true", help="print the result as one JSON object, the last line")
    run.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    run.add_argument("--force", action="store_true", help="replace the run in the folder")
    run.add_argument("--workers", type=int, help="processes (one per core)")
    run.add_argument("--help", "-h", action="store_true", help="show this help")


def _run(known: argparse.Namespace, rest: list[str]) -> int:
    from hvcl.learners import method
    from hvcl.runs import RunConfig
    from hvcl.streams import StreamConfig, benchmark

    config_class = method(known.method).config
    if known.help:
        _print_run_help(known.method, StreamConfig, config_class)
        return 0
    if known.benchmark is None:
        raise InputError("which benchmark? hvcl run BENCHMARK (see hvcl list)")
    benchmark(known.benchmark)
    stream, learner = settings_of(rest, StreamConfig, config_class)
    config = RunConfig.make(known.benchmark, known.method, parse_seeds(known.seeds), stream, learner)
    supervision = "-task-free" if config.stream.task_free else ""
    out = known.out or Path("runs") / f"{config.benchmark}-{config.stream.scenario}{supervision}-{config.method}"
    console = Console(stderr=True)
    results = _execute([(config, out)], console, known.workers, resume=known.resume, force=known.force)[0]
    if known.json:
        print(json.dumps(_json_result(out, results), allow_nan=False))
    else:
        _print_table([out])
        print(f"run folder: {out}   report: hvcl report {out}")
    return 0


RUN_OPTIONS = (
    ("--method M", "the method ({method}); {command} list shows all"),
    ("--seeds 1,2,3", "seeds, each a run of its own (1)"),
    ("--out DIR", "run folder ({out})"),
    ("--json", "print the result as one JSON object, the last line"),
    ("--resume", "go on with the run in the folder"),
    ("--force", "replace the run in the folder"),
    ("--workers N", "processes (one per core)"),
)
"""What every command that runs something takes, with a text that names what differs."""


def settings_of(
    rest: list[str], *configs: type[Any], command: str = "hvcl run", others: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Options that are fields of the configurations, from the words that argparse left over; `others` are those it knows."""
    from hvcl.core.configuration import field_types, parse

    types = [field_types(config) for config in configs]
    found: list[dict[str, Any]] = [{} for _ in configs]
    words = iter(rest)
    for word in words:
        if not word.startswith("--"):
            raise InputError(f"unexpected argument {word!r}: settings are given as --name value")
        name, equals, text = word[2:].partition("=")
        field = name.replace("-", "_")
        negated = field.startswith("no_") and field[3:] in {n for t in types for n, k in t.items() if k is bool}
        field = field[3:] if negated else field
        place = next((i for i, kinds in enumerate(types) if field in kinds), None)
        if place is None:
            options = [f"--{n.replace('_', '-')}" for kinds in types for n in kinds]
            options += [*(option.split()[0] for option, _ in RUN_OPTIONS), *others]
            near = difflib.get_close_matches(f"--{name}", options, n=1)
            hint = f": did you mean {near[0]}?" if near else f" (see {command} --method M --help)"
            raise InputError(f"unknown option --{name}{hint}")
        kind = types[place][field]
        if kind is bool and not equals:
            found[place][field] = not negated
            continue
        if not equals:
            following = next(words, None)
            if following is None:
                raise InputError(f"--{name} needs a value")
            text = following
        found[place][field] = parse(f"--{name}", text, kind)
    return found


def _print_run_help(method_name: str, *configs: type[Any]) -> None:
    print("usage: hvcl run BENCHMARK [--method M] [--seeds 1,2,3] [--out DIR] [--json] [--resume] [--force] [settings]\n")
    print_options(method="hvcl", command="hvcl", out="runs/BENCHMARK-SCENARIO-METHOD")
    print_settings(("stream", f"method {method_name}"), configs, " (a benchmark may bring defaults of its own)")


def print_options(**names: str) -> None:
    """`RUN_OPTIONS` with these names in their texts."""
    for option, text in RUN_OPTIONS:
        print(f"  {option:<24} {text.format(**names)}")


def print_settings(titles: Sequence[str], configs: Sequence[type[Any]], note: str = "") -> None:
    """The fields of configurations as options, with their help texts and defaults."""
    from hvcl.core.configuration import describe, field_help, field_types

    for title, config in zip(titles, configs, strict=True):
        print(f"\nsettings of the {title}{note}:")
        helps, kinds = field_help(config), field_types(config)
        for field in dataclasses.fields(config):
            option = f"--{field.name.replace('_', '-')}"
            default = field.default
            shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
            kind = "" if kinds[field.name] is bool else f" {describe(kinds[field.name])};"
            print(f"  {option:<24} {helps.get(field.name, '')}\n{'':<26} {kind.strip()} default {shown or 'none'}")


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from "1,2,3" or "1-5"."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise InputError(f"seeds must be whole numbers such as 1,2,3 or 1-5, got {text!r}") from None
    return tuple(seeds)


def _execute(
    runs: list[tuple[Any, Path]],
    console: Console,
    workers: int | None,
    *,
    resume: bool,
    force: bool,
    finished: Callable[[Path, list[dict[str, Any]]], None] | None = None,
) -> list[list[dict[str, Any]]]:
    """Run every (configuration, folder) over all cores; results by run, in the order of seeds.

    `finished` is told the folder and results of a run as soon as all of its seeds are there.
    """
    from hvcl.runs import RunFolder
    from hvcl.runs.engine import Job, run_seeds
    from hvcl.runs.record import InterruptedRun

    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}")
    jobs: list[Job] = []
    for config, path in runs:
        # built here once so that missing data and settings that do not fit are noticed before anything is written
        stream = config.make_stream(config.seeds[0])
        learner = config.make_learner(stream, config.seeds[0])
        facts = {"memory": learner.memory, "task_names": [task.name for task in stream.tasks]}
        RunFolder(path).prepare(config, facts, resume=resume, force=force)
        jobs += [Job(path, seed, f"{config.method} seed {seed}") for seed in config.seeds]
    seeds: dict[Path, dict[int, dict[str, Any]]] = {path: {seed: {} for seed in config.seeds} for config, path in runs}
    missing = {path: len(config.seeds) for config, path in runs}

    def on_result(number: int, result: dict[str, Any]) -> None:
        path = jobs[number].folder
        seeds[path][jobs[number].seed] = result
        missing[path] -= 1
        if not missing[path] and finished:
            finished(path, list(seeds[path].values()))

    try:
        run_seeds(jobs, console, workers, on_result)
    except InterruptedRun:
        print("hvcl: interrupted, everything is saved: go on with the same command and --resume", file=sys.stderr)
        raise SystemExit(EXIT_INTERRUPTED) from None
    return [list(seeds[path].values()) for _, path in runs]


def _json_result(out: Path, results: list[dict[str, Any]]) -> dict[str, Any]:
    config = json.loads((out / "config.json").read_text())
    keys = ("benchmark", "scenario", "supervision", "memory", "method", "seeds", "evaluated_on", "task_names")
    shown = {key: config[key] for key in keys}
    accuracies = [result["average_accuracy"] for result in results]
    return shown | {"mean_accuracy": sum(accuracies) / len(accuracies), "results": results, "out": str(out)}


def _print_table(folders: Sequence[Path]) -> None:
    from hvcl.report.terminal import print_table

    console = Console()
    print_table(folders, console if console.is_terminal else Console(width=120))


# -- hvcl rl --------------------------------------------------------------------------------------------------------------


def _add_rl(commands: Any) -> None:
    rl = commands.add_parser(
        "rl",
        help="continual reinforcement learning: run, list, report",
        description="One method on a chain of tasks. Give --method M before --help to see M's own settings.",
        add_help=False,
    )
    rl.add_argument("action", nargs="?", choices=("run", "list", "report"), help="run one, list what there is, report on runs")
    rl.add_argument("--sequence", default="classic", help="classic, bullet, mujoco, or gymnasium ids with commas (classic)")
    rl.add_argument("--method", default="hvcl-growing", help="name of the method (hvcl-growing); hvcl rl list shows all")
    rl.add_argument("--seeds", default="1", help="seeds, e.g. 1,2,3 (1)")
    rl.add_argument("--out", type=Path, help="run folder (runs/rl-SEQUENCE-METHOD), or the report's file")
    rl.add_argument("--json", action="store_true", help="print the result as one JSON object, the last line")
    rl.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    rl.add_argument("--force", action="store_true", help="replace the run in the folder")
    rl.add_argument("--workers", type=int, help="processes (one per core)")
    rl.add_argument("--frames", action="store_true", help="report: pictures of what each agent does in each task")
    rl.add_argument("--help", "-h", action="store_true", help="show this help")


# -- hvcl compare, table, check -------------------------------------------------------------------------------------------


def _add_compare(commands: Any) -> None:
    compare = commands.add_parser("compare", help="many methods on one benchmark, in the same setting, over all cores")
    compare.add_argument("benchmark", help="name of the benchmark (see hvcl list)")
    compare.add_argument("--methods", default="all", help="names of methods, e.g. naive,ewc,hvcl (all)")
    compare.add_argument("--scenario", default="domain", help="domain, class or task (domain)")
    compare.add_argument("--task-free", action="store_true", help="no boundaries told in training")
    compare.add_argument("--seeds", default="1,2,3", help="seeds, e.g. 1,2,3")
    compare.add_argument(
        "--budget", default="standard", help="quick, standard or paper: how long networks are trained (standard)"
    )
    compare.add_argument(
        "--out", type=Path, help="folder of the runs (runs/compare-BENCHMARK-SCENARIO-BUDGET); goes on where it stopped"
    )
    compare.add_argument("--results", type=Path, help="also write each method's result as JSON into this folder")
    compare.add_argument("--workers", type=int, help="processes (one per core)")
    table = commands.add_parser("table", help="Markdown or HTML tables from a folder of results")
    table.add_argument("folder", nargs="?", type=Path, default=Path("results"), help="folder of results (results)")
    table.add_argument("--overview", action="store_true", help="one table: a row a method, a column a benchmark and scenario")
    table.add_argument("--task-free", action="store_true", help="overview: figures without boundaries in training")
    table.add_argument("--budget", default="standard", help="overview: which budget (standard)")
    table.add_argument("--html", type=Path, metavar="FILE", help="write an HTML page instead of printing Markdown")
    check = commands.add_parser("check", help="run a random sample of results again and compare")
    check.add_argument("folder", nargs="?", type=Path, default=Path("results"), help="folder of results (results)")
    check.add_argument("--sample", type=int, default=3, help="how many seeds of how many cells (3)")
    check.add_argument("--seed", type=int, default=0, help="of the choice (0)")
    check.add_argument("--seconds", type=float, default=300.0, help="pass over what took longer than this (300)")
    check.add_argument("--tolerance", type=float, default=0.5, help="points of accuracy that may lie between two machines (0.5)")


def _compare(known: argparse.Namespace) -> int:
    from hvcl.learners import known_methods
    from hvcl.results import BUDGETS, cell_of, save_cell
    from hvcl.runs import RunConfig
    from hvcl.streams import benchmark

    chosen = benchmark(known.benchmark)
    if known.budget not in BUDGETS:
        raise InputError(f"--budget must be one of {', '.join(BUDGETS)}, got {known.budget!r}")
    names = sorted(known_methods()) if known.methods == "all" else [name.strip() for name in known.methods.split(",")]
    stream: dict[str, Any] = {"scenario": known.scenario, "task_free": known.task_free}
    supervision = "-task-free" if known.task_free else ""
    out = known.out or Path("runs") / f"compare-{known.benchmark}-{known.scenario}{supervision}-{known.budget}"
    runs = []
    for name in names:
        epochs = 1 if _one_pass(name) else chosen.epochs[known.budget]
        config = RunConfig.make(known.benchmark, name, parse_seeds(known.seeds), stream | {"epochs": epochs})
        runs.append((config, out / name))

    def keep(folder: Path, found: list[dict[str, Any]]) -> None:
        if known.results:
            budget = None if _one_pass(folder.name) else known.budget
            print(f"written: {save_cell(cell_of(folder, found, budget), known.results)}", flush=True)

    _execute(runs, Console(stderr=True), known.workers, resume=True, force=False, finished=keep)
    _print_table([folder for _, folder in runs])
    print(f"run folders: {out}   report: hvcl report {out}")
    return 0


def _one_pass(name: str) -> bool:
    from hvcl.learners import method

    return method(name).one_pass


def _table(known: argparse.Namespace) -> int:
    from hvcl.results import BUDGETS, html_table, load_cells, markdown_table, overview
    from hvcl.runs.state import write_atomically

    cells = load_cells(known.folder)
    if not cells:
        raise InputError(f"no results in {known.folder}: make some with hvcl compare ... --results {known.folder}")
    if known.budget not in BUDGETS:
        raise InputError(f"--budget must be one of {', '.join(BUDGETS)}, got {known.budget!r}")
    if known.overview:
        print(overview(cells, "task-free" if known.task_free else "boundaries", known.budget))
    elif known.html:
        write_atomically(known.html, html_table(cells).encode())
        print(f"table: {known.html}")
    else:
        print(markdown_table(cells))
    return 0


def _check(known: argparse.Namespace) -> int:
    from hvcl.results import check, load_cells

    if known.sample < 1:
        raise InputError(f"--sample must be at least 1, got {known.sample}")
    failed = False
    for found in check(load_cells(known.folder), known.sample, known.seed, known.seconds):
        close = 100 * found.difference <= known.tolerance
        failed |= not close
        verdict = "the same" if not found.difference else "close" if close else "DIFFERENT"
        print(
            f"{found.name} seed {found.seed}: {100 * found.committed:.2f} %, again {100 * found.found:.2f} %: {verdict}",
            flush=True,
        )
    return int(failed)


# -- the other commands ---------------------------------------------------------------------------------------------------


def _demo(known: argparse.Namespace) -> int:
    from hvcl.report import write_report
    from hvcl.runs import RunConfig

    seeds = parse_seeds(known.seeds)
    print(
        "Five tasks in a row: 0 or 1? 2 or 3? ... 8 or 9? One network answers 'first or second of the pair' for all of them\n"
        "(Domain-IL: nobody says which pair it faces). naive forgets, joint may see all data again, hvcl has only its priors,\n"
        "exact has only sums over the examples, each seen once.\n"
    )
    runs = [
        (RunConfig.make("split-digits", name, seeds, {"scenario": "domain"}), known.out / name)
        for name in ("joint", "exact", "hvcl", "naive")
    ]
    folders = [folder for _, folder in reversed(runs)]
    unfinished = any((folder / "config.json").exists() and not _finished(folder, seeds) for folder in folders)
    _execute(runs, Console(stderr=True), None, resume=True, force=not unfinished)
    print()
    _print_table(folders)
    page = write_report(folders, known.out / "report.html", title="hvcl demo: five tasks in a row")
    print(f"report: {page}")
    return 0


def _finished(folder: Path, seeds: Sequence[int]) -> bool:
    return all((folder / f"seed-{seed}" / "result.json").exists() for seed in seeds)


def _list(known: argparse.Namespace) -> int:
    from hvcl.learners import known_methods
    from hvcl.streams import BENCHMARKS

    benchmarks = {name: benchmark.description for name, benchmark in BENCHMARKS.items()}
    methods = {name: method.description for name, method in sorted(known_methods().items())}
    if known.json:
        print(json.dumps({"benchmarks": benchmarks, "methods": methods}))
        return 0
    for title, entries in (("benchmarks", benchmarks), ("methods", methods)):
        print(f"{title}:")
        for name, description in entries.items():
            print(f"  {name:<16} {description}")
    return 0


def _report(known: argparse.Namespace) -> int:
    from hvcl.report import write_report

    output = known.output or known.folders[0] / "report.html"
    print(f"report: {write_report(known.folders, output, title=known.title)}")
    return 0


def _data(known: argparse.Namespace) -> int:
    from hvcl.streams import files
    from hvcl.streams.datasets import known_datasets

    if known.action == "get":
        if not known.names:
            raise InputError(f"which data set? hvcl data get NAME, known are {', '.join(known_datasets())}")
        for name in known.names:
            files.fetch(name, force=known.force)
            print(f"{name}: in {files.data_folder()}")
        return 0
    if known.action == "verify":
        names = known.names or [n for n in known_datasets() if all(f.state != "missing" for f in files.status(n))]
        for name in names:
            files.verify(name)
            print(f"{name}: ok")
        return 0
    print(f"data folder: {files.data_folder()}")
    for name in known.names or known_datasets():
        states = files.status(name)
        bad = [f"{status.path.name} {status.state}" for status in states if status.state != "ok"]
        missing = bad and all(status.state == "missing" for status in states)
        print(f"  {name:<10} {'missing' if missing else ', '.join(bad) if bad else 'ok' if states else 'ok (embedded)'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
