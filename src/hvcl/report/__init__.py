"""The report: one self-contained HTML page, made from run folders and nothing else."""

from hvcl.report.folders import find_runs
from hvcl.report.load import Run, load_run
from hvcl.report.page import render, write_report
from hvcl.report.reinforcement import ReinforcementRun
from hvcl.report.statistic import Statistic
from hvcl.report.supervised import SupervisedRun
from hvcl.report.supervised.groups import Row, results_table

__all__ = [
    "ReinforcementRun",
    "Row",
    "Run",
    "Statistic",
    "SupervisedRun",
    "find_runs",
    "load_run",
    "render",
    "results_table",
    "write_report",
]
