import pytest
import torch
from torch import nn

from hvcl.core.errors import InputError, RunError
from hvcl.features import FrozenModule


def backbone(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5))
    net[1].running_mean.normal_()
    return net


def images(n=30):
    return torch.randn(n, 1, 6, 6, generator=torch.Generator().manual_seed(1))


def test_features_are_the_standardised_outputs_in_evaluation_mode():
    net, x = backbone(), images()
    features = FrozenModule(net, (1, 6, 6), batch=7)
    assert features.features == 64
    assert not net.training
    assert not any(p.requires_grad for p in net.parameters())
    running = net[1].running_mean.clone()
    features.fit(x)
    out = net(x).flatten(1)
    live = out.std(0, correction=0) > 0
    expected = (out - out.mean(0)) * features.state["scale"]
    torch.testing.assert_close(features(x), expected, rtol=1e-4, atol=1e-4)
    assert live.any()
    assert torch.equal(net[1].running_mean, running)


def test_any_shape_of_output_is_flattened():
    assert FrozenModule(nn.Identity(), (2, 3)).features == 6

    class Sum(nn.Module):
        def forward(self, x):
            return x.sum((1, 2))

    features = FrozenModule(Sum(), (2, 3))
    features.fit(torch.randn(5, 2, 3))
    assert features(torch.randn(4, 2, 3)).shape == (4, 1)


def test_the_modules_own_output_is_not_changed():
    features, x = FrozenModule(nn.Identity(), (3,)), torch.randn(8, 3)
    before = x.clone()
    features.fit(x)
    features(x)
    assert torch.equal(x, before)


def test_a_state_is_taken_up_with_the_same_module_and_refused_with_another():
    a, b = FrozenModule(backbone(), (1, 6, 6)), FrozenModule(backbone(), (1, 6, 6))
    a.fit(images())
    assert set(a.state_dict()) == {"fingerprint", "shift", "scale"}
    b.load_state_dict(a.state_dict())
    assert torch.equal(a(images()), b(images()))
    assert a.same_as(b)
    trained = backbone()
    trained[1].num_batches_tracked += 1  # the smallest difference that there is, in a tensor without dimensions
    for other in (FrozenModule(backbone(1), (1, 6, 6)), FrozenModule(trained, (1, 6, 6))):
        with pytest.raises(RunError, match="does not fit this module"):
            other.load_state_dict(a.state_dict())
        assert not other.fitted
        assert other.state_dict() == {}
    state = a.state_dict()
    del state["fingerprint"]
    with pytest.raises(RunError, match="does not fit this module"):
        FrozenModule(backbone(), (1, 6, 6)).load_state_dict(state)
    fresh = FrozenModule(backbone(), (1, 6, 6))
    fresh.load_state_dict({})
    assert not fresh.fitted


def test_modules_that_cannot_be_used_are_refused():
    class Two(nn.Module):
        def forward(self, x):
            return x, x

    class Scalar(nn.Module):
        def forward(self, x):
            return x.sum()

    class Transposed(nn.Module):
        def forward(self, x):
            return x.T

    for module in (Two(), Scalar(), Transposed()):
        with pytest.raises(InputError, match="one row an example"):
            FrozenModule(module, (3,))
    with pytest.raises(InputError, match="batch"):
        FrozenModule(nn.Identity(), (3,), batch=0)


def test_a_module_that_gives_no_numbers_is_an_error():
    features = FrozenModule(nn.Identity(), (3,))
    features.fit(torch.randn(5, 3))

    class Log(nn.Module):
        def forward(self, x):
            return x.log()

    broken = FrozenModule(Log(), (3,))
    with pytest.raises(InputError, match="not finite"):
        broken.fit(-torch.ones(5, 3))
    assert not broken.fitted
