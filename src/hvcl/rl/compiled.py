r"""A stack of small MoVE networks as one node of the graph, each layer of each copy one compiled call each way.

On layers of 64 units an operation's bookkeeping costs more than its arithmetic, and a MoVE layer is thirty of them.
`hvcl.kernels` has a dense layer (gate, sorting, the experts' products, noise, mixing) in one call; here its arguments and memory
are laid out once and used again, so that a pass through a network is little more than the calls. The KLs and their gradients are
added in closed form,

    d KL_m / d mu = (mu - nu) / s^2,      d KL_m / d rho = n (sigma^2 / s^2 - 1),      n inputs, sigma = exp(rho) per unit,

and so is the diversity (`hvcl.layers.diversity`).

`StackedMoVE.plain` is the same in plain operations: the reference in the tests, and what serves where there is no compiler.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from hvcl.kernels import Dense, Kernels, scratch
from hvcl.layers.diversity import JITTER, median_width
from hvcl.layers.noise import random_seed
from hvcl.rl.dense import SLOPE

if TYPE_CHECKING:
    from hvcl.rl.move import StackedMoVELinear

NAMES = ("expert_kl", "gate_kl", "conditional_entropy", "diversity")
"""The terms that a pass gives; the last is 0 unless it was asked for."""

NO_SIGMA = -60.0
"""log sigma of a network that is not sampled: nothing, beside any number that is not nothing itself."""

Purpose = Literal["learn", "steer", "look"]
"""What a pass is for: gradients of the parameters, of the input alone, or none."""

KEPT = 8
"""Workspaces that a network keeps: one for every size of batch that is in use, and more where passes overlap."""


class Compiled:
    """The compiled passes of one network. Copies of it begin anew."""

    def __init__(self) -> None:
        self.layers: list[StackedMoVELinear] = []
        self.parameters: list[Tensor] = []
        self.free: list[Workspace] = []
        self.anchor = torch.zeros((), requires_grad=True)
        """What asks for a backward pass; the parameters' gradients are put into their `.grad` there, all at once."""
        self.diverse = False
        """Whether the next passes are to give the diversity."""
        self.terms: Tensor | None = None
        """Of the last pass, in the order of `NAMES`, summed over layers and copies."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        return Compiled()

    def __reduce__(self) -> tuple[type[Compiled], tuple[()]]:
        return Compiled, ()

    def run(self, layers: Iterable[Any], x: Tensor, sampling: bool, kernels: Kernels) -> Tensor:
        """The answers of all copies side by side, ``[B, copies * out]``."""
        if not self.parameters:
            self.layers = [*layers]
            self.parameters = [p for layer in layers for p in layer.parameters_in_order()]
        purpose: Purpose = "look"
        if torch.is_grad_enabled():
            learns = any(p.requires_grad for p in self.parameters)
            purpose = "learn" if learns else "steer" if x.requires_grad else "look"
        space = self.borrow(len(x), sampling, purpose, kernels)
        anchor = self.anchor if purpose == "learn" else None
        answers, self.terms = _Network.apply(x, _Lease(self, space), anchor)  # type: ignore[no-untyped-call]
        found: Tensor = answers
        return found

    def borrow(self, rows: int, sampling: bool, purpose: Purpose, kernels: Kernels) -> Workspace:
        """Memory for one pass there and back, which nobody else has."""
        addresses = [p.data_ptr() for p in self.parameters]
        for number, space in enumerate(self.free):
            if (space.rows, space.sampling, space.purpose, space.addresses) == (rows, sampling, purpose, addresses):
                return self.free.pop(number)
        return Workspace(self.layers, rows, sampling, purpose, kernels, addresses)

    def give_back(self, space: Workspace) -> None:
        """The pass is over."""
        self.free.insert(0, space)
        del self.free[KEPT:]


class _Lease:
    """A workspace until the graph that needs it is gone."""

    def __init__(self, owner: Compiled, space: Workspace) -> None:
        self.owner, self.space = owner, space

    def __del__(self) -> None:
        self.owner.give_back(self.space)


class Workspace:
    """The memory of one pass through a network, and the arguments of its calls.

    What no later call reads is shared with all other workspaces: together they are to fit into the processor's cache.
    """

    def __init__(
        self,
        layers: Sequence[StackedMoVELinear],
        rows: int,
        sampling: bool,
        purpose: Purpose,
        kernels: Kernels,
        addresses: list[int],
    ) -> None:
        self.layers, self.rows, self.sampling, self.purpose = layers, rows, sampling, purpose
        self.kernels, self.addresses = kernels, addresses
        first = layers[0]
        copies, experts = first.copies, first.experts
        self.kept: list[Tensor] = []
        self.x = torch.zeros(rows, first.inputs)
        shape = (len(layers), copies * experts)
        self.usage, self.g_usage = torch.ones(shape), torch.zeros(shape)
        self.statistics, self.g_statistics = torch.zeros(len(layers) * copies, 3), torch.zeros(3)
        self.out = [torch.zeros(copies, rows, layer.outputs) for layer in layers]
        self.g_out = [self._brief("g_out", copies, rows, layer.outputs) for layer in layers]
        self.g_in = [self._brief("g_in", copies, rows, layer.inputs) for layer in layers]
        self.shapes = [p.shape for layer in layers for p in layer.parameters_in_order()]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.gradient = torch.zeros(sum(self.sizes)) if purpose == "learn" else self._brief("gradient", sum(self.sizes))
        """Of all parameters, in order."""
        parts = self.gradient.split(self.sizes)
        self.gradients = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        each = len(parts) // len(layers)
        self.parts = [parts[each * number : each * (number + 1)] for number in range(len(layers))]
        self.starts: list[list[Tensor]] = [[] for _ in layers]
        self.rows_of: list[list[Tensor]] = [[] for _ in layers]
        self.calls = [[self._call(number, layer, copy) for copy in range(copies)] for number, layer in enumerate(layers)]
        self.references = [[ctypes.byref(call) for call in calls] for calls in self.calls]
        self.prices = [_Price(layer, self.parts[number]) for number, layer in enumerate(layers)] if purpose == "learn" else []

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        self.kept.append(torch.zeros(shape, dtype=dtype))
        return self.kept[-1]

    def _brief(self, name: str, *shape: int) -> Tensor:
        """Memory that anybody overwrites."""
        count = math.prod(shape)
        self.kept.append(scratch(count, f"move {name}"))
        return self.kept[-1][:count].view(shape)

    def _call(self, number: int, layer: StackedMoVELinear, copy: int) -> Dense:
        rows, inputs, outputs, experts = self.rows, layer.inputs, layer.outputs, layer.experts
        call = Dense(rows, inputs, outputs, experts, 0, 0, 0, 0, 0)

        def part(values: Tensor) -> int:
            """Where a copy's share of stacked values begins."""
            return values.data_ptr() + 4 * copy * (values.numel() // layer.copies)

        def room(name: str, *shape: int, read_by: str = "learn steer") -> int:
            """Memory that is kept until it is read if the pass is for one of those purposes."""
            return (self._new(*shape) if self.purpose in read_by else self._brief(name, *shape)).data_ptr()

        gradients = self.parts[number]
        call.x = self.x.data_ptr() if number == 0 else part(self.out[number - 1])
        call.mean, call.bias = part(layer.posterior.mean), part(layer.bias)
        rho = layer.posterior.rho if self.sampling else self._new(layer.copies * experts, outputs).fill_(NO_SIGMA)
        call.rho, call.out = part(rho), part(self.out[number])
        integers = self._new(4 * rows + 2 * experts + 1, dtype=torch.int64)
        call.rows_of, call.slot_of, call.choice, call.counts = (integers.data_ptr() + 8 * rows * i for i in range(4))
        self.starts[number].append(integers[-experts - 1 :])
        self.rows_of[number].append(integers[:rows])
        call.starts = self.starts[number][-1].data_ptr()
        call.norm, call.sigma = room("norm", rows), room("sigma", experts, outputs)
        call.noise = room("noise", rows, outputs, read_by="learn steer" if self.sampling else "")
        call.room = self._brief("room", max(rows * max(inputs, outputs), 2 * rows * experts)).data_ptr()
        call.answers, call.g_out = call.out, part(self.g_out[number])
        call.g_x, call.g_answers = part(self.g_in[number]), call.g_out
        call.g_rho, call.g_bias = part(gradients[1]), part(gradients[2])
        if experts > 1:
            call.gate_weight, call.gate_bias = part(layer.gate_weight), part(layer.gate_bias)
            call.prior_weight, call.prior_bias = part(layer.prior_weight), part(layer.prior_bias)
            call.g_gate_weight, call.g_gate_bias = part(gradients[3]), part(gradients[4])
            call.log_p, call.ratio = room("log_p", rows, experts), room("ratio", rows, experts)
            call.weights, call.g_weights = room("weights", rows), room("g_weights", rows, read_by="")
            call.usage, call.g_usage = part(self.usage[number]), part(self.g_usage[number])
            call.statistics = self.statistics[number * layer.copies + copy].data_ptr()
            call.g_statistics = self.g_statistics.data_ptr()
            call.sorted, call.g_sorted = room("sorted", rows, inputs), room("g_sorted", rows, inputs, read_by="")
            call.answers, call.g_answers = room("answers", rows, outputs), room("g_answers", rows, outputs, read_by="")
        return call

    def forward(self, x: Tensor) -> Tensor:
        """Through all layers."""
        self.x.copy_(x)
        seed = random_seed() if self.sampling else 0
        forward, last = self.kernels.dense_forward_at, self.out[-1]
        for calls, references, out in zip(self.calls, self.references, self.out, strict=True):
            for call, reference in zip(calls, references, strict=True):
                if self.sampling:
                    call.seed = seed = (seed + 1) & (2**64 - 1)
                forward(reference)
            if out is not last:
                F.leaky_relu_(out, SLOPE)
        return last.transpose(0, 1).flatten(1).clone(memory_format=torch.contiguous_format)

    def backward(self, grad: Tensor, needs_x: bool) -> Tensor | None:
        """And back: the gradient of the input; those of the parameters, but for the KLs, are in `gradient`."""
        copies = len(self.calls[0])
        self.g_out[-1].copy_(grad.view(self.rows, copies, -1).transpose(0, 1))
        for number in range(len(self.calls) - 1, -1, -1):
            for copy, call in enumerate(self.calls[number]):
                if number == 0:
                    call.g_x = self.g_in[0][copy].data_ptr() if needs_x else None
                self.kernels.dense_backward_at(self.references[number][copy])
                if self.purpose == "learn":
                    self._of_means(number, copy)
            if number:
                torch.ops.aten.leaky_relu_backward.grad_input(
                    self.g_in[number], self.out[number - 1], SLOPE, True, grad_input=self.g_out[number - 1]
                )
        if not needs_x:
            return None
        return self.g_in[0].sum(0) if copies > 1 else self.g_in[0][0].clone()

    def set_aside(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients that are there already, out of reach of this workspace, which may have made them."""
        if parameters[0].grad is None:
            return [None] * len(parameters)
        return [None if p.grad is None else p.grad.clone() for p in parameters]

    def _of_means(self, number: int, copy: int) -> None:
        """The gradients of one layer's means: products of what came in and what comes back, expert by expert."""
        layer, call = self.layers[number], self.calls[number][copy]
        inputs, outputs, experts = layer.inputs, layer.outputs, layer.experts
        left, right, ends = call.sorted if call.moved else call.x, call.g_answers, self.starts[number][copy].tolist()
        to, size = self.parts[number][0].data_ptr() + 4 * copy * experts * inputs * outputs, 4 * inputs * outputs
        for expert in range(experts):
            begin, end = ends[expert], ends[expert + 1]
            if end > begin:
                a, b = left + 4 * begin * inputs, right + 4 * begin * outputs
                self.kernels.product_at(inputs, outputs, end - begin, a, 1, b, 0, 0.0, to + expert * size)
            else:
                ctypes.memset(to + expert * size, 0, size)


class _Price:
    """The KLs of one layer's experts and their diversity. On few numbers numpy's calls cost a tenth of torch's."""

    def __init__(self, layer: StackedMoVELinear, gradients: Sequence[Tensor]) -> None:
        posterior = layer.posterior
        experts = layer.copies * layer.experts
        self.layer, self.inputs = layer, layer.inputs
        self.mean, self.prior = (t.detach().numpy() for t in (posterior.mean, posterior.prior_mean))
        self.rho, self.prior_rho = (t.detach().numpy() for t in (posterior.rho, posterior.prior_log_sigma))
        self.of_mean, self.of_rho = (
            part.view(shape).numpy() for part, shape in zip(gradients, (self.mean.shape, self.rho.shape), strict=False)
        )
        self.shift, self.pull = np.empty_like(self.mean), np.empty_like(self.mean)
        self.flat = [values.reshape(experts, -1) for values in (self.shift, self.pull)]

    def kl(self) -> Any:
        """Of every expert."""
        np.subtract(self.mean, self.prior, out=self.shift)
        np.multiply(self.shift, np.exp(-2 * self.prior_rho)[:, None], out=self.pull)
        twice = 2 * (self.rho - self.prior_rho)
        self.excess = np.expm1(twice)
        return 0.5 * (np.einsum("ij,ij->i", *self.flat) + self.inputs * (self.excess - twice).sum(1))

    def add_kl(self, weights: Any, noisy: bool) -> None:
        """Add to the gradients those of the KLs, which have these weights."""
        self.pull *= weights[:, None, None]
        self.of_mean += self.pull
        self.excess *= (self.inputs * weights)[:, None]
        if noisy:
            self.of_rho += self.excess
        else:
            self.of_rho[:] = self.excess

    def diversity(self) -> float:
        """log det(K + jitter I), summed over the copies."""
        layer = self.layer
        shape = (layer.copies, layer.experts, -1)
        means, self.sigmas = self.mean.reshape(shape), np.exp(self.rho).reshape(shape)
        # distances and pushes do not see a common shift, single precision does
        self.means_apart, self.sigmas_apart = means - means[:, :1], self.sigmas - self.sigmas[:, :1]
        gram = self.means_apart @ self.means_apart.swapaxes(1, 2)
        gram += self.inputs * (self.sigmas_apart @ self.sigmas_apart.swapaxes(1, 2))
        norms = gram.diagonal(axis1=1, axis2=2)
        distances = np.maximum(norms[:, None] + norms[:, :, None] - 2 * gram, 0)
        for copy, width in enumerate(layer.kernel_width.tolist()):
            if width == 0:
                layer.kernel_width[copy] = median_width(torch.from_numpy(distances[copy]))
        scale = 2 * layer.kernel_width.numpy()[:, None, None] ** 2
        kernel, one = np.exp(-distances / scale), np.eye(layer.experts, dtype=np.float32)
        matrix = kernel + np.float32(JITTER) * one
        attraction = np.linalg.inv(matrix) * kernel / scale * (1 - one)
        self.laplacian = attraction.sum(2)[:, None] * one - attraction
        logarithms = np.log(np.linalg.cholesky(matrix).diagonal(axis1=1, axis2=2))
        return 2 * float(logarithms.sum())

    def add_diversity(self, weight: float) -> None:
        """Add to the gradients those of the diversity, times a weight."""
        push = np.float32(-4 * weight) * self.laplacian
        self.of_mean += (push @ self.means_apart).reshape(self.mean.shape)
        self.of_rho += (self.inputs * (push @ self.sigmas_apart) * self.sigmas).reshape(self.rho.shape)


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lease: _Lease, anchor: Tensor | None) -> Any:
        space, ctx.lease = lease.space, lease
        answers = space.forward(x)
        if space.purpose != "learn":
            return answers, None
        ctx.kl = np.stack([price.kl() for price in space.prices])
        ctx.diverse = lease.owner.diverse and space.layers[0].experts > 1
        diversity = sum(price.diversity() for price in space.prices) if ctx.diverse else 0.0
        gate_kl, entropy, _ = space.statistics.numpy().sum(0)
        return answers, torch.tensor([np.vdot(ctx.kl, space.usage.numpy()), gate_kl, entropy, diversity])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_terms: Tensor | None) -> Any:
        space: Workspace = ctx.lease.space
        if of_terms is None:
            return space.backward(grad, True), None, None
        before = space.set_aside(ctx.lease.owner.parameters)
        expert_kl, gate_kl, entropy, diversity = of_terms.tolist()
        np.multiply(ctx.kl, np.float32(expert_kl), out=space.g_usage.numpy())
        space.g_statistics.numpy()[:2] = gate_kl, entropy
        back = space.backward(grad, ctx.needs_input_grad[0])
        for price, weights in zip(space.prices, space.usage.numpy() * np.float32(expert_kl), strict=True):
            price.add_kl(weights, space.sampling)
            if ctx.diverse:
                price.add_diversity(diversity)
        for parameter, gradient, old in zip(ctx.lease.owner.parameters, space.gradients, before, strict=True):
            parameter.grad = gradient if old is None else old + gradient
        return back, None, None
