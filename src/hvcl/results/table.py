"""Tables of results, for documents and for browsers."""

from __future__ import annotations

import html
import statistics
from collections.abc import Sequence

from hvcl.results.cells import BUDGETS, Cell
from hvcl.streams import BENCHMARKS

_HEAD = ("method", "memory", "epochs", "accuracy %", "forgetting", "the paper's", "seconds", "seeds")
_SCENARIOS = ("domain", "class", "task")


def _groups(cells: Sequence[Cell]) -> list[tuple[str, list[Cell]]]:
    """Cells that may be compared, under a title, the best first.

    One pass over the data is the same with every budget: such cells stand in the table of each.
    """
    settings: dict[tuple[str, int, str], list[Cell]] = {}
    for cell in cells:
        settings.setdefault((cell.benchmark, _SCENARIOS.index(cell.scenario), cell.supervision), []).append(cell)
    groups = []
    for (benchmark, scenario, supervision), same in sorted(settings.items()):
        words = f"{benchmark}, {_SCENARIOS[scenario].capitalize()}-IL, {supervision}"
        anywhere = [cell for cell in same if cell.budget is None]
        budgets = [budget for budget in BUDGETS if any(cell.budget == budget for cell in same)]
        for budget in budgets or [""]:
            group = anywhere + [cell for cell in same if budget and cell.budget == budget]
            title = words + (f", budget {budget}" if budget else "")
            groups.append((title, sorted(group, key=lambda cell: -statistics.mean(cell.accuracies))))
    return groups


def _accuracy(cell: Cell) -> str:
    accuracies = [100 * value for value in cell.accuracies]
    spread = f" ± {statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    return f"{statistics.mean(accuracies):.2f}{spread}"


def _row(cell: Cell) -> tuple[str, ...]:
    return (
        cell.method,
        cell.memory,
        str(cell.epochs),
        _accuracy(cell),
        f"{100 * cell.forgetting:.1f}",
        "" if cell.paper is None else str(cell.paper),
        f"{cell.seconds:.0f}",
        str(len(cell.seeds)),
    )


def markdown_table(cells: Sequence[Cell]) -> str:
    """One table for each benchmark, scenario, supervision and budget; mean and standard deviation over seeds."""
    parts = []
    for title, group in _groups(cells):
        lines = [f"**{title}**", "", f"| {' | '.join(_HEAD)} |", "|---" * len(_HEAD) + "|"]
        lines += [f"| {' | '.join(_row(cell))} |" for cell in group]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def overview(cells: Sequence[Cell], supervision: str | None = None, budget: str = "standard") -> str:
    """One Markdown table: a row a method, a column for each benchmark and scenario, mean and deviation over seeds.

    The lower and upper bound stand first; the others follow by their mean rank in the columns that they have, best last. A method
    that was trained with boundaries and without them (task-free) has two rows; `supervision` asks for the one or the other. Where
    its memory differs between benchmarks, each is named with those that it is of.
    """
    shown = [cell for cell in cells if supervision in (None, cell.supervision) and cell.budget in (None, budget)]
    columns = sorted({(cell.benchmark, _SCENARIOS.index(cell.scenario)) for cell in shown}, key=_column_order)
    rows: dict[tuple[str, str], dict[tuple[str, int], Cell]] = {}
    for cell in shown:
        rows.setdefault((cell.method, cell.supervision), {})[cell.benchmark, _SCENARIOS.index(cell.scenario)] = cell

    def place(row: tuple[str, str]) -> tuple[int, float]:
        bounds = ("naive", "joint")
        ranks = []
        for column, cell in rows[row].items():
            others = [
                statistics.mean(found[column].accuracies) for name, found in rows.items() if column in found and name != row
            ]
            if others:
                ranks.append(sum(value < statistics.mean(cell.accuracies) for value in others) / len(others))
        return (bounds.index(row[0]) if row[0] in bounds else len(bounds), statistics.mean(ranks or [0.0]))

    titles = [f"{benchmark} {_SCENARIOS[scenario].capitalize()}-IL" for benchmark, scenario in columns]
    lines = [f"| method | training | memory | {' | '.join(titles)} |", "|---" * (len(columns) + 3) + "|"]
    seeds = [sorted({len(found[column].seeds) for found in rows.values() if column in found}) for column in columns]
    for row in sorted(rows, key=place):
        values = [_accuracy(rows[row][column]) if column in rows[row] else "" for column in columns]
        lines.append(f"| {' | '.join([*row, _memory(rows[row]), *values])} |")
    counts = [" or ".join(map(str, numbers)) for numbers in seeds]
    return "\n".join([*lines, f"| *seeds* |  |  | {' | '.join(counts)} |"])


def _memory(found: dict[tuple[str, int], Cell]) -> str:
    """What a row stores of past data: one memory, or each with the benchmarks that it is of."""
    benchmarks: dict[str, list[str]] = {}
    for column in sorted(found, key=_column_order):
        names = benchmarks.setdefault(found[column].memory, [])
        names += [] if column[0] in names else [column[0]]
    return "; ".join(memory if len(benchmarks) == 1 else f"{memory} ({', '.join(of)})" for memory, of in benchmarks.items())


def method_table(cells: Sequence[Cell]) -> str:
    """The results of one method: a row for each benchmark, scenario, supervision and budget. Empty without any."""
    if not cells:
        return ""
    head = ("benchmark", "scenario", "supervision", "budget", *_HEAD[1:])
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for cell in sorted(cells, key=lambda c: (*_column_order((c.benchmark, _SCENARIOS.index(c.scenario))), c.supervision)):
        where = (cell.benchmark, f"{cell.scenario.capitalize()}-IL", cell.supervision, cell.budget or "")
        lines.append(f"| {' | '.join([*where, *_row(cell)[1:]])} |")
    return "\n".join(lines)


def _column_order(column: tuple[str, int]) -> tuple[int, int]:
    names = list(BENCHMARKS)
    return (names.index(column[0]) if column[0] in names else len(names), column[1])


def html_table(cells: Sequence[Cell], title: str = "hvcl results") -> str:
    """The same as one self-contained HTML page."""
    style = (
        ":root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse;margin:.5rem 0 2rem}th,td{text-align:left;padding:.2rem .9rem .2rem 0;"
        "border-bottom:1px solid #8884}td:nth-child(n+3){font-variant-numeric:tabular-nums}"
    )
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for words, group in _groups(cells):
        head = "".join(f"<th scope=col>{html.escape(name)}</th>" for name in _HEAD)
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(value)}</td>" for value in _row(cell)) + "</tr>" for cell in group)
        parts.append(f"<h2>{html.escape(words)}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>")
    heading = f'<meta charset=utf-8><meta name=viewport content="width=device-width"><title>{html.escape(title)}</title>'
    return f"<!doctype html><html lang=en><head>{heading}<style>{style}</style></head><body>{''.join(parts)}</body></html>\n"
