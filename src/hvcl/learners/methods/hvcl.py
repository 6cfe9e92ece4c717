r"""Hierarchical variational continual learning (Hihn & Braun, 2022).

Every layer is a mixture of M variational experts with a gate. With U the log-likelihood, task t minimises, per example,

    - U + beta1 * sum_layers KL[p_t(m|x) || p_{1:t-1}(m|x)]
      + beta2 / N_t * sum_layers sum_m usage(m) KL[q_t(theta_m) || q_{1:t-1}(theta_m)]
      + w_cond H(M|X) + w_marg H(M) - w_div logdet K,

and at a boundary every posterior becomes the prior. No task id is needed at test time (task-agnostic); the boundaries in
training are. A task-free stream announces no boundaries: then the priors stay the first ones, and N_t and the length of a
cycle are settings.

The gate is a part that can be chosen: `gate="softmax"` is the paper's, one in every layer on the layer's own input;
`gate="generative"` is one gate for the whole network, which chooses the path through all layers and opens experts as the stream
needs them, without boundaries: that is `hvcl-growing`.

Deviates from the paper where the paper contradicts itself or its code: the task loss teaches the gate, because the chosen expert
is weighted by p(m|x), or by p / stop_gradient(p) (`routing="straight-through"`), which is 1 and keeps a deep network's signal;
H(M|X) is minimised; the diversity is the log determinant of the Wasserstein-2 kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import copied
from hvcl.layers import MoVEConv2d, MoVELinear, PooledInput, WithContext, consolidate, sampling
from hvcl.layers.dispatch import Routing
from hvcl.layers.options import Estimator, MoVEOptions, Usage
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientConfig, GradientLearner, Terms
from hvcl.learners.registry import register
from hvcl.networks import normalised
from hvcl.objective import Constant, Cyclic, Objective, Schedule, TargetInformation
from hvcl.optim import VariationalAdam
from hvcl.posteriors.mean_field import FirstPrior, MeanFieldGaussian, SigmaKind

INPUT_CELLS = 8
"""Cells across and down of what gates see of the network's input."""


@dataclass(frozen=True)
class HVCLConfig(GradientConfig):
    """The network of MoVE layers and the weights of the objective."""

    experts: int = 2
    """Experts in every layer."""
    top_k: int = 1
    """Experts evaluated per example."""
    estimator: Estimator = "flipout"
    """Weight noise: flipout, local reparameterisation, a few weight draws a batch, or mean (none)."""
    sigma: SigmaKind = "weight"
    """One sigma per weight or per output unit."""
    routing: Routing = "argmax"
    """The most probable expert weighted by p(m|x) (argmax) or by 1 (straight-through), or one sampled from the gate."""
    usage: Usage = "gate"
    """Weight of an expert's KL: the gate's mean mass on it, or uniform (1 for every expert)."""
    initial_sigma: float = 0.1
    """Posterior sigma at the start, as a fraction of the He standard deviation."""
    prior_sigma: float | None = None
    """Standard deviation of the first prior; none takes the He standard deviation (at the start: the posterior's own sigma)."""
    first_prior: FirstPrior = "zero"
    """Mean of the first prior: zero, or where the posterior starts, so that the KL of the first task starts at 0."""
    retention: float = 1.0
    """How many times as firmly as by Bayes' rule, which is 1, earlier tasks are held (lambda of Loo et al., 2021)."""
    sigma_rate: float = 1.0
    """Step size of the log sigmas over the learning rate: with 1 they hardly move within a task."""
    gate: Literal["softmax", "generative"] = "softmax"
    """The paper's gate in every layer, or one generative gate for all of them: that is the method hvcl-growing."""
    gate_grid: int = 1
    """Cells across and down that the gates of convolutions pool their input over; 1: they see no places."""
    gate_input: bool = False
    """The gates also read the network's input (pictures: averaged over 8 x 8 cells)."""
    layer_norm: bool = False
    """Layer normalisation after every layer but the head (convolutions: over channels and places)."""
    beta_gate: float = 0.002
    """beta1, weight of the gate's KL."""
    beta_expert: float = 0.75
    """beta2, weight of the experts' KL (which is divided by the number of examples)."""
    schedule: Literal["constant", "cyclic", "target"] = "cyclic"
    """How the betas evolve: constant, cyclic annealing within each task, or by dual ascent towards target_bits."""
    cycles: int = 4
    """Cycles per task of the cyclic schedule."""
    target_bits: float = 1.0
    """Target schedule: mean KL in bits that gate and experts may spend per example, each."""
    conditional_entropy: float = 0.01
    """w_cond, weight of H(M|X): positive values make the gate certain."""
    marginal_entropy: float = 0.0
    """w_marg, weight of H(M): positive values prefer fewer experts, negative values spread the load."""
    diversity: float = 0.01
    """w_div, weight of the log determinant of the experts' kernel matrix."""
    kernel_width: float | None = None
    """Width of the diversity kernel; none takes the median heuristic, frozen per task."""
    num_data: int = 10_000
    """N_t on a task-free stream, where the number of examples of a task is not known."""
    cycle_steps: int = 1_000
    """Steps of the cyclic schedule's task on a task-free stream, where the length of a task is not known."""
    fused: bool = True
    """Use the optimiser that updates an expert's weights in one pass (`hvcl.optim.VariationalAdam`), else torch's Adam."""
    samples: int = 0
    """Posterior samples to average in predictions; 0 predicts with the posterior means."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.experts < 1 or not 1 <= self.top_k <= self.experts:
            raise InputError(f"experts must be at least 1, and top_k between 1 and them, got {self.experts} and {self.top_k}")
        if self.num_data < 1 or self.cycle_steps < 1:
            raise InputError("num_data and cycle_steps must be at least 1")
        if self.sigma_rate < 0 or self.retention < 0:
            raise InputError(f"sigma_rate and retention must be at least 0, got {self.sigma_rate} and {self.retention}")
        if self.samples < 0:
            raise InputError(f"samples must be at least 0, got {self.samples}")


@register("hvcl", HVCLConfig, choices={"gate": {"generative": "hvcl-growing"}})
class HVCL(GradientLearner):
    """Hierarchical variational continual learning with mixture-of-variational-experts layers."""

    config: HVCLConfig

    gates: ClassVar[str] = "softmax"
    """The kind of gates that this class has."""

    def __init__(self, problem: Problem, config: HVCLConfig, seed: int) -> None:
        if config.gate != self.gates:
            raise InputError(f"{type(self).__name__} has {self.gates} gates: create('hvcl', ..., gate={config.gate!r}) chooses")
        super().__init__(problem, config, seed)
        self.objective = Objective(
            gate_kl=self._schedule(config.beta_gate),
            expert_kl=self._schedule(config.beta_expert),
            conditional_entropy=config.conditional_entropy,
            marginal_entropy=config.marginal_entropy,
            diversity=config.diversity,
        )
        self.task = 0
        self.step = 0

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam, which updates experts in one pass unless `fused` is off."""
        rate, ratio = self.config.learning_rate, self.config.sigma_rate
        if self.config.fused:
            return VariationalAdam(self.network, lr=rate, sigma_rate=ratio)
        sigmas = [m.rho for m in self.network.modules() if isinstance(m, MeanFieldGaussian)]
        known = {id(sigma) for sigma in sigmas}
        others = [parameter for parameter in self.network.parameters() if id(parameter) not in known]
        groups: list[dict[str, Any]] = [{"params": others}, {"params": sigmas, "lr": rate * ratio}]
        return torch.optim.Adam(groups, lr=rate, fused=True)

    def _schedule(self, beta: float) -> Schedule:
        match self.config.schedule:
            case "constant":
                return Constant(beta)
            case "cyclic":
                return Cyclic(beta, self.config.cycles)
            case "target":
                return TargetInformation(self.config.target_bits, initial_beta=beta)

    def move_options(self) -> MoVEOptions:
        """The options that every MoVE layer of the network is built with."""
        config = self.config
        return {
            "top_k": config.top_k,
            "estimator": config.estimator,
            "sigma": config.sigma,
            "routing": config.routing,
            "usage": config.usage,
            "initial_sigma": config.initial_sigma,
            "prior_sigma": config.prior_sigma,
            "first_prior": config.first_prior,
            "retention": config.retention,
            "kernel_width": config.kernel_width,
        }

    def build(self) -> nn.Module:
        """The same architecture as the plain networks, of MoVE layers."""
        config, options = self.config, self.move_options()
        reader = PooledInput(INPUT_CELLS)
        context = reader.features(self.network_input_shape) if config.gate_input else 0
        more: dict[str, Any] = {"experts": config.experts, "context": context, **options}
        network = self.assemble(
            dense=partial(MoVELinear, **more),
            conv=partial(MoVEConv2d, kernel_size=3, stride=2, padding=1, gate_grid=config.gate_grid, **more),
        )
        network = self.with_norms(network)
        return WithContext(network, reader) if context and config.experts > 1 else network

    def with_norms(self, network: nn.Sequential) -> nn.Sequential:
        """The network with the normalisation that the settings ask for."""
        return normalised(network) if self.config.layer_norm else network

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step; one that fails is not counted by the objective either."""
        counted = copied(self.objective.state_dict())
        try:
            return super().learn(x, y, task)
        except BaseException:
            self.objective.load_state_dict(counted)
            raise

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """The objective with the log-likelihood as utility."""
        total, terms = self.objective(-self.cross_entropy(x, y, task), self.network, self.task_examples, self.progress)
        self.step += 1
        return {"loss": total, **terms}

    @property
    def task_examples(self) -> int:
        """N_t: the number of examples of the current task where it is known, else `num_data`."""
        return self.problem.examples_of(self.task) or self.config.num_data

    @property
    def progress(self) -> float:
        """Fraction of the task that is done; on a task-free stream, of `cycle_steps`."""
        steps = self.problem.steps_of(self.task)
        if steps is not None:
            return self.step / steps
        return self.step % self.config.cycle_steps / self.config.cycle_steps

    def end_task(self) -> None:
        """Every posterior becomes the prior of the next task."""
        consolidate(self.network)
        self.task += 1
        self.step = 0

    def probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """The posterior-mean network, or the mean over posterior samples."""
        if not self.config.samples:
            return super().probabilities(x, task)
        with self.random.active(keep=False), sampling(self.network):
            draws = [self.logits(x, task).softmax(1) for _ in range(self.config.samples)]
        return torch.stack(draws).mean(0)

    def state_dict(self) -> State:
        """Network with posteriors, priors and gates; optimiser; schedules; position; random state."""
        return super().state_dict() | {"objective": self.objective.state_dict(), "task": self.task, "step": self.step}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.objective.load_state_dict(state["objective"])
        self.task, self.step = int(state["task"]), int(state["step"])
