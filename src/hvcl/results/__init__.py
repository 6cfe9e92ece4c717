"""The figures we stand by, as data: one JSON file for each benchmark, scenario, method and budget."""

from hvcl.results.cells import BUDGETS, Cell, cell_of, load_cells, save_cell
from hvcl.results.check import Check, check
from hvcl.results.table import PAPER, html_table, markdown_table, method_table, overview

__all__ = [
    "BUDGETS",
    "PAPER",
    "Cell",
    "Check",
    "cell_of",
    "check",
    "html_table",
    "load_cells",
    "markdown_table",
    "method_table",
    "overview",
    "save_cell",
]
