"""VariationalAdam against torch.optim.Adam on the same losses, and what it keeps, forgets and refuses."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.storage import load_state, save_state
from hvcl.layers import MoVEConv2d, MoVEConvTranspose2d, MoVELayer, MoVELinear, MoVEStack, consolidate
from hvcl.objective import Objective
from hvcl.ops import load
from hvcl.optim import VariationalAdam

LR = 0.01
SIGMAS = pytest.mark.parametrize("sigma", ["weight", "unit"])
ESTIMATORS = pytest.mark.parametrize("estimator", ["flipout", "local", "mean"])


@pytest.fixture(params=["compiled", "plain"])
def kernels(request, monkeypatch):
    """Everything compiled, or nothing. The random numbers are the same for both optimisers: they come from torch's generator."""
    if request.param == "plain":
        monkeypatch.setattr("hvcl.ops.border.load", lambda: None)
    elif load() is None:
        pytest.skip("no compiled library: there is no C compiler, or HVCL_NO_KERNELS is set")
    return request.param


def build(kind: str = "linear", seed: int = 0, dtype: torch.dtype = torch.float32, **options) -> nn.Module:
    torch.manual_seed(seed)
    options = {"dtype": dtype, "initial_sigma": 0.5, **options}
    if kind == "linear":
        layers = [MoVELinear(6, 9, **options), nn.Tanh(), MoVELinear(9, 4, **options)]
    elif kind == "conv":
        layers = [MoVEConv2d(2, 5, 3, padding=1, **options), nn.Tanh(), nn.Flatten(), nn.Linear(80, 4, dtype=dtype)]
    else:  # a sigma per unit whose weights have no simple layout
        layers = [MoVEConvTranspose2d(2, 4, 3, groups=2, **options), nn.Tanh(), nn.Flatten(), nn.Linear(144, 4, dtype=dtype)]
    network = nn.Sequential(*layers)
    for module in network:
        if isinstance(module, MoVELayer):
            with torch.no_grad():
                module.posterior.rho.add_(0.2 * torch.randn_like(module.posterior.rho))
                module.posterior.prior_mean.normal_(0, 0.1)
                if module.gate is not None:
                    module.gate.weight.mul_(2)
    return network


def posteriors(network: nn.Module):
    return [module.posterior for module in network if isinstance(module, MoVELayer)]


def batch(step: int, kind: str = "linear", dtype: torch.dtype = torch.float32, rows: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    shape = (6,) if kind == "linear" else (2, 4, 4)
    return torch.randn(rows, *shape, generator=generator, dtype=dtype), torch.randint(4, (rows,), generator=generator)


class Trainer:
    """A network, its optimiser and the full objective; the noise of step t is the same for every trainer."""

    def __init__(self, network: nn.Module, make: Callable, kind: str = "linear", diversity_every: int = 1, **weights) -> None:
        self.network, self.optimizer, self.kind = network, make(network), kind
        weights = {"conditional_entropy": 0.1, "marginal_entropy": -0.1, "diversity": 0.02} | weights
        self.objective = Objective(diversity_every=diversity_every, **weights)
        self.dtype = next(network.parameters()).dtype

    def loss(self, step: int) -> Tensor:
        x, y = batch(step, self.kind, self.dtype)
        torch.manual_seed(step)
        utility = -F.cross_entropy(self.network(x), y, reduction="none")
        return self.objective(utility, self.network, num_data=50).total

    def step(self, step: int) -> None:
        loss = self.loss(step)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def train(self, steps: int, start: int = 0) -> Trainer:
        for step in range(start, start + steps):
            self.step(step)
        return self


def torch_adam(network: nn.Module, **options) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=LR, **options)


def eager(network: nn.Module, **options) -> VariationalAdam:
    return VariationalAdam(network, lr=LR, lazy=False, **options)


def lazy(network: nn.Module) -> VariationalAdam:
    return VariationalAdam(network, lr=LR)


def assert_same(mine: nn.Module, theirs: nn.Module, start: nn.Module, atol: float = 0.02 * LR) -> None:
    """All parameters, of which each has gone several steps of LR: by default to a fiftieth of a step, on average a thousandth.

    Adam divides gradients by their size: one that is near zero has no accurate step in float32.
    """
    assert dict(mine.named_parameters()).keys() == dict(theirs.named_parameters()).keys()
    for (name, a), b, c in zip(mine.named_parameters(), theirs.parameters(), start.parameters(), strict=True):
        if name.endswith(("rho", "mean")):
            assert (b - c).abs().mean() > LR, name  # or the test would not see much
        difference = (a - b).detach().abs()
        assert difference.max() <= atol, f"{name} differs by {difference.max():.2e}"
        assert difference.mean() <= atol / 20, f"{name} differs by {difference.mean():.2e} on average"


def assert_identical(mine: nn.Module, theirs: nn.Module) -> None:
    for (name, a), (_, b) in zip(mine.state_dict().items(), theirs.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


class TestEqualsAdam:
    def compare(
        self, kind: str = "linear", steps: int = 10, atol: float = 0.02 * LR, diversity_every: int = 1, **options
    ) -> None:
        start = build(kind, **options)
        mine = Trainer(copy.deepcopy(start), eager, kind, diversity_every).train(steps)
        theirs = Trainer(copy.deepcopy(start), torch_adam, kind, diversity_every).train(steps)
        assert_same(mine.network, theirs.network, start, atol)

    @pytest.mark.parametrize("kind", ["linear", "conv"])
    @pytest.mark.parametrize(("experts", "diversity_every"), [(1, 1), (3, 1), (3, 8)])
    @ESTIMATORS
    @SIGMAS
    def test_every_estimator(self, kernels, kind, experts, estimator, sigma, diversity_every):
        self.compare(kind, experts=experts, estimator=estimator, sigma=sigma, diversity_every=diversity_every)

    @SIGMAS
    def test_weights_without_a_simple_layout(self, kernels, sigma):
        self.compare("transposed", experts=3, estimator="local", sigma=sigma)

    @pytest.mark.parametrize(
        "options",
        [{"sigma_transform": "softplus"}, {"usage": "uniform"}, {"top_k": 2}, {"routing": "sample"}, {"bias": False}],
        ids=str,
    )
    @pytest.mark.parametrize("estimator", ["flipout", "local"])
    @SIGMAS
    def test_options(self, kernels, options, estimator, sigma):
        self.compare(experts=3, estimator=estimator, sigma=sigma, **options)

    @ESTIMATORS
    @SIGMAS
    def test_float64(self, estimator, sigma):
        """To a five-hundredth of a step; see the next test."""
        self.compare(experts=3, estimator=estimator, sigma=sigma, dtype=torch.float64, atol=2e-3 * LR)

    @SIGMAS
    def test_float64_is_float64(self, sigma):
        """To 1e-8 of a step."""
        self.compare(experts=3, estimator="flipout", sigma=sigma, dtype=torch.float64, atol=1e-8 * LR)

    @pytest.mark.parametrize("betas", [(0.0, 0.9), (0.5, 0.99)])
    def test_other_settings(self, kernels, betas):
        start = build(experts=3, estimator="flipout")
        mine = Trainer(copy.deepcopy(start), lambda n: eager(n, betas=betas, eps=1e-3)).train(10)
        theirs = Trainer(copy.deepcopy(start), lambda n: torch_adam(n, betas=betas, eps=1e-3)).train(10)
        for a, b in zip(mine.network.parameters(), theirs.network.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0.02 * LR)

    @pytest.mark.parametrize("kind", ["linear", "conv", "transposed"])
    @SIGMAS
    def test_what_was_learned_is_held(self, kernels, kind, sigma):
        start = build(kind, experts=3, estimator="local", sigma=sigma, retention=20.0)
        consolidate(start)  # sigmas of about half the first prior's
        mine, theirs = (Trainer(copy.deepcopy(start), make, kind).train(10) for make in (eager, torch_adam))
        for a, b in zip(mine.network.parameters(), theirs.network.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0.02 * LR)
        for a, b in zip(posteriors(mine.network), posteriors(theirs.network), strict=True):
            torch.testing.assert_close(a.known_kl(), b.known_kl(), rtol=1e-3, atol=0)
        free = Trainer(build(kind, experts=3, estimator="local", sigma=sigma), eager, kind)
        consolidate(free.network)
        held, moved = (p[0].known_kl().sum() for p in (posteriors(mine.network), posteriors(free.train(10).network)))
        assert held != pytest.approx(moved.item(), rel=0.01)

    @pytest.mark.parametrize("transform", ["exp", "softplus"])
    @pytest.mark.parametrize("estimator", ["flipout", "local"])
    @SIGMAS
    def test_a_step_size_for_sigmas(self, kernels, estimator, sigma, transform):
        """As torch's Adam with the sigmas in a group of their own; to a fiftieth of their step."""
        start = build(experts=3, estimator=estimator, sigma=sigma, sigma_transform=transform)

        def grouped(network: nn.Module) -> torch.optim.Optimizer:
            sigmas = [posterior.rho for posterior in posteriors(network)]
            others = [p for p in network.parameters() if not any(p is sigma for sigma in sigmas)]
            return torch.optim.Adam([{"params": others}, {"params": sigmas, "lr": 5 * LR}], lr=LR)

        mine = Trainer(copy.deepcopy(start), lambda n: eager(n, sigma_rate=5.0)).train(8)
        theirs = Trainer(copy.deepcopy(start), grouped).train(8)
        assert_same(mine.network, theirs.network, start, 0.1 * LR)
        moved = (posteriors(mine.network)[0].rho - posteriors(start)[0].rho).detach().abs().mean()
        assert moved > 2 * LR

    @pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
    def test_what_is_no_step_size_is_refused(self, rate):
        with pytest.raises(InputError, match="sigma_rate must be at least 0"):
            VariationalAdam(build(), sigma_rate=rate)

    @ESTIMATORS
    @SIGMAS
    def test_lazy_is_the_same_while_all_experts_are_used(self, kernels, estimator, sigma):
        start = build(experts=2, estimator=estimator, sigma=sigma)
        every, some = (Trainer(copy.deepcopy(start), make, diversity=0.0) for make in (eager, lazy))
        for step in range(5):
            every.step(step)
            some.step(step)
            for trainer in (every, some):
                for layer in (trainer.network[0], trainer.network[2]):
                    assert len(set(layer.gate_log_probabilities.argmax(1).tolist())) == 2
        assert_identical(some.network, every.network)


class TestGradientsFromElsewhere:
    @ESTIMATORS
    @SIGMAS
    def test_two_backward_passes_before_a_step(self, kernels, estimator, sigma):
        start = build(experts=3, estimator=estimator, sigma=sigma)
        trainers = [Trainer(copy.deepcopy(start), make) for make in (eager, torch_adam)]
        for trainer in trainers:
            for step in range(6):
                trainer.optimizer.zero_grad()
                for part in range(2):
                    trainer.loss(10 * step + part).backward()
                trainer.optimizer.step()
        assert_same(*(t.network for t in trainers), start)

    def test_flipout_and_local_in_one_step(self, kernels):
        """The estimator is an attribute that may change; the two passes use different experts."""
        start = build(experts=3, sigma="weight")
        with torch.no_grad():
            start[0].gate.weight.zero_()
        networks = []
        for make in (eager, torch_adam):
            network = copy.deepcopy(start)
            optimizer = make(network)
            for step in range(5):
                optimizer.zero_grad()
                for part, estimator in enumerate(("flipout", "local")):
                    with torch.no_grad():
                        network[0].gate.bias.zero_()
                        network[0].gate.bias[2 * part] = 20.0
                    network[0].estimator = network[2].estimator = estimator
                    torch.manual_seed(10 * step + part)
                    x, y = batch(10 * step + part)
                    F.cross_entropy(network(x), y).backward()
                optimizer.step()
            networks.append(network)
        for name in ("mean", "rho"):
            mine, theirs = (getattr(n[0].posterior, name) for n in networks)
            assert (theirs - getattr(start[0].posterior, name)).abs()[[0, 2]].mean() > LR
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0.02 * LR)

    @SIGMAS
    @pytest.mark.parametrize("make", [eager, lazy])
    def test_a_loss_on_the_posterior_itself(self, kernels, sigma, make):
        start = build(experts=3, sigma=sigma)
        networks = []
        for maker in (make, torch_adam):
            trainer = Trainer(copy.deepcopy(start), maker)
            for step in range(8):
                trainer.optimizer.zero_grad()
                (
                    trainer.loss(step) + sum(p.mean.square().sum() + p.rho.cos().sum() for p in posteriors(trainer.network))
                ).backward()
                trainer.optimizer.step()
            networks.append(trainer.network)
        assert_same(*networks, start)
        without = Trainer(copy.deepcopy(start), make).train(8).network
        assert (without[0].posterior.mean - networks[0][0].posterior.mean).abs().mean() > LR

    def test_only_a_loss_on_the_posterior(self, kernels):
        start = build(experts=2)
        networks = []
        for make in (lazy, torch_adam):
            network = copy.deepcopy(start)
            optimizer = make(network)
            for _ in range(5):
                optimizer.zero_grad()
                (network[0].posterior.mean - 1).square().sum().backward()
                optimizer.step()
            networks.append(network)
        torch.testing.assert_close(networks[0][0].posterior.mean, networks[1][0].posterior.mean, rtol=0, atol=1e-3 * LR)
        for untouched in ("2.posterior.mean", "2.posterior.rho", "0.posterior.rho", "0.gate.weight", "2.bias"):
            assert torch.equal(networks[0].get_parameter(untouched), start.get_parameter(untouched))

    def test_a_scheduler(self, kernels):
        start = build(experts=3)
        networks = []
        for make in (eager, torch_adam):
            trainer = Trainer(copy.deepcopy(start), make)
            scheduler = torch.optim.lr_scheduler.StepLR(trainer.optimizer, 2, gamma=0.5)
            for step in range(8):
                trainer.step(step)
                scheduler.step()
            assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(LR / 16)
            networks.append(trainer.network)
        for a, b in zip(*(n.parameters() for n in networks), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0.02 * LR)
        fast = Trainer(copy.deepcopy(start), eager).train(8).network
        assert (fast[0].posterior.mean - networks[0][0].posterior.mean).abs().mean() > LR

    def test_a_closure(self):
        network = build(experts=2)
        by_hand = Trainer(copy.deepcopy(network), eager).train(1)
        trainer = Trainer(network, eager)

        def closure() -> Tensor:
            trainer.optimizer.zero_grad()
            loss = trainer.loss(0)
            loss.backward()
            return loss

        assert trainer.optimizer.step(closure).item() == pytest.approx(Trainer(build(experts=2), eager).loss(0).item())
        assert_identical(trainer.network, by_hand.network)


class TestTheKL:
    @ESTIMATORS
    @SIGMAS
    def test_after_a_step_is_that_of_the_new_weights(self, kernels, estimator, sigma):
        """To 1e-5; what is remembered is forgotten when weights or priors change."""
        trainer = Trainer(build(experts=3, estimator=estimator, sigma=sigma), lazy).train(3)
        for _ in range(2):
            for posterior in posteriors(trainer.network):
                expected = copy.deepcopy(posterior).double().kl()
                torch.testing.assert_close(posterior.kl().double(), expected, rtol=1e-5, atol=1e-5)
                with torch.no_grad():
                    posterior.mean.add_(0.1)
                    posterior.rho.sub_(0.1)
        for posterior in posteriors(trainer.network):
            with torch.no_grad():
                posterior.prior_log_sigma.add_(0.2)
            torch.testing.assert_close(posterior.kl().double(), copy.deepcopy(posterior).double().kl(), rtol=1e-5, atol=1e-5)
        consolidate(trainer.network)
        for posterior in posteriors(trainer.network):
            assert (posterior.kl() == 0).all()

    @SIGMAS
    def test_goes_on_after_a_new_task(self, kernels, sigma):
        start = build(experts=3, sigma=sigma)
        networks = []
        for make in (eager, torch_adam):
            trainer = Trainer(copy.deepcopy(start), make).train(4)
            consolidate(trainer.network)
            networks.append(trainer.train(4, start=4).network)
        assert_same(*networks, start)


class TestLazy:
    weights = {"diversity": 0.0, "marginal_entropy": 0.0}  # noqa: RUF012  # the plain H(M) has no gradient at a mass of zero

    def build(self, sigma: str, estimator: str = "flipout") -> nn.Module:
        """Experts 1 and 3 of four have no gate mass at all."""
        network = build(experts=4, sigma=sigma, estimator=estimator)
        for layer in (network[0], network[2]):
            with torch.no_grad():
                layer.gate.bias.copy_(torch.tensor([0.0, -500.0, 0.0, -500.0]))
        return network

    @ESTIMATORS
    @SIGMAS
    def test_idle_experts_are_kept_and_used_ones_go_on_as_ever(self, kernels, estimator, sigma):
        start = self.build(sigma, estimator)
        mine = Trainer(copy.deepcopy(start), lazy, **self.weights).train(5)
        every = Trainer(copy.deepcopy(start), eager, **self.weights).train(5)
        names = ("mean", "rho") if sigma == "weight" else ("mean",)
        for a, b, c in zip(*(posteriors(n) for n in (mine.network, every.network, start)), strict=True):
            state = mine.optimizer.state[a.mean]
            assert state["step"].tolist() == [5, 0, 5, 0]
            for name in names:
                one, other, before = (getattr(p, name).detach() for p in (a, b, c))
                assert torch.equal(one[[1, 3]], before[[1, 3]])
                assert torch.equal(one[[0, 2]], other[[0, 2]])
                assert not torch.equal(one[0], before[0])
                for moment in ("exp_avg", "exp_avg_sq"):
                    moments = mine.optimizer.state[getattr(a, name)][moment]
                    assert (moments[[1, 3]] == 0).all()
                    assert (moments[[0, 2]] != 0).any()

    @SIGMAS
    def test_a_pause_leaves_moments_and_counters(self, kernels, sigma):
        trainer = Trainer(build(experts=2, sigma=sigma), lazy, **self.weights).train(3)
        posterior, gate = trainer.network[0].posterior, trainer.network[0].gate
        state = trainer.optimizer.state[posterior.mean]
        assert state["step"].tolist() == [3, 3]
        kept = [t[1].clone() for t in (posterior.mean.detach(), state["exp_avg"], state["exp_avg_sq"])]
        with torch.no_grad():
            gate.bias[1] = -500
        trainer.train(4, start=3)
        assert state["step"].tolist() == [7, 3]
        for before, now in zip(kept, (posterior.mean, state["exp_avg"], state["exp_avg_sq"]), strict=True):
            assert torch.equal(now[1], before)
        with torch.no_grad():
            gate.bias[1] = 0
        trainer.train(1, start=7)
        assert state["step"].tolist() == [8, 4]
        assert not torch.equal(posterior.mean[1], kept[0])

    def test_not_lazy_lets_the_kl_pull_on_all(self):
        start = self.build("weight")
        every = Trainer(copy.deepcopy(start), lambda n: VariationalAdam(n, lr=LR, lazy=False), **self.weights)
        for layer in (every.network[0], every.network[2]):
            layer.usage = "uniform"
        every.train(3)
        for a, b in zip(posteriors(every.network), posteriors(start), strict=True):
            assert ((a.mean - b.mean).abs().flatten(1).mean(1) > 0.1 * LR).all()

    @SIGMAS
    def test_the_diversity_pushes_used_experts_only(self, kernels, sigma):
        start = self.build(sigma)
        mine = Trainer(copy.deepcopy(start), lazy, marginal_entropy=0.0, diversity=1.0).train(3)
        without = Trainer(copy.deepcopy(start), lazy, marginal_entropy=0.0, diversity=0.0).train(3)
        for a, b, c in zip(*(posteriors(n) for n in (mine.network, without.network, start)), strict=True):
            assert torch.equal(a.mean[[1, 3]], c.mean[[1, 3]])
            assert (a.mean[[0, 2]] - b.mean[[0, 2]]).abs().mean() > 0.01 * LR


class TestCollecting:
    def test_zero_grad_forgets(self):
        for set_to_none in (True, False):
            start = build(experts=2)
            trainer = Trainer(copy.deepcopy(start), eager)
            trainer.loss(0).backward()
            assert all(c.kl_weights().all() for p in posteriors(trainer.network) for c in p.collector.contributions)
            assert not any(p.collector.empty for p in posteriors(trainer.network))
            trainer.optimizer.zero_grad(set_to_none)
            assert all(p.collector.empty for p in posteriors(trainer.network))
            trainer.optimizer.step()
            assert_identical(nn.ModuleList(posteriors(trainer.network)), nn.ModuleList(posteriors(start)))

    def test_a_step_without_gradients_is_none(self):
        start = build(experts=2)
        network = copy.deepcopy(start)
        eager(network).step()
        assert_identical(network, start)

    def test_evaluation_collects_nothing(self):
        network = build(experts=2)
        optimizer = eager(network)
        with torch.no_grad():
            network(batch(0)[0])
            sum(p.kl().sum() for p in posteriors(network))
        network.eval()
        network(batch(0)[0])
        with torch.inference_mode():
            network(batch(0)[0])
        assert all(p.collector.empty for p in posteriors(network))
        before = copy.deepcopy(network)
        optimizer.step()
        assert_identical(network, before)

    @pytest.mark.parametrize(("estimator", "sigma"), [("flipout", "weight"), ("local", "unit")])
    def test_passes_without_backward_leave_nothing_behind(self, estimator, sigma):
        trainer = Trainer(build(experts=3, estimator=estimator, sigma=sigma), eager)

        def alive() -> int:
            gc.collect()
            return sum(issubclass(type(o), Tensor) for o in gc.get_objects())

        for step in range(3):  # the memory of passes is kept for the next
            trainer.loss(step)
        before = alive()
        for step in range(10):
            trainer.loss(step)
        assert alive() <= before + 2
        assert all(p.collector.empty for p in posteriors(trainer.network))

    @ESTIMATORS
    @SIGMAS
    def test_without_its_optimiser_plain_autograd_is_back(self, kernels, estimator, sigma):
        """The gradients of a network that never had one, to 1e-5."""
        network = build(experts=3, estimator=estimator, sigma=sigma)
        plain = copy.deepcopy(network)
        trainer = Trainer(network, eager)
        trainer.loss(0).backward()
        gone = weakref.ref(trainer.optimizer)
        del trainer
        gc.collect()
        assert gone() is None
        for module in (network, plain):
            module.zero_grad()
            Trainer(module, torch_adam).loss(0).backward()
        for (name, a), b in zip(network.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5, msg=name)

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))], ids=["deepcopy", "pickle"])
    def test_a_copy_belongs_to_no_optimiser(self, duplicate):
        trainer = Trainer(build(experts=2), eager).train(2)
        trainer.loss(2).backward()
        counts = [len(p.collector.contributions) for p in posteriors(trainer.network)]
        clone = duplicate(trainer.network)
        Trainer(clone, torch_adam).loss(3).backward()
        for posterior in posteriors(clone):
            assert not posterior.collects
            assert posterior.collector.empty
            assert posterior.mean.grad is not None
            assert posterior.rho.grad is not None
        assert counts == [len(p.collector.contributions) for p in posteriors(trainer.network)]

    def test_a_new_optimiser_takes_over(self):
        start = build(experts=2)
        network = copy.deepcopy(start)
        Trainer(network, eager).loss(5).backward()
        network.zero_grad()
        mine = Trainer(network, eager).train(3)
        assert_identical(mine.network, Trainer(copy.deepcopy(start), eager).train(3).network)


class TestState:
    @pytest.mark.parametrize("on_disk", [False, True])
    @pytest.mark.parametrize("make", [eager, lazy])
    @ESTIMATORS
    @SIGMAS
    def test_round_trip_goes_on_bit_by_bit(self, tmp_path: Path, on_disk, make, estimator, sigma):
        options = {"experts": 3, "estimator": estimator, "sigma": sigma}
        trainer = Trainer(build(**options), make, diversity_every=3).train(4)
        consolidate(trainer.network)
        trainer.train(2, start=4)
        state = {"network": dict(trainer.network.state_dict()), "optimizer": trainer.optimizer.state_dict()}
        if on_disk:
            save_state(tmp_path / "state.json", state)
            state = load_state(tmp_path / "state.json")
            state["optimizer"]["state"] = {int(k): v for k, v in state["optimizer"]["state"].items()}
        else:
            state = copy.deepcopy(state)
        other = Trainer(build(seed=7, **options), make, diversity_every=3).train(1)
        other.network.load_state_dict(state["network"])
        other.optimizer.load_state_dict(state["optimizer"])
        other.objective.load_state_dict(trainer.objective.state_dict())
        for step in range(6, 10):
            losses = []
            for one in (trainer, other):
                losses.append(one.loss(step))
                one.optimizer.zero_grad()
                losses[-1].backward()
                one.optimizer.step()
            assert torch.equal(*losses)
        assert_identical(other.network, trainer.network)
        for a, b in itertools.product(*(t.optimizer.state_dict()["state"].items() for t in (trainer, other))):
            if a[0] == b[0]:
                assert a[1].keys() == b[1].keys()
                assert all(torch.equal(a[1][k], b[1][k]) for k in a[1])

    def test_loading_forgets_what_was_collected(self):
        trainer = Trainer(build(experts=2), eager).train(1)
        state = copy.deepcopy(trainer.optimizer.state_dict())
        trainer.loss(1).backward()
        trainer.optimizer.load_state_dict(state)
        assert all(p.collector.empty for p in posteriors(trainer.network))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"lr": -1.0}, "lr=-1.0"),
        ({"lr": float("nan")}, "lr=nan"),
        ({"eps": -1e-8}, "eps=-1e-08"),
        ({"betas": (1.0, 0.9)}, r"betas=\(1.0, 0.9\)"),
        ({"betas": (0.9, -0.1)}, r"betas=\(0.9, -0.1\)"),
        ({"betas": (0.9, float("nan"))}, "betas"),
    ],
    ids=str,
)
def test_a_bad_argument_is_named(options, name):
    network = build(experts=2)
    with pytest.raises(InputError, match=name):
        VariationalAdam(network, **options)
    assert not any(p.collects for p in posteriors(network))


class TestFrozen:
    @pytest.mark.parametrize("sigma", ["weight", "unit"])
    @pytest.mark.parametrize("lazy", [True, False])
    @pytest.mark.parametrize("late", [False, True])
    def test_frozen_experts_stay_where_they_are(self, sigma, lazy, late):
        torch.manual_seed(0)
        network = nn.Sequential(MoVELinear(4, 8, 3, sigma=sigma), nn.Tanh(), MoVELinear(8, 2, 3, sigma=sigma))
        objective, x = Objective(expert_kl=0.1, diversity=0.1), torch.randn(32, 4)
        if not late:
            network[0].requires_grad_(False)
        optimizer = VariationalAdam(network, lr=0.01, lazy=lazy)

        def steps():
            for _ in range(3):
                loss = objective(-network(x).square().mean(), network, 10).total
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        if late:
            steps()
            network[0].requires_grad_(False)
        before = {name: value.clone() for name, value in network.state_dict().items()}
        steps()
        moved = {name for name, value in network.named_parameters() if not torch.equal(value, before[name])}
        assert not any(name.startswith("0.") for name in moved)
        assert {"2.posterior.mean", "2.posterior.rho", "2.bias"} <= moved

    def test_frozen_layers_of_a_stack_leave_the_others_learning(self):
        stack = MoVEStack((4, 8, 2), 3)
        next(iter(stack)).requires_grad_(False)
        before = {name: value.clone() for name, value in stack.state_dict().items()}
        optimizer = VariationalAdam(stack, lr=0.01)
        stack(torch.randn(32, 4)).square().mean().backward()
        optimizer.step()
        moved = {name for name, value in stack.named_parameters() if not torch.equal(value, before[name])}
        assert "layers.1.posterior.mean" in moved
        assert not any(name.startswith("layers.0.") for name in moved)

    def test_parameters_instead_of_a_network_are_named(self):
        with pytest.raises(InputError, match="takes a network"):
            VariationalAdam(MoVELinear(4, 2).parameters())
