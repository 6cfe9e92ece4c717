"""Likelihoods against hand computations."""

import math

import pytest
import torch

from hvcl.core.errors import InputError, UnknownNameError
from hvcl.generative import Bernoulli, DiscretisedLogistic, Gaussian, make_likelihood


def test_bernoulli_of_known_numbers():
    outputs = torch.tensor([[0.0, math.log(3.0)]])  # probabilities 1/2 and 3/4
    found = Bernoulli().log_prob(outputs, torch.tensor([[1.0, 0.2]]))
    assert found.item() == pytest.approx(math.log(0.5) + 0.2 * math.log(0.75) + 0.8 * math.log(0.25))
    assert Bernoulli().mean(outputs).tolist() == [pytest.approx([0.5, 0.75])]


@pytest.mark.parametrize(("output", "scale"), [(0.0, 0.1), (-2.0, 0.01), (3.0, 1e-4), (0.4, 5.0)])
def test_discretised_logistic_is_a_distribution_over_the_grey_levels(output, scale):
    likelihood = DiscretisedLogistic((1,), scale)
    levels = (torch.arange(256) / 255).unsqueeze(1)
    mass = likelihood.log_prob(torch.full((256, 1), output), levels).double().exp()
    assert mass.sum().item() == pytest.approx(1.0, abs=2e-4)
    assert abs(int(mass[1:-1].argmax()) + 1 - 255 / (1 + math.exp(-output))) <= 1 or scale > 1


def test_discretised_logistic_of_one_level():
    likelihood = DiscretisedLogistic((1,), 0.1)
    x, mean = 100 / 255, 0.5
    upper, lower = (1 / (1 + math.exp(-(x + sign * 0.5 / 255 - mean) / 0.1)) for sign in (1, -1))
    assert likelihood.log_prob(torch.zeros(1, 1), torch.tensor([[x]])).item() == pytest.approx(math.log(upper - lower), abs=1e-4)


def test_every_channel_of_a_picture_has_a_scale_and_far_pixels_keep_a_gradient():
    likelihood = make_likelihood("logistic", (3, 2, 2))
    assert likelihood.log_scale.shape == (3, 1, 1)
    outputs = torch.full((1, 3, 2, 2), 30.0, requires_grad=True)  # all white, sure of it
    with torch.no_grad():
        likelihood.log_scale.fill_(math.log(1e-3))
    found = likelihood.log_prob(outputs, torch.full((1, 3, 2, 2), 0.5))
    found.sum().backward()
    assert math.isfinite(found.item())
    assert outputs.grad.isfinite().all()
    assert likelihood.log_scale.grad.isfinite().all()


def test_gaussian_is_the_normal_density():
    likelihood = Gaussian()
    with torch.no_grad():
        likelihood.log_scale.fill_(math.log(0.5))
    x, outputs = torch.randn(4, 3), torch.randn(4, 3)
    expected = torch.distributions.Normal(outputs, 0.5).log_prob(x).sum(1)
    torch.testing.assert_close(likelihood.log_prob(outputs, x), expected)


@pytest.mark.parametrize("name", ["bce", "logistic"])
def test_pixels_outside_of_zero_and_one_are_refused_with_advice(name):
    with pytest.raises(InputError, match=r"between 0 and 1.*likelihood='gaussian'"):
        make_likelihood(name, (2,)).check(torch.tensor([[0.5, 1.5]]))
    make_likelihood("gaussian", (2,)).check(torch.tensor([[0.5, 1.5]]))


@pytest.mark.parametrize("name", ["bce", "logistic", "gaussian"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_is_refused_by_all(name, value):
    with pytest.raises(InputError, match="NaN or infinite"):
        make_likelihood(name, (2,)).check(torch.tensor([[0.5, value]]))


def test_an_unknown_likelihood_is_named_with_those_that_there_are():
    with pytest.raises(UnknownNameError, match="unknown likelihood 'gausian': did you mean 'gaussian'"):
        make_likelihood("gausian", (2,))
