"""Downloads against a local server that behaves, ignores ranges, hangs up, refuses, or lies."""

from __future__ import annotations

import hashlib
import io
import random
import socket
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch  # type: ignore[import-untyped]
import pytest

from hvcl.core.errors import DataError, UnknownNameError
from hvcl.streams.files import FILE_SETS, Archive, DataFile, FileSet, data_folder, fetch, status, verify

FIRST = random.Random(1).randbytes(300_000)
SECOND = random.Random(2).randbytes(1_000)
CONTENTS = {"first.bin": FIRST, "second.bin": SECOND}


class Server(ThreadingHTTPServer):
    """Serves `contents` by name in the way `behaviour` says, and remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/data/"
        self.contents: dict[str, bytes] = dict(CONTENTS)
        self.behaviour = "ranges"
        self.asked: list[tuple[str, str | None]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.removeprefix("/data/")
        wanted = self.headers.get("Range")
        self.server.asked.append((name, wanted))
        if self.server.behaviour == "not found" or name not in self.server.contents:
            self.send_error(404)
            return
        content = self.server.contents[name]
        if self.server.behaviour == "altered":
            content = bytes([content[0] ^ 1]) + content[1:]
        begin = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if begin and self.server.behaviour != "no ranges":
            if begin >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            content = content[begin:]
        else:
            self.send_response(200)
        if self.server.behaviour != "no length":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if self.server.behaviour == "hangs up" else content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def unreachable() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/data/"


def data_file(name: str, content: bytes) -> DataFile:
    return DataFile(f"tiny/{name}", len(content), hashlib.sha256(content).hexdigest())


FILES = tuple(data_file(name, content) for name, content in CONTENTS.items())

Register = Callable[[FileSet], None]


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    return lambda files: monkeypatch.setitem(FILE_SETS, "tiny", files)


@pytest.fixture
def one_by_one(server: Server, register: Register) -> None:
    register(FileSet(server.url, FILES))


def everything_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


COMPLETE = {"tiny/first.bin": FIRST, "tiny/second.bin": SECOND}


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / "tiny" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


# ---- what lies there


def test_data_folder_is_the_variable_else_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVCL_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.setenv("HVCL_DATA", "")
    assert data_folder() == Path(pooch.os_cache("hvcl"))


def test_the_data_folder_is_used_when_none_is_given(one_by_one: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVCL_DATA", str(tmp_path))
    fetch("tiny")
    verify("tiny")
    assert everything_below(tmp_path) == COMPLETE


def test_registry_is_well_formed() -> None:
    assert set(FILE_SETS) == {"digits", "mnist", "cifar10", "cifar100"}
    every_file = [file for files in FILE_SETS.values() for file in files.files]
    assert len(every_file) == len({file.sha256 for file in every_file}) == 12
    assert all(len(bytes.fromhex(file.sha256)) == 32 for file in every_file)
    assert sum(file.size for file in FILE_SETS["cifar10"].files) == 60_000 * 3073
    assert sum(file.size for file in FILE_SETS["cifar100"].files) == 60_000 * 3074


@pytest.mark.parametrize("call", [fetch, status, verify])
def test_unknown_name_suggests_the_nearest(call: Callable[[str], object]) -> None:
    with pytest.raises(UnknownNameError, match="unknown data set 'cifar11': did you mean 'cifar10'"):
        call("cifar11")


def test_embedded_data_set_needs_nothing(tmp_path: Path) -> None:
    fetch("digits", tmp_path)
    verify("digits", tmp_path)
    assert status("digits", tmp_path) == []
    assert everything_below(tmp_path) == {}


def test_truncated_altered_and_missing_are_told_apart(register: Register, tmp_path: Path) -> None:
    register(FileSet("", (*FILES, data_file("third.bin", b"third"), data_file("fourth.bin", b"fourth"))))
    put(tmp_path, "first.bin", FIRST[:-1])
    put(tmp_path, "second.bin", b"\0" + SECOND[1:])
    put(tmp_path, "third.bin", b"third and more")
    found = status("tiny", tmp_path)
    assert [(file.path.name, file.state) for file in found] == [
        ("first.bin", "damaged"),
        ("second.bin", "damaged"),
        ("third.bin", "damaged"),
        ("fourth.bin", "missing"),
    ]
    assert found[0].reason == "truncated: 299999 of 300000 bytes"
    assert found[1].reason.startswith("altered")
    assert found[2].reason == "altered: 14 bytes instead of 5"


def test_verify_names_the_file_and_the_remedy(register: Register, tmp_path: Path) -> None:
    register(FileSet("", FILES))
    put(tmp_path, "first.bin", FIRST)
    with pytest.raises(DataError, match=r"tiny/second\.bin is missing: run `hvcl data get tiny`"):
        verify("tiny", tmp_path)
    path = put(tmp_path, "second.bin", SECOND[:10])
    with pytest.raises(DataError, match=r"truncated.*delete it and run `hvcl data get tiny`") as raised:
        verify("tiny", tmp_path)
    assert str(raised.value).startswith(str(path))
    put(tmp_path, "second.bin", SECOND)
    verify("tiny", tmp_path)


def test_a_folder_in_the_place_of_a_file_is_damage(register: Register, tmp_path: Path) -> None:
    register(FileSet("", FILES))
    (tmp_path / "tiny" / "first.bin").mkdir(parents=True)
    assert status("tiny", tmp_path)[0].state == "damaged"


# ---- files one by one


@pytest.mark.parametrize("behaviour", ["ranges", "no ranges", "no length"])
def test_full_download(one_by_one: None, server: Server, behaviour: str, tmp_path: Path) -> None:
    server.behaviour = behaviour
    fetch("tiny", tmp_path / "not yet there")
    assert everything_below(tmp_path / "not yet there") == COMPLETE
    assert server.asked == [("first.bin", None), ("second.bin", None)]


def test_only_what_is_missing_is_downloaded(one_by_one: None, server: Server, tmp_path: Path) -> None:
    put(tmp_path, "first.bin", FIRST)
    fetch("tiny", tmp_path)
    assert server.asked == [("second.bin", None)]
    fetch("tiny", tmp_path)
    assert len(server.asked) == 1


def test_a_mirror_replaces_the_official_source(server: Server, unreachable: str, register: Register, tmp_path: Path) -> None:
    register(FileSet(unreachable, FILES))
    fetch("tiny", tmp_path, base_url=server.url.rstrip("/"))
    assert everything_below(tmp_path) == COMPLETE


def test_a_lost_connection_is_resumed_where_it_stopped(one_by_one: None, server: Server, tmp_path: Path) -> None:
    server.behaviour = "hangs up"
    with pytest.raises(DataError, match=r"cannot download tiny, .*lost: try again"):
        fetch("tiny", tmp_path)
    left = everything_below(tmp_path)
    assert list(left) == ["tiny/first.bin.part"]
    here = len(left["tiny/first.bin.part"])
    assert 0 < here <= len(FIRST) // 2
    assert left["tiny/first.bin.part"] == FIRST[:here]

    server.behaviour = "ranges"
    server.asked.clear()
    fetch("tiny", tmp_path)
    assert server.asked == [("first.bin", f"bytes={here}-"), ("second.bin", None)]
    assert everything_below(tmp_path) == COMPLETE


def test_a_server_without_ranges_starts_over(one_by_one: None, server: Server, tmp_path: Path) -> None:
    put(tmp_path, "first.bin.part", FIRST[:1000])
    server.behaviour = "no ranges"
    fetch("tiny", tmp_path)
    assert server.asked[0] == ("first.bin", "bytes=1000-")
    assert everything_below(tmp_path) == COMPLETE


def test_a_part_that_is_already_complete_is_taken(one_by_one: None, server: Server, tmp_path: Path) -> None:
    put(tmp_path, "first.bin.part", FIRST)
    fetch("tiny", tmp_path)
    assert everything_below(tmp_path) == COMPLETE


@pytest.mark.parametrize("stale", [b"\0" * 1000, b"\0" * len(FIRST), FIRST + b"\0"], ids=["begun", "whole", "too long"])
def test_a_wrong_part_is_removed_and_the_next_try_is_clean(
    one_by_one: None, server: Server, stale: bytes, tmp_path: Path
) -> None:
    put(tmp_path, "first.bin.part", stale)
    with pytest.raises(DataError, match=r"first\.bin is not the expected file"):
        fetch("tiny", tmp_path)
    assert everything_below(tmp_path) == {}
    server.asked.clear()
    fetch("tiny", tmp_path)
    assert server.asked[0] == ("first.bin", None)
    assert everything_below(tmp_path) == COMPLETE


def test_altered_bytes_are_refused_and_the_next_try_works(one_by_one: None, server: Server, tmp_path: Path) -> None:
    server.behaviour = "altered"
    with pytest.raises(DataError, match=r"first\.bin is not the expected file, its checksum differs"):
        fetch("tiny", tmp_path)
    assert everything_below(tmp_path) == {}
    server.behaviour = "ranges"
    fetch("tiny", tmp_path)
    assert everything_below(tmp_path) == COMPLETE


def test_without_a_server_the_error_says_what_to_put_where(register: Register, unreachable: str, tmp_path: Path) -> None:
    register(FileSet(unreachable, FILES))
    with pytest.raises(DataError) as raised:
        fetch("tiny", tmp_path)
    message = str(raised.value)
    assert f"put first.bin, second.bin from {unreachable} into {tmp_path / 'tiny'}" in message
    assert "\n" not in message


def test_a_refusal_by_the_server_is_told(one_by_one: None, server: Server, tmp_path: Path) -> None:
    server.behaviour = "not found"
    with pytest.raises(DataError, match=r"the server answered 404 .*put first\.bin, second\.bin from"):
        fetch("tiny", tmp_path)
    assert everything_below(tmp_path) == {}


def test_only_what_is_still_missing_is_asked_of_the_user(one_by_one: None, server: Server, tmp_path: Path) -> None:
    del server.contents["second.bin"]
    with pytest.raises(DataError, match=r"put second\.bin from"):
        fetch("tiny", tmp_path)
    assert everything_below(tmp_path) == {"tiny/first.bin": FIRST}


def test_a_refusal_keeps_what_was_downloaded(one_by_one: None, server: Server, tmp_path: Path) -> None:
    put(tmp_path, "first.bin.part", FIRST[:1000])
    server.behaviour = "not found"
    with pytest.raises(DataError, match="404"):
        fetch("tiny", tmp_path)
    assert everything_below(tmp_path) == {"tiny/first.bin.part": FIRST[:1000]}


def test_a_damaged_file_is_replaced_only_by_force(one_by_one: None, server: Server, tmp_path: Path) -> None:
    path = put(tmp_path, "second.bin", b"mine")
    with pytest.raises(DataError, match=r"second\.bin is damaged \(truncated.*delete it and run `hvcl data get tiny`"):
        fetch("tiny", tmp_path)
    assert path.read_bytes() == b"mine"
    assert server.asked == []
    fetch("tiny", tmp_path, force=True)
    assert everything_below(tmp_path) == COMPLETE


def test_a_data_folder_that_is_a_file_is_told(one_by_one: None, tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot put tiny into .*file: ") as raised:
        fetch("tiny", folder)
    assert "\n" not in str(raised.value)


# ---- progress


def test_progress_is_reported_in_tenths(one_by_one: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    fetch("tiny", tmp_path, lines.append)
    first = [line for line in lines if line.startswith("first.bin")]
    assert first[0] == "first.bin: 0 % of 0.3 MB"
    assert first[-1] == "first.bin: 100 % of 0.3 MB"
    assert 3 <= len(first) == len(set(first)) <= 11
    assert capsys.readouterr() == ("", "")


def test_pooch_does_not_log_over_the_progress(
    one_by_one: None, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = pooch.get_logger()
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    level = logger.level
    fetch("tiny", tmp_path)
    assert caplog.records == []
    assert logger.level == level


def test_without_a_report_lines_go_to_standard_error(
    one_by_one: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch("tiny", tmp_path)
    output = capsys.readouterr()
    assert output.out == ""
    assert "second.bin: 100 % of 0.0 MB\n" in output.err


def test_a_terminal_gets_a_bar(
    one_by_one: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    fetch("tiny", tmp_path)
    output = capsys.readouterr()
    assert output.out == ""
    assert "first.bin" in output.err
    assert "━" in output.err


# ---- archives


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def regular(name: str, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(name), content


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member, b""


GOOD = (regular("tiny/first.bin", FIRST), regular("tiny/second.bin", SECOND))

Pack = Callable[..., None]


@pytest.fixture
def pack(server: Server, register: Register) -> Pack:
    """Put these members into the archive on the server, which counts as the official one."""

    def pack(*members: tuple[tarfile.TarInfo, bytes]) -> None:
        content = packed(*members)
        server.contents = {"tiny.tar.gz": content}
        register(FileSet(server.url, FILES, Archive("tiny.tar.gz", hashlib.md5(content).hexdigest())))

    return pack


def test_an_archive_is_unpacked_and_deleted(pack: Pack, tmp_path: Path) -> None:
    pack(*GOOD)
    fetch("tiny", tmp_path)
    assert everything_below(tmp_path) == COMPLETE


def test_an_archive_is_resumed(pack: Pack, server: Server, tmp_path: Path) -> None:
    pack(*GOOD)
    server.behaviour = "hangs up"
    with pytest.raises(DataError, match=r"put first\.bin, second\.bin from .*/data/tiny\.tar\.gz into .*tiny$"):
        fetch("tiny", tmp_path)
    here = (tmp_path / "tiny.tar.gz.part").stat().st_size
    server.behaviour = "ranges"
    fetch("tiny", tmp_path)
    assert server.asked == [("tiny.tar.gz", None), ("tiny.tar.gz", f"bytes={here}-")]
    assert everything_below(tmp_path) == COMPLETE


def test_an_archive_that_lies_there_is_used(pack: Pack, server: Server, tmp_path: Path) -> None:
    pack(*GOOD)
    (tmp_path / "tiny.tar.gz").write_bytes(server.contents["tiny.tar.gz"])
    fetch("tiny", tmp_path)
    assert server.asked == []
    assert everything_below(tmp_path) == COMPLETE


def test_a_damaged_archive_is_replaced_only_by_force(pack: Pack, tmp_path: Path) -> None:
    pack(*GOOD)
    archive = tmp_path / "tiny.tar.gz"
    archive.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"tiny\.tar\.gz is damaged \(altered"):
        fetch("tiny", tmp_path)
    assert archive.read_bytes() == b"mine"
    fetch("tiny", tmp_path, force=True)
    assert everything_below(tmp_path) == COMPLETE


def test_files_that_verify_are_not_unpacked_again(pack: Pack, tmp_path: Path) -> None:
    pack(*GOOD)
    path = put(tmp_path, "first.bin", FIRST)
    before = path.stat()
    fetch("tiny", tmp_path)
    assert everything_below(tmp_path) == COMPLETE
    assert path.stat().st_ino == before.st_ino


def test_nothing_but_the_expected_names_leaves_an_archive(pack: Pack, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    outside = tmp_path / "outside"
    outside.mkdir()
    pack(
        regular("../escaped.bin", b"escaped"),
        regular(str(outside / "absolute.bin"), b"escaped"),
        link("tiny", str(outside)),
        link("tiny/first.bin", str(outside / "linked.bin")),
        regular("tiny/extra.bin", b"extra"),
        *GOOD,
    )
    fetch("tiny", folder)
    assert everything_below(tmp_path) == {f"data/{name}": content for name, content in COMPLETE.items()}
    assert not (folder / "tiny").is_symlink()
    assert not (folder / "tiny" / "first.bin").is_symlink()


def test_a_wrong_member_is_not_put_in_place(pack: Pack, tmp_path: Path) -> None:
    pack(GOOD[0], regular("tiny/second.bin", SECOND[:-1]))
    with pytest.raises(DataError, match=r"tiny/second\.bin in .*tiny\.tar\.gz is damaged \(truncated"):
        fetch("tiny", tmp_path)
    assert sorted(everything_below(tmp_path)) == ["tiny.tar.gz", "tiny/first.bin"]


def test_a_member_that_is_not_there_is_named(pack: Pack, tmp_path: Path) -> None:
    pack(GOOD[0], link("tiny/second.bin", "first.bin"))
    with pytest.raises(DataError, match=r"tiny\.tar\.gz does not hold tiny/second\.bin"):
        fetch("tiny", tmp_path)


def test_a_link_in_the_place_of_a_partial_file_is_not_written_through(one_by_one: None, tmp_path: Path) -> None:
    victim = put(tmp_path, "mine.txt", b"precious")
    part = tmp_path / "data" / "tiny" / "first.bin.part"
    part.parent.mkdir(parents=True)
    part.symlink_to(victim)
    with pytest.raises(DataError, match="is a link"):
        fetch("tiny", tmp_path / "data")
    assert victim.read_bytes() == b"precious"
