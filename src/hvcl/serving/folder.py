"""The folder of a service: the newest snapshot, and the log of what came after it.

`state.json` names a model, which holds everything up to a moment, and a log, which begins there; it is replaced in one move when
both are on the disk. Whatever moment a process is killed, it names a pair that belongs together.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from hvcl.core.errors import RunError
from hvcl.core.files import checksum, read_json, remove_temporary, write_json
from hvcl.serving.log import Log

FORMAT = 1


class StateFolder:
    """One service's files, locked against a second one.

    Args:
        path: of the folder; it is made if it is not there.
        origin: the model file that the service is started with.

    Raises:
        RunError: another process serves it, it began with another model, or it is damaged.
    """

    def __init__(self, path: Path, origin: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock: IO[bytes] = (path / "lock").open("ab")
        except OSError as error:
            raise RunError(f"{path} cannot be written ({error.strerror})") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise RunError(f"{path} is in use: another process serves this model. Stop it, or name another folder") from None
        try:
            remove_temporary(path)
            self._origin = _file_checksum(origin)
            self._read()
        except BaseException:
            self._lock.close()
            raise

    def _read(self) -> None:
        self.number, self.extra, self.model, self.log = 0, dict[str, Any](), None, None
        if not self._index.exists():
            return
        state = read_json(self._index)
        try:
            if state["format"] > FORMAT:
                raise RunError(f"{self._index} was written by a newer version of hvcl: upgrade hvcl")
            number, model, log, extra = int(state["number"]), str(state["model"]), str(state["log"]), dict(state["extra"])
            began, digest = str(state["origin"]), str(state["sha256"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{self._index} is damaged ({error!r})") from None
        if began != self._origin:
            raise RunError(
                f"{self.path} began with another model file: name another folder (--state), or remove it with all it has learned"
            )
        if _file_checksum(self.path / model) != digest:
            raise RunError(f"{self.path / model} is damaged: its checksum does not match")
        self.number, self.extra, self.model, self.log = number, extra, self.path / model, Log(self.path / log)

    @property
    def _index(self) -> Path:
        return self.path / "state.json"

    def snapshot(self, save: Callable[[Path], None], extra: dict[str, Any]) -> None:
        """Write all that is known, and begin an empty log; the older files go.

        Args:
            save: writes the model to a path.
            extra: plain values that belong to it.

        Raises:
            OSError, RunError: it is not written; what was there stays as it is.
        """
        number = self.number + 1
        model, log = self.path / f"model-{number}.safetensors", self.path / f"log-{number}.jsonl"
        log.unlink(missing_ok=True)  # of a snapshot that was not finished
        save(model)
        fresh = Log(log)
        try:
            names = {"model": model.name, "log": log.name, "sha256": _file_checksum(model), "origin": self._origin}
            _flush_folder(self.path)
            write_json(self._index, {"format": FORMAT, "number": number, **names, "extra": extra})
        except BaseException:
            fresh.close()
            raise
        with suppress(OSError):  # it is replaced, there is no way back
            _flush_folder(self.path)
        if self.log is not None:
            self.log.close()
        self.number, self.extra, self.model, self.log = number, extra, model, fresh
        for old in (*self.path.glob("model-*.safetensors"), *self.path.glob("log-*.jsonl")):
            if old not in (model, log):
                old.unlink(missing_ok=True)

    def close(self) -> None:
        """Let another process have the folder."""
        if self.log is not None:
            self.log.close()
        self._lock.close()


def _file_checksum(path: Path) -> str:
    try:
        return checksum(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path} is missing") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror})") from None


def _flush_folder(path: Path) -> None:
    """Names of files are on the disk, too."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
