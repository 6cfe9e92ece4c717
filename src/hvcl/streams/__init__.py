"""Streams of tasks: named benchmarks and a user's own arrays, in every scenario, with boundaries or task-free."""

from hvcl.streams.arrays import from_arrays
from hvcl.streams.benchmarks import BENCHMARKS, Benchmark, benchmark, make_stream
from hvcl.streams.datasets import Dataset, load
from hvcl.streams.events import Batch, TaskEnd
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
    "load",
    "make_stream",
]
