"""The run folder: configuration, environment, metrics, checkpoints, results. Reports read these and nothing else.

RUN/config.json                     what was run; its "kind" is supervised or reinforcement
RUN/seed-1/environment.json         versions, commit, compiled code, seed
RUN/seed-1/metrics.jsonl            loss terms and evaluations, one JSON object a line; deterministic, no clock in it
RUN/seed-1/pictures/                what a generator made after each task: AFTER-originals.png, -reconstructions, -samples
RUN/seed-1/checkpoint.json          and checkpoint-<n>.safetensors: everything needed to go on
RUN/seed-1/result.json              the summary, written when the seed is done
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvcl.core.errors import RunError
from hvcl.core.files import read_json, write_atomically, write_json
from hvcl.core.storage import load_state, save_state
from hvcl.runs.experiment import Experiment, experiment_from, kind_of


@dataclass(frozen=True)
class SeedFolder:
    """The files of one seed."""

    path: Path

    @property
    def result_path(self) -> Path:
        """The summary."""
        return self.path / "result.json"

    @property
    def metrics_path(self) -> Path:
        """The log."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoint_path(self) -> Path:
        """The checkpoint."""
        return self.path / "checkpoint.json"

    @property
    def environment_path(self) -> Path:
        """What else the numbers depend on."""
        return self.path / "environment.json"

    def result(self) -> dict[str, Any] | None:
        """The summary, if the seed is done."""
        return read_json(self.result_path) if self.result_path.exists() else None

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Everything needed to go on."""
        save_state(self.checkpoint_path, state)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """What was saved last, if anything."""
        return load_state(self.checkpoint_path) if self.checkpoint_path.exists() else None

    def cut_metrics(self, size: int) -> None:
        """Forget what was logged after the checkpoint."""
        self.path.mkdir(parents=True, exist_ok=True)
        have = self.metrics_path.stat().st_size if self.metrics_path.exists() else 0
        if have < size:
            raise RunError(f"{self.metrics_path} is shorter than its checkpoint says: start the run anew with --force")
        with self.metrics_path.open("ab") as file:
            file.truncate(size)

    def append_metrics(self, record: dict[str, Any]) -> int:
        """One more line, flushed; returns the size of the log."""
        with self.metrics_path.open("ab") as file:
            file.write((json.dumps(finite(record), allow_nan=False) + "\n").encode())
            return file.tell()

    def save_pictures(self, after: int, pictures: dict[str, bytes]) -> None:
        """PNG files of what a generator made after so many tasks."""
        folder = self.path / "pictures"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in pictures.items():
            write_atomically(folder / f"{after}-{name}.png", content)

    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations logged so far."""
        try:
            records = [json.loads(line) for line in self.metrics_path.read_bytes().splitlines()]
        except ValueError as error:
            raise RunError(f"{self.metrics_path} is damaged ({error})") from None
        return [record for record in records if record["kind"] == "evaluation"]


class RunFolder:
    """A folder that holds one run of either kind, all its seeds."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @property
    def config_path(self) -> Path:
        """What was run."""
        return self.path / "config.json"

    def config(self) -> Experiment:
        """The run's configuration; its kind is read from the file."""
        return experiment_from(read_json(self.config_path), self.config_path)

    def seed(self, seed: int) -> SeedFolder:
        """The folder of one seed."""
        return SeedFolder(self.path / f"seed-{seed}")

    def prepare(self, config: Experiment, facts: dict[str, Any], *, resume: bool, force: bool) -> None:
        """Claim the folder for `config`; `facts` (`Experiment.facts`) are written beside it.

        What `check` refuses is refused; `force` deletes the run that is there. Files that are not a run's are never touched.
        """
        self.check(config, resume=resume, force=force)
        if self.config_path.exists() and force:
            self._delete_run()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.config_path, config.to_json() | facts)

    def check(self, config: Experiment, *, resume: bool, force: bool) -> None:
        """Raise a `RunError` if the folder holds another run, or this one without `resume`, or no run but files.

        With `force` any run may be there.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file: choose another folder with --out")
        if self.config_path.exists():
            if not force:
                self._check_same(config, resume)
        elif self.path.exists() and any(self.path.iterdir()):
            raise RunError(f"{self.path} is not empty and holds no run: choose another folder with --out")

    def _check_same(self, config: Experiment, resume: bool) -> None:
        kind = kind_of(read_json(self.config_path), self.config_path)
        ours: dict[str, Any] = config.to_json()
        # a run of another kind is never read: what it needs may not be installed
        theirs: dict[str, Any] = self.config().to_json() if kind == config.kind else {"kind": kind}
        for key in ("kind", *config.identity):
            if ours[key] != theirs[key]:
                raise RunError(
                    f"{self.path} holds another run ({_difference(key, theirs[key], ours[key])}): "
                    "choose another folder with --out, or replace it with --force"
                )
        if not resume:
            raise RunError(f"{self.path} already holds this run: go on with --resume, or start anew with --force")

    def _delete_run(self) -> None:
        for seed in self.path.glob("seed-*"):
            shutil.rmtree(seed)
        self.config_path.unlink()


def _difference(key: str, theirs: Any, ours: Any) -> str:
    if not isinstance(theirs, dict):
        return f"{key} {theirs}, not {ours}"
    names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    return ", ".join(f"{name} {theirs.get(name)}, not {ours.get(name)}" for name in names)


def finite(value: Any) -> Any:
    """Plain JSON values with None in place of NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
