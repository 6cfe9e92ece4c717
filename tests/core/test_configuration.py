"""Configurations: help from docstrings, settings checked, text parsed, JSON and back."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import pytest

from hvcl.core.configuration import configure, describe, field_help, field_types, parse, to_json
from hvcl.core.errors import InputError
from hvcl.learners import known_methods
from hvcl.streams.stream import StreamConfig
from hvcl.streams.tasks import Scenario

CONFIGS = {"stream": StreamConfig} | {name: method.config for name, method in known_methods().items()}


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Base:
    """About the class, not about a field."""

    width: int = 3
    """How wide."""
    rate: float = 0.5
    """How fast."""
    silent: int = 0
    kept: str = "a"
    """From the base."""


class Between(Base):
    """A class on the way that is no dataclass of its own."""

    noise: int = 0
    """A class attribute."""


@dataclass(frozen=True)
class Example(Between):
    """Fields of its own, and one that is told anew."""

    rate: float = 0.7
    """How fast, now."""
    kept: str = "b"
    flag: bool = False
    """Yes or no."""
    colour: Colour = Colour.RED
    """One of two."""
    kind: Literal["one", "two"] = "one"
    """Also one of two."""
    sizes: tuple[int, ...] = (1, 2)
    """A list."""
    depth: int | None = None
    """A number or none."""
    share: float | None = None
    """A fraction or none."""

    def method(self) -> int:
        """Not a field's text."""
        return 1

    @property
    def area(self) -> int:
        """Not a field's text either."""
        return self.width**2


# -- help -----------------------------------------------------------------------------------------------------------------


def test_help_is_the_docstring_under_each_field_with_those_of_the_bases() -> None:
    texts = field_help(Example)
    fields = {field.name for field in dataclasses.fields(Example)}
    assert {name: text for name, text in texts.items() if name in fields} == {
        "width": "How wide.",
        "rate": "How fast, now.",
        "kept": "From the base.",
        "flag": "Yes or no.",
        "colour": "One of two.",
        "kind": "Also one of two.",
        "sizes": "A list.",
        "depth": "A number or none.",
        "share": "A fraction or none.",
    }
    assert field_help(Base) == {"width": "How wide.", "rate": "How fast.", "kept": "From the base."}


def test_types_are_resolved() -> None:
    types = field_types(Example)
    assert list(types) == [field.name for field in dataclasses.fields(Example)]
    assert (types["width"], types["rate"], types["colour"]) == (int, float, Colour)
    assert types["sizes"] == tuple[int, ...]
    assert types["depth"] == int | None


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_has_a_help_text(name: str) -> None:
    texts = field_help(CONFIGS[name])
    missing = [field.name for field in dataclasses.fields(CONFIGS[name]) if not texts.get(field.name, "").strip()]
    assert missing == []


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_has_a_type_that_can_be_described_in_words(name: str) -> None:
    for field, kind in field_types(CONFIGS[name]).items():
        words = describe(kind)
        assert "<" not in words, f"{field}: {words}"
        assert "typing" not in words, f"{field}: {words}"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (int, "an integer"),
        (float, "a number"),
        (bool, "true or false"),
        (str, "a text"),
        (Colour, "one of red, blue"),
        (Literal["one", "two"], "one of one, two"),
        (tuple[int, ...], "a list of integers such as 256,256"),
        (int | None, "an integer or none"),
        (float | None, "a number or none"),
    ],
)
def test_types_in_words(kind: Any, words: str) -> None:
    assert describe(kind) == words


# -- settings from Python and JSON ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("width", 5, 5),
        ("rate", 0.25, 0.25),
        ("rate", 2, 2.0),
        ("share", 1, 1.0),
        ("share", None, None),
        ("depth", None, None),
        ("depth", 4, 4),
        ("flag", True, True),
        ("sizes", [3, 4, 5], (3, 4, 5)),
        ("sizes", (3,), (3,)),
        ("sizes", [], ()),
        ("colour", "blue", Colour.BLUE),
        ("colour", Colour.BLUE, Colour.BLUE),
        ("kind", "two", "two"),
        ("kept", "text", "text"),
    ],
)
def test_values_that_fit(name: str, value: Any, expected: Any) -> None:
    made = getattr(configure(Example, {name: value}), name)
    assert made == expected
    assert type(made) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("width", 2.0, "an integer"),
        ("width", "3", "an integer"),
        ("width", True, "an integer"),
        ("width", None, "an integer"),
        ("rate", "0.5", "a number"),
        ("rate", False, "a number"),
        ("rate", None, "a number"),
        ("rate", [0.5], "a number"),
        ("share", True, "a number or none"),
        ("depth", 1.5, "an integer or none"),
        ("depth", True, "an integer or none"),
        ("flag", 1, "true or false"),
        ("flag", "true", "true or false"),
        ("sizes", 3, "a list of integers"),
        ("sizes", "12", "a list of integers"),
        ("sizes", [1, 2.5], "a list of integers"),
        ("sizes", [1, "2"], "a list of integers"),
        ("colour", "green", "one of red, blue"),
        ("colour", 1, "one of red, blue"),
        ("kind", "three", "one of one, two"),
        ("kept", 3, "a text"),
    ],
)
def test_values_of_the_wrong_kind(name: str, value: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        configure(Example, {name: value})
    assert str(caught.value).startswith(f"{name} must be {words}")
    assert str(caught.value).endswith(f"got {value!r}")


def test_a_truth_value_is_no_integer_in_a_list_either() -> None:
    with pytest.raises(InputError, match="sizes must be a list of integers"):
        configure(Example, {"sizes": [True, 2]})


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_must_be_finite(value: float) -> None:
    with pytest.raises(InputError, match="rate must be"):
        configure(Example, {"rate": value})


def test_an_unknown_setting_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown setting 'widht': did you mean 'width'\? known are colour, depth, .*width"):
        configure(Example, {"widht": 3})
    with pytest.raises(InputError) as caught:
        configure(Example, {"zzzz": 3})
    assert "did you mean" not in str(caught.value)


def test_what_is_left_out_takes_its_default() -> None:
    assert configure(Example, {}) == Example()
    assert configure(Example, {"width": 9}) == Example(width=9)


def test_the_configs_own_checks_still_speak() -> None:
    with pytest.raises(InputError, match="epochs and batch_size must be at least 1"):
        configure(StreamConfig, {"epochs": 0})


# -- text from the command line -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("12", int, 12),
        ("-3", int, -3),
        ("0.5", float, 0.5),
        ("1e-3", float, 1e-3),
        ("-2", float, -2.0),
        ("true", bool, True),
        ("Yes", bool, True),
        ("1", bool, True),
        ("FALSE", bool, False),
        ("no", bool, False),
        ("0", bool, False),
        ("none", str, "none"),
        ("3,1,4", str, "3,1,4"),
        ("two", Literal["one", "two"], "two"),
        ("blue", Colour, Colour.BLUE),
        ("class", Scenario, Scenario.CLASS),
        ("256,256", tuple[int, ...], (256, 256)),
        ("256-128-64", tuple[int, ...], (256, 128, 64)),
        ("7", tuple[int, ...], (7,)),
        ("", tuple[int, ...], ()),
        ("none", int | None, None),
        ("Null", float | None, None),
        ("4", int | None, 4),
        ("4", float | None, 4.0),
    ],
)
def test_text_that_fits(text: str, kind: Any, expected: Any) -> None:
    parsed = parse("name", text, kind)
    assert parsed == expected
    assert type(parsed) is type(expected)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("1.5", int, "an integer"),
        ("none", int, "an integer"),
        ("", int, "an integer"),
        ("fast", float, "a number"),
        ("maybe", bool, "true or false"),
        ("2", bool, "true or false"),
        ("three", Literal["one", "two"], "one of one, two"),
        ("green", Colour, "one of red, blue"),
        ("256,many", tuple[int, ...], "a list of integers such as 256,256"),
        ("1.5,2", tuple[int, ...], "a list of integers such as 256,256"),
        ("1.5", int | None, "an integer or none"),
        ("nothing", float | None, "a number or none"),
    ],
)
def test_text_that_does_not_fit(text: str, kind: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse("--name", text, kind)
    assert str(caught.value) == f"--name must be {words}, got {text!r}"


@pytest.mark.parametrize("text", ["-5", "256,-5"])
def test_a_negative_size_is_not_read_as_a_positive_one(text: str) -> None:
    with contextlib.suppress(InputError):
        assert min(parse("--hidden", text, tuple[int, ...])) < 0  # then build_network refuses it


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_text_must_be_a_finite_number(text: str) -> None:
    with pytest.raises(InputError):
        parse("--rate", text, float)


# -- JSON -----------------------------------------------------------------------------------------------------------------


def test_to_json_gives_plain_values() -> None:
    made = to_json(Example(sizes=(4, 5), colour=Colour.BLUE))
    assert made == {
        "width": 3,
        "rate": 0.7,
        "silent": 0,
        "kept": "b",
        "flag": False,
        "colour": "blue",
        "kind": "one",
        "sizes": [4, 5],
        "depth": None,
        "share": None,
    }
    assert type(made["colour"]) is str


def other_value(value: Any) -> Any:
    """Something else of the same kind, where that is easy to find."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return (*value, 3)
    if isinstance(value, StrEnum):
        return list(type(value))[-1]
    return value


@pytest.mark.parametrize("name", CONFIGS)
def test_round_trip_through_json(name: str) -> None:
    config = CONFIGS[name]
    default = config()
    # field by field: not everything that differs from the default goes together
    others = {field.name: other_value(getattr(default, field.name)) for field in dataclasses.fields(config)}
    changed = []
    for field, value in others.items():
        with contextlib.suppress(InputError):  # nor do all with the rest as it is
            changed.append(dataclasses.replace(default, **{field: value}))
    assert any(made != default for made in changed)
    for made in (default, *changed):
        again = configure(config, json.loads(json.dumps(to_json(made), allow_nan=False)))
        assert again == made
        for field in dataclasses.fields(config):
            assert type(getattr(again, field.name)) is type(getattr(made, field.name)), field.name


@pytest.mark.parametrize("name", CONFIGS)
def test_every_default_can_be_said_on_the_command_line(name: str) -> None:
    default = CONFIGS[name]()
    for field, kind in field_types(CONFIGS[name]).items():
        value = getattr(default, field)
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert parse(field, text, kind) == value
