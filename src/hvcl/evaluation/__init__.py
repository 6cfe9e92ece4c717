"""Measures: the accuracy matrix with forgetting and transfer, calibration, information in the gates, generated examples."""

from hvcl.evaluation.accuracy import AccuracyMatrix
from hvcl.evaluation.gates import GateMeter, LayerInformation
from hvcl.evaluation.generation import Generates, Generation, evaluate_generation
from hvcl.evaluation.scores import Evaluation, Score, calibration_error, evaluate

__all__ = [
    "AccuracyMatrix",
    "Evaluation",
    "GateMeter",
    "Generates",
    "Generation",
    "LayerInformation",
    "Score",
    "calibration_error",
    "evaluate",
    "evaluate_generation",
]
