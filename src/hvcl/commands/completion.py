"""hvcl completion: a script that makes a shell complete commands, names and options.

The script is made from the parsers, whole: completing starts no Python. Where options depend on --method, they follow the one
that stands on the line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hvcl.commands.main import COMMANDS, command
from hvcl.commands.options import Parser
from hvcl.core.errors import HvclError

SHELLS = ("bash", "zsh", "fish")

INSTALL = """to use it, once:
  bash   hvcl completion bash > ~/.local/share/bash-completion/completions/hvcl
  zsh    echo 'source <(hvcl completion zsh)' >> ~/.zshrc
  fish   hvcl completion fish > ~/.config/fish/completions/hvcl.fish"""


@dataclass
class Entry:
    """What can follow a command, such as "run" or "rl run"."""

    words: tuple[str, ...] = ()
    """Names that stand alone: benchmarks, data sets, actions."""
    options: dict[str, tuple[str, ...] | None] = field(default_factory=dict)
    """By option, its values as far as they can be listed; None: it takes no value."""
    methods: dict[str, dict[str, tuple[str, ...] | None]] = field(default_factory=dict)
    """By method, the options that it has besides."""
    default: str = ""
    """The method, if none is named."""


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(
        prog="hvcl completion",
        description="Print a script that makes a shell complete commands, names and options.",
        epilog=INSTALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("shell", choices=SHELLS)
    found.values["shell"] = SHELLS
    return found


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    found = dict(entries())
    print(fish(found) if options.shell == "fish" else bash(found, options.shell), end="")
    return 0


def entries() -> Iterator[tuple[str, Entry]]:
    """Every command with what can follow it; one that cannot be used here (a package is missing) is left out."""
    for name in COMMANDS:
        try:
            parse = command(name).parser
            plain = parse([])
        except HvclError:
            continue
        nested = _nested(plain)
        if not nested:
            yield name, _entry(plain, [parse(["--method", method]) for method in plain.values.get("--method", ())])
            continue
        yield name, Entry(words=tuple(nested))
        for action, inner in nested.items():
            methods = inner.values.get("--method", ())
            yield f"{name} {action}", _entry(inner, [_nested(parse(["--method", method]))[action] for method in methods])


def _nested(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """The parsers of a command's actions."""
    found = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0]) if found else {}


def _entry(parser: Parser, by_method: Sequence[Parser]) -> Entry:
    """`by_method` are the same command's parsers with each method."""
    default = str(parser.get_default("method") or "")
    names = parser.values.get("--method", ())
    every = dict(zip(names, map(_options, by_method), strict=True))
    mine = _options(parser)
    shared = {option: values for option, values in mine.items() if all(option in options for options in every.values())}
    words = tuple(word for name, values in parser.values.items() if not name.startswith("-") for word in values)
    methods = {name: {o: v for o, v in options.items() if o not in shared} for name, options in every.items()}
    return Entry(words, shared, methods, default)


def _options(parser: Parser) -> dict[str, tuple[str, ...] | None]:
    return {
        option: None if action.nargs == 0 else parser.values.get(option, ())
        for option, action in parser._option_string_actions.items()
        if option.startswith("--")
    }


# -- bash, and zsh through its emulation of bash's completion --------------------------------------------------------------


def bash(found: dict[str, Entry], shell: str = "bash") -> str:
    """The script for bash, or for zsh."""
    lines = ["# completion of hvcl; made by: hvcl completion " + shell]
    if shell == "zsh":
        lines += ["autoload -U +X compinit && compinit", "autoload -U +X bashcompinit && bashcompinit"]
    lines += [
        "_hvcl() {",
        '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" place method words="" options="" i',
        "  COMPREPLY=()",
        "  if ((COMP_CWORD == 1)); then",
        f'    COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} --help --version" -- "$current")); return',
        "  fi",
        '  place="${COMP_WORDS[1]}"',
    ]
    lines += [
        f'  if [ "$place" = {name} ] && ((COMP_CWORD > 2)); then place="{name} ${{COMP_WORDS[2]}}"; fi'
        for name in sorted({path.split()[0] for path in found if " " in path})
    ]
    lines += ['  case "$place" in']
    lines += [f'    "{path}") method="{entry.default}" ;;' for path, entry in found.items() if entry.methods]
    lines += [
        "  esac",
        "  for ((i = 2; i < COMP_CWORD; i++)); do",
        '    if [ "${COMP_WORDS[i]}" = --method ]; then method="${COMP_WORDS[i+1]}"; fi',
        "  done",
        '  case "$place" in',
    ]
    for path, entry in found.items():
        lines += [f'    "{path}")', f'      words="{" ".join(entry.words)}"', f'      options="{" ".join(entry.options)}"']
        lines += _bash_values(entry.options, "      ")
        if entry.methods:
            lines.append('      case "$method" in')
            for method, options in entry.methods.items():
                lines += [f'        "{method}")', f'          options="$options {" ".join(options)}"']
                lines += [*_bash_values(options, "          "), "          ;;"]
            lines.append("      esac")
        lines.append("      ;;")
    lines += [
        "  esac",
        '  if [[ "$current" == -* ]]; then words="$options"; fi',
        '  COMPREPLY=($(compgen -W "$words" -- "$current"))',
        "}",
        "complete -o default -F _hvcl hvcl",
    ]
    return "\n".join(lines) + "\n"


def _bash_values(options: dict[str, tuple[str, ...] | None], indent: str) -> list[str]:
    """Complete the value of the option before; one whose values cannot be listed is left to the shell (files)."""
    listed = [
        f'{indent}  {option}) COMPREPLY=($(compgen -W "{" ".join(values)}" -- "$current")); return ;;'
        for option, values in options.items()
        if values
    ]
    free = [option for option, values in options.items() if values == ()]
    return [
        f'{indent}case "$previous" in',
        *listed,
        *([f"{indent}  {'|'.join(free)}) return ;;"] if free else []),
        f"{indent}esac",
    ]


# -- fish ------------------------------------------------------------------------------------------------------------------


def fish(found: dict[str, Entry]) -> str:
    """The script for fish."""
    lines = [
        "# completion of hvcl; made by: hvcl completion fish",
        "function __hvcl_at  # whether the line is at this command",
        "    set -l words (commandline -opc)",
        "    test (count $words) -gt (count $argv); or return 1",
        '    test "$words[2..(math (count $argv) + 1)]" = "$argv"',
        "end",
        "function __hvcl_method  # whether the line names this method, the first argument being the default",
        "    set -l words (commandline -opc)",
        "    set -l place (contains -i -- --method $words)",
        '    if test -n "$place"; test "$words[(math $place + 1)]" = "$argv[2]"; else; test "$argv[1]" = "$argv[2]"; end',
        "end",
        "complete -c hvcl -f",
    ]
    start = '-n "test (count (commandline -opc)) -eq 1"'
    lines += [f'complete -c hvcl {start} -a {name} -d "{text}"' for name, text in COMMANDS.items()]
    lines += [f"complete -c hvcl {start} -l {name}" for name in ("help", "version")]
    for path, entry in found.items():
        at = f"__hvcl_at {path}"
        if any(other.startswith(f"{path} ") for other in found):  # its words are actions, which stand right after it
            at = f"test (count (commandline -opc)) -eq 2; and {at}"
        if entry.words:
            lines.append(f'complete -c hvcl -n "{at}" -a "{" ".join(entry.words)}"')
        lines += [_fish_option(at, option, values) for option, values in entry.options.items()]
        for method, options in entry.methods.items():
            condition = f"{at}; and __hvcl_method {entry.default} {method}"
            lines += [_fish_option(condition, option, values) for option, values in options.items()]
    return "\n".join(lines) + "\n"


def _fish_option(condition: str, option: str, values: tuple[str, ...] | None) -> str:
    line = f'complete -c hvcl -n "{condition}" -l {option[2:]}'
    if values is None:
        return line
    return f'{line} -x -a "{" ".join(values)}"' if values else f"{line} -r -F"
