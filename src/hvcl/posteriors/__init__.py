"""Distributions over weights: the mean-field Gaussian of the paper."""

from hvcl.posteriors.mean_field import MeanFieldGaussian

__all__ = ["MeanFieldGaussian"]
