"""Compiled operators against plain operations, with the same random numbers."""

from __future__ import annotations

import pytest

from hvcl.ops import load


@pytest.fixture
def library():
    found = load()
    if found is None:
        pytest.skip("no compiled library: there is no C compiler, or HVCL_NO_KERNELS is set")
    return found
