from __future__ import annotations

import math

from hvcl.report import words


def test_percentages() -> None:
    assert words.percent(0.975) == "97.50"
    assert words.percent(math.nan) == "–"
    assert words.signed_percent(0.0123) == "+1.23"
    assert words.signed_percent(-0.0123) == "−1.23"
    assert words.signed_percent(-0.00001) == words.signed_percent(0.00001) == "0.00"


def test_significant_digits() -> None:
    assert [words.significant(value) for value in (0.0, 0.01234, -1.234, 12.34, 1234.5, 1e-7)] == [
        "0",
        "0.0123",
        "−1.23",
        "12.3",
        "1,234",
        "1.0e−07",
    ]


def test_sizes_and_times() -> None:
    assert [words.size(value) for value in (0, 999, 1000, 716_880, 45e6, 2.5e9)] == [
        "0 B",
        "999 B",
        "1 kB",
        "717 kB",
        "45 MB",
        "2.5 GB",
    ]
    assert [words.duration(value) for value in (0.5, 42.4, 150, 5400, 7500)] == [
        "0.5 s",
        "42 s",
        "2 min",
        "90 min",
        "2 h 05 min",
    ]


def test_listing() -> None:
    assert words.listing(["a"]) == "a"
    assert words.listing(["a", "b", "c"]) == "a, b and c"


def test_known_terms_come_first_in_their_order() -> None:
    assert words.term_order(["diversity", "zeta", "utility", "alpha", "loss"]) == [
        "loss",
        "utility",
        "diversity",
        "alpha",
        "zeta",
    ]
