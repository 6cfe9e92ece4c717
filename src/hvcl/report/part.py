"""A part of the page: what one kind of runs adds to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@dataclass(frozen=True)
class Part:
    """One kind of runs on the page, rendered."""

    id: str
    heading: str
    """Above the part, where the page has several."""
    title: str
    """Of the whole page, where this is its only part."""
    subjects: tuple[str, ...]
    """The benchmarks or chains of tasks in it."""
    lead: str
    links: tuple[tuple[str, str], ...]
    """The ids of its sections, with what they are called."""
    content: Markup


def template(name: str, **values: object) -> Markup:
    """A template of the report, filled; every value that is not markup is escaped."""
    return Markup(_environment().get_template(name).render(values))


def asset(name: str) -> Markup:
    """A file of the report as it is."""
    return Markup(resources.files("hvcl.report").joinpath(name).read_text(encoding="utf-8"))


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("hvcl.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
