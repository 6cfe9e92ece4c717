r"""Hierarchical variational continual learning (Hihn & Braun, 2022) for actor and critics.

All networks are stacks of MoVE layers (`hvcl.layers.MoVEStack`). The utility of the actor is min Q - alpha log pi, that of the
critics -J_Q; both pay for moving their gates and experts away from their priors, and at a boundary every posterior becomes the
prior.
N_t is the number of steps of the task. No task id is needed at test time.

Deviates from the paper: local reparameterisation instead of flipout (same marginals, less noise in the gradients), and by default
one sigma per output unit (`sigma`), which costs one matrix product less a layer. `routing` and `first_prior` are those of the
classifier, `hvcl.learners.methods.hvcl`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.layers import MoVELinear, MoVEStack, consolidate
from hvcl.layers.dispatch import Routing
from hvcl.objective import Objective
from hvcl.posteriors.mean_field import FirstPrior, SigmaKind
from hvcl.rl.agent import State
from hvcl.rl.environments import Array
from hvcl.rl.methods.registry import register
from hvcl.rl.networks import start_small
from hvcl.rl.part import Part, Terms, VariationalPart
from hvcl.rl.sac import SAC, SACConfig


@dataclass(frozen=True)
class HVCLSACConfig(SACConfig):
    """Soft actor-critic of MoVE layers."""

    experts: int = 4
    """Experts in every layer."""
    sigma: SigmaKind = "unit"
    """One sigma per weight or per output unit."""
    initial_sigma: float = 0.02
    """Posterior sigma at the start, as a fraction of the He standard deviation. Small: critics do not bear much noise."""
    routing: Routing = "argmax"
    """The most probable expert weighted by p(m|x) (argmax) or by 1 (straight-through), or one sampled in training."""
    first_prior: FirstPrior = "zero"
    """The first prior: mean zero and He's sigma, or the posterior at the start (KL 0), of which the small sigma holds firmly."""
    beta_gate: float = 0.002
    """beta1, weight of the gates' KL."""
    beta_expert: float = 1.0
    """beta2, weight of the experts' KL (which is divided by the number of steps of a task)."""
    conditional_entropy: float = 0.01
    """w_cond, weight of H(M|X): positive values make the gates certain."""
    diversity: float = 0.001
    """w_div, weight of the log determinant of the experts' kernel matrix."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.experts < 1:
            raise InputError(f"experts must be at least 1, got {self.experts}")


class HVCLPart(VariationalPart):
    """A network of MoVE layers with its objective."""

    def __init__(self, network: nn.Module, config: HVCLSACConfig) -> None:
        super().__init__(network, config.learning_rate)
        self.objective = Objective(
            gate_kl=config.beta_gate,
            expert_kl=config.beta_expert,
            conditional_entropy=config.conditional_entropy,
            diversity=config.diversity,
        )
        self.num_data = 1
        """N_t, the number of examples that the experts' KL is divided by."""

    def priced(self, loss: Tensor, progress: float) -> tuple[Tensor, Terms]:
        """The objective, with minus the loss as utility."""
        total, terms = self.objective(-loss, self.network, self.num_data, progress)
        del terms["utility"]
        return total, terms

    def end_task(self, inputs: Tensor, curvature: Tensor) -> None:
        """Every posterior becomes the prior of the next task."""
        consolidate(self.network)

    def state_dict(self) -> State:
        """As any part's, and the objective's."""
        return super().state_dict() | {"objective": self.objective.state_dict(), "num_data": self.num_data}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.objective.load_state_dict(state["objective"])
        self.num_data = int(state["num_data"])


@register("hvcl", HVCLSACConfig)
class HVCL(SAC):
    """SAC of MoVE layers: hierarchical variational continual learning, as in the paper."""

    config: HVCLSACConfig
    actor: HVCLPart
    critic: HVCLPart

    def make_part(self, inputs: int, outputs: int | None) -> Part:
        """Networks of MoVE layers."""
        config = self.config
        stack = MoVEStack(
            (inputs, *config.hidden, outputs or 1),
            config.experts,
            copies=1 if outputs is not None else 2,
            side_by_side=True,
            estimator="local",
            sigma=config.sigma,
            initial_sigma=config.initial_sigma,
            routing=config.routing,
            first_prior=config.first_prior,
        )
        start_small(stack)
        return HVCLPart(stack, config)

    def on_task_start(self, task: int, steps: int) -> None:
        """Count anew; N_t is the number of steps."""
        super().on_task_start(task, steps)
        self.actor.num_data = self.critic.num_data = max(1, steps)

    @torch.no_grad()
    def usage(self, observations: Array) -> dict[str, list[float]]:
        """For every layer of the actor, the share of the observations that goes to each expert."""
        if self.config.experts == 1:
            return {}
        self.actor.mirror(torch.from_numpy(self.check(observations)))
        found = {}
        for number, layer in enumerate(layer for layer in self.actor.mirror.modules() if isinstance(layer, MoVELinear)):
            assert layer.gate_log_probabilities is not None
            counts = torch.bincount(layer.gate_log_probabilities.argmax(1), minlength=self.config.experts)
            found[f"layer {number + 1}"] = (counts / counts.sum()).tolist()
        return found
