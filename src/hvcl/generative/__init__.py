"""Generative continual learning: a VAE of MoVE layers, trained and sampled without stored data."""

from hvcl.generative.gates import ContextGates
from hvcl.generative.generator import Generator, sample_from
from hvcl.generative.latent import Latent, LatentPrior
from hvcl.generative.layers import Layers, move_layers
from hvcl.generative.likelihoods import Bernoulli, DiscretisedLogistic, Gaussian, Likelihood, LikelihoodName, make_likelihood
from hvcl.generative.mixture import MixtureVAE
from hvcl.generative.scores import InceptionScore, frechet_distance, inception_score
from hvcl.generative.vae import Elbo, Generated, MoVEVAE

__all__ = [
    "Bernoulli",
    "ContextGates",
    "DiscretisedLogistic",
    "Elbo",
    "Gaussian",
    "Generated",
    "Generator",
    "InceptionScore",
    "Latent",
    "LatentPrior",
    "Layers",
    "Likelihood",
    "LikelihoodName",
    "MixtureVAE",
    "MoVEVAE",
    "frechet_distance",
    "inception_score",
    "make_likelihood",
    "move_layers",
    "sample_from",
]
