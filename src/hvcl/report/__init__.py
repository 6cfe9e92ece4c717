"""The report: one self-contained HTML page, made from run folders and nothing else."""

from hvcl.report.load import find_runs, load_run
from hvcl.report.page import render, write_report
from hvcl.report.run import Run
from hvcl.report.summary import Row, Statistic, results_table

__all__ = ["Row", "Run", "Statistic", "find_runs", "load_run", "render", "results_table", "write_report"]
