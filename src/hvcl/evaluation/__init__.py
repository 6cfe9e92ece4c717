"""Measuring: accuracy matrix and what follows from it, calibration, and what the gates know."""

from hvcl.evaluation.accuracy import AccuracyMatrix
from hvcl.evaluation.gates import GateMeter, LayerInformation
from hvcl.evaluation.scores import Evaluation, Score, calibration_error, evaluate

__all__ = [
    "AccuracyMatrix",
    "Evaluation",
    "GateMeter",
    "LayerInformation",
    "Score",
    "calibration_error",
    "evaluate",
]
