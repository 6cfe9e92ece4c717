"""Runs of reinforcement learning: what their folders hold, and the part of the page that shows them."""

from hvcl.report.reinforcement.load import load as load_reinforcement
from hvcl.report.reinforcement.run import ReinforcementRun
from hvcl.report.reinforcement.section import Episode, reinforcement_part
from hvcl.report.reinforcement.table import over, transfer_of

__all__ = ["Episode", "ReinforcementRun", "load_reinforcement", "over", "reinforcement_part", "transfer_of"]
