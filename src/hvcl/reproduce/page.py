"""The HTML page of a table or figure: one file that needs no other."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hvcl.report.part import Part, asset, template
from hvcl.report.statistic import Statistic
from hvcl.report.words import MISSING, decimal
from hvcl.reproduce.base import Reproduction, Scale
from hvcl.reproduce.outcome import Outcome

QUICK = (
    "Quick budget: smaller data and shorter training than the paper's. What holds or fails here shows that the machinery works, "
    "and is no evidence for or against the paper."
)
WHERE = {"run": "run here", "committed": "committed result", "quoted": "quoted"}


def page(one: Reproduction, outcome: Outcome, scale: Scale) -> str:
    """The page."""
    quoted = {key for row in outcome.rows for key in row.paper}
    heads = [(key, column, key in quoted) for key, column in outcome.columns.items()]
    rows = [
        (
            row,
            WHERE[row.source],
            [
                (_shown(row.values.get(key), c.digits, row.seeds), _shown(row.paper.get(key), c.digits), both)
                for key, c, both in heads
            ],
        )
        for row in outcome.rows
    ]
    content = (
        _environment()
        .get_template("figure.html")
        .render(outcome=outcome, heads=heads, rows=rows, warning=QUICK if scale.budget == "quick" else "")
    )
    links = (("figure", "Figure"), ("claims", "Claims"), ("figures", "Figures in numbers"))
    lead = f"{one.paper or 'Beyond the paper'}. Budget {scale.budget}; hvcl reproduce {one.name} --budget {scale.budget}"
    part = Part(one.name, one.title, one.title, (), lead, links, Markup(content))
    return template("page.html", title=one.title, lead=lead, parts=[part], style=asset("page.css"), script=asset("page.js"))


def _shown(value: Statistic | None, digits: int, planned: int = 0) -> tuple[str, str]:
    """Mean and spread as text, and how many seeds gave it if that is not all that were `planned`."""
    if value is None:
        return MISSING, ""
    spread = "" if value.sd is None else f"± {value.sd:.{digits}f}"
    some = f"{value.seeds} of {planned} seeds" if value.seeds < planned else ""
    return decimal(value.mean, digits), f"{spread} {some}".strip()


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("hvcl.reproduce", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
