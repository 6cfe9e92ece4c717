"""Distributions over weights: the mean-field Gaussian of the paper, and the exact matrix-normal of linear heads."""

from hvcl.posteriors.classes import ClassHead
from hvcl.posteriors.evidence import Posterior
from hvcl.posteriors.matrix_normal import MatrixNormal
from hvcl.posteriors.mean_field import MeanFieldGaussian

__all__ = ["ClassHead", "MatrixNormal", "MeanFieldGaussian", "Posterior"]
