"""Estimators with scikit-learn's conventions for streams of rows: tables, sparse rows, pictures."""

from hvcl.estimators.base import load
from hvcl.estimators.classifier import ContinualClassifier
from hvcl.estimators.now import DriftEvent
from hvcl.estimators.regressor import ContinualRegressor
from hvcl.estimators.scales import Scales, ScaleWarning

__all__ = ["ContinualClassifier", "ContinualRegressor", "DriftEvent", "ScaleWarning", "Scales", "load"]
