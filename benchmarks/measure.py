"""What the benchmarks share: interleaved CPU time, the environment, and JSON that is never half written."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hvcl.core import storage
from hvcl.runs.environment import environment as run_environment

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "speed"


@dataclass
class Contest:
    """One contestant and the reference it is timed against, in turns; `call` and `reference` do the same amount of work."""

    name: str
    call: Callable[[], object]
    reference: Callable[[], object]
    repeats: int = 1
    warm: bool = True
    """Call each once, untimed, before its turn: its data come back into the cache."""
    ratios: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    reference_seconds: list[float] = field(default_factory=list)
    wall_ratios: list[float] = field(default_factory=list)

    def take_turn(self, reference_first: bool) -> None:
        """Time both, one right after the other, so that both see the same clock frequency and the same neighbours."""
        if reference_first:
            base, ours = self._time(self.reference), self._time(self.call)
        else:
            ours, base = self._time(self.call), self._time(self.reference)
        self.ratios.append(ours[0] / base[0])
        self.wall_ratios.append(ours[1] / base[1])
        self.seconds.append(ours[0])
        self.reference_seconds.append(base[0])

    def _time(self, function: Callable[[], object]) -> tuple[float, float]:
        """CPU seconds of the whole process and wall-clock seconds, for one call."""
        if self.warm:
            function()
        wall, start = time.perf_counter(), time.process_time()
        for _ in range(self.repeats):
            function()
        return (time.process_time() - start) / self.repeats, (time.perf_counter() - wall) / self.repeats


def interleave(contests: list[Contest], rounds: int, after_round: Callable[[], None] = lambda: None) -> None:
    """Every round gives each contestant one turn, in a new random order."""
    order = list(contests)
    shuffle = random.Random(0).shuffle
    gc.collect()
    gc.freeze()  # what was built before is not walked over by collections during the measurement
    for number in range(rounds):
        shuffle(order)
        for contest in order:
            contest.take_turn(reference_first=number % 2 == 0)
        after_round()
    gc.unfreeze()


def quartiles(values: Iterable[float]) -> tuple[float, float, float]:
    """First quartile, median, third quartile."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return (ordered[0],) * 3
    low, median, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return low, median, high


def summary(values: Iterable[float], name: str = "ratio") -> dict[str, float]:
    """Median and quartiles, rounded to four digits after the point."""
    low, median, high = quartiles(values)
    return {name: round(median, 4), f"{name}_q1": round(low, 4), f"{name}_q3": round(high, 4)}


def source_digest() -> str:
    """Of the package's source files: a tree with changes has no commit that says what was measured."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "hvcl").rglob("*")):
        if path.suffix in (".py", ".c"):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


SOURCE = source_digest()
"""As the benchmark began."""


def environment(**more: Any) -> dict[str, Any]:
    """What the figures depend on."""
    facts = run_environment(0)
    del facts["seed"]
    if changed := source_digest() != SOURCE:
        print("note: the source changed while it was measured: measure again", file=sys.stderr)
    facts |= {"source": SOURCE, "source_changed": changed, "load_average": round(os.getloadavg()[0], 1)}
    return facts | more


def one_thread() -> None:
    torch.set_num_threads(1)
    if os.environ.get("OMP_NUM_THREADS") != "1":
        print("note: OMP_NUM_THREADS is not 1 in the environment; torch is told to use one thread", file=sys.stderr)


def write_json(path: Path, document: Any) -> None:
    """Written whole or not at all, into a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    storage.write_json(path, document)


def verdict(met: bool | None) -> str:
    return "" if met is None else "yes" if met else "NO"
