import pytest
import torch

from hvcl.core.errors import InputError, RunError
from hvcl.features import PrincipalDirections


def correlated(n=60, features=8, seed=0):
    random = torch.Generator().manual_seed(seed)
    mixing = torch.randn(features, features, generator=random) * torch.linspace(3, 0.2, features)[:, None]
    return torch.randn(n, features, generator=random) @ mixing + 5


@pytest.mark.parametrize("n", [6, 60], ids=["fewer examples than features", "more"])
def test_coordinates_are_uncorrelated_with_deviations_that_are_roots_of_the_directions(n):
    phi = correlated(n)
    directions = PrincipalDirections(8, 4)
    directions.fit(phi)
    u = directions(phi).double()
    centred = phi.double() - phi.double().mean(0)
    deviations = torch.linalg.svdvals(centred)[:4] / n**0.5
    covariance = u.T @ u / n
    torch.testing.assert_close(covariance.diagonal() / covariance[0, 0], deviations / deviations[0], rtol=1e-3, atol=1e-3)
    off = covariance - torch.diag(covariance.diagonal())
    assert off.abs().max() < 1e-4
    assert u.square().mean() == pytest.approx(1, abs=1e-4)
    assert u.mean(0).abs().max() < 1e-4


def test_the_leading_directions_explain_most():
    phi = correlated()
    few, all_of_them = PrincipalDirections(8, 3), PrincipalDirections(8, 8)
    few.fit(phi)
    all_of_them.fit(phi)
    a, b = few(phi), all_of_them(phi)[:, :3]
    torch.testing.assert_close(a / a.std(), b / b.std(), rtol=1e-3, atol=1e-3)


def test_a_state_goes_on_and_another_is_refused():
    directions = PrincipalDirections(8, 4)
    with pytest.raises(InputError, match="call fit"):
        directions(correlated())
    directions.fit(correlated())
    again = PrincipalDirections(8, 4)
    again.load_state_dict(directions.state_dict())
    assert torch.equal(again(correlated(seed=3)), directions(correlated(seed=3)))
    with pytest.raises(RunError, match="other settings"):
        PrincipalDirections(8, 3).load_state_dict(directions.state_dict())


def test_numbers_that_do_not_fit_are_named():
    with pytest.raises(InputError, match="1 to 8"):
        PrincipalDirections(8, 9)
    with pytest.raises(InputError, match="more than 4 examples"):
        PrincipalDirections(8, 4).fit(correlated(4))
