r"""Hierarchical variational continual learning with generative replay (Hihn & Braun, 2022, generative continual learning).

A classifier and a VAE, both of MoVE layers, each trained on the HVCL objective: the classifier's utility is the log-likelihood,
the VAE's the ELBO. At a boundary every posterior becomes the prior, the VAE generates 10,000 inputs, and the classifier labels
them with its probabilities. Until the next boundary both train on

    1/2 mean loss(current batch) + 1/2 mean loss(generated batch).

The generated examples take the place of stored ones: no data are kept. Beyond the paper go `conditional` (a latent Gaussian for
each (task, label)), `separate` (a VAE for each task, as a growing mixture has experts, of which nothing is forgotten),
`labels="hard"` (the classifier's prediction, or the class an example was generated for), `labels="exact"` (an `exact` learner
beside the classifier labels; it has its default settings, learns from the first pass over each task, keeps sums and no examples,
and forgets nothing), `temperature` (soft and exact labels compared as `dgr-distill` does), `balance="tasks"` (1/t and 1 - 1/t
instead of the halves at task t), `refresh` (10,000 others when all have been replayed, for 10,000 are soon known by heart) and
`anneal` (step sizes that fall to 0 within a task: what is handed over at a boundary, as prior, teacher and generator, should not
depend on the last few batches).

Deviates from the paper as `hvcl` does: `routing` is the classifier's, `vae_routing` the VAE's, and `first_prior` that of both.
The latent prior with several experts is a learned mixture (see `LatentPrior`), where the paper trains with N(0, I) and does not
say how it draws from a mixture. On a task-free stream the boundaries are those that a generative gate finds
(`hvcl.learners.boundaries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensors_like
from hvcl.generative import Generator, MoVEVAE, move_layers
from hvcl.generative.generator import frozen, frozen_from, frozen_state
from hvcl.layers.dispatch import Routing
from hvcl.learners.base import State
from hvcl.learners.generative import DistillingConfig, GenerativeReplay, Replayed, at_least_one
from hvcl.learners.gradient import Terms
from hvcl.learners.methods.exact import Exact, ExactConfig
from hvcl.learners.methods.hvcl import HVCL, HVCLConfig
from hvcl.learners.registry import register
from hvcl.objective import Objective
from hvcl.optim import VariationalAdam
from hvcl.posteriors.mean_field import FirstPrior


@dataclass(frozen=True)
class HVCLReplayConfig(DistillingConfig, HVCLConfig):
    """Classifier and VAE of MoVE layers."""

    first_prior: FirstPrior = "zero"
    """Mean of the first prior of classifier and VAE: zero, or where the posterior starts, so that the first KLs start at 0."""
    generated: int = 10_000
    """Examples that are generated at a boundary and replayed until the next."""
    refresh: bool = False
    """Generate as many anew whenever all of them have been replayed: copies of both networks from the boundary do it."""
    labels: Literal["soft", "hard", "exact"] = "soft"
    """Soft: the classifier's probabilities; hard: its prediction, or the class generated for; exact: an `exact` learner's."""
    temperature: float = 1.0
    """Soft and exact labels: what old and new answers are divided by before they are compared (`dgr-distill` has 2)."""
    balance: Literal["half", "tasks"] = "half"
    """Weight of the current batch beside the generated one: a half, or 1/t at task t (every task counts the same)."""
    separate: bool = False
    """A VAE for each task, which starts from the one before: nothing is forgotten of it, and there is one more with each task."""
    vae_hidden: tuple[int, ...] | None = None
    """Units of the dense layers of the VAE; none takes those of the classifier."""
    vae_channels: tuple[int, ...] | None = None
    """Channels of the convolutions of the VAE; none takes those of the classifier."""
    vae_experts: int = 1
    """Experts in every layer of the VAE but the latent's."""
    latent_experts: int = 1
    """Experts of the latent mean: components of the mixture that z comes from."""
    vae_routing: Routing = "argmax"
    """Routing in the VAE: as `routing`, but the expert of a latent mean is never sampled: its component must be known."""
    vae_beta_expert: float = 0.01
    """beta2 of the VAE, weight of its experts' KL."""
    vae_learning_rate: float = 1e-3
    """Step size of the VAE's Adam."""
    anneal: bool = False
    """Let both step sizes fall linearly to 0 within every task; needs known task boundaries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(generated=self.generated, vae_experts=self.vae_experts, latent_experts=self.latent_experts)
        if not self.vae_learning_rate > 0:
            raise InputError(f"vae_learning_rate must be positive, got {self.vae_learning_rate}")
        if self.gate_input:
            raise InputError("the scores of generated examples read the classifier layer by layer: leave gate_input out")
        if self.labels == "hard" and self.temperature != 1:
            raise InputError(f"temperature softens soft labels, and labels are hard: leave it at 1, got {self.temperature}")


@register("hvcl-replay", HVCLReplayConfig)
class HVCLReplay(GenerativeReplay, HVCL):
    """Hierarchical variational continual learning with replay from a VAE of MoVE layers."""

    config: HVCLReplayConfig

    def __init__(self, problem: Problem, config: HVCLReplayConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        with self.random.active():
            vae = self._new_move_vae()
        if config.anneal and problem.task_steps is None:
            raise InputError("anneal needs the length of the tasks, which is not known on a task-free stream: leave it out")
        optimizer: torch.optim.Optimizer = (
            VariationalAdam(vae, lr=config.vae_learning_rate)
            if config.fused
            else torch.optim.Adam(vae.parameters(), lr=config.vae_learning_rate, fused=True)
        )
        self.generator = Generator(vae, optimizer, self._vae_objective(), config.separate)
        self.pool: Replayed | None = None
        """The examples that were generated at the last boundary, or (with `refresh`) since."""
        self.place = 0
        """With `refresh`: how many of the pool have been replayed."""
        self.teacher: nn.Module | None = None
        """With `refresh`: the classifier of the last boundary, which labels (unless labels are exact)."""
        self.dreamer: MoVEVAE | None = None
        """With `refresh` and one VAE for all tasks: that of the last boundary, which generates."""
        self.exact: Exact | None = None
        """With `labels="exact"`: the learner that labels. It needs no frozen copy, as it forgets nothing."""
        if config.labels == "exact":
            if problem.task_examples is None:
                raise InputError(
                    'labels="exact" must count every example once and needs the number of examples of each task, '
                    "which is not known on a task-free stream: use soft or hard labels"
                )
            self.exact = Exact(problem, ExactConfig(), seed)
        self.counted = 0
        """Examples of this task that the exact learner has learned."""
        self._progress = 0.0

    def _new_move_vae(self) -> MoVEVAE:
        config = self.config
        options = self.move_options()
        # one expert an example: else a latent mean would not come from a single one
        options.update({"top_k": 1, "routing": config.vae_routing})
        return self.new_vae(
            move_layers(config.vae_experts, config.latent_experts, options), config.vae_hidden, config.vae_channels
        )

    def _vae_objective(self) -> Objective:
        config = self.config
        return Objective(
            gate_kl=self._schedule(config.beta_gate),
            expert_kl=self._schedule(config.vae_beta_expert),
            conditional_entropy=config.conditional_entropy,
            marginal_entropy=config.marginal_entropy,
            diversity=config.diversity,
        )

    @property
    def tasks_apart(self) -> int:
        """A VAE of one task distinguishes no tasks."""
        return 1 if self.config.separate else super().tasks_apart

    @property
    def share(self) -> float:
        """One half, or 1 / t."""
        return 0.5 if self.config.balance == "half" else super().share

    def vaes(self) -> Sequence[MoVEVAE]:
        """The VAE; if they are separate, those of the tasks that are over, and the current one if it has begun to learn."""
        current, past = self.generator.vae, self.generator.past
        return [*past, current] if not past or bool(current.prior.examples.sum() > 0) else past

    def remember(self) -> None:
        """Generate the pool of replayed examples and label it."""
        self.generator.end_task()
        if self.config.refresh:
            self.teacher = frozen(self.network) if self.exact is None else None
            self.dreamer = None if self.config.separate else frozen(self.generator.vae)
        self.network.eval()
        self.pool = self.make_replay(self.config.generated, self.network, self.vaes())
        self.place = 0
        self.network.train()

    def draw(self, count: int) -> Replayed | None:
        """Any of those that were generated at the boundary; with `refresh` the next ones, each once."""
        if self.pool is None:
            return None
        size = len(self.pool.x)
        if not self.config.refresh:
            rows = torch.randint(size, (count,), device=self.device)
        else:
            if self.place + count > size:
                teacher = self.network if self.teacher is None else self.teacher
                self.pool = self.make_replay(size, teacher, [self.dreamer] if self.dreamer else self.generator.past)
                self.place = 0
            rows = torch.arange(self.place, self.place + count, device=self.device) % size  # a batch may be larger than the pool
            self.place += count
        return Replayed(*(None if column is None else column[rows] for column in self.pool))  # type: ignore[arg-type]

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """A step; what labels exactly learns from the first pass over a task only, for it must count no example twice."""
        terms = super().learn(x, y, task)
        new = min(len(x), self.task_examples - self.counted)
        if self.exact is not None and new > 0:
            self.exact.observe(x[:new].cpu(), y[:new].cpu(), None if task is None else task[:new].cpu())
            self.counted += new
        return terms

    def end_task(self) -> None:
        """Generate the next pool; the exact learner opens another expert."""
        if self.exact is not None:
            self.exact.end_task()
            self.counted = 0
        super().end_task()

    def answers(self, network: nn.Module, x: Tensor, task: Tensor | None) -> Tensor:
        """Log-probabilities of the exact learner, if that is what labels."""
        if self.exact is None:
            return super().answers(network, x, task)
        p = self.exact.predict(x.cpu(), None if task is None else task.cpu())
        return p.clamp_min(1e-30).log().to(self.device)

    def targets(self, logits: Tensor, condition: Tensor) -> Tensor:
        """Probabilities, or one-hot labels."""
        if self.config.labels != "hard":
            return super().targets(logits, condition)
        return self.hard_targets(logits, condition)

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """The classifier's objective; the VAE's is at the same place of its schedules."""
        self._progress = self.progress
        if self.config.anneal:
            left = max(0.0, 1 - self._progress)
            self.optimizer.param_groups[0]["lr"] = left * self.config.learning_rate
            self.generator.optimizer.param_groups[0]["lr"] = left * self.config.vae_learning_rate
        return super().loss(x, y, task)

    def train_generator(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """The VAE's step, on the same examples; a VAE of this task alone has no past to replay."""
        if self.config.separate:
            self.replayed = None
        inputs, weights, condition = self.with_replay(x, y)
        return self.generator.learn(inputs, weights, condition, len(x), self.task_examples, self._progress)

    @property
    def memory(self) -> str:
        """That of the learner which labels, if it is an `exact` one."""
        return super().memory if self.exact is None else self.exact.memory

    def state_dict(self) -> State:
        """Both networks with posteriors, priors and gates, their copies, and what was generated."""
        pool = None if self.pool is None else {name: value for name, value in self.pool._asdict().items() if value is not None}
        exact = {} if self.exact is None else {"exact": self.exact.state_dict(), "counted": self.counted}
        return (
            super().state_dict()
            | exact
            | {
                "generator": self.generator.state_dict(),
                "pool": pool,
                "place": self.place,
                "copies": {"teacher": frozen_state(self.teacher), "dreamer": frozen_state(self.dreamer)},
            }
        )

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.generator.load_state_dict(state["generator"])
        self.pool = None if state["pool"] is None else self._restored_pool(state["pool"])
        self.place = int(state["place"])
        if self.exact is not None:
            self.exact.restore(state["exact"])
            self.counted = int(state["counted"])
        self.teacher = frozen_from(self.network, state["copies"]["teacher"])
        self.dreamer = frozen_from(self.generator.vae, state["copies"]["dreamer"])

    def _restored_pool(self, pool: State) -> Replayed:
        count, problem = len(pool["x"]), self.problem
        like = {
            "x": torch.empty(count, *problem.input_shape, device=self.device),
            "targets": torch.empty(count, problem.outputs, device=self.device),
            "condition": torch.empty(count, dtype=torch.long, device=self.device),
        }
        if problem.task_outputs is not None:
            like["task"] = like["condition"]
        saved = tensors_like(pool, like)
        return Replayed(saved["x"], saved["targets"], saved.get("task"), saved["condition"])
