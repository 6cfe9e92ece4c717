"""The figures we stand by, as data: one JSON file for each benchmark, scenario, method and budget."""

from hvcl.results.cells import BUDGETS, Cell, cell_of, cell_path, load_cells, make_cell, save_cell
from hvcl.results.check import Check, check
from hvcl.results.keys import IDENTITY
from hvcl.results.paper import PaperFigure, load_paper
from hvcl.results.table import html_table, markdown_table, method_table, overview

__all__ = [
    "BUDGETS",
    "IDENTITY",
    "Cell",
    "Check",
    "PaperFigure",
    "cell_of",
    "cell_path",
    "check",
    "html_table",
    "load_cells",
    "load_paper",
    "make_cell",
    "markdown_table",
    "method_table",
    "overview",
    "save_cell",
]
