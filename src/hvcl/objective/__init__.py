"""The objective: a utility minus information costs and diversity, each a named term with its weight."""

from hvcl.objective.objective import Loss, Objective
from hvcl.objective.schedules import Constant, Cyclic, Schedule, TargetInformation

__all__ = ["Constant", "Cyclic", "Loss", "Objective", "Schedule", "TargetInformation"]
