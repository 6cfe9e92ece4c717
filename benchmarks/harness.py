"""What hvcl's machinery costs over a hand-written PyTorch loop, and Avalanche's over hvcl's.

Split MNIST, Domain-IL, plain network 784-256-256-2, Adam, batch 256, naive training: the same data, the same network, the
same batches; one thread; CPU time; in turns. `make bench-harness` runs all of it and writes docs/speed/harness.json.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.metadata
import itertools
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from measure import PAGE, Contest, environment, interleave, one_thread, quartiles, summary, verdict, write_json
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import DataError
from hvcl.learners import Learner, create
from hvcl.networks import build_network
from hvcl.runs import RunConfig, RunFolder, run
from hvcl.runs.seed import run_seed
from hvcl.streams import Stream, load, make_stream
from hvcl.streams.datasets import Dataset
from hvcl.streams.events import Batch, TaskEnd
from hvcl.streams.files import data_folder

SEED = 1
BATCH = 256
LEARNING_RATE = 6e-4
TASKS = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]
OVERHEAD_GOAL = 1.10
AVALANCHE_GOAL = 5.0


# -- data -----------------------------------------------------------------------------------------------------------------


def read_data() -> tuple[Dataset, bool]:
    """MNIST, or random images of its shape; and whether it is MNIST."""
    try:
        return load("mnist", download=False), True
    except DataError as error:
        print(f"no MNIST ({error}): random images of the same shape instead; set HVCL_DATA", file=sys.stderr)
    random = torch.Generator().manual_seed(0)

    def images(count: int) -> Tensor:
        return torch.randint(0, 256, (count, 1, 28, 28), generator=random, dtype=torch.uint8)

    train_y, test_y = torch.arange(60_000) % 10, torch.arange(10_000) % 10
    return Dataset("mnist", images(60_000), train_y, images(10_000), test_y, 255.0), False


def in_memory(data: Dataset) -> Any:
    """Within this context, the benchmarks find `data` instead of reading files."""
    return mock.patch("hvcl.streams.benchmarks.load", return_value=data)


# -- the hand-written loop --------------------------------------------------------------------------------------------------

Arrays = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training images and labels, test images and labels."""


def read_arrays() -> Arrays:
    """The official files, as one would read them by hand."""
    folder = data_folder() / "mnist"

    def read(name: str, header: int) -> Tensor:
        return torch.from_numpy(np.frombuffer(bytearray(gzip.decompress((folder / name).read_bytes())[header:]), np.uint8))

    train, test = read("train-images-idx3-ubyte.gz", 16), read("t10k-images-idx3-ubyte.gz", 16)
    labels = [read(f"{part}-labels-idx1-ubyte.gz", 8).long() for part in ("train", "t10k")]
    return train.view(-1, 1, 28, 28), labels[0], test.view(-1, 1, 28, 28), labels[1]


def by_hand(weights: dict[str, Tensor], arrays: Arrays | None, epochs: int, evaluations: bool = True) -> list[list[float]]:
    """Everything that a run does, with nothing around it; returns the accuracies on all tasks, before training and after each.

    A batch becomes floating point when it is used: on a processor this is faster than gathering rows of floating-point images.
    """
    train_x, train_y, test_x, test_y = read_arrays() if arrays is None else arrays
    network = build_network((1, 28, 28), 2)
    network.load_state_dict(weights)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=True)
    tests = []
    for first, second in TASKS if evaluations else []:
        rows = ((test_y == first) | (test_y == second)).nonzero().flatten()
        tests.append((test_x[rows], (test_y[rows] == second).long()))

    def accuracies() -> list[float]:
        found = []
        network.eval()
        with torch.no_grad():
            for x, y in tests:
                pieces = zip(x.split(1000), y.split(1000), strict=True)
                found.append(sum(int((network(a / 255.0).argmax(1) == b).sum()) for a, b in pieces) / len(y))
        network.train()
        return found

    matrix = [accuracies()]
    for number, (first, second) in enumerate(TASKS):
        rows = ((train_y == first) | (train_y == second)).nonzero().flatten()
        y = (train_y[rows] == second).long()
        for epoch in range(epochs):
            order = torch.from_numpy(np.random.default_rng([SEED, 0, number, epoch]).permutation(len(rows)))
            for batch in order.split(BATCH):
                loss = F.cross_entropy(network(train_x[rows[batch]] / 255.0), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        matrix.append(accuracies())
    return matrix


# -- hvcl -------------------------------------------------------------------------------------------------------------------


def new_learner(stream: Stream) -> Learner:
    return create("naive", stream.problem, seed=SEED, learning_rate=LEARNING_RATE)


def by_run(stream: Stream) -> list[list[float]]:
    """`hvcl.runs.run`: the loop without a record."""
    matrix = run(stream, new_learner(stream))
    return [matrix.initial, *matrix.rows]


def by_execute(config: RunConfig, data: Dataset | None) -> list[list[float]]:
    """What `hvcl run` does in its process: read the data, run, log, checkpoint, summarise. With `data`, reading is left out."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        if data is None:
            folder.prepare(config, {}, resume=False, force=False)
            result = run_seed(folder, SEED)
        else:
            with in_memory(data):
                folder.prepare(config, {}, resume=False, force=False)
                result = run_seed(folder, SEED)
    return [result["initial_accuracy"], *result["accuracy_matrix"]]


def train_only(stream: Stream) -> None:
    """hvcl's stream and learner without evaluations, to compare with Avalanche."""
    learner = new_learner(stream)
    for event in stream.events():
        match event:
            case Batch(x, y, task):
                learner.observe(x, y, task)
            case TaskEnd():
                learner.end_task()


# -- Avalanche --------------------------------------------------------------------------------------------------------------


def import_avalanche() -> Any:
    """Avalanche, with torchvision's compiled operators declared first: they do not load where torch was built without CUDA.

    None of them is called here; torchvision only insists that they exist when it is imported. In the same way Avalanche imports
    wandb for a logger that is not used here: an empty module takes its place, and some twenty packages stay away.
    """
    sys.modules.setdefault("wandb", ModuleType("wandb"))
    warnings.filterwarnings("ignore")
    for name in ("nms", "qnms"):
        try:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:  # torchvision's own library has loaded
            break
    import avalanche
    import avalanche.benchmarks
    import avalanche.training.supervised

    return avalanche


def write_idx(folder: Path, data: Dataset) -> None:
    """The raw files that torchvision's MNIST reads."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, x, y in (("train", data.train_x, data.train_y), ("t10k", data.test_x, data.test_y)):
        images = struct.pack(">iiii", 0x803, len(x), 28, 28) + x.numpy().tobytes()
        labels = struct.pack(">ii", 0x801, len(y)) + y.to(torch.uint8).numpy().tobytes()
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)


def avalanche_from_tensors(avalanche: Any, arrays: Arrays) -> Any:
    """The fastest of the ways tried here to give Avalanche the data: floating-point tensors, made before."""
    train_x, train_y, _, _ = arrays
    tensors = []
    for first, second in TASKS:
        rows = ((train_y == first) | (train_y == second)).nonzero().flatten()
        tensors.append((train_x[rows] / 255.0, (train_y[rows] == second).long()))
    tests = [(x[:1], y[:1]) for x, y in tensors]
    options = {"train_tensors": tensors, "test_tensors": tests, "task_labels": [0] * len(TASKS)}
    return avalanche.benchmarks.tensors_benchmark(**options).train_stream


def avalanche_split_mnist(avalanche: Any, folder: Path, **transforms: Any) -> Any:
    """Avalanche's own SplitMNIST, which makes a tensor of an image every time it is asked for it."""
    benchmark = avalanche.benchmarks.SplitMNIST(
        n_experiences=5,
        fixed_class_order=list(itertools.chain(*TASKS)),
        class_ids_from_zero_in_each_exp=True,
        dataset_root=folder,
        **transforms,
    )
    return benchmark.train_stream


def by_avalanche(avalanche: Any, weights: dict[str, Tensor], experiences: Any, epochs: int) -> nn.Module:
    """`Naive` without evaluation and without loggers."""
    network = build_network((1, 28, 28), 2)
    network.load_state_dict(weights)
    strategy = avalanche.training.supervised.Naive(
        model=network,
        optimizer=torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=True),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        train_epochs=epochs,
        evaluator=None,
    )
    for experience in experiences:
        strategy.train(experience, num_workers=0)
    return network


# -- measuring --------------------------------------------------------------------------------------------------------------


def same(results: dict[str, list[list[float]]]) -> bool:
    """All of them trained the same network to the same accuracies."""
    first, *others = results.values()
    return all(np.allclose(first, other, rtol=0, atol=1e-12) for other in others)


def row_of(contest: Contest, goal: float | None, epochs: int, at_least: bool = False, **facts: Any) -> dict[str, Any]:
    row = {"name": contest.name} | facts | summary(contest.ratios) | summary(contest.wall_ratios, "wall_ratio")
    row |= {
        "rounds": len(contest.ratios),
        "epochs": epochs,
        "seconds_per_epoch": round(quartiles(contest.seconds)[1] / epochs, 4),
    }
    row["reference_seconds_per_epoch"] = round(quartiles(contest.reference_seconds)[1] / epochs, 4)
    if goal is not None:
        row |= {"goal": goal, "at_least": at_least, "met": row["ratio"] >= goal if at_least else row["ratio"] <= goal}
    return row


def measure_overhead(data: Dataset, is_mnist: bool, rounds: int, epochs: int) -> tuple[list[dict[str, Any]], bool]:
    """hvcl over the hand-written loop."""
    arrays = (data.train_x, data.train_y, data.test_x, data.test_y)
    settings = {"scenario": "domain", "epochs": epochs, "batch_size": BATCH}
    config = RunConfig.make("split-mnist", "naive", (SEED,), settings, {"learning_rate": LEARNING_RATE})
    with in_memory(data):
        stream = make_stream("split-mnist", seed=SEED, **settings)
    learner: Any = new_learner(stream)
    weights = {name: value.clone() for name, value in learner.network.state_dict().items()}
    entries: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        ("run", partial(by_run, stream), partial(by_hand, weights, arrays, epochs)),
        ("execute, data in memory", partial(by_execute, config, data), partial(by_hand, weights, arrays, epochs)),
    ]
    if is_mnist:
        read = partial(by_hand, weights, None, epochs)
        entries.append(("execute, data read from files", partial(by_execute, config, None), read))
    results = {"by hand": by_hand(weights, arrays, epochs)} | {name: call() for name, call, _ in entries}
    agree = same(results)
    if not agree:
        print("the accuracies differ: the loops do not do the same", file=sys.stderr)
    contests = [Contest(name, call, reference, warm=False) for name, call, reference in entries]
    interleave(contests, rounds)
    return [row_of(contest, OVERHEAD_GOAL, epochs, over="a hand-written loop") for contest in contests], agree


def measure_avalanche(data: Dataset, rounds: int, epochs: int) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Avalanche over hvcl, training only; and the accuracy that each reached, as a check that they learn the same thing."""
    avalanche = import_avalanche()
    arrays = (data.train_x, data.train_y, data.test_x, data.test_y)
    with in_memory(data):
        stream = make_stream("split-mnist", seed=SEED, scenario="domain", epochs=epochs, batch_size=BATCH)
    learner: Any = new_learner(stream)
    weights = {name: value.clone() for name, value in learner.network.state_dict().items()}
    with tempfile.TemporaryDirectory() as place:
        write_idx(Path(place), data)
        streams = {
            "Avalanche Naive, tensors made before": avalanche_from_tensors(avalanche, arrays),
            "Avalanche Naive, its SplitMNIST, no transform": avalanche_split_mnist(
                avalanche, Path(place), train_transform=None, eval_transform=None
            ),
            "Avalanche Naive, its SplitMNIST as it comes": avalanche_split_mnist(avalanche, Path(place)),
        }
        train = {name: partial(by_avalanche, avalanche, weights, streams[name], epochs) for name in streams}
        accuracies = {"by hand": sum(by_hand(weights, arrays, epochs)[-1]) / 5}
        for name, call in train.items():
            accuracies[name] = domain_accuracy(call(), data, normalise="as it comes" in name)
        contests = [Contest(name, call, partial(train_only, stream), warm=False) for name, call in train.items()]
        hand = partial(by_hand, weights, arrays, epochs, evaluations=False)
        contests.append(Contest("hand-written loop", hand, partial(train_only, stream), warm=False))
        interleave(contests, rounds)
    rows = [row_of(contest, AVALANCHE_GOAL if contest.name in train else None, epochs, True, over="hvcl") for contest in contests]
    return rows, {name: round(value, 4) for name, value in accuracies.items()}


@torch.no_grad()
def domain_accuracy(network: nn.Module, data: Dataset, normalise: bool) -> float:
    """Mean over tasks; `normalise` as Avalanche does by default."""
    network.eval()
    x = data.test_x / data.scale
    right = network((x - 0.1307) / 0.3081 if normalise else x).argmax(1) == data.test_y % 2
    return sum(float(right[(data.test_y == a) | (data.test_y == b)].double().mean()) for a, b in TASKS) / len(TASKS)


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}\n{'':46} {'ratio':>7} {'quartiles':>13} {'wall':>6} {'s/epoch':>8}  {'goal':>7} met")
    for row in rows:
        spread = f"{row['ratio_q1']:.2f} - {row['ratio_q3']:.2f}"
        goal = f"{'>=' if row['at_least'] else '<='} {row['goal']:.2f}" if "goal" in row else ""
        print(
            f"{row['name']:<46} {row['ratio']:7.3f} {spread:>13} {row['wall_ratio']:6.2f} {row['seconds_per_epoch']:8.3f}  "
            f"{goal:>7} {verdict(row.get('met'))}"
        )
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="rounds: turns of every contestant (5; quick: 2)")
    parser.add_argument("--epochs", type=int, help="epochs a task (5; quick: 1)")
    parser.add_argument("--only", choices=("overhead", "avalanche"), help="one part; nothing is written")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a look, not a measurement")
    parser.add_argument("--output", type=Path, help="where to write (docs/speed/harness.json)")
    options = parser.parse_args()
    one_thread()
    rounds = options.rounds or (2 if options.quick else 5)
    epochs = options.epochs or (1 if options.quick else 5)
    data, is_mnist = read_data()
    document: dict[str, Any] = {"quick": options.quick, "rounds": rounds, "epochs": epochs, "mnist": is_mnist}
    failed = False
    if options.only != "avalanche":
        rows, document["same_accuracies"] = measure_overhead(data, is_mnist, rounds, epochs)
        document["overhead"] = rows
        print_rows("hvcl over a hand-written loop, six evaluations in both", rows)
        print(f"the same accuracies, all of them: {'yes' if document['same_accuracies'] else 'NO'}")
        failed |= not document["same_accuracies"]
    if options.only != "overhead":
        try:
            rows, document["accuracies"] = measure_avalanche(data, max(2, rounds // 3), epochs)
            document["avalanche"] = rows
            print_rows("training alone, over hvcl's stream and learner", rows)
            print(
                "accuracy after five tasks: " + ", ".join(f"{name} {100 * a:.1f} %" for name, a in document["accuracies"].items())
            )
        except ImportError as error:
            print(f"Avalanche is not compared: {error}", file=sys.stderr)
            failed = True
    output = options.output or (None if options.only else PAGE / "harness.json")
    if output:
        try:
            versions = {name: importlib.metadata.version(name) for name in ("avalanche-lib", "torchvision")}
        except importlib.metadata.PackageNotFoundError:
            versions = {}
        document["environment"] = environment(peers=versions)
        write_json(output, document)
        print(f"written: {output}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
