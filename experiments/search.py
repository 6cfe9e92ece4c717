"""The search for settings: runs the trials of a topic, records every one, and passes over those that are recorded.

    .venv/bin/python -m experiments.search methods                                   # the whole space; goes on where it stopped
    .venv/bin/python -m experiments.search methods --benchmark split-mnist --method ewc
    .venv/bin/python -m experiments.search generative --benchmark split-mnist --method hvcl-replay labels=hard epochs=10
    .venv/bin/python -m experiments.search rl --method ewc strength=1000             # one trial with these settings
    .venv/bin/python -m experiments.search methods --best                            # the best recorded settings

A topic is a folder here with a `configuration.py`, which declares the space of settings, the protocol and the score, and a
`trials.jsonl`, where every trial is a line. A topic without a declared space takes one trial a call: settings of the stream and
of the method as name=value, everything else as the benchmark has it. All trials are scored on held-out training data (robots: on
a seed that is not reported); test sets choose nothing.
"""

import argparse
import importlib
import json
import multiprocessing
import os
from pathlib import Path

from experiments.records import append_record
from experiments.topic import Topic, Trial
from hvcl.core.configuration import parse
from hvcl.core.errors import HvclError, InputError

HERE = Path(__file__).resolve().parent
TOPICS = tuple(sorted(path.parent.name for path in HERE.glob("*/configuration.py")))


def load_topic(name: str) -> Topic:
    """The topic called `name`."""
    return importlib.import_module(f"experiments.{name}.configuration").TOPIC


def attempt(topic: Topic, trial: Trial) -> dict:
    """The record of a trial that was run. One that diverges has score 0."""
    import torch

    torch.set_num_threads(1)
    record = topic.protocol.identity(trial) | ({"asked": list(trial.asked)} if trial.asked else {})
    try:
        return record | topic.protocol.run(trial)
    except HvclError as error:
        return record | {topic.score: 0.0, "failed": str(error)}


def _attempt(job: tuple[str, Trial]) -> dict:
    return attempt(load_topic(job[0]), job[1])


def parse_trial(topic: Topic, benchmark: str, method: str, pairs: list[str]) -> Trial:
    """The trial that `pairs` of a name and a value ask for."""
    of_stream, of_method = topic.protocol.types(method)
    stream, settings = {}, {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in of_stream:
            stream[name] = parse(name, value, of_stream[name])
        elif name in of_method:
            settings[name] = parse(name, value, of_method[name])
        else:
            raise InputError(f"{method} on {benchmark} has no setting {name!r}")
    return Trial(benchmark, method, settings, stream, tuple(pairs))


def run_trials(name: str, trials: list[Trial], output: Path, workers: int) -> None:
    """Run and record those of the trials that are not recorded yet, in `workers` processes."""
    topic = load_topic(name)
    recorded = topic.records(output)
    todo = [trial for trial in trials if not any(topic.protocol.identity(trial).items() <= r.items() for r in recorded)]
    print(f"{name}: {len(trials) - len(todo)} of {len(trials)} trials are recorded already", flush=True)
    if workers > 1 and len(todo) > 1:
        with multiprocessing.get_context("spawn").Pool(min(workers, len(todo))) as pool:
            for record in pool.imap_unordered(_attempt, [(name, trial) for trial in todo]):
                keep(topic, record, output)
    else:
        for trial in todo:
            keep(topic, attempt(topic, trial), output)


def keep(topic: Topic, record: dict, output: Path) -> None:
    """Record a trial and print its score."""
    append_record(output, record)
    tried = record.get("asked") or record.get("settings", "as the benchmark has it")
    print(f"{record['benchmark']} {record['method']} {topic.score} {record[topic.score]:.4f} {tried}", flush=True)


def run_finals(name: str, output: Path, workers: int, benchmark: str | None, method: str | None) -> None:
    """Run the best trials of the topic's finals again."""
    topic = load_topic(name)
    for final in topic.finals:
        if benchmark not in (None, final.benchmark) or method not in (None, final.method):
            continue
        same = [r for r in topic.records(output) if (r["benchmark"], r["method"]) == (final.benchmark, final.method)]
        first = sorted((r for r in same if not final.stream.keys() & r.keys()), key=lambda r: r[topic.score], reverse=True)
        trials = [Trial(final.benchmark, final.method, r["settings"], final.stream) for r in first[: final.count]]
        run_trials(name, trials, output, workers)


def print_best(topic: Topic, output: Path) -> None:
    """Print the best recorded trial of every benchmark and method."""
    for (benchmark, method), record in topic.best(topic.records(output)).items():
        settings = json.dumps(record["settings"] if "settings" in record else record["learner"])
        print(f"{benchmark} {method} {topic.score} {record[topic.score]:.4f} {settings}")


def search(options: argparse.Namespace) -> None:
    """What the command line asks for."""
    topic = load_topic(options.topic)
    output = options.output or topic.output
    if options.best:
        print_best(topic, output)
        return
    benchmark, method = options.benchmark, options.method
    for name, known in ((benchmark, topic.benchmarks), (method, topic.methods)):
        if name is not None and name not in known:
            raise InputError(f"{options.topic} does not search {name!r}: known are {', '.join(known)}")
    if topic.space is None or options.settings:
        if benchmark is None and len(topic.benchmarks) == 1:
            benchmark = topic.benchmarks[0]
        if benchmark is None or method is None:
            raise InputError("one trial needs --benchmark and --method")
        run_trials(options.topic, [parse_trial(topic, benchmark, method, options.settings)], output, 1)
        return
    run_trials(options.topic, topic.trials(benchmark, method), output, options.workers)
    run_finals(options.topic, output, options.workers, benchmark, method)
    print_best(topic, output)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topic", choices=TOPICS)
    parser.add_argument("settings", nargs="*", metavar="name=value", help="of the one trial to run")
    parser.add_argument("--benchmark", help="only trials on this benchmark")
    parser.add_argument("--method", help="only trials of this method")
    parser.add_argument("--best", action="store_true", help="print the best recorded trials and run none")
    parser.add_argument("--output", type=Path, help="file of recorded trials (the topic's)")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (one for each core)")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        search(parser.parse_intermixed_args())
    except HvclError as error:
        raise SystemExit(f"search: {error}") from None


if __name__ == "__main__":
    main()
