"""Small random streams; experiments/streams/fuzz.py makes them, and runs many more."""

import warnings

import pytest

pytest.importorskip("pandas")

from experiments.streams.fuzz import check


@pytest.mark.parametrize("seed", range(1_000_000, 1_000_030))
def test_a_random_stream_is_learned_and_answered(seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(seed, rows=40)
