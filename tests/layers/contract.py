"""What every MoVE layer promises. A concrete class says how to build its layer, its torch.nn counterpart and an input."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from hvcl.core.errors import InputError
from hvcl.layers import MoVELayer, consolidate, loss_terms, sampling
from hvcl.layers.diversity import JITTER

from .reference import Draws, Reference

ROWS = 5
SIGMAS = pytest.mark.parametrize("sigma", ["weight", "unit"])
NOISY = pytest.mark.parametrize("estimator", ["flipout", "local"])
ROUTINGS = pytest.mark.parametrize("routing", ["argmax", "sample", "straight-through"])
TOP_K_OF_3 = pytest.mark.parametrize("top_k", [1, 2, 3])
GATED_TERMS = ("expert_kl", "gate_kl", "conditional_entropy", "marginal_entropy")

BAD_OPTIONS = [
    ({"experts": 0}, "experts"),
    ({"top_k": 0}, "top_k"),
    ({"experts": 2, "top_k": 3}, "top_k"),
    ({"estimator": "flip-out"}, "estimator"),
    ({"sigma": "layer"}, "sigma"),
    ({"routing": "softmax"}, "routing"),
    ({"usage": "none"}, "usage"),
    ({"sigma_transform": "relu"}, "sigma_transform"),
    ({"initial_sigma": 0.0}, "initial_sigma"),
    ({"initial_sigma": -0.1}, "initial_sigma"),
    ({"prior_sigma": 0.0}, "prior_sigma"),
    ({"prior_sigma": -1.0}, "prior_sigma"),
    ({"kernel_width": 0.0}, "kernel_width"),
    ({"kernel_width": -2.0}, "kernel_width"),
]


class BaseLayerContract:
    """The tests; a subclass fills in the class variables and `operator`, `unit_of_weight`."""

    layer_class: ClassVar[type[MoVELayer]]
    counterpart_class: ClassVar[type[nn.Module]]
    arguments: ClassVar[tuple[Any, ...]]
    """Positional arguments of the layer and of its counterpart."""
    geometry: ClassVar[dict[str, Any]]
    """Keyword arguments of both."""
    item: ClassVar[tuple[int, ...]]
    """Shape of one example."""
    fan_in: ClassVar[float]
    """Inputs that feed one output unit, for the arguments above."""
    variants: ClassVar[Sequence[dict[str, Any]]]
    """Other keyword arguments that the layer shares with its counterpart."""
    bad_inputs: ClassVar[Sequence[tuple[int, ...]]]
    """Shapes that do not fit."""
    bad_arguments: ClassVar[Sequence[tuple[tuple[Any, ...], dict[str, Any], str]]]
    """Arguments and keyword arguments that do not fit, and the name that the error must say."""

    def to_torch(self, weight: Tensor) -> Tensor:
        """One expert's weight in the layout of the counterpart."""
        return weight

    def unit_of_weight(self, weight: Tensor) -> Tensor:
        """Index of the output unit that each entry of one expert's weight feeds."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for name in ("variant", "bad_input", "bad_argument"):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, getattr(self, f"{name}s"), ids=str)

    @pytest.fixture
    def draws(self, monkeypatch: pytest.MonkeyPatch) -> Draws:
        return Draws.record(monkeypatch)

    # -- building -----------------------------------------------------------------------------------------------------

    def fresh(self, geometry: dict[str, Any] | None = None, *, dtype: torch.dtype = torch.float64, **options) -> MoVELayer:
        """As a user builds it."""
        return self.layer_class(*self.arguments, **(self.geometry if geometry is None else geometry), dtype=dtype, **options)

    def build(self, geometry: dict[str, Any] | None = None, *, seed: int = 0, **options) -> MoVELayer:
        """A layer somewhere in the middle of its life: no parameter and no prior at its initial value."""
        torch.manual_seed(seed)
        layer = self.fresh(geometry, **options)
        with torch.no_grad():
            layer.posterior.rho.normal_(-1.0, 0.4)
            layer.posterior.prior_mean.normal_(0.0, 0.3)
            layer.posterior.prior_log_sigma.normal_(-0.5, 0.3)
            if layer.bias is not None:
                layer.bias.normal_()
            if layer.gate is not None:  # sure of some inputs, unsure of others, and no expert idle
                features = Reference.features(self.inputs(64, dtype=layer.gate.weight.dtype))
                for weight, bias in (
                    (layer.gate.weight, layer.gate.bias),
                    (layer.gate.prior_weight, layer.gate.prior_bias),
                ):
                    weight.normal_(0.0, 1.5 / math.sqrt(features.shape[1])).div_(features.std(0))
                    bias.normal_(0.0, 0.3).sub_(weight @ features.mean(0))
        return layer

    def inputs(self, rows: int = ROWS, *, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.randn(rows, *self.item, generator=torch.Generator().manual_seed(seed), dtype=dtype)

    def counterpart(self, geometry: dict[str, Any] | None = None, dtype: torch.dtype = torch.float64) -> nn.Module:
        return self.counterpart_class(*self.arguments, **(self.geometry if geometry is None else geometry), dtype=dtype)

    def reference(self, layer: MoVELayer, geometry: dict[str, Any] | None = None) -> Reference:
        """The same layer in plain loops, on copies of all its tensors."""
        counterpart = self.counterpart({**(self.geometry if geometry is None else geometry), "bias": False})

        def operator(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            answer = functional_call(counterpart, {"weight": self.to_torch(weight)}, (x,))
            return answer if bias is None else answer + bias.reshape(1, -1, *[1] * (x.dim() - 2))

        return Reference(
            {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()},
            {name: b.clone() for name, b in layer.named_buffers()},
            operator,
            self.unit_of_weight(layer.posterior.mean[0].detach()),
            layer.experts,
            layer.top_k,
            layer.estimator,
            layer.posterior.sigma_kind,
            layer.routing,
            layer.usage,
            layer.posterior.transform,
        )

    def assert_agrees(self, layer: MoVELayer, draws: Draws, geometry: dict[str, Any] | None = None, **tolerance) -> None:
        """Output and every gradient of one training pass, against the reference with the same random numbers."""
        x = self.inputs(dtype=layer.posterior.mean.dtype).requires_grad_()
        reference, x_reference = self.reference(layer, geometry), x.detach().clone().requires_grad_()
        draws.clear()
        answer = layer(x)
        if layer.experts > 1:
            assert len(set(layer.gate_log_probabilities.argmax(1).tolist())) > 1  # or the test would not see the sorting
        expected = reference.forward(x_reference, draws)
        noise = {"flipout": (1, 2), "local": (1, 0), "mean": (0, 0)}[layer.estimator]
        assert (len(draws.normals), len(draws.signs)) == noise
        assert len(draws.exponentials) == (layer.routing == "sample" and layer.experts > 1)
        torch.testing.assert_close(answer, expected, **tolerance)

        cotangent = torch.randn(answer.shape, dtype=answer.dtype)
        names = list(reference.parameters)
        parameters = dict(layer.named_parameters())
        mine = torch.autograd.grad(
            (answer * cotangent).sum(), [x, *(parameters[n] for n in names)], allow_unused=True, materialize_grads=True
        )
        theirs = torch.autograd.grad(
            (expected * cotangent).sum(),
            [x_reference, *reference.parameters.values()],
            allow_unused=True,
            materialize_grads=True,
        )
        for name, a, b in zip(["x", *names], mine, theirs, strict=True):
            torch.testing.assert_close(a, b, **tolerance, msg=lambda m, name=name: f"gradient of {name}: {m}")

    # -- one training pass --------------------------------------------------------------------------------------------

    @TOP_K_OF_3
    @pytest.mark.parametrize("estimator", ["flipout", "local", "mean"])
    @SIGMAS
    @ROUTINGS
    def test_agrees_with_the_reference(self, top_k, estimator, sigma, routing, draws):
        layer = self.build(experts=3, top_k=top_k, estimator=estimator, sigma=sigma, routing=routing)
        self.assert_agrees(layer, draws, rtol=1e-9, atol=1e-9)

    @NOISY
    @SIGMAS
    def test_agrees_with_the_reference_with_softplus(self, estimator, sigma, draws):
        layer = self.build(experts=2, estimator=estimator, sigma=sigma, sigma_transform="softplus")
        self.assert_agrees(layer, draws, rtol=1e-9, atol=1e-9)

    @NOISY
    @SIGMAS
    def test_agrees_with_the_reference_with_one_expert(self, estimator, sigma, draws):
        layer = self.build(experts=1, estimator=estimator, sigma=sigma)
        assert layer.gate is None
        assert set(dict(layer.named_parameters())) == {"posterior.mean", "posterior.rho", "bias"}
        self.assert_agrees(layer, draws, rtol=1e-9, atol=1e-9)

    @pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
    @NOISY
    @SIGMAS
    def test_agrees_with_the_reference_in_every_geometry(self, variant, estimator, sigma, draws):
        layer = self.build(variant, experts=2, top_k=2, estimator=estimator, sigma=sigma)
        self.assert_agrees(layer, draws, variant, rtol=1e-9, atol=1e-9)

    @NOISY
    def test_agrees_with_the_reference_in_float32(self, estimator, draws, monkeypatch):
        monkeypatch.setattr("hvcl.ops.border.load", lambda: None)  # compiled noise is not torch's, and not recorded
        layer = self.build(experts=3, top_k=2, estimator=estimator)
        layer32 = self.fresh(experts=3, top_k=2, estimator=estimator, dtype=torch.float32)
        layer32.load_state_dict(layer.state_dict())
        x = self.inputs()
        answer = layer32(x.float())
        assert answer.dtype == torch.float32
        draws.normals = [n.double() for n in draws.normals]
        draws.signs = [s.double() for s in draws.signs]
        expected = self.reference(layer).forward(x, draws)
        torch.testing.assert_close(answer, expected.float(), rtol=1e-4, atol=1e-4)

    @SIGMAS
    @NOISY
    def test_sampled_outputs_have_the_analytic_mean_and_variance(self, estimator, sigma):
        """All experts mixed: mean sum_m p_m A(x; mu_m) and variance sum_m p_m^2 A(x^2; sigma_m^2).

        600 passes; for every output |z| < 5 for mean and variance (its error from the largest kurtosis that two experts with
        one normal draw can have, 6); the variances' mean ratio to the analytic ones within 10 %.
        """
        passes = 600
        layer = self.build(experts=2, top_k=2, estimator=estimator, sigma=sigma)
        reference, x = self.reference(layer), self.inputs(3)
        with torch.no_grad():
            p = reference.gate(x).view(3, 2, *[1] * (x.dim() - 1))
            sigmas = reference.sigmas(reference.parameters["posterior.rho"])
            means, biases = reference.parameters["posterior.mean"], reference.parameters["bias"]
            mean = sum(p[:, m] * reference.operator(x, means[m], biases[m]) for m in range(2))
            variance = sum(p[:, m] ** 2 * reference.operator(x**2, sigmas[m] ** 2, None) for m in range(2))
            torch.manual_seed(3)
            samples = torch.stack([layer(x) for _ in range(passes)])
        z_mean = (samples.mean(0) - mean) / (variance / passes).sqrt()
        assert z_mean.abs().max() < 5
        ratio = (samples - mean).square().mean(0) / variance
        z_variance = (ratio - 1) / math.sqrt((6 - 1) / passes)
        assert z_variance.abs().max() < 5
        assert ratio.mean().item() == pytest.approx(1, abs=0.1)

    @SIGMAS
    def test_flipout_has_the_covariance_of_sampled_weights_and_decorrelates_examples(self, sigma):
        """Within an example Cov = J diag(sigma^2) J^T, J = dA/dweight; 0 between examples, even of the same input.

        40 of the outputs, 800 passes, |z| < 5.5 (some thousand entries).
        """
        passes = 800
        layer = self.build(experts=1, sigma=sigma)
        reference, x = self.reference(layer), self.inputs(1)
        some = torch.randperm(layer(x).numel(), generator=torch.Generator().manual_seed(2))[:40]
        with torch.no_grad():
            weight = reference.parameters["posterior.mean"][0]
            sigmas = reference.sigmas(reference.parameters["posterior.rho"])[0].flatten()
        jacobian = torch.autograd.functional.jacobian(lambda w: reference.operator(x, w, None).flatten()[some], weight).flatten(1)
        covariance = (jacobian * sigmas**2) @ jacobian.T
        with torch.no_grad():
            twice = x.expand(2, *self.item)
            torch.manual_seed(4)
            noise = torch.stack([layer(twice).flatten(1)[:, some] for _ in range(passes)])
            noise -= reference.operator(x, weight, reference.parameters["bias"][0]).flatten()[some]
        first, second = noise.unbind(1)
        for a, b, expected in ((first, first, covariance), (second, second, covariance), (first, second, 0 * covariance)):
            products = a.unsqueeze(2) * b.unsqueeze(1)
            z = (products.mean(0) - expected) / (products.std(0) / math.sqrt(passes) + 1e-12)
            assert z.abs().max() < 5.5

    @NOISY
    @SIGMAS
    def test_a_zero_input_has_no_noise_and_finite_gradients(self, estimator, sigma):
        layer = self.build(experts=2, estimator=estimator, sigma=sigma)
        x = torch.zeros(2, *self.item, dtype=torch.float64, requires_grad=True)
        answer = layer(x)
        torch.testing.assert_close(answer, self.reference(layer).forward(x), rtol=0, atol=1e-8)
        answer.square().sum().backward()
        assert x.grad.isfinite().all()
        assert layer.posterior.rho.grad.abs().max() < 1e-8

    # -- the mixture --------------------------------------------------------------------------------------------------

    @TOP_K_OF_3
    @ROUTINGS
    def test_the_task_loss_alone_teaches_the_gate(self, top_k, routing):
        layer = self.build(experts=3, top_k=top_k, routing=routing)
        layer(self.inputs()).square().mean().backward()
        for parameter in layer.gate.parameters():
            assert parameter.grad.norm() > 1e-3

    @NOISY
    @SIGMAS
    @pytest.mark.parametrize("top_k", [1, 2])
    def test_experts_that_were_not_chosen_get_no_gradient(self, estimator, sigma, top_k):
        layer = self.build(experts=4, top_k=top_k, estimator=estimator, sigma=sigma)
        with torch.no_grad():
            layer.gate.bias.copy_(torch.tensor([0.0, -500.0, 0.0, -500.0]))
        layer(self.inputs()).square().sum().backward()
        ranked = layer.gate_log_probabilities.topk(top_k, 1).indices
        chosen = set(ranked.flatten().tolist())
        assert chosen <= {0, 2}
        for gradient in (layer.posterior.mean.grad, layer.posterior.rho.grad, layer.bias.grad):
            for m in range(4):
                assert bool((gradient[m] != 0).any()) == (m in chosen)

    def test_all_experts_chosen_is_the_dense_mixture(self):
        layer = self.build(experts=3, top_k=3).eval()
        reference, x = self.reference(layer), self.inputs()
        p = reference.gate(x)
        means, biases = reference.parameters["posterior.mean"], reference.parameters["bias"]
        expected = sum(p[:, m].view(-1, *[1] * (x.dim() - 1)) * reference.operator(x, means[m], biases[m]) for m in range(3))
        torch.testing.assert_close(layer(x), expected, rtol=1e-10, atol=1e-10)

    @TOP_K_OF_3
    @ROUTINGS
    def test_evaluation_is_the_posterior_mean_network(self, top_k, routing):
        """Of the most probable experts, deterministically; with k = 1 drawn experts have weight 1, as in training."""
        layer = self.build(experts=3, top_k=top_k, routing=routing).eval()
        x = self.inputs()
        with torch.no_grad():
            answer = layer(x)
            assert torch.equal(layer(x), answer)
        torch.testing.assert_close(answer, self.reference(layer).forward(x).detach(), rtol=1e-10, atol=1e-10)

    @pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
    def test_vanishing_sigma_is_the_torch_layer(self, variant):
        layer = self.build(variant, experts=1)
        counterpart = self.counterpart(variant)
        with torch.no_grad():
            layer.posterior.rho.fill_(-60.0)
            counterpart.weight.copy_(self.to_torch(layer.posterior.mean[0]))
            if counterpart.bias is not None:
                counterpart.bias.copy_(layer.bias[0])
        assert (layer.bias is None) == (counterpart.bias is None)
        x = self.inputs().requires_grad_()
        answer, expected = layer(x), counterpart(x)
        torch.testing.assert_close(answer, expected, rtol=1e-12, atol=1e-12)
        cotangent = torch.randn_like(expected)
        gradient, gradient_expected = (torch.autograd.grad((y * cotangent).sum(), x)[0] for y in (answer, expected))
        torch.testing.assert_close(gradient, gradient_expected, rtol=1e-12, atol=1e-12)

    # -- sparse work --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("top_k", [1, 2])
    def test_only_the_chosen_experts_are_computed(self, top_k, monkeypatch):
        layer = self.build(experts=4, top_k=top_k, estimator="mean")
        operator, rows = layer._operator, [0] * 4

        def counted(x, weight, bias):
            matches = [m for m in range(4) if torch.equal(weight, layer.posterior.mean[m])]
            assert len(matches) == 1
            rows[matches[0]] += len(x)
            return operator(x, weight, bias)

        monkeypatch.setattr(layer, "_operator", counted)
        with torch.no_grad():
            layer.gate.bias[1] = -500.0
        layer(self.inputs(12))
        chosen = layer.gate_log_probabilities.topk(top_k, 1).indices.flatten()
        assert rows == torch.bincount(chosen, minlength=4).tolist()
        assert rows[1] == 0
        assert sum(rows) == 12 * top_k

    def test_the_order_of_the_batch_does_not_matter(self):
        layer = self.build(experts=3, top_k=2).eval()
        x = self.inputs(8)
        order = torch.randperm(8)
        torch.testing.assert_close(layer(x[order]), layer(x)[order], rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("top_k", [1, 2, 3])
    @pytest.mark.parametrize("training", [True, False])
    def test_an_empty_batch_gives_an_empty_answer_and_no_terms(self, top_k, training):
        layer = self.build(experts=3, top_k=top_k).train(training)
        expected = layer(self.inputs()).shape[1:]
        assert layer(self.inputs(0)).shape == (0, *expected)
        for name in GATED_TERMS:
            with pytest.raises(InputError, match="empty"):
                layer.terms()[name]()

    # -- the posterior and the objective ------------------------------------------------------------------------------

    @SIGMAS
    @pytest.mark.parametrize("transform", ["exp", "softplus"])
    def test_kl_agrees_with_torch_distributions(self, sigma, transform):
        layer = self.build(experts=3, sigma=sigma, sigma_transform=transform)
        reference = self.reference(layer)
        kl, expected = layer.posterior.kl(), torch.stack(reference.kls())
        torch.testing.assert_close(kl, expected, rtol=1e-10, atol=1e-10)
        cotangent = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
        mine = torch.autograd.grad((kl * cotangent).sum(), [layer.posterior.mean, layer.posterior.rho])
        theirs = torch.autograd.grad(
            (expected * cotangent).sum(), [reference.parameters["posterior.mean"], reference.parameters["posterior.rho"]]
        )
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)

    @pytest.mark.parametrize("experts", [1, 3])
    @pytest.mark.parametrize("usage", ["gate", "uniform"])
    @SIGMAS
    def test_terms_agree_with_the_formulas(self, experts, usage, sigma):
        """Values and all gradients: the usage that weights an expert's KL is not detached."""
        layer = self.build(experts=experts, usage=usage, sigma=sigma)
        reference = self.reference(layer)
        x = self.inputs().requires_grad_()
        x_reference = x.detach().clone().requires_grad_()
        layer(x)
        expected = reference.terms(x_reference)
        names = [*GATED_TERMS, "diversity"] if experts > 1 else ["expert_kl"]  # a single expert has nothing to choose
        assert list(layer.terms()) == names
        parameters = dict(layer.named_parameters())
        for name in GATED_TERMS if experts > 1 else names:
            term = layer.terms()[name]()
            assert term.shape == ()
            torch.testing.assert_close(term, expected[name], rtol=1e-9, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
            if not expected[name].requires_grad:
                assert term == 0
                continue
            mine, theirs = (
                torch.autograd.grad(t, [i, *p.values()], retain_graph=True, allow_unused=True, materialize_grads=True)
                for t, i, p in ((term, x, parameters), (expected[name], x_reference, reference.parameters))
            )
            for which, a, b in zip(["x", *parameters], mine, theirs, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10, msg=lambda m, n=name, w=which: f"{n} by {w}: {m}")
        if experts == 1:
            assert layer.diversity() == 0

    def test_the_kl_of_the_experts_teaches_the_gate(self):
        layer = self.build(experts=3)
        layer(self.inputs())
        layer.expert_kl().backward()
        assert layer.gate.weight.grad.norm() > 1e-3

    def test_terms_speak_for_the_last_batch(self):
        layer = self.build(experts=3)
        layer(self.inputs(seed=1))
        before = layer.conditional_entropy()
        layer(self.inputs(seed=2))
        torch.testing.assert_close(
            layer.conditional_entropy(), self.reference(layer).terms(self.inputs(seed=2))["conditional_entropy"]
        )
        assert (layer.conditional_entropy() - before).abs() > 1e-4

    def test_terms_before_a_forward_pass_say_what_to_do(self):
        layer = self.build(experts=2)
        for name in GATED_TERMS:
            with pytest.raises(InputError, match="forward pass"):
                layer.terms()[name]()

    @SIGMAS
    @pytest.mark.parametrize("transform", ["exp", "softplus"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_consolidated_kls_are_exactly_zero_until_something_moves(self, sigma, transform, dtype):
        layer = self.build(experts=3, sigma=sigma, sigma_transform=transform, dtype=dtype)
        x = self.inputs(dtype=dtype)
        layer(x)
        assert layer.gate_kl() > 0
        assert (layer.posterior.kl() > 0).all()
        layer.consolidate()
        for batch in (x, self.inputs(7, seed=9, dtype=dtype)):
            layer(batch)
            assert layer.posterior.kl().tolist() == [0.0, 0.0, 0.0]
            assert layer.expert_kl().item() == 0.0
            assert layer.gate_kl().item() == 0.0
        with torch.no_grad():
            layer.posterior.mean[1] += 0.1
            layer.gate.bias[0] += 0.5
        layer(x)
        kl = layer.posterior.kl().tolist()
        assert kl[0] == kl[2] == 0.0
        assert kl[1] > 1e-4
        assert layer.gate_kl() > 1e-4
        with torch.no_grad():
            layer.posterior.rho[2] += 0.1
        assert layer.posterior.kl()[2] > 1e-4

    def test_the_gates_prior_is_the_old_gate_on_the_current_input(self):
        layer = self.build(experts=3)
        layer(self.inputs(seed=5))
        layer.consolidate()
        old = self.reference(layer)
        with torch.no_grad():
            for parameter in layer.gate.parameters():
                parameter.add_(torch.randn_like(parameter))
        x = self.inputs(seed=6)
        layer(x)
        p, q = self.reference(layer).gate(x), old.gate(x)
        expected = (p * (p / q).log()).sum(1).mean()
        torch.testing.assert_close(layer.gate_kl(), expected, rtol=1e-9, atol=1e-10)

    def test_before_the_first_task_the_gates_prior_is_uniform(self):
        torch.manual_seed(0)
        layer = self.fresh(experts=3)
        layer(self.inputs())
        expected = math.log(3) - layer.conditional_entropy()
        torch.testing.assert_close(layer.gate_kl(), expected, rtol=1e-10, atol=1e-12)

    @pytest.mark.parametrize("transform", ["exp", "softplus"])
    @SIGMAS
    def test_starts_with_he_means_a_small_sigma_and_its_first_prior(self, sigma, transform):
        """He draws on the expert's own fan-in (within 5 standard errors), sigma 0.1 of their size, prior N(0, s^2)."""
        torch.manual_seed(0)
        he = math.sqrt(2 / self.fan_in)
        layer = self.fresh(experts=32, sigma=sigma, sigma_transform=transform)
        mean = layer.posterior.mean.detach()
        assert mean.std().item() == pytest.approx(he, rel=5 / math.sqrt(2 * mean.numel()))
        assert mean.mean().abs() < 5 * he / math.sqrt(mean.numel())
        assert len({tuple(m.flatten().tolist()) for m in mean}) == 32
        sigmas = layer.posterior.sigma
        assert sigmas.shape == mean.shape
        torch.testing.assert_close(sigmas, torch.full_like(mean, 0.1 * he))
        assert torch.equal(layer.posterior.prior_mean, torch.zeros_like(mean))
        torch.testing.assert_close(
            layer.posterior.prior_log_sigma, torch.full_like(layer.posterior.prior_log_sigma, math.log(he))
        )
        own = self.fresh(sigma=sigma, prior_sigma=0.7, initial_sigma=0.3, sigma_transform=transform)
        torch.testing.assert_close(own.posterior.sigma, torch.full_like(own.posterior.mean, 0.3 * he))
        torch.testing.assert_close(own.posterior.prior_log_sigma, torch.full_like(own.posterior.prior_log_sigma, math.log(0.7)))

    def test_reset_parameters_starts_anew(self):
        layer = self.build(experts=3, kernel_width=None)
        layer(self.inputs())
        layer.diversity()
        layer.consolidate()
        layer.diversity()
        torch.manual_seed(11)
        layer.reset_parameters()
        torch.manual_seed(11)
        new = self.fresh(experts=3)
        torch.manual_seed(11)
        new.reset_parameters()
        mine, theirs = layer.state_dict(), new.state_dict()
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), name
        with pytest.raises(InputError, match="forward pass"):
            layer.gate_kl()

    # -- diversity ----------------------------------------------------------------------------------------------------

    @SIGMAS
    @pytest.mark.parametrize("transform", ["exp", "softplus"])
    @pytest.mark.parametrize("experts", [2, 3, 5])
    def test_diversity_is_the_log_determinant_of_the_w2_kernel(self, experts, sigma, transform):
        layer = self.build(experts=experts, sigma=sigma, sigma_transform=transform)
        reference = self.reference(layer)
        value = layer.diversity()
        distances = reference.squared_distances()
        pairs = sorted(distances[i][j].item() for i in range(experts) for j in range(i))
        width = layer.kernel_width.item()  # h^2 is a median of W2^2: for an even number of pairs between the middle two
        slack = 1e-9
        assert pairs[(len(pairs) - 1) // 2] * (1 - slack) <= width**2 <= pairs[len(pairs) // 2] * (1 + slack)
        expected = reference.diversity(width, JITTER)
        torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-10)
        mine = torch.autograd.grad(value, [layer.posterior.mean, layer.posterior.rho])
        theirs = torch.autograd.grad(expected, [reference.parameters["posterior.mean"], reference.parameters["posterior.rho"]])
        for a, b in zip(mine, theirs, strict=True):
            assert b.abs().max() > 1e-6
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-10)

    @SIGMAS
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_diversity_of_identical_experts_is_finite(self, sigma, dtype):
        layer = self.build(experts=5, sigma=sigma, dtype=dtype)
        with torch.no_grad():
            layer.posterior.mean.copy_(layer.posterior.mean[:1].expand_as(layer.posterior.mean).clone())
            layer.posterior.rho.copy_(layer.posterior.rho[:1].expand_as(layer.posterior.rho).clone())
        value = layer.diversity()
        # all ones plus jitter: eigenvalues M + jitter once and jitter M - 1 times
        assert value.item() == pytest.approx(math.log(5 + JITTER) + 4 * math.log(JITTER), rel=1e-3)
        value.backward()
        for gradient in (layer.posterior.mean.grad, layer.posterior.rho.grad):
            assert gradient.isfinite().all()
            assert gradient.abs().max() < 1e-3  # nowhere to go: no direction is better than its opposite

    def test_the_kernels_width_is_frozen_until_the_next_consolidate(self):
        layer = self.build(experts=3)
        layer.diversity()
        first = layer.kernel_width.item()
        with torch.no_grad():
            layer.posterior.mean.mul_(3.0)
        moved = layer.diversity()
        assert layer.kernel_width.item() == first
        torch.testing.assert_close(moved, self.reference(layer).diversity(first, JITTER))
        layer.consolidate()
        remeasured = layer.diversity()
        assert layer.kernel_width.item() > 1.5 * first
        torch.testing.assert_close(remeasured, self.reference(layer).diversity(layer.kernel_width.item(), JITTER))

    def test_a_fixed_kernel_width_stays(self):
        layer = self.build(experts=3, kernel_width=0.8)
        for _ in range(2):
            torch.testing.assert_close(layer.diversity(), self.reference(layer).diversity(0.8, JITTER))
            layer.consolidate()
            with torch.no_grad():
                layer.posterior.mean.mul_(1.1)
        assert layer.kernel_width.item() == pytest.approx(0.8)

    # -- as a torch module --------------------------------------------------------------------------------------------

    def test_deepcopy_with_a_live_graph(self):
        layer = self.build(experts=3)
        x = self.inputs()
        answer = layer(x)
        clone = copy.deepcopy(layer)
        with pytest.raises(InputError, match="forward pass"):
            clone.gate_kl()
        (answer.square().sum() + layer.gate_kl()).backward()  # the original's graph is untouched
        assert layer.gate.weight.grad.norm() > 0
        assert clone.gate.weight.grad is None
        torch.testing.assert_close(clone.eval()(x), layer.eval()(x), rtol=0, atol=0)
        with torch.no_grad():
            for parameter in clone.parameters():
                parameter.add_(1.0)
        assert not torch.equal(clone(x), layer(x))

    def test_pickle_with_a_live_graph(self):
        layer = self.build(experts=2, sigma="unit")
        layer(self.inputs())
        clone = pickle.loads(pickle.dumps(layer))
        x = self.inputs(seed=3)
        for module in (layer, clone):
            torch.manual_seed(0)
            module(x)
        assert torch.equal(clone.eval()(x), layer.eval()(x))
        assert torch.equal(clone.posterior.kl(), layer.posterior.kl())

    @SIGMAS
    def test_state_dict_round_trip(self, sigma):
        layer = self.build(experts=3, sigma=sigma)
        layer(self.inputs())
        layer.diversity()
        layer.consolidate()
        layer.diversity()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        other = self.fresh(experts=3, sigma=sigma)
        other.load_state_dict(layer.state_dict())
        answers, terms = [], []
        for module in (layer, other):
            torch.manual_seed(5)
            answers.append(module(self.inputs()))
            terms.append({term.name: term.evaluate() for term in loss_terms(module)})
        assert torch.equal(*answers)
        assert len(terms[0]) == 5
        for name, value in terms[0].items():
            assert value != 0
            assert torch.equal(value, terms[1][name]), name

    def test_to_moves_everything(self):
        layer = self.build(experts=2, dtype=torch.float32)
        layer(self.inputs(dtype=torch.float32))
        layer.diversity()
        layer.to(torch.float64)
        tensors = [*layer.parameters(), *layer.buffers()]
        assert len(tensors) == len(layer.state_dict())
        assert {t.dtype for t in tensors} == {torch.float64}
        assert layer(self.inputs()).dtype == torch.float64
        assert {term.evaluate().dtype for term in loss_terms(layer)} == {torch.float64}

    @NOISY
    @SIGMAS
    def test_sampling_makes_evaluation_stochastic_and_restores(self, estimator, sigma):
        layer = self.build(experts=2, estimator=estimator, sigma=sigma).eval()
        x = self.inputs()
        mean = layer(x)
        with sampling(layer):
            one, two = layer(x), layer(x)
        spread = (one - two).abs()
        assert (spread > 1e-6).double().mean() > 0.5
        assert torch.equal(layer(x), mean)
        with pytest.raises(InputError, match="expects"), sampling(layer):
            layer(torch.zeros(3, 2, 1, dtype=torch.float64))
        assert torch.equal(layer(x), mean)

    def test_training_and_the_mean_estimator(self):
        layer = self.build(experts=2, estimator="mean")
        x = self.inputs()
        assert torch.equal(layer.train()(x), layer.eval()(x))
        with sampling(layer):
            assert torch.equal(layer(x), layer(x))

    def test_the_module_functions_find_the_layer(self):
        layer = self.build(experts=2)
        network = nn.Sequential(nn.Identity(), layer)
        network(self.inputs())
        assert {(term.layer, term.name) for term in loss_terms(network)} == {("1", name) for name in layer.terms()}
        assert consolidate(network) == 1
        network(self.inputs())
        assert {t.name: t.evaluate().item() for t in loss_terms(network) if t.name.endswith("kl")} == {
            "expert_kl": 0.0,
            "gate_kl": 0.0,
        }

    # -- bad arguments ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("options", "name"), BAD_OPTIONS, ids=str)
    def test_a_bad_option_is_named(self, options, name):
        with pytest.raises(InputError, match=rf"\b{name}\b"):
            self.fresh(**options)

    def test_a_bad_argument_is_named(self, bad_argument):
        arguments, geometry, name = bad_argument
        with pytest.raises(InputError, match=rf"\b{name}\b"):
            self.layer_class(*arguments, **geometry)

    @pytest.mark.parametrize("name", ["initial_sigma", "prior_sigma", "kernel_width"])
    def test_nan_is_no_size(self, name):
        with pytest.raises(InputError, match=rf"\b{name}\b"):
            self.fresh(**{name: math.nan})

    def test_a_bad_input_is_told_what_fits(self, bad_input):
        layer = self.build(experts=2)
        with pytest.raises(InputError, match="expects") as error:
            layer(torch.zeros(bad_input, dtype=torch.float64))
        assert str(tuple(bad_input)) in str(error.value)
