"""Files are written where the user points, whole or not at all, and nothing else is left."""

import errno
import json
import os
import signal
import threading

import pytest

from hvcl.core import files
from hvcl.core.errors import RunError
from hvcl.core.files import is_sealed, read_json, remove_temporary, write_atomically, write_json


@pytest.fixture(params=["as the system has it", "with a name"])
def _way(request, monkeypatch):
    """Both ways to write: Linux has files without a name."""
    if request.param == "with a name":
        monkeypatch.setattr(files, "_open_nameless", lambda folder: None)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("_way")
def test_a_file_is_written_and_replaced(tmp_path):
    for content in (b"first", b"", b"third" * 100_000):
        write_atomically(tmp_path / "a", content[:2], memoryview(content[2:]))
        assert (tmp_path / "a").read_bytes() == content
    write_atomically(tmp_path / ("n" * 250), "é")  # a name as long as names may be
    assert (tmp_path / ("n" * 250)).read_bytes() == b"\xc3\xa9"
    assert names(tmp_path) == ["a", "n" * 250]


@pytest.mark.usefixtures("_way")
def test_a_link_stays_a_link_and_its_file_is_written(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere/file")
    for content in (b"new", b"newer"):
        write_atomically(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "elsewhere/file").read_bytes() == content
    assert names(tmp_path / "elsewhere") == ["file"]


def test_a_pipe_and_a_terminal_are_written_to(tmp_path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("needs Unix")
    os.mkfifo(tmp_path / "pipe")
    content, read = bytes(range(256)) * 1000, []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_atomically(tmp_path / "pipe", content)
    reader.join(60)
    assert read == [content]
    assert (tmp_path / "pipe").is_fifo()
    ours, theirs = os.openpty()
    try:
        (tmp_path / "terminal").symlink_to(os.ttyname(theirs))
        write_atomically(tmp_path / "terminal", "seen")
        assert os.read(ours, 100) == b"seen"
    finally:
        os.close(ours)
        os.close(theirs)
    assert names(tmp_path) == ["pipe", "terminal"]


def test_what_is_no_place_for_a_file_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for place in (tmp_path, tmp_path / "loop"):
        with pytest.raises(OSError, match=r"neither a file|[Ss]ymbolic"):
            write_atomically(place, b"x")
    assert names(tmp_path) == ["loop"]


@pytest.mark.usefixtures("_way")
def test_nothing_is_left_when_the_disk_is_full(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"before")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "a", b"after")
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"before"


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="needs Linux")
def test_nothing_is_left_when_the_process_is_killed(tmp_path):
    if (nameless := files._open_nameless(tmp_path)) is None:
        pytest.skip("this file system has no files without a name")
    nameless.close()
    child = os.fork()
    if not child:
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        write_atomically(tmp_path / "a", b"half")
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert names(tmp_path) == []


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path):
    for name in (".0123.tmp", "mine.tmp", ".hidden"):
        (tmp_path / name).write_text("")
    remove_temporary(tmp_path)
    assert names(tmp_path) == [".hidden", "mine.tmp"]


def test_a_seal_notices_every_change_of_the_content_and_none_of_the_layout(tmp_path):
    path, value = tmp_path / "a.json", {"b": [1, 2.5, None], "a": {"x": "y", 3: True}}
    write_json(path, value, sealed=True)
    assert is_sealed(path)
    plain = {"b": [1, 2.5, None], "a": {"x": "y", "3": True}}
    assert read_json(path) == read_json(path, sealed=True) == plain
    document = json.loads(path.read_text())
    path.write_text(json.dumps(dict(sorted(document.items()))))
    assert read_json(path) == plain
    for change in ({"b": [1, 2.6, None]}, {"c": 1}, {"seal": document["seal"][::-1]}):
        path.write_text(json.dumps(document | change))
        with pytest.raises(RunError, match="checksum does not match"):
            read_json(path)
    write_json(path, plain)
    assert not is_sealed(path)
    assert read_json(path) == plain
    with pytest.raises(RunError, match="checksum is missing"):
        read_json(path, sealed=True)


def test_a_document_without_end_is_damaged(tmp_path):
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(RunError, match="damaged"):
        read_json(tmp_path / "a.json")
