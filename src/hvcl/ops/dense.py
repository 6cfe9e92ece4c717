r"""Stacks of dense mixture layers as one node of the graph and one compiled call each way.

A layer alone is a stack of one. What happens within is in `csrc/dense.c`; plain operations in `hvcl.layers` are its reference.
Everything that stays what it is from batch to batch (memory, arguments, addresses) is laid out once: on layers of a few hundred
units bookkeeping in Python would cost as much as the arithmetic.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
import weakref
from collections.abc import Sequence
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hvcl.ops.border import Arrays, address, random_seed, scratch, structure
from hvcl.ops.gradients import Contribution, Sink
from hvcl.ops.library import Library

_Dense, _Stack, _Products = structure("Dense"), structure("Stack"), structure("Products")

KEPT = 8
"""Passes whose memory a stack keeps: one for every size of batch that is in use, and more where passes overlap."""
LARGEST = 1 << 24
"""Numbers in the memory of a pass that is kept; a larger one is given back to the system."""

FLIPOUT_WEIGHT, FLIPOUT_UNIT, LOCAL_WEIGHT, LOCAL_UNIT = 1, 2, 3, 4
"""Kinds of noise, as in hvcl.h; 0 is none."""
PER_WEIGHT, PER_UNIT = (FLIPOUT_WEIGHT, LOCAL_WEIGHT), (FLIPOUT_UNIT, LOCAL_UNIT)

SLOPE = 0.01
"""Of the leaky ReLU between layers, below zero."""

TERMS = ("gate_kl", "conditional_entropy", "marginal_entropy", "expert_kl")
"""The terms that a pass brings, in order."""


class Mixture(NamedTuple):
    """One layer: M experts in each of C copies. Tensors are contiguous float32 on the CPU."""

    mean: Tensor
    """``[C * M, in, out]``."""
    log_sigma: Tensor
    """Like `mean`, or ``[C * M, out]``."""
    bias: Tensor | None
    """``[C * M, out]``."""
    gate_weight: Tensor | None
    """``[C * M, features]``; None: one expert and no gate."""
    gate_bias: Tensor | None
    prior_weight: Tensor | None
    """None: nobody asks for the gate's terms."""
    prior_bias: Tensor | None
    prior_log_sigma: Tensor
    """Like `log_sigma`."""
    copies: int
    top_k: int
    sampled: bool
    """Experts are drawn from the gate instead of the most probable ones."""
    through: bool
    """Top-1: the chosen expert's answer has weight 1 instead of p(m|x), and the gate the gradient of p / p."""
    noise: int
    unit: bool
    """One sigma per unit instead of per weight."""
    softplus: bool
    """One sigma per unit: sigma = log(1 + exp(log_sigma)) instead of exp(log_sigma)."""
    uniform: bool
    """The experts' KLs are weighted by 1 instead of by the gate's mass on them."""


class Answer(NamedTuple):
    """A batch through a stack."""

    out: Tensor
    """``[C, B, out]``, or ``[B, C * out]``."""
    log_p: list[Tensor]
    """log p(m|x) of each layer ``[C, B, M]``, without a gradient; empty without gates. The next pass may overwrite them."""
    usage: Tensor | None
    """Mean gate mass on each expert, one layer after another ``[layers * C * M]``; None without gates or their priors, and where
    the experts' KL is among the terms."""
    terms: Tensor | None
    """`TERMS`, summed over layers and copies. None if nobody asked."""
    complete: bool
    """Whether the last of the terms, the experts' KL, was asked for."""


class Factors(Contribution):
    """The gradients of one backward pass through a layer's experts, not yet multiplied out. Their memory is theirs.

    Expert m, whose slots are those from `starts[m]` to `starts[m + 1]`, has the gradient left^T right. With a sigma per weight
    there is noise_left^T noise_right, too: the gradient of sigma * shared, or of sigma^2 (`variance`).
    """

    def __init__(self, lease: _Lease, number: int) -> None:
        self._lease: _Lease | None = lease  # as long as it is held, nobody else writes there
        self._number = number
        self._multiplied: tuple[Tensor, Tensor | None] | None = None

    def used(self) -> list[bool]:
        """Whether each expert had any example."""
        if self._lease is None:
            return self._used
        starts = self._lease.used.starts[self._number].tolist()
        return [before < after for row in starts for before, after in itertools.pairwise(row)]

    def multiplied(self) -> tuple[Tensor, Tensor | None]:
        """The gradients of all means and log sigmas."""
        if self._multiplied is not None:
            return self._multiplied
        assert self._lease is not None
        used, layer = self._lease.used, self._lease.stack.layers[self._number]
        shape, per_weight = tuple(layer.mean.shape), layer.noise in PER_WEIGHT
        mean = torch.empty(shape, dtype=torch.float32)
        log_sigma = torch.empty(shape, dtype=torch.float32) if per_weight else None
        used.stack.library.functions.expert_gradients(
            ctypes.addressof(used.products[self._number]),
            shape[0],
            layer.noise == LOCAL_WEIGHT,
            used.calls[self._number].log_sigma if per_weight else None,
            address(mean, *shape),
            None if log_sigma is None else address(log_sigma, *shape),
        )
        return mean, log_sigma

    def kl_weights(self) -> Tensor | None:
        """d loss / d KL of every expert."""
        if self._lease is None:
            return self._weights
        return self._lease.used.kl_weights[self._number].clone() if self._lease.stack.collects else None

    def others(self) -> list[tuple[Tensor, Tensor]]:
        """The layer's other parameters, each with its gradient."""
        if self._lease is None:
            return self._others
        used = self._lease.used
        found = [(parameter, used.of_others[self._number][name]) for name, parameter in used.others[self._number].items()]
        return [(parameter, gradient.clone().view_as(parameter)) for parameter, gradient in found]

    def other_parameters(self) -> list[Tensor]:
        """The layer's other parameters."""
        return [] if self._lease is None else [*self._lease.used.others[self._number].values()]

    def settle(self) -> None:
        """Multiply out now: the memory is about to be used again."""
        self._used, self._weights, self._others = self.used(), self.kl_weights(), self.others()
        self._multiplied = self.multiplied()
        self._lease = None

    @property
    def direct(self) -> bool:
        """As long as they are not multiplied out."""
        return self._lease is not None

    @property
    def tells_used(self) -> bool:
        """Experts without slots had no example."""
        return True

    @property
    def memory(self) -> object | None:
        """That of the pass."""
        return None if self._lease is None else self._lease.used

    def describe(self, experts: Any, plains: Any) -> None:
        """Tell where they are."""
        assert self._lease is not None
        used, number = self._lease.used, self._number
        experts.products, experts.variance = used.products_at[number], used.calls[number].noise == LOCAL_WEIGHT
        call = used.calls[number]
        experts.kl_weights = call.kl_weights
        for plain, name in zip(plains, used.others[number], strict=True):
            plain.g = getattr(call, name)


class Stack:
    """A stack of layers with everything that stays what it is from batch to batch.

    Args:
        library: the compiled code.
        layers: all with gates or all without, and with the same number of copies.
        sinks: for each layer who takes the gradients of its parameters, or for all of them None: autograd.
        grad: whether gradients are recorded.
        side_by_side: the answers of the copies are to be side by side, ``[B, C * out]``.
    """

    def __init__(
        self,
        library: Library,
        layers: Sequence[Mixture],
        sinks: Sequence[Sink | None],
        grad: bool,
        side_by_side: bool = False,
    ) -> None:
        self.side_by_side = side_by_side
        self.library, self.layers, self.sinks, self.grad = library, layers, sinks, grad
        self.has_gates = layers[0].gate_weight is not None
        self.has_priors = layers[0].prior_weight is not None
        self.collects = grad and sinks[0] is not None
        self.has_terms = self.has_priors or self.collects
        self.learns = grad and any(
            sink is not None or any(p is not None and p.requires_grad for p in layer[:5])
            for layer, sink in zip(layers, sinks, strict=True)
        )
        self.random = any(layer.noise or layer.sampled for layer in layers)
        self.inputs: list[Tensor | None]
        """The inputs that autograd sees: mean, log sigma, bias, gate weight and gate bias of each layer, or only an anchor."""
        self.inputs = [sinks[0].anchor] if sinks[0] is not None else [tensor for layer in layers for tensor in layer[:5]]
        self.tensors = [tensor for layer in layers for tensor in layer[:8] if tensor is not None]
        self._free: dict[tuple[int, int, bool, bool], list[_Pass]] = {}

    def borrow(self, rows: int, shared: bool, needs_x: bool) -> _Pass:
        """Memory for one pass there and back, which nobody else in this thread has."""
        free = self._free.get((threading.get_ident(), rows, shared, needs_x))
        return free.pop() if free else _Pass(self, rows, shared, needs_x)

    def give_back(self, used: _Pass) -> None:
        """The pass is over."""
        if used.size > LARGEST:
            return
        if used.key not in self._free and len(self._free) >= KEPT:
            del self._free[next(iter(self._free))]
        free = self._free.setdefault(used.key, [])
        if len(free) < KEPT:
            free.append(used)


class _Pairs(list[Any]):
    """Sinks and what is for them; a list that can be referred to weakly."""


class _Lease:
    """A pass until nobody needs it any more: neither the graph nor an optimiser that has its factors."""

    __slots__ = ("given", "stack", "used")

    def __init__(self, stack: Stack, used: _Pass) -> None:
        self.stack, self.used = stack, used
        self.given: weakref.ref[_Pairs] | None = None

    def __del__(self) -> None:
        self.stack.give_back(self.used)

    def settle(self) -> None:
        """What was given to an optimiser is about to be overwritten, by another backward pass through the same graph."""
        given = None if self.given is None else self.given()
        for _, factors in given or ():
            factors.settle()
        self.given = None


class _Pass:
    """The memory of one pass, and the arguments of its calls.

    Some of it is needed until the optimiser has taken its step (`kept`), some within a call only: that is shared by everybody in
    a thread (`scratch`), and together it is to fit into the processor's cache.
    """

    def __init__(self, stack: Stack, rows: int, shared: bool, needs_x: bool) -> None:
        self.stack, self.count = stack, len(stack.layers)
        self.key = (threading.get_ident(), rows, shared, needs_x)
        self.rows, self.needs_x, self.returns = rows, needs_x, stack.learns or needs_x
        self.calls = (_Dense * self.count)()
        self.structure = _Stack(layers=self.count, slope=SLOPE, calls=ctypes.addressof(self.calls))
        self.reference = ctypes.addressof(self.structure)
        self.pointers: list[int] = []
        self.aliases: list[Tensor] = []
        kept, self.forth, self.back, integers = Arrays(), Arrays(), Arrays(), Arrays()
        self.room = 0
        for number, layer in enumerate(stack.layers):
            self._describe(number, layer, shared)
            self._plan(number, kept, integers)
        self.memory, self.integers = torch.empty(kept.end, dtype=torch.float32), torch.empty(integers.end, dtype=torch.int64)
        self.size = kept.end + 2 * integers.end
        kept.lay_out(self.memory)
        integers.lay_out(self.integers, 8)
        self._forth: Tensor | None = None  # the scratch memory that they are laid out in
        self._back: Tensor | None = None
        self._room: Tensor | None = None
        self._link()
        first = self.calls[0]
        self.first, self.last = first, self.calls[self.count - 1]
        self.x_shape = (rows, first.inputs) if shared else (first.copies, rows, first.inputs)
        self.out_shape: tuple[int, ...] = (self.last.copies, rows, self.last.outputs)
        if stack.side_by_side:
            self.out_shape = (rows, self.last.copies * self.last.outputs)
        shapes = [(call.copies, rows, call.experts) for call in self.calls] if stack.has_gates else []
        self.log_p = [
            self._numbers_at(call.log_p, math.prod(shape)).view(shape) for call, shape in zip(self.calls, shapes, strict=False)
        ]
        self.kls: Sequence[Tensor] | None = None
        self.turned = stack.side_by_side and first.copies > 1
        self.experts = [call.copies * call.experts for call in self.calls]
        self.starts = [
            self._integers_at(call.starts, call.copies * (call.experts + 1)).view(call.copies, -1) for call in self.calls
        ]
        self.kl_weights = [self._numbers_at(call.kl_weights, n) for call, n in zip(self.calls, self.experts, strict=True)]
        self.others = [self._others(layer) for layer in stack.layers] if stack.collects else []
        self.of_others = [
            {name: self._numbers_at(getattr(call, name), parameter.numel()) for name, parameter in others.items()}
            for call, others in zip(self.calls, self.others, strict=False)
        ]
        self.products = [self._products(call) for call in self.calls] if stack.learns else []
        self.products_at = [ctypes.addressof(products) for products in self.products]

    def _describe(self, number: int, layer: Mixture, shared: bool) -> None:
        call, stack = self.calls[number], self.stack
        total, call.inputs, call.outputs = layer.mean.shape
        call.copies, call.rows, call.experts = layer.copies, self.rows, total // layer.copies
        call.top_k, call.sampled, call.through, call.noise = layer.top_k, layer.sampled, layer.through, layer.noise
        call.shared_x, call.learns, call.uniform = shared and number == 0, stack.learns, layer.uniform
        call.gate_inputs = 0 if layer.gate_weight is None else layer.gate_weight.shape[1]
        call.keep_scaled = layer.noise in PER_WEIGHT and self.returns and (self.needs_x or number > 0)

    def _plan(self, number: int, kept: Arrays, integers: Arrays) -> None:
        """Which memory a call needs, and for how long."""
        call, learns, gate = self.calls[number], self.stack.learns, self.stack.has_gates
        c, rows, n, units, m, noise = call.copies, call.rows, call.inputs, call.outputs, call.experts, call.noise
        slots, last, leads_back = rows * call.top_k, number == self.count - 1, self.needs_x or number > 0
        to_step, to_return = kept if learns else self.forth, kept if self.returns else self.forth
        integers.add(call, "starts", c, m + 1)
        integers.add(call, "moved", c)
        kept.add(call, "kl_weights", c, m)
        kept.add(call, "whole_kl", c, m)
        turned = last and self.stack.side_by_side and c > 1
        if turned or not last:
            to_return.add(call, "out", c, rows, units)
        if gate:
            for name in ("rows_of", "slot_of", "choice"):
                integers.add(call, name, c, slots)
            integers.add(call, "counts", c, m)
            to_return.add(call, "weights", c, slots)
            to_return.add(call, "answers", c, slots, units)
            to_return.add(call, "ratio", c, rows, m)
            kept.add(call, "log_p", c, rows, m)
            if self.stack.collects:
                kept.add(call, "usage", c, m)
        if gate or learns:
            to_return.add(call, "sorted", c, slots, n)
        if noise in (FLIPOUT_UNIT, LOCAL_WEIGHT, LOCAL_UNIT):
            to_return.add(call, "z", c, slots, units)
        if noise in PER_UNIT:
            to_return.add(call, "sigma", c, m, units)
        if noise == LOCAL_UNIT:
            to_return.add(call, "norm", c, slots)
        if self.stack.layers[number].softplus:
            to_return.add(call, "log_sigma", c, m, units)
        if noise in (FLIPOUT_WEIGHT, FLIPOUT_UNIT, LOCAL_WEIGHT):
            to_step.add(call, "altered", c, slots, n)
        if noise in (FLIPOUT_WEIGHT, FLIPOUT_UNIT):
            to_return.add(call, "shared", c, n, units)
        if noise in PER_WEIGHT:
            (kept if call.keep_scaled else self.forth).add(call, "scaled", *((c, m) if call.keep_scaled else ()), n, units)
        self.room = max(self.room, slots * max(n, units), 2 * rows * m)
        if not self.returns:
            return
        to_step = kept if learns else self.back
        if gate:
            self.back.add(call, "g_weights", c, slots)
        if gate or learns:
            to_step.add(call, "g_answers", c, slots, units)
        if noise in (FLIPOUT_WEIGHT, FLIPOUT_UNIT, LOCAL_WEIGHT):
            to_step.add(call, "turned", c, slots, units)
        if gate and leads_back:
            self.back.add(call, "g_sorted", c, slots, n)
        if number > 0:
            self.back.add(call, "g_x", c, rows, n)
        if turned:
            self.back.add(call, "g_out", c, rows, units)
        if self.stack.collects:
            layer = self.stack.layers[number]
            for name, parameter in self._others(layer).items():
                kept.add(call, name, parameter.numel())

    def _others(self, layer: Mixture) -> dict[str, Tensor]:
        """The parameters whose gradients are collected beside those of the experts, by the field that these are in."""
        sigma = layer.log_sigma if layer.unit else None
        every = {"g_sigma": sigma, "g_bias": layer.bias, "g_gate_weight": layer.gate_weight, "g_gate_bias": layer.gate_bias}
        return {name: parameter for name, parameter in every.items() if parameter is not None and parameter.requires_grad}

    def _integers_at(self, place: int, count: int) -> Tensor:
        begin = (place - self.integers.data_ptr()) // 8
        return self.integers[begin : begin + count]

    def _numbers_at(self, place: int, count: int) -> Tensor:
        begin = (place - self.memory.data_ptr()) // 4
        return self.memory[begin : begin + count]

    def _products(self, call: Any) -> Any:
        """The gradients of a layer's experts as factors: where they will be after a backward pass."""
        products = _Products(call.copies, call.inputs, call.outputs, call.rows * call.top_k)
        products.starts, products.left, products.right = call.starts, call.sorted, call.g_answers
        if call.noise in PER_WEIGHT:
            products.noise_left, products.noise_right = call.altered, call.turned
        if call.noise == FLIPOUT_WEIGHT:
            products.shared = call.shared
        return products

    def _bind(self, pointers: list[int]) -> None:
        """The addresses of all parameters, checked. They are kept alive: an address that is theirs stays theirs."""
        self.pointers = []
        for call, layer in zip(self.calls, self.stack.layers, strict=True):
            total, n, units, seen = call.copies * call.experts, call.inputs, call.outputs, call.gate_inputs
            sigmas = (total, units) if layer.unit else (total, n, units)
            shapes = ((total, n, units), sigmas, (total, units), (total, seen), (total,), (total, seen), (total,), sigmas)
            names = ("mean", "log_sigma", "bias", "gate_weight", "gate_bias", "prior_weight", "prior_bias", "prior_log_sigma")
            for name, tensor, shape in zip(names, layer[:8], shapes, strict=True):
                if name == "prior_log_sigma" and not layer.unit:
                    continue
                field = "raw" if name == "log_sigma" and layer.softplus else name
                setattr(call, field, None if tensor is None else address(tensor, *shape))
        self.aliases = [tensor.detach() for tensor in self.stack.tensors]
        self.pointers = pointers

    # -- forward ------------------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor, features: Tensor | None, kls: Sequence[Tensor] | None, sigmas: Sequence[Tensor] | None) -> Any:
        """The answers; then usage, if autograd is to know it; then the terms, if somebody asked."""
        stack, structure = self.stack, self.structure
        pointers = [tensor.data_ptr() for tensor in stack.tensors]
        if pointers != self.pointers:
            self._bind(pointers)
        self.first.x = address(x, *self.x_shape)
        self.first.features = None if features is None else address(features, *self.x_shape[:-1], self.first.gate_inputs)
        self._place()
        out = torch.empty(self.out_shape, dtype=torch.float32)
        if self.turned:
            structure.side = out.data_ptr()
        else:
            self.last.out = out.data_ptr()
        found = [out]
        if stack.has_priors and not stack.collects:
            usage = torch.empty(sum(self.experts), dtype=torch.float32)
            at = usage.data_ptr()
            for call, count in zip(self.calls, self.experts, strict=True):
                call.usage = at
                at += 4 * count
            self.usage = usage.detach()  # the tensor itself will know the graph that knows this pass
            found.append(usage)
        if stack.has_terms:
            terms = torch.empty(4, dtype=torch.float32)
            structure.terms = terms.data_ptr()
            found.append(terms)
        if kls is not None and (self.kls is None or not all(map(is_, kls, self.kls))):
            for call, kl, count in zip(self.calls, kls, self.experts, strict=True):
                call.kl = address(kl, count)
            self.kls = kls
        if sigmas is not None:
            self.sigmas = [sigma.detach() for sigma in sigmas]
            for call, sigma, layer in zip(self.calls, self.sigmas, stack.layers, strict=True):
                call.log_sigma = address(sigma, *layer.log_sigma.shape)
        if stack.random:
            structure.seed = random_seed()
        stack.library.functions.stack_forward(self.reference)
        return tuple(found)

    def _place(self) -> None:
        """Put what is needed within a call only into this thread's memory for that. All layers share one room."""
        room = scratch(self.room, "room")
        if self._room is not room:
            for call in self.calls:
                call.room = room.data_ptr()
            self._room = room
        if self.forth.end:
            memory = scratch(self.forth.end)
            if self._forth is not memory:
                self.forth.lay_out(memory)
                self._forth = memory
                self._link()

    def _link(self) -> None:
        """Each layer's answer is the input of the next."""
        for before, after in itertools.pairwise(self.calls):
            after.x = before.out

    # -- backward -----------------------------------------------------------------------------------------------------------

    def backward(
        self, g_out: Tensor, g_usage: Tensor | None, g_terms: Tensor | None, needs: Sequence[bool], of_features: bool
    ) -> Any:
        """Gradients of x, of features and, unless they are collected, of each layer's parameters but those of its experts."""
        first, stack = self.first, self.stack
        self._place()
        if self.back.end:
            memory = scratch(self.back.end, "back")
            if self._back is not memory:
                self.back.lay_out(memory)
                self._back = memory
                for before, after in itertools.pairwise(self.calls):
                    before.g_out = after.g_x
        if self.turned:
            self.structure.g_side = address(g_out, *self.out_shape)
        else:
            self.last.g_out = address(g_out, *self.out_shape)
        self.structure.g_terms = None if g_terms is None else address(g_terms, 4)
        g_x = g_features = None
        first.g_features = None  # that of the last backward pass belongs to somebody else now
        if self.needs_x:
            g_x = torch.empty((first.copies, first.rows, first.inputs), dtype=torch.float32)
            first.g_x = g_x.data_ptr()
        if of_features:
            g_features = torch.empty((first.copies, first.rows, first.gate_inputs), dtype=torch.float32)
            first.g_features = g_features.data_ptr()
        found: list[Tensor | None] = []
        if not stack.collects:
            at = 0 if g_usage is None else address(g_usage, sum(self.experts))
            for number, call in enumerate(self.calls):
                call.g_usage = at or None
                at += 4 * self.experts[number] if at else 0
                found += self._gradients(call, stack.layers[number], needs[5 * number : 5 * number + 5])
        stack.library.functions.stack_backward(self.reference)
        if first.shared_x:
            g_x, g_features = (None if g is None else g[0] for g in (g_x, g_features))
        return g_x, g_features, found

    @staticmethod
    def _gradients(call: Any, layer: Mixture, needs: Sequence[bool]) -> list[Tensor | None]:
        """Memory for the gradients of log sigma per unit, bias, gate weight and gate bias."""
        total, units = call.copies * call.experts, call.outputs
        sigma = torch.empty((total, units), dtype=torch.float32) if needs[1] and layer.unit else None
        bias = torch.empty((total, units), dtype=torch.float32) if needs[2] else None
        weight = torch.empty((total, call.gate_inputs), dtype=torch.float32) if needs[3] else None
        gate_bias = torch.empty(total, dtype=torch.float32) if needs[3] else None
        call.g_sigma = None if sigma is None else sigma.data_ptr()
        call.g_bias = None if bias is None else bias.data_ptr()
        call.g_gate_weight = None if weight is None else weight.data_ptr()
        call.g_gate_bias = None if gate_bias is None else gate_bias.data_ptr()
        return [sigma, bias, weight, gate_bias]


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        lease: _Lease,
        kls: Sequence[Tensor] | None,
        sigmas: Sequence[Tensor] | None,
        x: Tensor,
        features: Tensor | None,
        *parameters: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """`parameters` are `Stack.inputs`."""
        ctx.lease = lease
        found: tuple[Tensor, ...] = lease.used.forward(x, features, kls, sigmas)
        ctx.save_for_backward(x, features, *lease.stack.tensors)  # asking for them makes sure that nobody has changed them
        return found

    @staticmethod
    def backward(ctx: Any, g_out: Tensor, *more: Tensor) -> Any:
        # a graph of the backward pass is to be made: this says in time that there is none
        return (_Run.differentiable_once if torch.is_grad_enabled() else _Run.back)(ctx, g_out, *more)

    @staticmethod
    @once_differentiable
    def differentiable_once(ctx: Any, g_out: Tensor, *more: Tensor) -> Any:
        return _Run.back(ctx, g_out, *more)

    @staticmethod
    def back(ctx: Any, g_out: Tensor, *more: Tensor) -> Any:
        ctx.saved_tensors  # noqa: B018
        lease: _Lease = ctx.lease
        stack, used, needs = lease.stack, lease.used, ctx.needs_input_grad
        if lease.given is not None:
            lease.settle()
        g_usage = more[0].contiguous() if stack.has_priors and not stack.collects else None
        g_terms = more[-1].contiguous() if stack.has_terms else None
        g_x, g_features, found = used.backward(g_out.contiguous(), g_usage, g_terms, needs[5:], needs[4])
        gradients: list[Tensor | None] = [None, None, None, g_x, g_features]
        if stack.collects:
            _Run.hand_over(lease)
            gradients.append(_ZERO)
            return tuple(gradients)
        for number, layer in enumerate(stack.layers):
            of_mean, of_sigma, *_ = needs[5 + 5 * number :]
            g_mean, (g_sigma, g_bias, g_weight, g_gate_bias) = None, found[4 * number : 4 * number + 4]
            if of_mean or (of_sigma and not layer.unit):
                g_mean, of_weights = Factors(lease, number).multiplied()
                g_sigma = of_weights if of_sigma and of_weights is not None else g_sigma
            gradients += [g_mean, g_sigma, g_bias, g_weight, g_gate_bias]
        return tuple(gradients)

    @staticmethod
    def hand_over(lease: _Lease) -> None:
        """The gradients of all layers go to those who collect them, once the pass has come to the first one's anchor."""
        pairs = _Pairs([(sink, Factors(lease, number)) for number, sink in enumerate(lease.stack.sinks)])
        lease.given = weakref.ref(pairs)
        pairs[0][0].offer(pairs)


_apply: Any = super(torch.autograd.Function, _Run).apply
"""Without the wrapper that unwraps tensors of torch.func, where this is not used (`hvcl.ops.border.observed`)."""

_ZERO = torch.zeros((), dtype=torch.float32)
"""The gradient of anchors."""


def run(
    stack: Stack,
    x: Tensor,
    features: Tensor | None = None,
    kls: Sequence[Tensor] | None = None,
    sigmas: Sequence[Tensor] | None = None,
) -> Answer:
    """A batch through a stack of layers with leaky ReLU between them.

    Args:
        stack: the layers.
        x: ``[C, B, in]``, or ``[B, in]``: the same for all copies.
        features: what the gates read instead of their layer's input (one layer only).
        kls: for each layer the KLs of its experts ``[C * M]`` (with a sigma per unit the means' part), for the last of the terms.
        sigmas: for each layer its log sigmas per weight, where they are not the parameters themselves.
    """
    shared = x.dim() == 2
    needs_x = stack.grad and (x.requires_grad or (features is not None and features.requires_grad))
    lease = _Lease(stack, stack.borrow(x.shape[-2], shared, needs_x))
    if stack.learns or needs_x:
        inputs = stack.inputs
        if sigmas is not None:
            inputs = list(inputs)
            inputs[1::5] = sigmas
        found = _apply(lease, kls, sigmas, x, features, *inputs)
    else:
        found = lease.used.forward(x, features, kls, sigmas)
    usage = found[1] if stack.has_priors and not stack.collects else None
    return Answer(found[0], lease.used.log_p, usage, found[-1] if stack.has_terms else None, kls is not None)
