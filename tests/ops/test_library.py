"""Which libraries are loaded; what happens to damaged ones is in tests/safety/test_memory.py."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from hvcl.ops.library import intact

ROOT = pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")


@pytest.fixture
def packaged(tmp_path: Path) -> tuple[Path, Path]:
    """A library as a wheel has it, and a source file of the package."""
    library, source = tmp_path / "lib.so", tmp_path / "library.py"
    library.write_bytes(b"code")
    library.with_suffix(".sha256").write_text(hashlib.sha256(b"code").hexdigest())
    source.touch()
    for path in (library, source):
        path.chmod(0o644)
    return library, source


def test_a_library_is_its_digest(packaged):
    library, source = packaged
    assert intact(library)
    assert intact(library, source)
    library.write_bytes(b"other code")
    assert not intact(library)
    assert not intact(library, source)
    assert not intact(library.with_name("none.so"), source)


@pytest.mark.parametrize("mode", [0o664, 0o666])
def test_a_wheels_library_may_be_as_open_as_the_package_itself(packaged, mode):
    """As pip installs with a umask of 002, in an environment that a group shares."""
    library, source = packaged
    library.chmod(mode)
    assert not intact(library)
    assert not intact(library, source)
    source.chmod(mode)
    assert intact(library, source)


@ROOT
def test_a_wheels_library_may_belong_to_the_owner_of_the_package(packaged):
    library, source = packaged
    os.chown(library, 12345, 12345)
    assert not intact(library)
    assert not intact(library, source)
    os.chown(source, 12345, 12345)
    assert intact(library, source)
