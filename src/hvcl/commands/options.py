"""Parsers of the command line: options are made from configurations, and every mistake is one line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from hvcl.core.configuration import MOST_SEEDS, describe, field_help, field_types, parse
from hvcl.core.errors import HvclError, InputError


class UsageError(HvclError):
    """A command line that cannot be understood.

    No `InputError`: that is a ValueError, whose message argparse would replace by its own.
    """


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are exceptions, and which names the nearest option for an unknown one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)
        self.values: dict[str, tuple[str, ...]] = {}
        """For completion: what an option's value, or a positional argument by its dest, can be."""

    def error(self, message: str) -> NoReturn:
        """Raise `UsageError`."""
        raise UsageError(f"{message} (see {self.prog} --help)")

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """All of `words`; an unknown one raises `UsageError`."""
        known, rest = self.parse_known_args([self._flag(word) for word in words])
        if rest and rest[0].lower() in ("true", "false", "yes", "no"):
            raise UsageError(f"unexpected argument {rest[0]!r}: options that are on or off are written --name or --no-name")
        if rest and not rest[0].startswith("-"):
            raise UsageError(f"unexpected argument {rest[0]!r} (see {self.prog} --help)")
        if rest:
            name = rest[0].partition("=")[0]
            near = difflib.get_close_matches(name, _options(self), n=1)
            raise UsageError(f"unknown option {name}: " + (f"did you mean {near[0]}?" if near else f"see {self.prog} --help"))
        return known

    def _flag(self, word: str) -> str:
        """--name=true and --name=false as --name and --no-name, where that is what the option has."""
        name, equals, text = word.partition("=")
        if equals and isinstance(self._option_string_actions.get(name), argparse.BooleanOptionalAction):
            return name if parse(name, text, bool) else f"--no-{name[2:]}"
        return word


def check_run_options(options: argparse.Namespace) -> None:
    """Raise `UsageError` for options of a run that contradict each other."""
    if options.resume and options.force:
        raise UsageError("--resume goes on with a run and --force replaces it: give one of them")


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """All options, those of subcommands included."""
    found = list(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += [option for nested in action.choices.values() for option in _options(nested)]
    return found


def typed(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """`convert` for argparse's `type`, its error kept as it is."""

    def converted(text: str) -> Any:
        try:
            return convert(text)
        except HvclError as error:
            raise UsageError(str(error)) from None

    return converted


# -- settings: one option for each field of a configuration ----------------------------------------------------------------


def option_of(field: str) -> str:
    """The option that sets a field."""
    return f"--{field.replace('_', '-')}"


def add_settings(parser: Parser, title: str, config: type[Any], name: str, only: Sequence[str] = ()) -> None:
    """An option for every field of the dataclass `config`, with its docstring as help; `settings_of(..., name)` reads them.

    `only` names the fields, if not all of them are to be options.

    A field whose option is there already is passed over: the first configuration has it.
    """
    group = parser.add_argument_group(title)
    helps, kinds = field_help(config), field_types(config)
    for field in dataclasses.fields(config):
        option, kind = option_of(field.name), kinds[field.name]
        if option in parser._option_string_actions or (only and field.name not in only):
            continue
        default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
        text = helps.get(field.name, "").replace("%", "%%")
        options: dict[str, Any] = {"dest": f"{name}.{field.name}", "default": argparse.SUPPRESS}
        if kind is bool:
            group.add_argument(option, action=argparse.BooleanOptionalAction, help=f"{text} Default {default}.", **options)
            continue
        words = f"{text} {describe(kind).capitalize()}; default {default or 'none'}."
        convert = typed(lambda text, option=option, kind=kind: parse(option, text, kind))  # type: ignore[misc]
        group.add_argument(option, type=convert, metavar=field.name.upper(), help=words, **options)
        parser.values[option] = _choices(kind)


def settings_of(options: argparse.Namespace, name: str) -> dict[str, Any]:
    """The settings that were given, by field, of the configuration that was added as `name`."""
    prefix = f"{name}."
    return {field.removeprefix(prefix): value for field, value in vars(options).items() if field.startswith(prefix)}


def _choices(kind: Any) -> tuple[str, ...]:
    """What a value of this type can be, where that is a short list."""
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return tuple(kind)
    if get_origin(kind) is Literal:
        return tuple(map(str, get_args(kind)))
    return tuple(choice for part in get_args(kind) for choice in _choices(part)) if get_origin(kind) is not tuple else ()


# -- what every command that runs something takes --------------------------------------------------------------------------


def add_run_options(parser: Parser, method: str, methods: Iterable[str], out: str) -> None:
    """--method, --seeds, --out, --json, --resume, --force, --workers."""
    parser.add_argument("--method", metavar="M", default=method, help=f"the method ({method}); --help shows its settings")
    parser.add_argument("--seeds", metavar="1,2,3", type=typed(parse_seeds), default=(1,), help="seeds, each run on its own (1)")
    parser.add_argument("--out", metavar="DIR", type=Path, help=f"run folder ({out})")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object, the last line")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the folder")
    parser.add_argument("--force", action="store_true", help="replace the run in the folder")
    add_workers(parser)
    parser.values["--method"] = tuple(sorted(methods))


def add_workers(parser: Parser) -> None:
    """--workers."""
    parser.add_argument("--workers", metavar="N", type=int, help="processes (one per core)")


def method_in(words: Sequence[str], default: str) -> str:
    """The value of --method among `words`, on which the other options depend."""
    return value_in(words, "--method") or default


def value_in(words: Sequence[str], option: str) -> str | None:
    """The value of an option among `words`, if it is there."""
    for place, word in enumerate(words):
        if word == option and place + 1 < len(words):
            return words[place + 1]
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return None


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from "1,2,3" or "1-5"."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, dash, last = part.partition("-")
            found = range(int(first), int(last) + 1) if dash else [int(first)]
            if len(seeds) + (found.stop - found.start if isinstance(found, range) else 1) > MOST_SEEDS:
                raise UsageError(f"--seeds {text[:50]} are too many: a run has at most {MOST_SEEDS:,} seeds")
            seeds += found
    except ValueError:
        raise InputError(f"seeds must be whole numbers such as 1,2,3 or 1-5, got {text!r}") from None
    return tuple(seeds)
