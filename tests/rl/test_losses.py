import torch

from hvcl.rl.losses import weighted_squares


def test_value_and_gradient_are_those_of_the_plain_formula():
    torch.manual_seed(0)
    error, weight = torch.randn(7, 2, dtype=torch.double, requires_grad=True), torch.rand(7, dtype=torch.double)
    plain = sum(0.5 * (weight * error[:, i] ** 2).mean() for i in range(2))
    torch.testing.assert_close(weighted_squares(error, weight), plain)
    grads = [torch.autograd.grad(3 * loss, error)[0] for loss in (weighted_squares(error, weight), plain)]
    torch.testing.assert_close(*grads)
