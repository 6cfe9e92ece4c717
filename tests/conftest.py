"""What holds for all tests."""

import gc
import os
from collections.abc import Iterator

import pytest


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: no collection need look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_test_waits_for_the_disk() -> Iterator[None]:
    """What `os.fsync` is for, a power failure, no test sees; a file that is not open is an error still."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", os.fstat)
        yield
