r"""A stack of small MoVE networks as one node of the graph and one compiled call each way.

On layers of 64 units an operation's bookkeeping costs more than its arithmetic, and a MoVE layer is thirty of them. So the whole
pass (gates, sorting, the experts' products, noise, mixing, leaky ReLU, and the terms of the objective) is `network_forward` in
`kernels.c`, and the way back `network_backward`; here their arguments and memory are laid out once and used again. The gradients
of the KLs are added in closed form,

    d KL_m / d mu = (mu - nu) / s^2,      d KL_m / d rho = n (sigma^2 / s^2 - 1),      n inputs, sigma = exp(rho) per unit,

and so are those of the diversity (`hvcl.layers.diversity`) or, in its place and that of the KLs, of UCL's sums (`hvcl.rl.nodes`).
Where sigma = log(1 + exp(rho)), all this is about log sigma, whose gradient times (1 - exp(-sigma)) / sigma is that of rho.

`StackedMoVE.plain` is the same in plain operations: the reference in the tests, and what serves where there is no compiler.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.kernels import Dense, Kernels, Network, Price, scratch
from hvcl.layers.diversity import JITTER
from hvcl.layers.noise import random_seed
from hvcl.rl.dense import SLOPE

if TYPE_CHECKING:
    from hvcl.rl.move import StackedMoVELinear

NAMES = ("expert_kl", "gate_kl", "conditional_entropy", "diversity")
"""The terms that a pass gives; the last is 0 unless it was asked for. Networks of `hvcl.rl.nodes` have others."""

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
        self.anchor = torch.zeros((), dtype=torch.float32, requires_grad=True)
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
        found: Tensor
        if purpose == "look":
            found, self.terms = space.forward(x, False)
            self.give_back(space)
        else:
            anchor = self.anchor if purpose == "learn" else None
            found, self.terms = _Network.apply(x, _Lease(self, space), anchor)  # type: ignore[no-untyped-call]
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
        self.x = self._new(rows, first.inputs)
        shape = (len(layers), copies * experts)
        self.usage, self.g_usage, self.kl = (self._new(*shape) for _ in range(3))
        self.usage.fill_(1.0)
        self.statistics, self.g_statistics = self._new(len(layers) * copies, 3), self._new(3)
        self.out = [self._new(copies, rows, layer.outputs) for layer in layers]
        self.g_out = [self._brief("g_out", copies, rows, layer.outputs) for layer in layers]
        self.g_in = [self._brief("g_in", copies, rows, layer.inputs) for layer in layers]
        self.shapes = [p.shape for layer in layers for p in layer.parameters_in_order()]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.gradient = self._new(sum(self.sizes)) if purpose == "learn" else self._brief("gradient", sum(self.sizes))
        """Of all parameters, in order."""
        parts = self.gradient.split(self.sizes)
        self.gradients = [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        each = len(parts) // len(layers)
        self.parts = [parts[each * number : each * (number + 1)] for number in range(len(layers))]
        self.log_sigma = [
            layer.posterior.rho if layer.posterior.transform == "exp" else torch.zeros_like(layer.posterior.rho)
            for layer in layers
        ]
        self.starts: list[list[Tensor]] = [[] for _ in layers]
        self.rows_of: list[list[Tensor]] = [[] for _ in layers]
        count = len(layers) * copies
        places = [(number, layer, copy) for number, layer in enumerate(layers) for copy in range(copies)]
        flat = (Dense * count)(*[self._call(*place) for place in places])
        self.calls = [[flat[number * copies + copy] for copy in range(copies)] for number in range(len(layers))]
        self.prices = (Price * len(layers))(*[self._price(number, layer) for number, layer in enumerate(layers)])
        self.network = Network(len(layers), copies, experts, rows, purpose == "learn", 0, first.inputs, 0, SLOPE, JITTER)
        self.network.calls, self.network.prices = ctypes.addressof(flat), ctypes.addressof(self.prices)
        self.network.x, self.network.statistics = self.x.data_ptr(), self.statistics.data_ptr()
        self.network.g_statistics = self.g_statistics.data_ptr()
        self.reference = ctypes.byref(self.network)
        self.width = copies * layers[-1].outputs

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
        call.out = part(self.out[number])
        learns = self.purpose == "learn"
        integers = self._new(4 * rows + 2 * experts + 1, dtype=torch.int64)
        call.rows_of, call.slot_of, call.choice, call.counts = (integers.data_ptr() + 8 * rows * i for i in range(4))
        self.starts[number].append(integers[-experts - 1 :])
        self.rows_of[number].append(integers[:rows])
        call.starts = self.starts[number][-1].data_ptr()
        if self.sampling:
            call.rho = part(self.log_sigma[number])
            call.norm, call.sigma, call.noise = room("norm", rows), room("sigma", experts, outputs), room("noise", rows, outputs)
        call.room = self._brief("room", max(rows * max(inputs, outputs), 2 * rows * experts)).data_ptr()
        call.answers, call.g_out = call.out, part(self.g_out[number])
        call.g_x, call.g_answers = part(self.g_in[number]), call.g_out
        call.g_rho, call.g_bias = part(gradients[1]), part(gradients[2]) if learns else None
        if experts > 1:
            call.gate_weight, call.gate_bias = part(layer.gate_weight), part(layer.gate_bias)
            if learns:
                call.prior_weight, call.prior_bias = part(layer.prior_weight), part(layer.prior_bias)
                call.g_gate_weight, call.g_gate_bias = part(gradients[3]), part(gradients[4])
            call.log_p, call.ratio = room("log_p", rows, experts), room("ratio", rows, experts, read_by="learn")
            call.weights, call.g_weights = room("weights", rows), room("g_weights", rows, read_by="")
            call.usage, call.g_usage = part(self.usage[number]), part(self.g_usage[number])
            call.statistics = self.statistics[number * layer.copies + copy].data_ptr()
            call.g_statistics = self.g_statistics.data_ptr()
            call.sorted, call.g_sorted = room("sorted", rows, inputs), room("g_sorted", rows, inputs, read_by="")
            call.answers, call.g_answers = room("answers", rows, outputs), room("g_answers", rows, outputs, read_by="")
        return call

    def _price(self, number: int, layer: StackedMoVELinear) -> Price:
        price, posterior, gradients = Price(layer.inputs, layer.outputs), layer.posterior, self.parts[number]
        price.mean, price.rho = posterior.mean.data_ptr(), self.log_sigma[number].data_ptr()
        price.raw = None if posterior.transform == "exp" else posterior.rho.data_ptr()
        price.prior_mean, price.prior_log_sigma = posterior.prior_mean.data_ptr(), posterior.prior_log_sigma.data_ptr()
        price.width = layer.kernel_width.data_ptr() if layer.experts > 1 else None
        price.usage, price.g_usage = self.usage[number].data_ptr(), self.g_usage[number].data_ptr()
        price.kl, price.laplacian = self.kl[number].data_ptr(), self._new(layer.copies, layer.experts**2).data_ptr()
        price.g_mean, price.g_rho, price.g_bias = (gradient.data_ptr() for gradient in gradients[:3])
        for name, values in layer.held().items():
            setattr(price, name, values.data_ptr())
        return price

    def forward(self, x: Tensor, diverse: bool) -> tuple[Tensor, Tensor | None]:
        """Through all layers: the answers and, if the pass is to be learned from, the terms."""
        if x.stride(1) != 1:
            x = x.contiguous()
        network, answers = self.network, torch.empty(self.rows, self.width, dtype=torch.float32)
        terms = torch.empty(len(NAMES), dtype=torch.float32) if self.purpose == "learn" else None
        network.given, network.stride, network.answers = x.data_ptr(), x.stride(0), answers.data_ptr()
        network.terms = None if terms is None else terms.data_ptr()
        network.diverse = diverse
        if self.sampling:
            network.seed = random_seed()
        self.kernels.network_forward(self.reference)
        return answers, terms

    def backward(self, grad: Tensor, of_terms: Tensor | None, needs_x: bool) -> Tensor | None:
        """And back: the gradient of the input; those of the parameters are in `gradient`."""
        network, grad = self.network, grad.contiguous()
        g_x = torch.empty_like(self.x) if needs_x else None
        network.g_answers, network.g_x = grad.data_ptr(), None if g_x is None else g_x.data_ptr()
        network.g_terms = None if of_terms is None else of_terms.data_ptr()
        self.kernels.network_backward(self.reference)
        return g_x

    def set_aside(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients that are there already, out of reach of this workspace, which may have made them."""
        if parameters[0].grad is None:
            return [None] * len(parameters)
        return [None if p.grad is None else p.grad.clone() for p in parameters]


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, lease: _Lease, anchor: Tensor | None) -> Any:
        ctx.lease = lease
        return lease.space.forward(x, lease.owner.diverse and lease.space.layers[0].experts > 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_terms: Tensor | None) -> Any:
        space: Workspace = ctx.lease.space
        if of_terms is None:
            return space.backward(grad, None, True), None, None
        before = space.set_aside(ctx.lease.owner.parameters)
        back = space.backward(grad, of_terms.contiguous(), ctx.needs_input_grad[0])
        for parameter, gradient, old in zip(ctx.lease.owner.parameters, space.gradients, before, strict=True):
            parameter.grad = gradient if old is None else old + gradient
        return back, None, None
