"""Sparse dispatch: only the chosen experts are computed, each on one contiguous slice of the batch.

Rows are sorted by expert once (stable), every active expert gets its slice, and the inverse permutation puts the
answers back. Both moves are permutations, so each one's gradient is the other move: gathers in both directions and
never a scatter.

While somebody looks through torch's eyes (torch.compile, torch.export, torch.func, ...) shapes must not depend on numbers: then
every expert gets the whole batch, and answers that were not asked for have weight zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

Routing = Literal["argmax", "sample", "straight-through"]


class Segment(NamedTuple):
    """Rows `start` to `stop` of the sorted batch belong to `expert`."""

    expert: int
    start: int
    stop: int


@dataclass(frozen=True)
class Plan:
    """Who computes what: a batch of B rows with k choices each makes B * k slots, sorted by expert.

    `rows[s]` is the row that slot s computes, `slots[b * k + j]` the slot that holds row b's j-th choice, and `weights`
    the mixture weights in slot order. `rows` is None when one expert takes the whole batch and nothing moves.
    """

    segments: list[Segment]
    weights: Tensor
    rows: Tensor | None
    slots: Tensor | None
    top_k: int

    def gather(self, x: Tensor) -> Tensor:
        """Rows of `x` in slot order."""
        if self.rows is None:
            return x
        gathered: Tensor = _Gather.apply(x, self.rows, self.slots, self.top_k)  # type: ignore[no-untyped-call]
        return gathered

    def combine(self, y: Tensor) -> Tensor:
        """Weight the answers in slot order and sum every row's k answers: ``[B, ...]``."""
        y = y * self.weights.view(-1, *[1] * (y.dim() - 1))
        if self.rows is None:
            return y
        combined: Tensor = _Combine.apply(y, self.rows, self.slots, self.top_k)  # type: ignore[no-untyped-call]
        return combined

    def padded(self, multiple: int) -> Plan:
        """The same work with every segment filled up to a multiple of `multiple` rows, by rows whose answers are not used.

        Convolution libraries prepare code for every batch size that they meet, which takes longer than the convolution: a few
        sizes that come again and again are far cheaper than one that is always new.
        """
        if self.rows is None or self.slots is None:
            return self
        rows, weights, segments = [], [], []
        shift = torch.zeros_like(self.slots)
        start = 0
        for expert, a, b in self.segments:
            fill = -(b - a) % multiple
            rows += [self.rows[a:b], self.rows[a : a + 1].expand(fill)]
            weights += [self.weights[a:b], self.weights.new_zeros(fill)]
            shift[a:b] = start - a
            segments.append(Segment(expert, start, start + b - a + fill))
            start += b - a + fill
        slots = self.slots + shift[self.slots]
        return Plan(segments, torch.cat(weights), torch.cat(rows), slots, self.top_k)


@dataclass(frozen=True)
class WholePlan(Plan):
    """Every expert computes the whole batch of its copy; `weights` are those of ``[C, M, B]``, most of them zero."""

    copies: int = 1

    def gather(self, x: Tensor) -> Tensor:
        """Every copy's rows once for each of its experts."""
        parts = x.unflatten(0, (self.copies, -1))
        experts = len(self.segments) // self.copies
        every: Tensor = parts.unsqueeze(1).expand(-1, experts, *parts.shape[1:]).flatten(0, 2)
        return every

    def combine(self, y: Tensor) -> Tensor:
        """Weighted, and summed over the experts."""
        y = y * self.weights.view(-1, *[1] * (y.dim() - 1))
        summed: Tensor = y.unflatten(0, (self.copies, len(self.segments) // self.copies, -1)).sum(1).flatten(0, 1)
        return summed


def route(log_probabilities: Tensor, top_k: int, routing: Routing, training: bool, whole: bool = False) -> Plan:
    r"""Choose k experts for every row of ``log_probabilities [C, B, M]`` and lay out the work of C copies as one batch.

    - ``argmax``: the k most probable experts. For k = 1 the answer is weighted by p(m|x) itself: a softmax over the one
      chosen logit would be 1 and leave the gate without a gradient.
    - ``straight-through``: the same experts; for k = 1 the weight is p / stop_gradient(p): 1 in value, so that a deep network's
      signal does not shrink with every layer; its gradient is that of log p times the answer's share of the loss.
    - ``sample`` (training only): k experts drawn without replacement from p (Gumbel top-k), weighted as straight-through. Where
      the loss is linear in the answer this is the score-function estimator, unbiased. Outside training the most probable
      experts are taken.

    For k > 1 the original probabilities are renormalised over the chosen k, whichever way they were chosen. With `whole`, every
    expert is given the whole batch.
    """
    copies, batch, experts = log_probabilities.shape
    scores = log_probabilities.detach()
    if routing == "sample" and training:
        scores = scores - torch.empty_like(scores).exponential_().log_()
    if top_k == 1:
        chosen = scores.argmax(2, keepdim=True)
    elif top_k == experts:
        chosen = torch.arange(experts, device=scores.device).expand(copies, batch, experts)
    else:
        chosen = scores.topk(top_k, dim=2).indices
    log_weights = log_probabilities.gather(2, chosen)
    if top_k > 1:
        weights = log_weights.softmax(2)
    elif routing == "argmax":
        weights = log_weights.exp()
    else:
        weights = (log_weights - log_weights.detach()).exp()
    if whole:
        every = torch.zeros_like(log_probabilities).scatter(2, chosen, weights).transpose(1, 2)
        segments = [Segment(expert, expert * batch, (expert + 1) * batch) for expert in range(copies * experts)]
        return WholePlan(segments, every.reshape(-1), None, None, top_k, copies)

    expert_of = (chosen + experts * torch.arange(copies, device=chosen.device).view(-1, 1, 1)).flatten()
    counts = torch.bincount(expert_of, minlength=copies * experts).tolist()
    weights = weights.flatten()
    if top_k == 1 and max(counts, default=0) == len(expert_of):  # nothing to sort
        return sorted_plan(counts, weights, expert_of, expert_of)
    order = expert_of.argsort(stable=True)
    slots = torch.empty_like(order)
    slots[order] = torch.arange(len(order), device=order.device)
    rows = order if top_k == 1 else order // top_k
    return sorted_plan(counts, weights.index_select(0, order), rows, slots, top_k)


def sorted_plan(counts: list[int], weights: Tensor, rows: Tensor, slots: Tensor, top_k: int = 1) -> Plan:
    """A plan from the number of slots of each expert; `weights`, `rows` and `slots` as in `Plan`, sorted by expert."""
    segments = []
    start = 0
    for expert, count in enumerate(counts):
        if count:
            segments.append(Segment(expert, start, start + count))
            start += count
    if len(segments) <= 1 and top_k == 1:
        return Plan(segments, weights, None, None, top_k)
    return Plan(segments, weights, rows, slots, top_k)


def _to_slots(x: Tensor, rows: Tensor) -> Tensor:
    return x.index_select(0, rows)


def _to_rows(y: Tensor, slots: Tensor, top_k: int) -> Tensor:
    y = y.index_select(0, slots)
    return y if top_k == 1 else y.view(-1, top_k, *y.shape[1:]).sum(1)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, slots: Tensor, top_k: int) -> Tensor:
        ctx.slots, ctx.top_k = slots, top_k
        return _to_slots(x, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _to_rows(grad, ctx.slots, ctx.top_k), None, None, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, y: Tensor, rows: Tensor, slots: Tensor, top_k: int) -> Tensor:
        ctx.rows = rows  # type: ignore[attr-defined]
        return _to_rows(y, slots, top_k)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _to_slots(grad, ctx.rows), None, None, None
