"""The committed figures of the exact learner: every scenario and supervision of a benchmark in one pass over its features.

    .venv/bin/python -m experiments.exact.figures split-mnist split-cifar10 --seeds 1 2 3

The same numbers as those of `hvcl run BENCHMARK --method exact --scenario ... [--task-free] --seeds ...`, for less work: with
boundaries, all scenarios learn the same sums and only predict differently from them; and all runs of a seed see the same
examples in the same order, so that each example's features are computed once. Writes
results/BENCHMARK/SCENARIO[-task-free]-exact.json after each seed, and passes over seeds that are there. Seconds are those of
learning and of the last evaluation, as if each run had computed its features itself.
"""

import argparse
import copy
import hashlib
import time
from contextlib import contextmanager
from pathlib import Path

import torch

from hvcl.core.files import read_json
from hvcl.evaluation import AccuracyMatrix, evaluate
from hvcl.learners import Exact
from hvcl.results import keys, make_cell, save_cell
from hvcl.runs.environment import environment
from hvcl.runs.supervised import RunConfig
from hvcl.streams.events import Batch

RESULTS = Path(__file__).resolve().parents[2] / "results"
SETTINGS = (("class", False), ("domain", False), ("task", False), ("domain", True), ("class", True))


class Remembering:
    """A feature map that remembers the features of the last training batch and of all test batches, and the time they took."""

    def __init__(self, features):
        self.map, self.known, self.last, self.testing = features, {}, None, False
        self.charged = self.spent = self.of_learning = 0.0

    def __getattr__(self, name):
        return getattr(self.map, name)

    def __call__(self, x):
        key = hashlib.sha256(x.numpy().tobytes()).digest()
        if key in self.known:
            phi, seconds = self.known[key]
        elif self.last and self.last[0] == key:
            _, phi, seconds = self.last
        else:
            begin = time.perf_counter()
            phi = self.map(x)
            seconds = time.perf_counter() - begin
            self.spent += seconds
            self.of_learning += 0.0 if self.testing else seconds
            if self.testing:
                self.known[key] = (phi, seconds)
            else:
                self.last = (key, phi, seconds)
        self.charged += seconds
        return phi


class Run:
    """One scenario and supervision."""

    def __init__(self, benchmark, scenario, task_free, seed):
        self.config = RunConfig.make(benchmark, "exact", (seed,), {"scenario": scenario, "task_free": task_free})
        self.stream = self.config.make_stream(seed)
        self.learner: Exact = self.config.make_learner(self.stream, seed)
        self.follows = False
        self.seconds = 0.0
        self.matrix = None


def one_seed(benchmark, seed):
    settings = [s for s in SETTINGS if benchmark != "permuted-mnist" or s[0] == "domain"]
    runs = {setting: Run(benchmark, *setting, seed) for setting in settings}
    if benchmark == "permuted-mnist":
        separately(seed, runs["domain", True], runs["domain", False])
    else:
        together(benchmark, seed, runs)
    return runs


def separately(seed, run, with_boundaries):
    """Separate experts, task-free. As long as the gate finds the tasks, a run with boundaries does exactly the same."""
    for event in run.stream:
        begin = time.perf_counter()
        if isinstance(event, Batch):
            run.learner.observe(event.x, event.y)
            run.seconds += time.perf_counter() - begin
            if not bool((run.learner.last_experts == event.segment).all()):
                raise SystemExit("the gate's experts are not the tasks: use `hvcl run` for the run with boundaries")
        else:
            score(run, event.task)
            last = time.perf_counter() - begin
            print(f"  permuted-mnist seed {seed} after task {event.task + 1}: {100 * mean(run, event.task):.2f}", flush=True)
    run.seconds += last
    for name in ("matrix", "evaluation", "ridges", "seconds"):
        setattr(with_boundaries, name, getattr(run, name))
    with_boundaries.learner.experts, with_boundaries.learner.expert_log = run.learner.experts, run.learner.expert_log


def together(benchmark, seed, runs):
    first, *others = runs.values()
    features = share(first, others)
    for events in zip(*[run.stream for run in runs.values()], strict=True):
        for run, event in zip(runs.values(), events, strict=True):
            if isinstance(event, Batch):
                run.seconds += timed(lambda r=run, e=event: learn(r, e), features)
            elif event.announced:
                run.learner.end_task()
        if not isinstance(events[0], Batch):
            features.testing = True
            task = events[0].task
            for run in runs.values():
                with moments_of(first, run):
                    run.last = timed(lambda r=run, t=task: score(r, t), features)
            features.testing = False
            shown = {f"{s}{'-free' if free else ''}": round(100 * mean(r, task), 2) for (s, free), r in runs.items()}
            print(f"  {benchmark} seed {seed} after task {task + 1}: {shown}", flush=True)
    for run in others:  # what the first run did for them, they would have done themselves
        own = 0.0 if run.learner.experts_given else run.seconds - features.of_learning
        run.seconds = first.seconds + own + max(run.last, first.last)
    first.seconds += first.last


def share(first, others):
    """The first run makes the feature map from its first batch, as it always does; the others take it over.

    Those with boundaries take its sums over as well. A task-free one has columns of its own, but the same second moments.
    """
    batch = next(iter(first.stream))
    assert len(batch.x) >= first.learner.config.warmup, "the first batch must hold the whole warm-up"
    first.learner._make_experts(batch.x)
    features = first.learner.experts.features = Remembering(first.learner.experts.features)
    for run in others:
        if run.learner.experts_given:
            run.follows = True
            run.learner.experts = copy.copy(first.learner.experts)
            run.learner.experts.columns = {}
        else:
            run.learner.custom_features = features
            run.learner._make_experts(None)
            run.learner.experts.head.model.panels = []
    return features


@contextmanager
def moments_of(first, run):
    """Lend a task-free run the first one's second moments; and its posterior, if the gate found exactly the tasks."""
    if run.learner.experts_given:
        yield
        return
    mine, theirs = run.learner.experts.head.model, first.learner.experts.head.model
    mine.panels, mine.feature_peak = theirs.panels, theirs.feature_peak
    if torch.equal(mine.cross, theirs.cross):
        mine._posterior = theirs._posterior
    yield
    mine.panels = []


def timed(work, features):
    """The time that work takes, with all features charged as if they had been computed for it alone."""
    features.charged = features.spent = 0.0
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin - features.spent + features.charged


def learn(run, event):
    if run.follows:
        task = event.task if event.task is not None else torch.full_like(event.y, run.learner.task)
        run.learner.experts.columns_of(task, event.y)
        run.learner.expert_log.record(run.learner.step, task, event.y)
        run.learner.step += 1
    else:
        run.learner.observe(event.x, event.y, event.task)


def score(run, task):
    evaluation = evaluate(run.learner, run.stream.tests, seen=task + 1)
    run.matrix = run.matrix or AccuracyMatrix([1 / run.stream.problem.outputs] * len(run.stream.tests))
    run.matrix.add(evaluation.accuracies)
    run.evaluation = evaluation
    run.ridges = [head.model.posterior().ridge for head in run.learner.experts.heads]


def mean(run, task):
    return sum(run.matrix.rows[-1][: task + 1]) / (task + 1)


def result(run, seed):
    scores, matrix = run.evaluation.scores, run.matrix
    return {
        keys.SEED: seed,
        "accuracy_matrix": matrix.rows,
        keys.AVERAGE_ACCURACY: matrix.average_accuracy,
        "learning_accuracy": matrix.learning_accuracy,
        keys.FORGETTING: matrix.forgetting,
        "backward_transfer": matrix.backward_transfer,
        "nll": sum(s.nll for s in scores) / len(scores),
        "calibration_error": sum(s.calibration_error for s in scores) / len(scores),
        "experts_opened": len(run.learner.expert_log.records),
        "opened_after": [r.opened_after for r in run.learner.expert_log.records],
        "ridges": run.ridges,
        "features": run.learner.experts.heads[0].model.features,
        "parameters": run.learner.num_parameters,
        keys.SECONDS: run.seconds,
    }


def path_of(benchmark, scenario, task_free):
    """The file of a setting's figures."""
    return RESULTS / benchmark / f"{scenario}{'-task-free' if task_free else ''}-exact.json"


def save(benchmark, setting, run, seed):
    """Add the seed's result to the file of its setting."""
    path = path_of(benchmark, *setting)
    results = read_json(path)[keys.RESULTS] if path.exists() else []
    results = sorted([*results, result(run, seed)], key=lambda found: found[keys.SEED])
    config = run.config.to_json() | {"memory": run.learner.memory, "task_names": [task.name for task in run.stream.tasks]}
    written = save_cell(make_cell(config, results, environment(seed)), RESULTS)
    assert written == path, (written, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmarks", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for benchmark in options.benchmarks:
        for seed in options.seeds:
            path = path_of(benchmark, "domain", True)
            if path.exists() and seed in [found[keys.SEED] for found in read_json(path)[keys.RESULTS]]:
                continue
            for setting, run in one_seed(benchmark, seed).items():
                save(benchmark, setting, run, seed)


if __name__ == "__main__":
    main()
