"""What a run is: benchmark, stream, method, settings, seeds."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hvcl.core.configuration import configure, field_types, to_json
from hvcl.core.errors import InputError, RunError
from hvcl.learners import Learner, method
from hvcl.streams import Stream, StreamConfig, benchmark

FORMAT = 1
"""Version of the run folder's layout."""


SEEDS = 2**32
"""Seeds that every random generator takes."""


def check_seeds(seeds: tuple[int, ...]) -> None:
    """Raise `InputError` unless these are different whole numbers, at least one of them, none negative or too large."""
    if not seeds or len(set(seeds)) != len(seeds) or any(not 0 <= seed < SEEDS for seed in seeds):
        raise InputError(f"seeds must be different whole numbers, at least 0 and below {SEEDS}, got {list(seeds)}")


@dataclass(frozen=True)
class RunConfig:
    """One method on one benchmark with one set of settings, for any number of seeds."""

    benchmark: str
    method: str
    stream: StreamConfig
    learner: Any
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        check_seeds(self.seeds)

    @classmethod
    def make(
        cls,
        benchmark_name: str,
        method_name: str,
        seeds: tuple[int, ...] | list[int] = (1,),
        stream: dict[str, Any] | None = None,
        learner: dict[str, Any] | None = None,
    ) -> RunConfig:
        """A run from names and settings; what they leave open takes the benchmark's defaults, then the method's."""
        chosen, by_name = benchmark(benchmark_name), method(method_name)
        config = by_name.config
        told = chosen.stream | ({"epochs": 1} if by_name.one_pass else {}) | chosen.streams.get(method_name, {})
        defaults = chosen.learner | chosen.methods.get(method_name, {})
        fitting = {name: value for name, value in defaults.items() if name in field_types(config)}
        return cls(
            benchmark_name,
            method_name,
            configure(StreamConfig, told | (stream or {})),
            configure(config, fitting | (learner or {})),
            tuple(seeds),
        )

    def make_stream(self, seed: int) -> Stream:
        """The stream of one seed."""
        return benchmark(self.benchmark).build(self.stream, seed)

    def make_learner(self, stream: Stream, seed: int) -> Learner:
        """The learner of one seed, new."""
        chosen = method(self.method)
        if chosen.needs_all_data and not stream.is_cumulative:
            stream = stream.cumulative()
        return chosen.learner(stream.problem, self.learner, seed)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "format": FORMAT,
            "benchmark": self.benchmark,
            "scenario": str(self.stream.scenario),
            "supervision": self.stream.supervision,
            "method": self.method,
            "seeds": list(self.seeds),
            "evaluated_on": "validation" if self.stream.validation else "test",
            "stream": to_json(self.stream),
            "learner": to_json(self.learner),
        }

    @classmethod
    def from_json(cls, document: Any, place: Path) -> RunConfig:
        """From what `to_json` gave; `place` is named in errors."""
        try:
            if document["format"] != FORMAT:
                raise RunError(f"{place} has format {document['format']}, this version of hvcl reads {FORMAT}")
            return cls(
                document["benchmark"],
                document["method"],
                configure(StreamConfig, document["stream"]),
                configure(method(document["method"]).config, document["learner"]),
                tuple(document["seeds"]),
            )
        except (KeyError, TypeError, InputError) as error:
            raise RunError(f"{place} is not a run's configuration ({error})") from None


def environment(seed: int) -> dict[str, Any]:
    """What else a result depends on: versions, commit, machine, threads."""
    return {
        "hvcl": importlib.metadata.version("hvcl"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": importlib.metadata.version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "commit": _commit(),
        "seed": seed,
        "threads": 1,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    """The commit of the source tree this package runs from, with a mark if it has changes; None when installed elsewhere."""
    folder = Path(__file__).resolve().parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude", "*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None if described.returncode == 0 else None
