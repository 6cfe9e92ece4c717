"""Networks of MoVE layers under torch's transformations: torch.compile, torch.export, torch.func, autocast, torch.jit.trace.

Compiled code steps aside there (`hvcl.ops.border.usable`), and plain operations must give what it gives.
"""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, stack_module_state, vmap

from hvcl.core.errors import InputError
from hvcl.layers import MoVEConv2d, MoVEConvTranspose2d, MoVELinear, MoVEStack, loss_terms, variational_modules
from hvcl.optim import VariationalAdam

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
KINDS = pytest.mark.parametrize("kind", ["dense", "conv", "stack"])
VARIANTS = [
    {"estimator": "flipout", "sigma": "weight"},
    {"estimator": "flipout", "sigma": "unit", "routing": "sample"},
    {"estimator": "local", "sigma": "weight", "top_k": 2},
    {"estimator": "local", "sigma": "unit", "sigma_transform": "softplus"},
    {"estimator": "mean", "routing": "straight-through"},
]
OPTIONS = pytest.mark.parametrize("options", VARIANTS, ids=str)
# one network of each kind and each estimator once: compiling is slow
COMPILED = pytest.mark.parametrize(
    ("kind", "options"), [("dense", VARIANTS[0]), ("conv", VARIANTS[2]), ("stack", VARIANTS[3])], ids=str
)


def build(kind: str, *, quiet: bool = False, **options) -> tuple[nn.Module, Tensor]:
    """A small network and a batch for it; `quiet`: with posteriors so narrow that training passes have hardly any noise."""
    torch.manual_seed(0)
    if quiet:
        options["initial_sigma"] = 1e-7
    if kind == "stack":
        return MoVEStack((5, 8, 2), 3, copies=2, **options), torch.randn(6, 5)
    if kind == "dense":
        return nn.Sequential(MoVELinear(5, 8, 3, **options), nn.ReLU(), MoVELinear(8, 2, 3, **options)), torch.randn(6, 5)
    layers = [MoVEConv2d(2, 4, 3, experts=3, **options), nn.ReLU(), MoVEConvTranspose2d(4, 2, 2, experts=2, **options)]
    return nn.Sequential(*layers, nn.Flatten(), MoVELinear(50, 2, 3, **options)), torch.randn(20, 2, 6, 6)


def gradients(network: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    network.zero_grad()
    loss.backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in network.named_parameters()}


def objective(network: nn.Module, x: Tensor) -> Tensor:
    """A loss with all terms."""
    loss = network(x).square().mean()
    for term in loss_terms(network):
        loss = loss + 0.1 * term.evaluate()
    return loss


class Objective(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return objective(self.network, x)


class TestCompile:
    @pytest.fixture(autouse=True)
    def _fresh(self):
        torch._dynamo.reset()

    @COMPILED
    def test_evaluation_gives_the_same_numbers_and_gradients(self, kind, options):
        network, x = build(kind, **options)
        network.eval()
        compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(x), network(x), **CLOSE)
        found, expected = (gradients(network, module(x).square().sum()) for module in (compiled, network))
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, **CLOSE, msg=name)

    @COMPILED
    def test_training_passes_are_those_of_eager_mode_but_for_the_noise(self, kind, options):
        network, x = build(kind, quiet=True, **options)
        compiled = torch.compile(network, fullgraph=True, backend="eager")
        found, expected = (gradients(network, module(x).square().sum()) for module in (compiled, network))
        for name, value in expected.items():
            if "rho" not in name:  # d / d sigma is noise itself
                torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-3, msg=name)

    def test_noise_is_drawn_anew_in_every_pass_with_the_right_spread(self):
        """4000 draws of the answer to one input: the mean within 5 standard errors, the variance within 10 %."""
        torch.manual_seed(0)
        layer, x = MoVELinear(5, 3, 1, estimator="local", initial_sigma=1.0), torch.randn(1, 5).expand(2000, 5)
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        one, two = compiled(x).detach(), compiled(x).detach()
        assert not torch.equal(one, two)
        mean = layer.eval()(x[:1]).detach()
        rows = torch.cat([one, two])
        variance = x[0].square().sum() * layer.posterior.sigma[0, 0, 0].detach() ** 2
        assert (rows.mean(0) - mean).abs().max() < 5 * (variance / len(rows)).sqrt()
        assert rows.var(0).mean().item() == pytest.approx(variance.item(), rel=0.1)

    def test_an_objective_with_all_terms(self):
        network, x = build("dense", estimator="mean")
        other = copy.deepcopy(network)
        compiled = torch.compile(objective, fullgraph=True, backend="eager")
        values = compiled(network, x), objective(other, x)
        torch.testing.assert_close(*values, **CLOSE)
        found, expected = gradients(network, values[0]), gradients(other, values[1])
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4, msg=name)
        widths = [[layer.kernel_width for _, layer in variational_modules(module)] for module in (network, other)]
        torch.testing.assert_close(*widths)  # measured once and kept, compiled or not

    def test_our_optimiser_steps_a_compiled_network_as_it_does_an_eager_one(self):
        networks = [build("dense", estimator="mean")[0] for _ in range(2)]
        x = build("dense")[1]
        passes = [torch.compile(networks[0], fullgraph=True, backend="eager"), networks[1]]
        for network, run in zip(networks, passes, strict=True):
            optimizer = VariationalAdam(network, lr=0.01)
            for _ in range(3):
                loss = run(x).square().mean() + sum(term.evaluate() for term in loss_terms(network))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        for (name, one), two in zip(networks[0].named_parameters(), networks[1].parameters(), strict=True):
            torch.testing.assert_close(one, two, **CLOSE, msg=name)

    @pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's default backend needs a C++ compiler")
    def test_the_default_backend(self):
        from torch._inductor import config  # here, because importing it takes as long as importing torch

        torch.manual_seed(0)
        layer, x = MoVELinear(5, 8, 3).eval(), torch.randn(6, 5)
        # for two small kernels: neither processes that compile nor headers compiled beforehand
        with torch.no_grad(), config.patch(compile_threads=1, cpp_cache_precompile_headers=False):
            torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x), **CLOSE)


class TestExport:
    @KINDS
    @OPTIONS
    def test_an_exported_network_gives_the_same_numbers(self, kind, options):
        network, x = build(kind, **options)
        network.eval()
        torch.testing.assert_close(torch.export.export(network, (x,)).module()(x), network(x), **CLOSE)

    @KINDS
    def test_in_training_it_goes_on_drawing(self, kind):
        network, x = build(kind)
        exported = torch.export.export(network, (x,)).module()
        assert not torch.equal(exported(x), exported(x))

    @pytest.mark.parametrize("kind", ["dense", "conv"])
    def test_the_batch_may_be_of_any_size(self, kind):
        network, x = build(kind)
        network.eval()
        batch = torch.export.Dim("batch", min=2)
        exported = torch.export.export(network, (x,), dynamic_shapes=({0: batch},)).module()
        for rows in (2, 37):
            other = torch.randn(rows, *x.shape[1:])
            torch.testing.assert_close(exported(other), network(other), **CLOSE)

    def test_the_network_itself_is_left_as_it_was(self):
        network, x = build("dense")
        expected = network.eval()(x)
        torch.export.export(network, (x,))
        assert torch.equal(network(x), expected)
        assert all(term.evaluate().isfinite() for term in loss_terms(network))


class TestFunc:
    @KINDS
    @OPTIONS
    def test_grad_of_a_functional_call(self, kind, options):
        network, x = build(kind, **options)
        network.eval()
        parameters = {name: p.detach() for name, p in network.named_parameters()}
        found = grad(lambda own: functional_call(network, own, (x,)).square().sum())(parameters)
        for name, value in gradients(network, network(x).square().sum()).items():
            torch.testing.assert_close(found[name], value, **CLOSE, msg=name)

    @KINDS
    def test_grad_in_training(self, kind):
        network, x = build(kind, quiet=True)
        parameters = {name: p.detach() for name, p in network.named_parameters()}
        found = grad(lambda own: functional_call(network, own, (x,)).square().sum())(parameters)
        for name, value in gradients(network, network(x).square().sum()).items():
            if "rho" not in name:
                torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-3, msg=name)

    @pytest.mark.parametrize("collected", [False, True])
    @pytest.mark.parametrize("options", [{}, {"sigma": "unit"}, {"sigma_transform": "softplus"}], ids=str)
    def test_grad_of_an_objective_with_all_terms(self, options, collected):
        network, x = build("dense", estimator="mean", **options)
        whole = Objective(network)
        expected = gradients(whole, whole(x))
        optimizer = VariationalAdam(network) if collected else None
        found = grad(lambda own: functional_call(whole, own, (x,)))({n: p.detach() for n, p in whole.named_parameters()})
        del optimizer
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4, msg=name)

    @KINDS
    @OPTIONS
    def test_vmap_over_batches(self, kind, options):
        network, x = build(kind, **options)
        network.eval()
        batches = torch.stack([x, -x, 2 * x])
        torch.testing.assert_close(vmap(network)(batches), torch.stack([network(batch) for batch in batches]), **CLOSE)

    @KINDS
    def test_vmap_in_training_draws_for_each_batch(self, kind):
        network, x = build(kind)
        one, two = vmap(network, randomness="different")(torch.stack([x, x]))
        assert not torch.equal(one, two)

    def test_vmap_over_an_ensemble(self):
        x, layers = torch.randn(6, 5), [MoVELinear(5, 3, 3).eval() for _ in range(3)]
        base = copy.deepcopy(layers[0])
        found = vmap(lambda *state: functional_call(base, state, (x,)))(*stack_module_state(layers))
        torch.testing.assert_close(found, torch.stack([layer(x) for layer in layers]), **CLOSE)

    @KINDS
    def test_jacobians(self, kind):
        network, x = build(kind)
        network.eval()
        expected = torch.autograd.functional.jacobian(network, x[:2])
        torch.testing.assert_close(jacrev(network)(x[:2]), expected, **CLOSE)
        torch.testing.assert_close(jacfwd(network)(x[:2]), expected, **CLOSE)

    def test_second_derivatives(self):
        layer = MoVELinear(3, 1, 2).double().eval()
        x = torch.randn(1, 3, dtype=torch.float64)
        second = hessian(lambda row: layer(row).sum())(x).view(3, 3)
        first = grad(lambda row: layer(row).sum())
        step = 1e-5 * torch.eye(3, dtype=torch.float64)
        differences = [(first(x + d) - first(x - d)).view(3) / 2e-5 for d in step]
        assert second.abs().max() > 1e-3  # through the gate
        torch.testing.assert_close(second, torch.stack(differences), rtol=1e-5, atol=1e-7)


class TestAutocast:
    @KINDS
    @OPTIONS
    def test_answers_and_gradients_to_the_precision_of_bfloat16(self, kind, options):
        network, x = build(kind, **options)
        network.eval()
        with torch.autocast("cpu", torch.bfloat16):
            answer = network(x)
        expected = network(x)
        rows = -2 if kind == "stack" else 0
        # a gate between two experts may choose the other one in bfloat16: that changes one row whole, and only few
        same = ((answer - expected).abs() < 0.05 * expected.abs().max()).movedim(rows, 0).flatten(1).all(1)
        assert same.float().mean() >= 0.9
        found = gradients(network, answer.float().square().movedim(rows, 0)[same].sum())
        for name, value in gradients(network, expected.square().movedim(rows, 0)[same].sum()).items():
            assert (found[name] - value).norm() <= 0.1 * value.norm() + 1e-6, name

    @KINDS
    def test_training(self, kind):
        network, x = build(kind)
        optimizer = VariationalAdam(network, lr=0.01)
        losses = []
        for _ in range(20):
            with torch.autocast("cpu", torch.bfloat16):
                loss = network(x).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])

    def test_terms_keep_their_precision(self):
        network, x = build("dense", estimator="mean")
        expected = objective(network, x)
        with torch.autocast("cpu", torch.bfloat16):
            network(x)
            terms = {(term.layer, term.name): term.evaluate() for term in loss_terms(network)}
        network(x)
        for term in loss_terms(network):
            if term.name in ("expert_kl", "diversity"):  # the others are of a gate that computes in bfloat16
                torch.testing.assert_close(terms[term.layer, term.name], term.evaluate(), rtol=1e-2, atol=1e-2)
        assert expected.isfinite()


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestJitTrace:
    """A trace is right for other inputs and other batches, or it is an error."""

    @KINDS
    @OPTIONS
    @pytest.mark.parametrize("experts", ["several", "one"])
    def test_other_inputs_and_other_batches(self, kind, options, experts):
        network, x = build(kind, **options)
        if experts == "one":
            sizes = dict(options, top_k=1)
            network = MoVEStack((5, 8, 2), 1, copies=2, **sizes) if kind == "stack" else MoVELinear(5, 2, 1, **sizes)
            if kind == "conv":
                network = MoVEConv2d(2, 3, 3, experts=1, **sizes)
        network.eval()
        traced = torch.jit.trace(network, (x,), check_trace=False)
        for rows in (1, 3, len(x), 50):
            other = torch.randn(rows, *x.shape[1:])
            torch.testing.assert_close(traced(other), network(other), **CLOSE)

    @KINDS
    @OPTIONS
    def test_a_trace_in_training_draws_for_batches_of_any_size(self, kind, options):
        network, x = build(kind, **options)
        traced = torch.jit.trace(network, (x,), check_trace=False)
        other = torch.randn(50, *x.shape[1:])
        one, two = traced(other), traced(other)
        assert one.shape == network(other).shape
        if options["estimator"] != "mean":
            assert not torch.equal(one, two)

    @pytest.mark.parametrize(
        ("traced_with", "called_with"), [((6, 5), (2, 4, 5)), ((6, 5), (5,)), ((2, 3, 5), (6, 5)), ((6, 5), (4, 6))]
    )
    def test_inputs_of_another_kind_are_an_error(self, traced_with, called_with):
        traced = torch.jit.trace(MoVELinear(5, 3, 3).eval(), (torch.randn(traced_with),), check_trace=False)
        with pytest.raises(RuntimeError):
            traced(torch.randn(called_with))


def test_terms_after_a_mapped_pass_do_not_mix_its_batches():
    """Within torch.func.vmap a layer sees one batch of many; outside there is no one batch that its terms could be of."""
    network, x = build("dense")
    network.eval()
    vmap(network)(torch.stack([x, x]))
    with pytest.raises((RuntimeError, InputError)):
        network[0].gate_kl()
    network(x)
    assert network[0].gate_kl().isfinite()
