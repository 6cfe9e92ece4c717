"""The HVCL objective as a loss per example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.layers.module import outermost
from hvcl.objective.schedules import Constant, Schedule

PER_DATA_SET = frozenset({"expert_kl"})
"""Terms that are paid once for a whole task's data; an example pays its share, 1 / N_t of it."""


class Loss(NamedTuple):
    """`total` is what to minimise; `terms` are the values of its parts, unweighted, summed over layers, `utility` among them."""

    total: Tensor
    terms: dict[str, float]


class Objective:
    r"""A utility minus what the network pays for moving away from its priors.

    .. math::
        L = -\frac1B \sum_x U(x)
            + \beta_1 \sum_l \overline{KL}[p_t(m|x) \| p_{1:t-1}(m|x)]
            + \frac{\beta_2}{N_t} \sum_l \sum_m u_m KL[q_t(\theta_m) \| q_{1:t-1}(\theta_m)]
            + w_c H(M|X) + w_m H(M) - w_d \sum_l \log\det(K_l + jitter I)

    The terms come from `loss_terms(module)`: any `VariationalModule` inside the network contributes, the objective
    knows none of them. A term whose weight is zero is not computed.

    Args:
        gate_kl: beta_1, a number or a `Schedule`.
        expert_kl: beta_2, a number or a `Schedule`.
        conditional_entropy: w_c; positive values make the gate certain.
        marginal_entropy: w_m; positive values prefer fewer experts, negative values spread the load.
        diversity: w_d; positive values push the experts' parameters apart.
        diversity_every: the diversity depends on parameters only, which move slowly: it is computed on every n-th call, with
            n times the weight. 1 computes it always.
        others: weights of terms that custom modules add, by name.
    """

    def __init__(
        self,
        *,
        gate_kl: float | Schedule = 1.0,
        expert_kl: float | Schedule = 1.0,
        conditional_entropy: float = 0.0,
        marginal_entropy: float = 0.0,
        diversity: float = 0.0,
        diversity_every: int = 8,
        others: Mapping[str, float | Schedule] | None = None,
    ) -> None:
        def schedule(weight: float | Schedule) -> Schedule:
            return weight if isinstance(weight, Schedule) else Constant(weight)

        self.schedules = {"gate_kl": schedule(gate_kl), "expert_kl": schedule(expert_kl)}
        self.weights = {
            "conditional_entropy": conditional_entropy,
            "marginal_entropy": marginal_entropy,
            "diversity": -diversity,
        }
        if diversity_every < 1:
            raise InputError(f"diversity_every must be at least 1, got {diversity_every}")
        self.diversity_every = diversity_every
        self.calls = 0
        taken = {*self.schedules, *self.weights, "utility", "loss"}
        for name, weight in (others or {}).items():
            if name in taken:
                raise InputError(f"the term name {name!r} is taken: give the terms of your own modules another name")
            self.schedules[name] = schedule(weight)

    def __call__(self, utility: Tensor, module: nn.Module, num_data: int, progress: float = 0.0) -> Loss:
        """The loss of one batch.

        Args:
            utility: the utility of every example, or already its mean: any tensor that has a gradient.
            module: the network after the forward pass that the utility came from.
            num_data: N_t, the number of examples in the current task (a stated constant where it is unknown).
            progress: fraction of the current task that is done, for the schedules.
        """
        if num_data < 1:
            raise InputError(f"num_data must be at least 1, got {num_data}")
        if utility.numel() == 0:
            raise InputError("the utility is empty: a loss needs at least one example")
        weights = self.weights_at(progress)
        mean = utility if utility.dim() == 0 else utility.mean()
        values: list[Tensor] = []
        names: list[str | None] = []
        for layer, inner in outermost(module):
            found = inner.term_vector()
            if found is not None:
                values.append(found[1])
                names += [name if name is not None and self._counts(name, weights) else None for name in found[0]]
            for name, evaluate in inner.rest_of_terms().items():
                if name not in weights:
                    raise InputError(f"layer {layer!r} adds the term {name!r}: give its weight in others={{...}}")
                if self._counts(name, weights):
                    values.append(evaluate().reshape(1))
                    names.append(name)
        terms = {"utility": mean.item()}
        if not values:
            return Loss(-mean, terms)
        # all terms of all layers in one product: a graph of few nodes, which is what small networks pay for
        stacked = values[0] if len(values) == 1 else torch.cat(values)
        costs = []
        for term, value in zip(names, stacked.tolist(), strict=True):
            share = 1 / num_data if term in PER_DATA_SET else 1.0
            costs.append(0.0 if term is None else weights[term] * share)
            if term is not None:
                terms[term] = terms.get(term, 0.0) + share * value
        for name, schedule in self.schedules.items():
            if name in terms:
                schedule.observe(terms[name])
        return Loss(torch.dot(stacked, stacked.new_tensor(costs)) - mean, terms)

    def weights_at(self, progress: float) -> dict[str, float]:
        """The weight of every term in the present call, which is counted."""
        weights = {name: schedule.value(progress) for name, schedule in self.schedules.items()} | self.weights
        weights["diversity"] *= self.diversity_every if self.diversity_is_due else 0
        self.calls += 1
        return weights

    @property
    def diversity_is_due(self) -> bool:
        """Whether the next call computes the diversity."""
        return self.weights["diversity"] != 0 and self.calls % self.diversity_every == 0

    def _counts(self, name: str, weights: dict[str, float]) -> bool:
        """Whether a term is computed. Cyclic weights pass through zero; their terms still are, so that logs have no holes."""
        return weights[name] != 0 or (name in self.schedules and not isinstance(self.schedules[name], Constant))

    def state_dict(self) -> dict[str, Any]:
        """State of the schedules, and the number of calls."""
        return {"schedules": {name: schedule.state_dict() for name, schedule in self.schedules.items()}, "calls": self.calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, schedule in self.schedules.items():
            schedule.load_state_dict(state["schedules"][name])
        self.calls = int(state["calls"])
