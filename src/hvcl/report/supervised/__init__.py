"""Supervised runs: what their folders hold, and the part of the page that shows them."""

from hvcl.report.supervised.load import load as load_supervised
from hvcl.report.supervised.run import SupervisedRun
from hvcl.report.supervised.section import supervised_part

__all__ = ["SupervisedRun", "load_supervised", "supervised_part"]
