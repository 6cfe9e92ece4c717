import os

import pytest

from hvcl.core.errors import RunError
from hvcl.serving.log import Log

ENTRIES = [{"n": number, "text": "ä\n\r" * number} for number in range(5)]


def written(path, entries=ENTRIES):
    log = Log(path)
    for entry in entries:
        log.append([entry])
    log.close()
    return path.read_bytes()


def test_what_was_appended_is_there_again(tmp_path):
    written(tmp_path / "log")
    log = Log(tmp_path / "log")
    assert log.entries == ENTRIES
    assert log.size == (tmp_path / "log").stat().st_size


def test_a_last_line_that_is_cut_short_anywhere_is_cut_off(tmp_path):
    path = tmp_path / "log"
    content = written(path)
    before = len(written(tmp_path / "fewer", ENTRIES[:-1]))
    for end in range(before, len(content)):
        path.write_bytes(content[:end])
        log = Log(path)
        assert log.entries == ENTRIES[:-1]
        assert path.stat().st_size == before
        log.append([{"n": 9}])
        log.close()
        assert Log(path).entries == [*ENTRIES[:-1], {"n": 9}]


def test_damage_in_the_middle_is_never_passed_over(tmp_path):
    path = tmp_path / "log"
    content = bytearray(written(path))
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"damaged in line \d"):
        Log(path)


def test_a_failed_flush_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "log"
    log = Log(path)
    log.append([ENTRIES[1]])

    def full(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            log.append([ENTRIES[2]])
    assert not log.sound
    with pytest.raises(OSError, match="before"):
        log.append([ENTRIES[3]])
    assert Log(path).entries == [ENTRIES[1]]
