r"""A generative gate in front of growing MoVE networks: hierarchical variational continual learning without boundaries.

    p(y|x) = sum_m p(m|x) p(y|x,m)

- p(m|x) is a `GenerativeGate` on fixed features phi(x): conjugate statistics that only add up, and a Chinese-restaurant prior
  that opens an expert where the stream shifts. It cannot forget.
- p(y|x,m) is a network of MoVE layers (`hvcl.learners.HVCL`, with its objective), one for every expert of the gate. A batch's
  examples go to their experts' networks, and only those learn. When the gate switches to another expert, the posterior of
  the previous one becomes its prior: task-free consolidation.
- With `front` the networks stand on phi(x), too, instead of learning their first layers: fixed features of pictures are quick,
  and all that is learned is learned above them.

Where task boundaries are known every task is an expert of its own. In Task-IL the task id is given, in training and in
prediction: it determines the expert, and the gate is not used.

Deviates from the paper: the gate on top is generative and exact, where the paper's hierarchy has learned gates throughout; those
are still inside each network (`experts` a layer, one by default: an expert's network then is a plain variational one).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.features import FeatureMap
from hvcl.learners.base import Learner, State
from hvcl.learners.experts import ExpertLog
from hvcl.learners.feature_gate import FeatureGate, FeatureGateConfig
from hvcl.learners.methods.hvcl import HVCL, HVCLConfig
from hvcl.learners.registry import register
from hvcl.learners.warmup import Batch, check_warmup

NEGLIGIBLE = 1e-4
"""Experts with less than this probability are left out of predictions."""


@dataclass(frozen=True)
class GrowingConfig(FeatureGateConfig, HVCLConfig):
    """Every expert's network and objective, and the gate in front."""

    experts: int = 1
    """Experts in every layer of every expert's network."""
    beta_expert: float = 0.01
    """beta2, weight of the experts' KL (which is divided by the number of examples)."""
    schedule: Literal["constant", "cyclic", "target"] = "constant"
    """How the betas evolve: constant, cyclic annealing within each task, or by dual ascent towards target_bits."""
    front: bool = False
    """The experts' networks take the gate's features as their inputs (dense layers only), instead of the inputs themselves."""
    warm_start: bool = False
    """A new expert's network starts from the posterior of the one before it (and has it as prior), else from scratch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_warmup(self.warmup)
        if self.front and self.channels:
            raise InputError("networks on fixed features have no convolutions: leave channels empty, or front out")


@register("hvcl-growing", GrowingConfig)
class Growing(Learner):
    """A generative gate that opens MoVE networks as the stream needs them; no boundaries needed.

    Args:
        problem: shapes, and what is known about the tasks.
        config: settings.
        seed: of the networks and the features.
        features: a custom feature map for the gate (and, with `front`, the networks), e.g. a `FrozenModule`, fitted or not; None:
            chosen by the settings.
    """

    expert_log: ExpertLog

    def __init__(self, problem: Problem, config: GrowingConfig, seed: int, features: FeatureMap | None = None) -> None:
        super().__init__(problem)
        self.config, self.seed = config, seed
        growing = problem.task_examples is None
        self.gate = FeatureGate(tuple(problem.input_shape), config, seed, growing=growing, features=features)
        self.members: list[HVCL] = []
        self.current: int | None = None
        """The expert of most of the last batch; None right after a known boundary."""
        self.seen = 0
        """Examples since the last known boundary."""
        self.tasks: list[int] = []
        """Task-IL: the task of each expert."""
        self.step = 0
        self.expert_log = ExpertLog()
        if not config.front:
            self._open_up_to(0)

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """The gate divides the batch, and each expert's network takes one step on its part; terms are means over examples.

        With `front`, the networks learn the examples of the warm-up when it is over.
        """
        if not self.gate.ready and self.config.front:
            waiting = [*self.gate.warmup.batches, (x, y, task)]
            self.gate.observe(x, y, task)
            return self._learn_waiting(waiting) if self.gate.ready else {}
        inputs = self.gate.embed(x) if self.config.front else x
        experts = self._by_task(task) if task is not None else self._by_gate(inputs, y)
        return self._learn(inputs, y, task, experts)

    def _by_gate(self, inputs: Tensor, y: Tensor) -> Tensor:
        """The experts that the gate assigns; where boundaries are known it learns every example once, in a task's first epoch."""
        before, count = self.seen, self.problem.examples_of(len(self.members) - 1)
        self.seen += len(y)
        if count is not None and before >= count and self.current is not None and self.gate.ready:
            return torch.full_like(y, self.current)
        return self.gate.observe_features(inputs, y) if self.config.front else self.gate.observe(inputs, y)

    def _learn_waiting(self, batches: list[Batch]) -> dict[str, float]:
        """The networks learn the batches of the warm-up, which the gate's first expert (in Task-IL: their task's) has learned."""
        terms: dict[str, float] = {}
        for x, y, task in batches:
            self.seen += len(y)
            experts = torch.zeros_like(y) if task is None else self._by_task(task)
            terms = self._learn(self.gate.embed(x), y, task, experts)
        return terms

    def _learn(self, x: Tensor, y: Tensor, task: Tensor | None, experts: Tensor) -> dict[str, float]:
        """Every expert's network takes a step on its part of a batch of inputs (or features)."""
        most = int(experts.mode()[0])
        if self.current is not None and most != self.current:
            self.members[self.current].end_task()  # its posterior becomes its prior
        self.current = most
        sums: dict[str, float] = {}
        for expert in experts.unique().tolist():
            self._open_up_to(expert)
            mine = experts == expert
            terms = self.members[expert].observe(x[mine], y[mine], None if task is None else task[mine])
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value * float(mine.double().mean())
        self.expert_log.record(self.step, experts, y.cpu())
        self.step += 1
        return sums | {"gate_experts": float(len(self.members))}

    def _by_task(self, task: Tensor) -> Tensor:
        """Task-IL: the expert of each example's task; a new task gets a new expert."""
        for number in task.unique().tolist():
            if number not in self.tasks:
                self.tasks.append(number)
        return torch.tensor([self.tasks.index(number) for number in task.tolist()])

    def _open_up_to(self, expert: int) -> None:
        """Make the networks of all experts up to this one that have none yet."""
        while len(self.members) <= expert:
            number, problem = len(self.members), self.problem
            if problem.task_examples is not None and problem.task_steps is not None:
                # every network learns one task: the length of its own is what it needs to know
                place = min(number, len(problem.task_examples) - 1)
                examples, steps = (problem.task_examples[place],), (problem.task_steps[place],)
                problem = dataclasses.replace(problem, task_examples=examples, task_steps=steps)
            if self.config.front:
                assert self.gate.features is not None
                problem = dataclasses.replace(problem, input_shape=(self.gate.features.features,))
            member = HVCL(problem, self.config, self.seed + 7919 * number)
            if self.config.warm_start and self.members:
                member.network.load_state_dict(self.members[-1].network.state_dict())
                member.end_task()
            self.members.append(member)

    def end_task(self) -> None:
        """The current expert's posterior becomes its prior, and the next examples open another expert."""
        waiting = self.gate.new_expert()
        if waiting and self.config.front:
            self._learn_waiting(waiting)
        if self.current is not None:
            self.members[self.current].end_task()
        self.current, self.seen = None, 0

    # -- prediction ------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def infer(self, x: Tensor, task: Tensor | None) -> Tensor:
        """p(y|x) = sum_m p(m|x) p(y|x,m)."""
        if self.config.front:
            if not self.members:  # nothing is learned during the warm-up
                return torch.full((len(x), self.problem.outputs), 1 / self.problem.outputs)
            x = self.gate.embed(x)
        self.expert_probabilities = weights = self.responsibilities(x, task)
        mixed = torch.zeros(len(x), self.problem.outputs)
        for expert, member in enumerate(self.members):
            rows = (weights[:, expert] > NEGLIGIBLE).nonzero().flatten()
            if len(rows):
                answers = member.predict(x[rows], None if task is None else task[rows])
                mixed.index_add_(0, rows, weights[rows, expert, None] * answers)
        return mixed / mixed.sum(1, keepdim=True)

    @torch.no_grad()
    def responsibilities(self, x: Tensor, task: Tensor | None = None) -> Tensor:
        """p(m|x) ``[B, experts]`` of inputs or, with `front`, of their features.

        In Task-IL 1 for the expert of the task, and uniform for a task that was never trained on.
        """
        if task is not None:
            known = torch.tensor([[number == own for own in self.tasks] or [True] for number in task.tolist()]).float()
            known = torch.where(known.sum(1, keepdim=True) > 0, known, 1.0)
            return known / known.sum(1, keepdim=True)
        return self.gate.probabilities_of(x) if self.config.front else self.gate.probabilities(x)

    @property
    def num_parameters(self) -> int:
        """Weights of all networks, and the gate's statistics."""
        return self.gate.num_parameters + sum(member.num_parameters for member in self.members)

    # -- state -----------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Networks, optimisers, random states, features, gate and log."""
        states = [member.state_dict() for member in self.members]
        return {
            "network": {f"{i}.{name}": value for i, state in enumerate(states) for name, value in state["network"].items()},
            "members": [{name: value for name, value in state.items() if name != "network"} for state in states],
            **self.gate.state_dict(),
            "tasks": list(self.tasks),
            "current": self.current,
            "seen": self.seen,
            "step": self.step,
            "log": self.expert_log.state_dict(),
        }

    def check_savable(self) -> None:
        """A custom feature map is not in the settings."""
        self.gate.check_savable()

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.seed = int(state["seed"])
        self.gate.load_state_dict(state)
        self.members = []
        self._open_up_to(len(state["members"]) - 1)
        for number, member in enumerate(self.members):
            prefix = f"{number}."
            network = {k.removeprefix(prefix): v for k, v in state["network"].items() if k.startswith(prefix)}
            member.restore(state["members"][number] | {"network": network})
        self.tasks = [int(task) for task in state["tasks"]]
        self.current = None if state["current"] is None else int(state["current"])
        self.step, self.seen = int(state["step"]), int(state["seen"])
        self.expert_log.load_state_dict(state["log"])
