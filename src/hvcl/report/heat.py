"""Grids of shaded cells with their values, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from hvcl.report.charts import element

_CELL_HEIGHT = 24.0
_CHARACTER = 6.4  # width at 11 px, for margins that hold their labels
_GAP = 2.0


@dataclass(frozen=True)
class Shade:
    """A cell: its text, and how strongly it is coloured, from 0 to 1."""

    text: str
    strength: float


def shades(values: Sequence[Sequence[float]], texts: Sequence[Sequence[str]]) -> list[list[Shade]]:
    """Cells whose colour follows their values, from the smallest (0) to the largest (1); all alike: a half."""
    every = [value for row in values for value in row]
    low, high = min(every), max(every)
    return [
        [Shade(text, (value - low) / (high - low) if high > low else 0.5) for value, text in zip(row, words, strict=True)]
        for row, words in zip(values, texts, strict=True)
    ]


def heat_map(
    cells: Sequence[Sequence[Shade | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    width: int,
    description: str,
    row_title: str = "",
    column_title: str = "",
) -> Markup:
    """A grid, the first row on top; None is a place without a cell."""
    left = max(map(len, rows), default=1) * _CHARACTER + 10
    top = 34.0 if column_title else 20.0
    across = (width - left) / max(len(columns), 1)
    height = top + len(rows) * _CELL_HEIGHT + 2
    parts = []
    if column_title:
        parts.append(element("text", column_title, class_="title", x=(left + width) / 2, y=11, text_anchor="middle"))
    if row_title:
        parts.append(element("text", row_title, class_="title", x=left - 6, y=top - 7, text_anchor="end"))
    for place, name in enumerate(columns):
        parts.append(element("text", name, class_="tick", x=left + (place + 0.5) * across, y=top - 7, text_anchor="middle"))
    for line, (name, row) in enumerate(zip(rows, cells, strict=True)):
        y = top + line * _CELL_HEIGHT
        parts.append(element("text", name, class_="tick", x=left - 6, y=y + 16, text_anchor="end"))
        for place, cell in enumerate(row):
            if cell is None:
                continue
            x = left + place * across
            box = {"width": across - _GAP, "height": _CELL_HEIGHT - _GAP}
            parts.append(element("rect", class_="cell-ground", x=x, y=y, **box))
            strength = f"{min(max(cell.strength, 0.0), 1.0):.2f}"
            parts.append(element("rect", class_="cell", x=x, y=y, **box, fill_opacity=strength))
            parts.append(
                element("text", cell.text, class_="cell-text", x=x + (across - _GAP) / 2, y=y + 15, text_anchor="middle")
            )
    return element("svg", *parts, class_="chart", viewBox=f"0 0 {width} {height:.0f}", role="img", aria_label=description)
