"""Adam for networks with MoVE layers, the experts' part of it in one pass over their weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self, overload

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from hvcl.core.errors import InputError
from hvcl.ops import Contribution, Dense, Library
from hvcl.ops.adam import ExpertSteps, Hold, Other, Posterior, Push, expert_step
from hvcl.ops.gradients import added
from hvcl.optim.state import Shapes, check_optimizer_state
from hvcl.posteriors import MeanFieldGaussian
from hvcl.posteriors.parameter import collect, move_others, raw_grad


class VariationalAdam(torch.optim.Optimizer):
    r"""Adam (Kingma & Ba, 2015) that adds the KL gradient, steps, and measures the new KL in one pass over each expert's weights.

    It gives the numbers that ``torch.optim.Adam(network.parameters())`` gives, up to float32 rounding (with ``lazy=False``, or as
    long as every batch uses every expert), and is faster (docs/speed). While it lives, the gradients of the experts inside
    `module` are collected for it, and not yet multiplied out: a layer shows it in its `repr` (``gradients=collected``). Reading a
    parameter's `.grad` multiplies them out, so that `torch.nn.utils.clip_grad_norm_` and the like work as ever; then the step is
    no faster than any other.

    Args:
        module: the network; all its parameters are optimised.
        lr, betas, eps: as in torch.optim.Adam.
        lazy: skip experts that saw no example since the last step. Their means and sigmas, moments and step counts stay as they
            are; the small pull of their KL (their gate mass is not exactly zero), the diversity's push on them and Adam's
            momentum are left out. With many experts of which a batch uses few, a step then costs what the used ones cost.
            (Biases, gates and sigmas per unit are few: they are always stepped.)
        sigma_rate: step size of the log sigmas over that of everything else. A step of Adam moves a log sigma by about `lr`: in a
            few hundred steps of 0.001 a sigma cannot halve, and says little of what was learned.

    An expert that is stepped moves in both its means and its sigmas, if only by momentum; torch's Adam would leave alone a sigma
    that no term of the loss has ever touched (estimator "mean" without KL).
    """

    def __init__(
        self,
        module: nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        lazy: bool = True,
        sigma_rate: float = 1.0,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise InputError(f"VariationalAdam takes a network, not its parameters: got a {type(module).__name__}")
        if not lr >= 0 or not eps >= 0 or not all(0 <= beta < 1 for beta in betas):
            raise InputError(f"lr and eps must be at least 0 and betas in [0, 1), got lr={lr}, eps={eps}, betas={betas}")
        if not 0 <= sigma_rate < math.inf:
            raise InputError(f"sigma_rate must be at least 0 and finite, got {sigma_rate}")
        super().__init__(module.parameters(), {"lr": lr, "betas": betas, "eps": eps})
        self.lazy, self.sigma_rate = lazy, sigma_rate
        # a sigma per weight by another transform than exp is not worth a kernel of its own: plain autograd serves it
        every = [m for m in module.modules() if isinstance(m, MeanFieldGaussian)]
        self.posteriors = [m for m in every if m.transform == "exp" or m.sigma_kind == "unit"]
        self._all = every
        for posterior in self.posteriors:
            collect(posterior, self)
        self._prepare()

    def _prepare(self) -> None:
        """What follows from the posteriors and does not change."""
        self._steps = ExpertSteps(
            [
                Hold(p.unit_layout if p.sigma_kind == "unit" else None, p.retention, p.first_precision, self.sigma_rate)
                for p in self.posteriors
            ]
        )
        self._sigmas = {id(posterior.rho) for posterior in self._all}
        self._states: list[Posterior | None] = [None] * len(self.posteriors)
        self._others: dict[int, Other] = {}
        self._repeats: list[_Repeat | None] = [None] * len(self.posteriors)
        self._experts = [(posterior, posterior.experts) for posterior in self._all]
        special = {id(parameter) for posterior in self.posteriors for parameter in posterior.stepped_together}
        self._plain = [p for group in self.param_groups for p in group["params"] if id(p) not in special]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """The optimiser of the copied network, for which gradients are collected from now on."""
        made = object.__new__(type(self))
        memo[id(self)] = made
        for name, value in self.__dict__.items():
            if name not in ("_steps", "_states", "_others", "_repeats", "_plain", "_experts", "_sigmas"):
                setattr(made, name, copy.deepcopy(value, memo))
        for posterior in made.posteriors:
            collect(posterior, made)
        made._prepare()
        return made

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only the one group that the network makes up."""
        if self.param_groups:
            raise InputError(
                "VariationalAdam optimises one network with one set of settings: use a second optimiser for the rest"
            )
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, collected ones included."""
        for posterior in self.posteriors:
            posterior.collector.clear()
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for parameter in self.param_groups[0]["params"]:
            if raw_grad(parameter) is not None:
                parameter.grad = None

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm is at most `max_norm`; returns what it was.

        As `torch.nn.utils.clip_grad_norm_` on the network's parameters, which does the same.
        """
        return torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], max_norm, norm_type)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of Adam on everything that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.advance()
        return loss

    @torch.no_grad()
    def advance(self) -> None:
        """`step` without a closure, hooks and torch's profiling, which on small networks take as long as the step itself."""
        group = self.param_groups[0]
        self._step_plain(group, self._step_experts(group))

    # -- all parameters but those of the experts' posteriors ------------------------------------------------------------------

    def _step_plain(self, group: dict[str, Any], done: set[int]) -> None:
        """All that have a gradient in `.grad`, but for those that are done."""
        gradients = [(p, g) for p in self._plain if id(p) not in done and (g := raw_grad(p)) is not None]
        sigmas = [pair for pair in gradients if id(pair[0]) in self._sigmas] if self.sigma_rate != 1 else []
        others = [pair for pair in gradients if id(pair[0]) not in self._sigmas] if sigmas else gradients
        for pairs, rate in ((others, 1.0), (sigmas, self.sigma_rate)):
            if not pairs:
                continue
            states = [self._moments(p) for p, _ in pairs]
            adam(
                [p for p, _ in pairs],
                [g for _, g in pairs],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"] * rate,
                weight_decay=0.0,
                eps=group["eps"],
                maximize=False,
            )

    def _moments(self, parameter: Tensor, counters: int | None = None) -> dict[str, Any]:
        """The state of one parameter; `counters` asks for a step count per expert."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            shape = () if counters is None else (counters,)
            state["step"] = torch.zeros(shape, dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    # -- experts --------------------------------------------------------------------------------------------------------------

    def _step_experts(self, group: dict[str, Any]) -> set[int]:
        """Step all experts, and what was collected with their gradients; returns the ids of the latter."""
        others: set[int] = set()
        done: list[tuple[MeanFieldGaussian, Posterior]] = []
        watched: list[tuple[MeanFieldGaussian, tuple[int, ...], list[bool]]] = []
        library: Library | None = None
        if any(posterior._parameters["mean"].shape[0] != known for posterior, known in self._experts):  # type: ignore[union-attr]
            raise InputError("the network has grown since this optimiser was made: make a new one")
        for number, posterior in enumerate(self.posteriors):
            again = self._again(number, posterior)
            plan = _Plan(posterior.collector.contributions[0], None, None, None) if again is not None else self._plan(posterior)
            if plan is None:
                continue
            state = self._state_of(number) if again is None else again.state
            if posterior.collector.remembers_distances:
                before = tuple([parameter._version for parameter in posterior.stepped_together])
                watched.append((posterior, before, plan.which(posterior.experts, self.lazy)))
            done.append((posterior, state))
            if again is not None:
                library = self._steps.again(number, posterior.collector.contributions[0])
                others |= again.others
                continue
            found = self._steps.bind(number, state)
            if found is None:
                self._step_plainly(posterior, state, plan, group)
                continue
            library = found
            with_them = [] if plan.single is None else plan.single.other_parameters()
            others.update(map(id, with_them))
            options = (plan.kl_weights, plan.stepped, self.lazy, [self._other(parameter) for parameter in with_them])
            self._steps.prepare(number, plan.single, plan.more, *options)
            self._repeats[number] = _Repeat.of(posterior, state, plan, with_them)
        if library is not None:
            self._steps.run(library, group["lr"], group["betas"], group["eps"])
        if done:
            torch.autograd.graph.increment_version([p for _, state in done for p in (state.mean, state.rho) if p is not None])
        for posterior, before, which in watched:
            experts = [expert for expert, now in enumerate(which) if now]
            posterior.collector.stepped(experts, before, *posterior.stepped_together)
        for posterior, state in done:
            posterior.remember_kl(state.kl)
        return others

    def _again(self, number: int, posterior: MeanFieldGaussian) -> _Repeat | None:
        """The last step of a layer, if this one is the same in all but the numbers: then everything is where it was."""
        last, collector = self._repeats[number], posterior.collector
        if last is None or len(collector.contributions) != 1 or type(collector.contributions[0]) is not last.kind:
            return None
        if collector.push is not None or collector.kl_weights is not None or collector.kl is not last.state.kl:
            return None
        same = [tensor.data_ptr() for tensor in last.tensors] == last.pointers
        if not same or collector.kl_versions != posterior.kl_versions or posterior._parameters["mean"] is not last.state.mean:
            return None
        if not collector.contributions[0].direct or any(raw_grad(parameter) is not None for parameter in last.parameters):
            return None
        return last

    def _other(self, parameter: Tensor) -> Other:
        """A parameter whose gradient was collected with those of experts, and what is in its `.grad`."""
        found, gradient = self._others.get(id(parameter)), raw_grad(parameter)
        if found is None or found.values is not parameter:
            state = self._moments(parameter)
            rate = self.sigma_rate if id(parameter) in self._sigmas else 1.0
            found = Other(parameter, state["exp_avg"], state["exp_avg_sq"], state["step"], None, rate)
            self._others[id(parameter)] = found
        return found if gradient is None else found._replace(more=gradient.contiguous())

    def _plan(self, posterior: MeanFieldGaussian) -> _Plan | None:
        """What to do to one layer's experts; None: nothing."""
        collector = posterior.collector
        if not posterior.learns:
            frozen = [parameter for parameter in (posterior.mean, posterior.rho) if not parameter.requires_grad]
            if len(frozen) == 1:
                raise InputError("freeze means and sigmas of a posterior together: posterior.requires_grad_(False)")
            return None
        parts, weights, dense = collector.contributions, collector.kl_weights, _dense(posterior)
        if dense is None and not parts and (self.lazy or collector.empty):
            return None
        single = parts[0] if len(parts) == 1 and parts[0].direct else None
        if single is None and parts:
            for part in parts:
                move_others(part)
            dense = Dense.total(parts if dense is None else [*parts, dense])
            weights = added(weights, dense.kl_weights())
        elif single is not None and weights is not None:
            weights = added(weights, single.kl_weights())
        stepped = None
        if self.lazy and not (single is not None and single.tells_used and dense is None):
            stepped = [any(used) for used in zip(*[part.used() for part in (single, dense) if part is not None], strict=True)]
            if not any(stepped):
                return None
        plan = _Plan(single, None if dense is None else Push(dense.mean, dense.log_sigma), weights, stepped)
        if collector.push is None:
            return plan
        which = plan.which(posterior.experts, self.lazy)
        pushed = posterior.pushed([expert for expert, now in enumerate(which) if now])
        assert pushed is not None
        more = Push(*pushed) if plan.more is None else Push(plan.more.mean + pushed[0], added(plan.more.rho, pushed[1]))
        return plan._replace(more=more)

    def _state_of(self, number: int) -> Posterior:
        """Parameters, moments and priors of one layer's experts, and their KLs as they are now, which the step overwrites."""
        posterior, state = self.posteriors[number], self._states[number]
        known, own, buffers = posterior.known_kl(), posterior._parameters, posterior._buffers
        if state is None or state.mean is not own["mean"] or state.prior_mean is not buffers["prior_mean"]:
            of_mean = self._moments(posterior.mean, posterior.experts)
            rho, first_rho, second_rho = None, None, None
            if posterior.sigma_kind == "weight":
                of_rho = self._moments(posterior.rho, posterior.experts)
                rho, first_rho, second_rho = posterior.rho, of_rho["exp_avg"], of_rho["exp_avg_sq"]
            of_mean["kl"] = known.clone()
            first, second = of_mean["exp_avg"], of_mean["exp_avg_sq"]
            priors = posterior.prior_mean, posterior.prior_log_sigma
            moments = (first, second, rho, first_rho, second_rho)
            state = Posterior(posterior.mean, *moments, *priors, of_mean["step"], of_mean["kl"])
            self._states[number] = state
        elif known is not state.kl:
            state.kl.copy_(known)
        return state

    def _step_plainly(self, posterior: MeanFieldGaussian, state: Posterior, plan: _Plan, group: dict[str, Any]) -> None:
        """In torch operations: any device and type."""
        if plan.single is not None:
            move_others(plan.single)
        of_mean, of_rho = (None, None) if plan.single is None else plan.single.multiplied()
        if plan.more is not None:
            of_mean, of_rho = added(of_mean, plan.more.mean), added(of_rho, plan.more.rho)
        weights = plan.kl_weights if plan.single is None or plan.kl_weights is not None else plan.single.kl_weights()
        pull = posterior.pull()
        if posterior.sigma_kind == "unit":
            pull = posterior.expand_units(pull).expand_as(state.mean)
        for m, stepped in enumerate(plan.which(posterior.experts, self.lazy)):
            if stepped:
                gradients = (None if of_mean is None else of_mean[m], None if of_rho is None else of_rho[m])
                weight = 0.0 if weights is None else float(weights[m])
                rates = group["lr"], self.sigma_rate
                expert_step(state, m, *gradients, pull[m], weight, *rates, group["betas"], group["eps"])

    # -- state ----------------------------------------------------------------------------------------------------------------

    def state_shapes(self) -> dict[int, Shapes]:
        """By the number of the parameter, the shapes of what is kept beside the moments: experts count their own steps."""
        experts = {id(p.mean): p.experts for p in self.posteriors}
        experts |= {id(p.rho): p.experts for p in self.posteriors if p.sigma_kind == "weight"}
        return {
            number: {"step": (experts[id(parameter)],), "kl": (experts[id(parameter)],)}
            for number, parameter in enumerate(self.param_groups[0]["params"])
            if id(parameter) in experts
        }

    def state_dict(self) -> dict[str, Any]:
        """Moments, step counts, and the experts' KLs as the last step left them, unless the weights or priors changed since."""
        found = super().state_dict()
        numbers = {id(parameter): number for number, parameter in enumerate(self.param_groups[0]["params"])}
        for posterior in self.posteriors:
            number = numbers[id(posterior.mean)]
            if number in found["state"] and posterior.collector.kl_versions != posterior.kl_versions:
                found["state"][number] = {name: value for name, value in found["state"][number].items() if name != "kl"}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state; what is remembered of the weights is restored bit by bit.

        A state that does not fit (of another network, say) raises `InputError`, and nothing has changed.
        """
        check_optimizer_state(self, state_dict, self.state_shapes(), frozenset({"step", "exp_avg", "exp_avg_sq"}))
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state.update({name: value.contiguous() for name, value in state.items()})
        self._states, self._others, self._repeats = [None] * len(self.posteriors), {}, [None] * len(self.posteriors)
        for posterior in self.posteriors:
            posterior.collector.clear()
            kl = self.state.get(posterior.mean, {}).get("kl")
            if kl is not None:
                posterior.remember_kl(kl)


class _Repeat(NamedTuple):
    """The step of a layer that may come again with other numbers in the same places."""

    kind: type
    """Of the gradients."""
    state: Posterior
    parameters: list[Tensor]
    """Whose `.grad` must be empty."""
    tensors: list[Tensor]
    pointers: list[int]
    others: set[int]
    """Ids of the parameters that are stepped with the experts."""

    @classmethod
    def of(cls, posterior: MeanFieldGaussian, state: Posterior, plan: _Plan, others: list[Tensor]) -> _Repeat | None:
        """The step that was just prepared; None if it is of a kind that does not repeat itself."""
        if plan.single is None or not plan.single.tells_used or any(part is not None for part in plan[1:]):
            return None
        parameters = [*posterior.stepped_together, *others]
        tensors = [*parameters, state.prior_mean, state.prior_log_sigma]
        pointers = [tensor.data_ptr() for tensor in tensors]
        return cls(type(plan.single), state, parameters, tensors, pointers, set(map(id, others)))


class _Plan(NamedTuple):
    """What to do to one layer's experts."""

    single: Contribution | None
    """Gradients that the step reads where they are."""
    more: Push | None
    """Dense gradients."""
    kl_weights: Tensor | None
    """d loss / d KL of every expert, if that is not among the gradients."""
    stepped: list[bool] | None
    """Which experts to step; None: all or, if the update is lazy, those that had examples."""

    def which(self, experts: int, lazy: bool) -> list[bool]:
        """Which experts to step."""
        if self.stepped is not None:
            return self.stepped
        return self.single.used() if lazy and self.single is not None else [True] * experts


def _dense(posterior: MeanFieldGaussian) -> Dense | None:
    """What is in `.grad`, if there is anything.

    Unless it was moved there from what was collected, experts whose gradient is zero throughout are taken to have had no example.
    """
    mean, used = raw_grad(posterior.mean), posterior.collector.used
    rho = raw_grad(posterior.rho) if posterior.sigma_kind == "weight" else None
    if mean is None and rho is None:
        return None
    if used is None:
        used = [any(moved) for moved in zip(*[g.flatten(1).any(1).tolist() for g in (mean, rho) if g is not None], strict=True)]
    return Dense(torch.zeros_like(posterior.mean) if mean is None else mean, rho, used)
