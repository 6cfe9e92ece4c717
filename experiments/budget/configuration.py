"""How many epochs are enough: joint training over epochs a task, Domain-IL, seed 0, held-out training data.

    .venv/bin/python -m experiments.search budget --benchmark split-cifar10 --method joint epochs=10 learning_rate=0.001

The budget "standard" of a benchmark is where this curve is flat, or joint training within two points of the paper's offline row.
"""

from pathlib import Path

from experiments.topic import Supervised, Topic

TOPIC = Topic(
    folder=Path(__file__).parent,
    protocol=Supervised(stream={"scenario": "domain", "validation": 0.1}),
    benchmarks=("split-mnist", "permuted-mnist", "split-cifar10", "split-cifar100"),
    methods=("joint", "naive"),
)
