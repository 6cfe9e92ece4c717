"""Documents with parts that are made by a program, between marks."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""


def fill(document: str, name: str, text: str) -> str:
    """The document with `text` between the marks called `name`."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = document.split(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"
