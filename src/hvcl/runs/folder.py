"""The run folder: configuration, environment, metrics, checkpoints, results. Reports read these and nothing else.

RUN/config.json                     what was run; its "kind" is supervised or reinforcement
RUN/seed-1/environment.json         versions, commit, compiled code, seed
RUN/seed-1/metrics.jsonl            loss terms and evaluations, one JSON object a line; deterministic, no clock in it
RUN/seed-1/pictures/                what a generator made after each task: AFTER-originals.png, -reconstructions, -samples
RUN/seed-1/checkpoint.json          and checkpoint-<n>.safetensors: everything needed to go on
RUN/seed-1/result.json              the summary, written when the seed is done
RUN/seed-1/manifest.json            checksums of all these, written last: a seed is done when it is there

config.json, environment.json, checkpoint.json and manifest.json hold a checksum of themselves, and checkpoint.json one of the log
up to it. Folders from before there were any are read as they are, and a warning says so.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvcl.core.errors import RunError
from hvcl.core.files import read_json, remove_temporary, write_atomically, write_json
from hvcl.core.lock import locked
from hvcl.core.manifest import MANIFEST, Manifest, is_finished, note_unchecked
from hvcl.core.storage import load_state, save_state
from hvcl.runs.experiment import Experiment, experiment_from, kind_of

LOCK = ".lock"
"""Name of the file that is there, in the folder of a run and of a seed, while a process writes to it."""

PATIENCE_SECONDS = 5.0
"""How long to wait for a process that writes to a seed: one whose parent was killed ends in a moment."""


@contextmanager
def _locked(path: Path, patience: float) -> Iterator[None]:
    """The folder `path`, made if it is not there, and gone afterwards if nothing has been written to it."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        with locked(path / LOCK, str(path), patience):
            remove_temporary(path)
            yield
    finally:
        with suppress(OSError):
            path.rmdir()


@dataclass(frozen=True)
class SeedFolder:
    """The files of one seed."""

    path: Path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process writes to this seed; a `RunError` says who does."""
        with _locked(self.path, PATIENCE_SECONDS):
            yield

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
        """The summary, if the seed is done; a `RunError` if it is not what was written."""
        if not is_finished(self.path):
            return None
        manifest = Manifest.read(self.path)
        if manifest is None:
            note_unchecked(self.path)
        else:
            manifest.check(self.result_path, self.result_path.read_bytes())
        found = read_json(self.result_path)
        if not isinstance(found, dict):
            raise RunError(f"{self.result_path} is damaged: it is not a result")
        return found

    def begin(self, environment: dict[str, Any]) -> None:
        """The seed is not done, and this is where it goes on."""
        (self.path / MANIFEST).unlink(missing_ok=True)  # of an end whose result somebody has removed
        write_json(self.environment_path, environment, sealed=True)

    def finish(self, result: dict[str, Any]) -> None:
        """The summary, and then the manifest: the seed is done."""
        write_json(self.result_path, result)
        Manifest.write(self.path)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Everything needed to go on."""
        save_state(self.checkpoint_path, state)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """What was saved last, if anything."""
        return load_state(self.checkpoint_path) if self.checkpoint_path.exists() else None

    def cut_metrics(self, size: int, expected: str | None = None) -> hashlib._Hash:
        """Forget what was logged after the checkpoint, and return the checksum so far, to go on with.

        If what was logged before it has another checksum than the one that is `expected`, a `RunError` says so.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        content = self.metrics_path.read_bytes()[:size] if self.metrics_path.exists() else b""
        if len(content) < size:
            raise RunError(f"{self.metrics_path} is shorter than its checkpoint says: start the run anew with --force")
        found = hashlib.sha256(content)
        if expected is not None and found.hexdigest() != expected:
            raise RunError(f"{self.metrics_path} is damaged: its checksum does not match: start the run anew with --force")
        with self.metrics_path.open("ab") as file:
            file.truncate(size)
        return found

    def append_metrics(self, record: dict[str, Any]) -> bytes:
        """One more line; returns it."""
        line = (json.dumps(finite(record), allow_nan=False) + "\n").encode()
        with self.metrics_path.open("ab") as file:
            file.write(line)
        return line

    def flush_metrics(self) -> None:
        """What was logged is on the disk."""
        with self.metrics_path.open("ab") as file:
            os.fsync(file.fileno())

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
        if not all(isinstance(record, dict) and "kind" in record for record in records):
            raise RunError(f"{self.metrics_path} is damaged: not every line is a record")
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

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, no other process runs seeds in this folder, or replaces what is in it; a `RunError` says who does."""
        with _locked(self.path, 0.0):
            yield

    def prepare(self, config: Experiment, facts: dict[str, Any], *, resume: bool, force: bool) -> None:
        """Claim the folder for `config`; `facts` (`Experiment.facts`) are written beside it. Who writes holds `locked`.

        What `check` refuses is refused; `force` deletes the run that is there. Files that are not a run's are never touched.
        """
        self.check(config, resume=resume, force=force)
        if self.config_path.exists() and force:
            self._delete_run()
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.config_path, config.to_json() | facts, sealed=True)

    def check(self, config: Experiment, *, resume: bool, force: bool) -> None:
        """Raise a `RunError` if the folder holds another run, or this one without `resume`, or no run but files.

        With `force` any run may be there.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file: choose another folder with --out")
        if self.config_path.exists():
            if not force:
                self._check_same(config, resume)
        elif self.path.exists() and any(path.name != LOCK for path in self.path.iterdir()):
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
            with SeedFolder(seed).locked():
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
