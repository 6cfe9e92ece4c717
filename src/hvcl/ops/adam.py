"""One step of Adam for the posteriors of experts, of all layers of a network in one compiled call; see `csrc/adam.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.ops.border import address, optional, scratch, structure, usable
from hvcl.ops.gradients import Contribution
from hvcl.ops.library import Library

_Experts, _Plain = structure("Experts"), structure("Plain")


class Posterior(NamedTuple):
    """What is stepped of one layer ``[M, ...]``: means and log sigmas with their moments and priors, counts of steps, KLs.

    With a sigma per unit, `rho` and its moments are None: they are few, and somebody else's.
    """

    mean: Tensor
    first_mean: Tensor
    second_mean: Tensor
    rho: Tensor | None
    first_rho: Tensor | None
    second_rho: Tensor | None
    prior_mean: Tensor
    prior_log_sigma: Tensor
    steps: Tensor
    kl: Tensor


class Hold(NamedTuple):
    """How a layer's experts are stepped and held: see `hvcl.posteriors.MeanFieldGaussian` and `hvcl.optim.VariationalAdam`."""

    layout: tuple[int, int, int] | None
    """(outer, units, inner): an expert's weights seen so have their unit in the middle; None for a sigma per weight."""
    retention: float
    first_precision: float
    sigma_rate: float


class Push(NamedTuple):
    """Dense gradients ``[M, ...]`` of means and log sigmas that come on top; rows of experts not stepped may be anything."""

    mean: Tensor
    rho: Tensor | None


class Other(NamedTuple):
    """A parameter without a prior: its values, moments and count of steps, what is in its `.grad` (contiguous), if any, and its
    step size over that of the means."""

    values: Tensor
    first: Tensor
    second: Tensor
    steps: Tensor
    more: Tensor | None
    rate: float


class ExpertSteps:
    """The steps of several layers' experts in one compiled call; addresses are kept from one time to the next.

    Args:
        holds: how each layer's experts are stepped and held.
    """

    def __init__(self, holds: Sequence[Hold]) -> None:
        self.holds = holds
        self.layers = (_Experts * len(holds))()
        self.plains: list[Any] = [None] * len(holds)
        self._others: list[list[int]] = [[] for _ in holds]
        self._with: list[Any] = [None] * len(holds)
        self._pointers: list[list[int]] = [[] for _ in holds]
        self._alive: list[Any] = [None] * len(holds)
        self._aliases: list[Any] = [None] * len(holds)
        self._library: Library | None = None
        self._described: list[object | None] = [None] * len(holds)
        """Of each layer the memory of gradients that its structure points to since the last `again`."""
        self._largest = 0
        self._room: Tensor | None = None

    def bind(self, number: int, posterior: Posterior) -> Library | None:
        """Layer `number` has these tensors; the library, or None if compiled code cannot work on them.

        Moments, counts and KLs belong to the optimiser and stay where they are; of the others the addresses are compared.
        """
        tensors = (posterior.mean, posterior.rho, posterior.prior_mean, posterior.prior_log_sigma)
        pointers = [id(posterior), *[tensor.data_ptr() for tensor in tensors if tensor is not None]]
        if pointers == self._pointers[number]:
            return self._library
        self._pointers[number] = []
        hold, library = self.holds[number], usable(*posterior)
        layout = hold.layout
        if library is None or (posterior.rho is None and layout is None):
            return None
        experts, count, shape = self.layers[number], posterior.mean.shape[0], tuple(posterior.mean.shape)
        experts.experts, experts.size = count, posterior.mean[0].numel()
        self._largest = max(self._largest, 2 * experts.size)
        experts.outer, experts.units, experts.inner = layout or (0, 0, 0)
        experts.retention, experts.first, experts.sigma_rate = hold.retention, hold.first_precision, hold.sigma_rate
        if layout is not None and layout[0] * layout[1] * layout[2] != experts.size:
            raise InputError(f"weights of shape {shape[1:]} cannot be seen as {layout}")
        shapes: dict[str, tuple[int, ...]] = {"steps": (count,), "kl": (count,)}
        if layout is not None:
            shapes["prior_log_sigma"] = (count, layout[1])
        for name, tensor in posterior._asdict().items():
            setattr(experts, name, None if tensor is None else address(tensor, *shapes.get(name, shape)))
        # an address that is theirs stays theirs
        self._aliases[number] = (posterior, [tensor.detach() for tensor in posterior if tensor is not None])
        self._pointers[number], self._library = pointers, library
        return library

    def prepare(
        self,
        number: int,
        contribution: Contribution | None,
        push: Push | None,
        kl_weights: Tensor | None,
        stepped: Sequence[bool] | None,
        lazy: bool,
        others: Sequence[Other],
    ) -> None:
        """Layer `number`, whose tensors were bound, is to be stepped.

        Args:
            number: of the layer.
            contribution: the gradients of its experts.
            push: more of them.
            kl_weights: d loss / d KL, if that is not in the contribution.
            stepped: which experts to step; None: all, or with `lazy` those that the contribution has examples of.
            lazy: see `stepped`.
            others: the layer's other parameters whose gradients are in the contribution, in its order.
        """
        experts, flags = self.layers[number], None
        experts.active, experts.lazy = 1, lazy
        experts.more_mean = experts.more_rho = experts.g_mean = experts.g_noise = experts.shared = experts.products = None
        experts.stepped = experts.kl_weights = None
        self._bind_others(number, others)
        if contribution is not None:
            contribution.describe(experts, self.plains[number])
        self._described[number] = None
        if push is not None:
            shape = tuple(self._aliases[number][0].mean.shape)
            experts.more_mean, experts.more_rho = address(push.mean, *shape), optional(push.rho, *shape)
        if kl_weights is not None:
            kl_weights = kl_weights.contiguous()
            experts.kl_weights = address(kl_weights, experts.experts)
        if stepped is not None:
            flags = (ctypes.c_uint8 * experts.experts)(*stepped)
            experts.stepped = ctypes.addressof(flags)
        self._alive[number] = (flags, contribution, push, kl_weights, others)

    def again(self, number: int, contribution: Contribution) -> Library | None:
        """Layer `number` is to be stepped as it was prepared the last time, with other gradients of the same kind."""
        self.layers[number].active = 1
        if contribution.memory is not self._described[number]:
            contribution.describe(self.layers[number], self.plains[number])
            self._described[number] = contribution.memory
        return self._library

    def _bind_others(self, number: int, others: Sequence[Other]) -> None:
        """The addresses of other parameters, checked if they are new; and of what is in their `.grad`."""
        pointers = [number for other in others for number in (id(other.first), other.values.data_ptr())]
        if pointers != self._others[number] or self.plains[number] is None:
            self._others[number] = []
            self.plains[number] = plains = (_Plain * len(others))()
            for plain, other in zip(plains, others, strict=True):
                shape = tuple(other.values.shape)
                plain.count, plain.rate = other.values.numel(), other.rate
                plain.values, plain.first, plain.second = (address(tensor, *shape) for tensor in other[:3])
                plain.steps = address(other.steps)
            self._others[number] = pointers
            self._with[number] = [(other.first, other.second, other.steps, other.values.detach()) for other in others]
            self.layers[number].plains, self.layers[number].plain = len(others), ctypes.addressof(plains)
        for plain, other in zip(self.plains[number], others, strict=True):
            plain.g = None
            plain.more = None if other.more is None else address(other.more, *other.values.shape)

    def run(self, library: Library, lr: float, betas: tuple[float, float], epsilon: float) -> None:
        """Step all layers that were prepared; their experts' KLs to the priors after the step are in `kl`."""
        room = scratch(self._largest, "room")
        if self._room is not room:
            for layer in self.layers:
                layer.room = room.data_ptr()
            self._room = room
        library.functions.adam_experts(ctypes.addressof(self.layers), len(self.layers), lr, *betas, epsilon)
        for number, layer in enumerate(self.layers):
            layer.active, self._alive[number] = 0, None


def expert_step(
    posterior: Posterior,
    expert: int,
    g_mean: Tensor | None,
    g_rho: Tensor | None,
    pull: Tensor,
    kl_weight: float,
    lr: float,
    sigma_rate: float,
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    """The same in torch operations, for one expert: any device and type, and the reference for the compiled one.

    `pull` is what holds every mean: 1 / (prior sigma)^2, or more.
    """
    posterior.steps[expert] += 1
    t, (beta1, beta2) = float(posterior.steps[expert]), betas
    rate, root = lr / (1 - beta1**t), (1 - beta2**t) ** -0.5

    def adam(parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rate: float) -> None:
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        parameter.addcdiv_(first, second.sqrt().mul_(root).add_(epsilon), value=-rate)

    mean, prior = posterior.mean[expert], posterior.prior_mean[expert]
    pulled = (mean - prior).mul_(pull).mul_(kl_weight)
    excess = None
    if posterior.rho is not None:  # before the means' step, after which nothing of this has changed
        rho, prior_rho = posterior.rho[expert], posterior.prior_log_sigma[expert]
        excess = torch.expm1(2 * (rho - prior_rho)).mul_(kl_weight)
    moments = posterior.first_mean[expert], posterior.second_mean[expert]
    adam(mean, pulled if g_mean is None else pulled.add_(g_mean), *moments, rate)
    kl = float((mean - prior).square_().mul_(pull).sum()) / 2
    if excess is not None:
        assert posterior.first_rho is not None
        assert posterior.second_rho is not None
        moments = posterior.first_rho[expert], posterior.second_rho[expert]
        adam(rho, excess if g_rho is None else excess.add_(g_rho), *moments, rate * sigma_rate)
        ratio = rho - prior_rho
        kl += float((torch.expm1(2 * ratio) / 2 - ratio).sum())
    posterior.kl[expert] = kl
