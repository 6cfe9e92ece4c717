"""Which files a data set consists of, and how they come onto the disk.

Every file has a known size and SHA-256. `fetch` puts missing files into place, `status` and `verify` check what lies
there. Nothing reaches its final name before its checksum has been verified, and a file that lies there and does not
verify is never replaced unless requested: it may be the user's own.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Literal, NamedTuple

import pooch  # type: ignore[import-untyped]
import requests
import urllib3
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from hvcl.core.errors import DataError, UnknownNameError

TIMEOUT_SECONDS = (10.0, 60.0)
"""How long to wait for a connection, and for the next bytes on it."""

CHUNK_BYTES = 1 << 16

Report = Callable[[str], None]
"""Receives lines of text about the progress of a download."""

Tick = Callable[[str, int, int | None], None]
"""Receives a file name, the bytes of it that are here, and all its bytes (None: the server does not say)."""


@dataclass(frozen=True)
class DataFile:
    """One file of a data set."""

    path: str
    """Where it lies, relative to the data folder, with forward slashes; also its name inside an archive."""
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path)


@dataclass(frozen=True)
class Archive:
    """A .tar.gz that holds all files of a data set; it lies in the data folder until it is unpacked."""

    name: str
    md5: str


@dataclass(frozen=True)
class FileSet:
    """The files of one data set and their official source."""

    base_url: str
    """The archive, or without an archive every file by its name, is found directly under this URL."""
    files: tuple[DataFile, ...]
    archive: Archive | None = None


def _in(folder: str, *files: tuple[str, int, str]) -> tuple[DataFile, ...]:
    return tuple(DataFile(f"{folder}/{name}", size, sha256) for name, size, sha256 in files)


FILE_SETS: Mapping[str, FileSet] = {
    "digits": FileSet(base_url="", files=()),  # comes with scikit-learn
    "mnist": FileSet(
        # The mirror that torchvision uses: the original site no longer serves the files reliably.
        base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",
        files=_in(
            "mnist",
            ("train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            ("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            ("t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            ("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
    ),
    "cifar10": FileSet(
        base_url="https://www.cs.toronto.edu/~kriz/",
        archive=Archive("cifar-10-binary.tar.gz", md5="c32a1d4ab5d03f1284b67883e8d87530"),
        files=_in(
            "cifar-10-batches-bin",
            ("data_batch_1.bin", 30730000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
            ("data_batch_2.bin", 30730000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
            ("data_batch_3.bin", 30730000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
            ("data_batch_4.bin", 30730000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
            ("data_batch_5.bin", 30730000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
            ("test_batch.bin", 30730000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
        ),
    ),
    "cifar100": FileSet(
        base_url="https://www.cs.toronto.edu/~kriz/",
        archive=Archive("cifar-100-binary.tar.gz", md5="03b5dce01913d631647c71ecec9e9cb8"),
        files=_in(
            "cifar-100-binary",
            ("train.bin", 153700000, "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29"),
            ("test.bin", 30740000, "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a"),
        ),
    ),
}
"""Every data set by its name."""


class FileStatus(NamedTuple):
    """What was found in the place of one file; the reason says what is wrong with a damaged one."""

    path: Path
    state: Literal["ok", "missing", "damaged"]
    reason: str = ""


def data_folder() -> Path:
    """Where data sets lie: `$HVCL_DATA`, else the user's cache folder for hvcl."""
    return Path(os.environ.get("HVCL_DATA") or pooch.os_cache("hvcl")).expanduser().absolute()


def status(name: str, folder: Path | None = None) -> list[FileStatus]:
    """Compare every file of the data set with its known size and checksum, in the order of the registry."""
    folder = _place(folder)
    return [_examine(folder / file.path, file) for file in _file_set(name).files]


def verify(name: str, folder: Path | None = None) -> None:
    """Raise `DataError` about the first file of the data set that is missing, truncated or altered."""
    for found in status(name, folder):
        if found.state == "missing":
            raise DataError(f"{found.path} is missing: run `hvcl data get {name}`")
        if found.state == "damaged":
            raise _damaged(name, found.path, found.reason)


def fetch(
    name: str,
    folder: Path | None = None,
    report: Report | None = None,
    *,
    force: bool = False,
    base_url: str | None = None,
) -> None:
    """Download the files of a data set that are missing; afterwards all of them are in place and verified.

    An interrupted download stays behind as `<file>.part`, and the next call asks the server only for the rest.

    :param folder: the data folder, `data_folder()` unless given.
    :param report: receives the progress as lines of text; without it a bar is drawn if the standard error stream is a
        terminal, else the lines go there.
    :param force: replace files that lie there and do not verify, instead of raising `DataError`.
    :param base_url: a mirror to download from instead of the official source.
    """
    files, folder = _file_set(name), _place(folder)
    source = (base_url or files.base_url).rstrip("/")
    wanted = []
    for file, found in zip(files.files, status(name, folder), strict=True):
        if found.state == "damaged" and not force:
            raise _damaged(name, found.path, found.reason)
        if found.state != "ok":
            wanted.append(file)
    if not wanted:
        return
    try:
        with _progress(report) as tick:
            if files.archive is None:
                for file in wanted:
                    _download(f"{source}/{file.name}", folder / file.path, f"sha256:{file.sha256}", tick)
            else:
                archive, md5 = folder / files.archive.name, files.archive.md5
                if archive.exists() and not force and pooch.file_hash(str(archive), alg="md5") != md5:
                    raise _damaged(name, archive, "altered: its checksum differs")
                _download(f"{source}/{archive.name}", archive, f"md5:{md5}", tick)
                _unpack(archive, wanted, folder)
                archive.unlink()
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        names = ", ".join(found.path.name for found in status(name, folder) if found.state != "ok")
        origin = f"{source}/{files.archive.name}" if files.archive else f"{source}/"
        target = (folder / wanted[0].path).parent
        raise DataError(
            f"cannot download {name}, {_cause(error)}: try again, or put {names} from {origin} into {target}"
        ) from error
    except OSError as error:
        raise DataError(f"cannot put {name} into {folder}: {_one_line(error)}") from error


def _file_set(name: str) -> FileSet:
    if name not in FILE_SETS:
        raise UnknownNameError("data set", name, FILE_SETS)
    return FILE_SETS[name]


def _place(folder: Path | None) -> Path:
    return data_folder() if folder is None else folder.absolute()


def _examine(path: Path, file: DataFile) -> FileStatus:
    try:
        if not path.exists():
            return FileStatus(path, "missing")
        size = path.stat().st_size
        if size < file.size:
            return FileStatus(path, "damaged", f"truncated: {size} of {file.size} bytes")
        if size > file.size:
            return FileStatus(path, "damaged", f"altered: {size} bytes instead of {file.size}")
        if pooch.file_hash(str(path)) != file.sha256:
            return FileStatus(path, "damaged", "altered: its checksum differs")
    except OSError as error:
        return FileStatus(path, "damaged", f"unreadable: {error.strerror}")
    return FileStatus(path, "ok")


def _damaged(name: str, path: Path, reason: str) -> DataError:
    return DataError(f"{path} is damaged ({reason}): delete it and run `hvcl data get {name}`")


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _check_part(part: Path) -> Path:
    """Raise `DataError` if what lies in the place of a partial file is no file: it would be written through."""
    if part.is_symlink() or (part.exists() and not part.is_file()):
        raise DataError(f"{part} is a link, or no file: it is in the place of a partial download. Remove it and try again")
    return part


def _download(url: str, target: Path, known_hash: str, tick: Tick) -> None:
    """Leave the file at `target`, verified, unless it already lies there and verifies."""

    def resume(url: str, output_file: str, _: object) -> None:
        """Pooch's downloader: pooch verifies what is left in `output_file`, and deletes it if it is wrong."""
        part = _check_part(_part(target))
        here = part.stat().st_size if part.exists() else 0
        # Without "identity" a server may compress what it sends, and bytes on the line would not be bytes of the file.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={here}-"} if here else {})
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
            # "Not satisfiable": nothing follows what we have. The checksum decides whether that is the whole file.
            if response.status_code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                response.raise_for_status()
                if response.status_code != HTTPStatus.PARTIAL_CONTENT:
                    here = 0  # the server ignores ranges and sends everything
                length = response.headers.get("Content-Length", "")
                total = here + int(length) if length.isdecimal() else None
                with part.open("ab" if here else "wb") as stream:
                    tick(target.name, here, total)
                    for chunk in response.raw.stream(CHUNK_BYTES, decode_content=False):
                        stream.write(chunk)
                        here += len(chunk)
                        tick(target.name, here, total)
                if total is not None and here < total:  # urllib3 before 2.0 does not raise by itself
                    raise requests.ConnectionError("the connection was lost")
        os.replace(part, output_file)

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel("WARNING")  # the progress already says what pooch would log
    try:
        pooch.retrieve(url, known_hash, fname=target.name, path=target.parent, downloader=resume)
    except requests.RequestException:  # some of these are ValueErrors too
        raise
    except ValueError as error:
        raise DataError(f"{url} is not the expected file, its checksum differs: the download was discarded, try again") from error
    finally:
        logger.setLevel(level)


def _unpack(archive: Path, wanted: list[DataFile], folder: Path) -> None:
    """Take the wanted files out of the archive; where they go is never read from the archive."""
    missing = {file.path: file for file in wanted}
    with tarfile.open(archive, "r:gz") as members:
        for member in members:
            content = members.extractfile(member) if member.isfile() else None
            file = missing.get(posixpath.normpath(member.name))
            if content is None or file is None:
                continue
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            part = _check_part(_part(target))
            with part.open("wb") as stream:
                shutil.copyfileobj(content, stream)
            found = _examine(part, file)
            if found.state != "ok":
                part.unlink()
                raise DataError(f"{file.path} in {archive} is damaged ({found.reason}): delete the archive, try again")
            os.replace(part, target)
            del missing[file.path]
    if missing:
        raise DataError(f"{archive} does not hold {', '.join(missing)}: delete it, try again")


@contextmanager
def _progress(report: Report | None) -> Iterator[Tick]:
    """Draw bars on a terminal; else say a line for every tenth of a file."""
    if report is None and sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bars:
            tasks = {}

            def draw(name: str, here: int, total: int | None) -> None:
                if name not in tasks:
                    tasks[name] = bars.add_task(name)
                bars.update(tasks[name], completed=here, total=total)

            yield draw
        return

    said: dict[str, int] = {}

    def say(name: str, here: int, total: int | None) -> None:
        tenths = 10 * here // total if total else 0
        if tenths > said.get(name, -1):
            said[name] = tenths
            line = f"{name}: {10 * tenths} % of {total / 1e6:.1f} MB" if total else f"{name}: downloading"
            (report or _to_standard_error)(line)

    yield say


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _cause(error: Exception) -> str:
    """What went wrong with a download, in a few words: the messages of urllib3 are nested and long."""
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code} {error.response.reason}"
    if isinstance(error, (requests.Timeout, urllib3.exceptions.TimeoutError)):
        return "the server did not answer in time"
    if isinstance(error, (requests.ConnectionError, urllib3.exceptions.ProtocolError)):
        return "no connection, or it was lost"
    return _one_line(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
