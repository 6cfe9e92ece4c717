"""Streams of tasks, with boundaries or task-free, in every scenario: benchmarks, one's own arrays, data sets and pictures."""

from hvcl.streams.arrays import from_arrays
from hvcl.streams.benchmarks import BENCHMARKS, Benchmark, benchmark, make_stream
from hvcl.streams.datasets import Dataset, load
from hvcl.streams.events import Batch, TaskEnd
from hvcl.streams.own import from_dataset
from hvcl.streams.stream import Stream, StreamConfig
from hvcl.streams.tasks import Examples, Scenario, Task, TestSet

__all__ = [
    "BENCHMARKS",
    "Batch",
    "Benchmark",
    "Dataset",
    "Examples",
    "Scenario",
    "Stream",
    "StreamConfig",
    "Task",
    "TaskEnd",
    "TestSet",
    "benchmark",
    "from_arrays",
    "from_dataset",
    "load",
    "make_stream",
]
