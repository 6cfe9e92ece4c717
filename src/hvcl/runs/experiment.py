"""What can be run: the protocol that supervised and reinforcement learning share.

An `Experiment` is a configuration: what is learned, by which method, with which settings and seeds. Built for one seed it is a
`Session`, which runs, writing to a `Recorder` as it goes, and is summarised at its end. Folder, recorder, engine and `execute`
know nothing else about either kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from hvcl.core.configuration import MOST_SEEDS
from hvcl.core.errors import InputError, RunError

if TYPE_CHECKING:
    from hvcl.runs.record import Recorder

SEEDS = 2**32
"""Seeds that every random generator takes."""


class Session(Protocol):
    """One seed of an experiment: a learner or an agent with its data, and its place in them."""

    def run(self, recorder: Recorder) -> None:
        """Learn to the end from where it is, logging, saving and showing progress; raises `InterruptedRun` if asked to stop."""

    def state_dict(self) -> dict[str, Any]:
        """All that a checkpoint needs to go on bit-identically."""

    def load_state_dict(self, state: dict[str, Any], evaluations: list[dict[str, Any]]) -> None:
        """Go on from a checkpoint and the evaluations that were logged before it."""

    def summarise(self, evaluations: list[dict[str, Any]]) -> dict[str, Any]:
        """The result of the seed, after its end."""


class Experiment(Protocol):
    """The configuration of a run: one method, one setting, any number of seeds."""

    kind: ClassVar[str]
    """What `config.json` calls it."""
    identity: ClassVar[tuple[str, ...]]
    """Keys of `to_json` that must agree for a run to be the same."""

    @property
    def method(self) -> str:
        """Name of the method."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """Each is run on its own."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values, `kind` among them."""

    @classmethod
    def from_json(cls, document: Any, place: Path) -> Self:
        """From what `to_json` gave; a `RunError` names `place`."""

    def facts(self) -> dict[str, Any]:
        """What `config.json` says besides, such as the names of tasks.

        Builds everything once: missing data, and settings that do not fit together, raise before anything is written.
        """

    def build(self, seed: int) -> Session:
        """One seed, new."""


def check_seeds(seeds: tuple[int, ...]) -> None:
    """Raise `InputError` unless these are different whole numbers, at least one of them, none negative or too large."""
    if len(seeds) > MOST_SEEDS:
        raise InputError(f"a run has at most {MOST_SEEDS:,} seeds, got {len(seeds):,}")
    if not seeds or len(set(seeds)) != len(seeds) or any(not 0 <= seed < SEEDS for seed in seeds):
        raise InputError(f"seeds must be different whole numbers, at least 0 and below {SEEDS}, got {list(seeds)}")


def kind_of(document: Any, place: Path) -> str:
    """The kind of run that a `config.json` is of; one from before kinds were named is recognised by its fields."""
    if isinstance(document, dict):
        if "kind" in document:
            return str(document["kind"])
        if "benchmark" in document:
            return "supervised"
        if "sequence" in document:
            return "reinforcement"
    raise RunError(f"{place} is not a run's configuration: it names neither a benchmark nor a sequence of tasks")


def experiment_from(document: Any, place: Path) -> Experiment:
    """The experiment that a `config.json` describes; a `RunError` names `place`."""
    match kind_of(document, place):
        case "supervised":
            from hvcl.runs.supervised import RunConfig

            return RunConfig.from_json(document, place)
        case "reinforcement":
            try:
                from hvcl.runs.reinforcement import RLConfig
            except ModuleNotFoundError as error:
                raise RunError(f"{place} is of reinforcement learning, which needs pip install 'hvcl[rl]' ({error})") from None
            return RLConfig.from_json(document, place)
        case other:
            raise RunError(f"{place} is of the kind {other!r}, which this version of hvcl does not know")
