"""The looks behind the settings of the learners that replay what they generate: held-out training data, seed 0, Domain-IL.

    .venv/bin/python experiments/generative_search.py split-mnist hvcl-replay                # as the benchmark has it
    .venv/bin/python experiments/generative_search.py split-mnist hvcl-replay labels=hard epochs=10

One run a call: settings of the stream and of the learner as name=value. The score is the average accuracy over tasks after the
last one, on a tenth of the training data that was held out; test sets choose nothing. Every look goes to generative_search.jsonl
with all of its settings (whatever the defaults were on the day) and a look that is there already is not taken again. `best` is
what the benchmark's defaults are checked against.
"""

import argparse
import json
import time
from pathlib import Path

OUTPUT = Path(__file__).with_suffix(".jsonl")
METHODS = ("dgr", "dgr-distill", "rtf", "hvcl-replay")


def done(path=OUTPUT):
    """All looks so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


MARGIN = 0.001
"""Half of a look's standard error: what is better by less is not better."""


def best(records):
    """The look with the highest score of each benchmark and method, the first of those that are as good as equal."""
    found = {}
    for record in records:
        key = record["benchmark"], record["method"]
        if key not in found or record["accuracy"] > found[key]["accuracy"] + MARGIN:
            found[key] = record
    return found


def described(config):
    """All settings of a look, as they read back from JSON; where it computes is none of them."""
    document = json.loads(json.dumps(config.to_json()))
    learner = {name: value for name, value in document["learner"].items() if name != "device"}
    return {"benchmark": config.benchmark, "method": config.method, "stream": document["stream"], "learner": learner}


def configuration(benchmark, method, pairs):
    """The run that `pairs` of a name and a value ask for."""
    from hvcl.core.configuration import field_types, parse
    from hvcl.learners import method as registered
    from hvcl.runs import RunConfig
    from hvcl.streams import StreamConfig

    of_stream, of_learner = field_types(StreamConfig), field_types(registered(method).config)
    stream, learner = {"validation": 0.1}, {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name in of_stream:
            stream[name] = parse(name, value, of_stream[name])
        elif name in of_learner:
            learner[name] = parse(name, value, of_learner[name])
        else:
            raise SystemExit(f"{method} on {benchmark} has no setting {name!r}")
    return RunConfig.make(benchmark, method, (0,), stream, learner)


def look(config):
    """One run: accuracies on held-out training data after every task, and how good the generator is after the last."""
    import torch

    from hvcl.evaluation import evaluate
    from hvcl.streams.events import TaskEnd

    torch.set_num_threads(1)
    stream = config.make_stream(0)
    learner = config.make_learner(stream, 0)
    rows, elbo, begun = [], 0.0, time.process_time()
    for event in stream.events():
        if isinstance(event, TaskEnd):
            learner.end_task()
            found = evaluate(learner, stream.tests, seen=event.task + 1)
            rows.append(found.accuracies)
            seen = found.accuracies[: event.task + 1]
            average = 100 * sum(seen) / len(seen)
            numbers = " ".join(f"{100 * value:.1f}" for value in seen)
            score = "" if found.generation is None else f"{found.generation.inception_score:.3f} bits"
            print(f"  {average:.2f} ({numbers}) {score} ELBO {elbo:.1f} {time.process_time() - begun:.0f} s", flush=True)
        else:
            elbo += 0.02 * (learner.observe(event.x, event.y, event.task).get("elbo", elbo) - elbo)
    generation = {} if found.generation is None else found.generation.to_json()
    return {
        "accuracy": sum(rows[-1]) / len(rows[-1]),
        "accuracies": rows,
        "generation": generation,
        "elbo": elbo,
        "seconds": time.process_time() - begun,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("method", choices=(*METHODS, "hvcl"))
    parser.add_argument("settings", nargs="*", metavar="name=value")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    config = configuration(options.benchmark, options.method, options.settings)
    wanted = described(config)
    print(options.benchmark, options.method, *options.settings, flush=True)
    if any({name: record[name] for name in wanted} == wanted for record in done(options.output)):
        print("  looked at already")
        return
    record = wanted | {"asked": options.settings} | look(config)
    with options.output.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(f"  {options.benchmark} {options.method} {100 * record['accuracy']:.2f} {record['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
