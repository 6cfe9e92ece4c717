import torch

from hvcl.rl.losses import soft_value_loss, weighted_squares


def test_value_and_gradient_are_those_of_the_plain_formula():
    torch.manual_seed(0)
    error, weight = torch.randn(7, 2, dtype=torch.double, requires_grad=True), torch.rand(7, dtype=torch.double)
    plain = sum(0.5 * (weight * error[:, i] ** 2).mean() for i in range(2))
    torch.testing.assert_close(weighted_squares(error, weight), plain)
    grads = [torch.autograd.grad(3 * loss, error)[0] for loss in (weighted_squares(error, weight), plain)]
    torch.testing.assert_close(*grads)


def test_the_soft_value_loss_is_what_it_says():
    log_pi = torch.randn(6, dtype=torch.double, requires_grad=True)
    q = torch.randn(6, 2, dtype=torch.double, requires_grad=True)
    losses = soft_value_loss(log_pi, q, 0.3), (0.3 * log_pi - q.min(1).values).mean()
    torch.testing.assert_close(*losses, rtol=0, atol=1e-14)
    for a, b in zip(*(torch.autograd.grad(3 * loss, (log_pi, q)) for loss in losses), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)
