"""From a run folder to its values, whatever was run. Nothing here writes, and nothing else in the report reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hvcl.core.errors import RunError
from hvcl.report.fields import Fields, read_fields
from hvcl.report.reinforcement import ReinforcementRun, load_reinforcement
from hvcl.report.supervised import SupervisedRun, load_supervised

Run = SupervisedRun | ReinforcementRun
"""One method over its seeds, on a stream of supervised tasks or on a chain of reinforcement-learning tasks."""

_LOADERS: Mapping[object, Callable[[Path, Fields], Run]] = {
    "supervised": load_supervised,
    "reinforcement": load_reinforcement,
}


def load_run(folder: Path) -> Run:
    """Read one run folder, of either kind.

    A seed without `result.json` is unfinished, not an error, and neither is a last line of `metrics.jsonl` that was
    cut off when the run was killed. Any other damage raises a `RunError` that names the file.
    """
    folder = Path(folder)
    fields = read_fields(folder / "config.json")
    kind = fields.get("kind")
    if kind is None:  # written before folders named their kind
        kind = "reinforcement" if "sequence" in fields.values or fields.get("format") == "rl-1" else "supervised"
    if not isinstance(kind, str) or kind not in _LOADERS:
        raise RunError(f"{fields.where} is damaged: 'kind' is {kind!r}, not one of {', '.join(map(str, _LOADERS))}")
    return _LOADERS[kind](folder, fields)
