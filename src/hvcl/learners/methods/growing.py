r"""A generative gate in front of growing MoVE networks: hierarchical variational continual learning without boundaries.

    p(y|x) = sum_m p(m|x) p(y|x,m)

- p(m|x) is a `GenerativeGate` on fixed features phi(x): conjugate statistics that only add up, and a Chinese-restaurant prior
  that opens an expert where the stream shifts. It cannot forget.
- p(y|x,m) is a network of MoVE layers (`hvcl.learners.HVCL`, with its objective), one for every expert of the gate. A batch's
  examples go to their experts' networks, and only those learn. When the gate hands over to another expert, the posterior of
  the one it leaves becomes its prior: task-free consolidation.

With told boundaries every task is an expert of its own. In Task-IL the task is given, in training and in prediction: it is the
expert, and no gate is asked.

Deviates from the paper: the gate on top is generative and exact, where the paper's hierarchy has learned gates throughout; those
are still inside each network (`experts` a layer, one by default: an expert's network then is a plain variational one).
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.features import FeatureMap, PatchFeatures, is_picture
from hvcl.gates import GenerativeGate
from hvcl.learners.base import Learner, State
from hvcl.learners.experts import ExpertLog
from hvcl.learners.methods.hvcl import HVCL, HVCLConfig
from hvcl.learners.registry import register

NEGLIGIBLE = 1e-4
"""Experts with less than this probability are not asked."""


@dataclass(frozen=True)
class GrowingConfig(HVCLConfig):
    """Every expert's network and objective, and the gate in front."""

    experts: int = 1
    """Experts in every layer of every expert's network."""
    beta_expert: float = 0.01
    """beta2, weight of the experts' KL (which is divided by the number of examples)."""
    schedule: Literal["constant", "cyclic", "target"] = "constant"
    """How the betas evolve: constant, cyclic annealing within each task, or by dual ascent towards target_bits."""
    warm_start: bool = False
    """A new expert's network starts from the posterior of the one before it (and has it as prior), else from scratch."""
    features: Literal["auto", "patches", "inputs"] = "auto"
    """What the gate sees: whitened patches, the inputs, or (auto) patches of pictures and else the inputs."""
    filters: int = 160
    """Patches: number of filters. There are 2 * grid^2 features a filter."""
    sizes: tuple[int, ...] = (7,)
    """Patches: their sizes in pixels."""
    grid: int = 3
    """Patches: cells across and down that responses are pooled over."""
    covariance: Literal["tied", "diagonal"] = "tied"
    """Covariance of the gate's Gaussians: one full matrix for all, or a diagonal for each."""
    temperature: float = 3.0
    """Of the gate's likelihoods: one is Bayes' rule, larger ones make up for features that are not Gaussian."""
    concentration: float = 0.01
    """Concentration of the gate's Chinese-restaurant prior: larger opens experts more readily."""
    window: int = 128
    """Examples that make it worth while to test for a shift; smaller batches are tested together."""
    warmup: int = 256
    """Examples that the gate's features are taken from. They are kept until then, and all go to the first expert."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup < 2:
            raise InputError(f"warmup must be at least 2, got {self.warmup}")


@register("hvcl-growing", GrowingConfig)
class Growing(Learner):
    """A generative gate that opens MoVE networks as the stream needs them; no boundaries needed.

    Args:
        problem: shapes, and what is told.
        config: settings.
        seed: of the networks and the features.
        features: a feature map of one's own for the gate, e.g. a `FrozenModule`, fitted or not; the settings' choice if None.
    """

    expert_log: ExpertLog

    def __init__(self, problem: Problem, config: GrowingConfig, seed: int, features: FeatureMap | None = None) -> None:
        super().__init__(problem)
        if features is not None and features.input_shape != tuple(problem.input_shape):
            raise InputError(f"the feature map takes {features.input_shape}, the problem's inputs are {problem.input_shape}")
        self.config, self.seed = config, seed
        self.given = self.features = features
        self.gate: GenerativeGate | None = None
        self.members: list[HVCL] = []
        self.current: int | None = None
        """The expert that most of the last batch went to; none right after a boundary."""
        self.tasks: list[int] = []
        """Task-IL: the task of each expert."""
        self.waiting: list[tuple[Tensor, Tensor]] = []
        self.step = 0
        self.expert_log = ExpertLog()
        self._open_up_to(0)
        if features is not None and features.fitted:
            self._make_gate(features)

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """The gate divides the batch, and each expert's network takes one step on its part; terms are means over examples."""
        experts = self._by_task(task) if task is not None else self._by_gate(x, y)
        most = int(experts.mode()[0])
        if self.current is not None and most != self.current:
            self.members[self.current].end_task()  # handed over: its posterior becomes its prior
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
        """Task-IL: the expert of each example's task; a task that comes for the first time gets one."""
        for number in task.unique().tolist():
            if number not in self.tasks:
                self.tasks.append(number)
        return torch.tensor([self.tasks.index(number) for number in task.tolist()])

    def _by_gate(self, x: Tensor, y: Tensor) -> Tensor:
        """The gate's choice. Before there are features, all examples belong to the first expert."""
        if self.gate is None:
            self.waiting.append((x.clone(), y.clone()))
            if sum(len(y) for _, y in self.waiting) >= self.config.warmup:
                self._warm_up()
            return torch.zeros_like(y)
        assert self.features is not None
        return self.gate.observe(self.features(x), y)

    def _warm_up(self) -> None:
        """Take the features from the examples that wait; the gate's first expert learns them."""
        waiting, self.waiting = self.waiting, []
        x, y = (torch.cat(parts) for parts in zip(*waiting, strict=True))
        features = self.features or self._new_features("patches" if self._sees_pictures(x) else "inputs")
        features.fit(x)
        self._make_gate(features).learn(features(x), torch.zeros_like(y), y)

    def _sees_pictures(self, x: Tensor) -> bool:
        return self.config.features == "patches" or (self.config.features == "auto" and is_picture(x) and min(x.shape[2:]) >= 16)

    def _new_features(self, kind: str) -> FeatureMap:
        shape, config = self.problem.input_shape, self.config
        if kind == "inputs":
            return Inputs(shape)
        return PatchFeatures(shape, config.filters, sizes=config.sizes, grid=config.grid, mirror=False, seed=self.seed)

    def _make_gate(self, features: FeatureMap) -> GenerativeGate:
        config = self.config
        told = self.problem.task_examples is not None
        self.features = features
        self.gate = GenerativeGate(
            features.features,
            covariance=config.covariance,
            concentration=config.concentration,
            temperature=config.temperature,
            window=config.window,
            growing=not told,
        )
        return self.gate

    def _open_up_to(self, expert: int) -> None:
        """Networks for all experts up to this one."""
        while len(self.members) <= expert:
            number, problem = len(self.members), self.problem
            if problem.task_examples is not None and problem.task_steps is not None:
                # of what the stream tells, its own task's part
                place = min(number, len(problem.task_examples) - 1)
                examples, steps = (problem.task_examples[place],), (problem.task_steps[place],)
                problem = dataclasses.replace(problem, task_examples=examples, task_steps=steps)
            member = HVCL(problem, self.config, self.seed + 7919 * number)
            if self.config.warm_start and self.members:
                member.network.load_state_dict(self.members[-1].network.state_dict())
                member.end_task()
            self.members.append(member)

    def end_task(self) -> None:
        """Told: the posterior becomes the prior, and what comes next is another expert's."""
        if self.waiting:
            self._warm_up()
        if self.current is not None:
            self.members[self.current].end_task()
        if self.gate is not None:
            self.gate.new_expert()
        self.current = None

    # -- prediction ------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def infer(self, x: Tensor, task: Tensor | None) -> Tensor:
        """sum_m p(m|x) p(y|x,m)."""
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
        """p(m|x) of every expert ``[B, experts]``; in Task-IL the expert of the task, all of them alike for an unknown task."""
        if task is not None:
            known = torch.tensor([[number == own for own in self.tasks] or [True] for number in task.tolist()]).float()
            known = torch.where(known.sum(1, keepdim=True) > 0, known, 1.0)
            return known / known.sum(1, keepdim=True)
        if self.gate is None or self.features is None:
            return torch.ones(len(x), 1)
        return self.gate.probabilities(self.features(x)).float()

    @property
    def num_parameters(self) -> int:
        """Weights of all networks, and the gate's statistics."""
        gate = 0 if self.gate is None else self.gate.num_parameters
        return gate + sum(member.num_parameters for member in self.members)

    # -- state -----------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Networks, optimisers, random states, features, gate and log."""
        states = [member.state_dict() for member in self.members]
        return {
            "network": {f"{i}.{name}": value for i, state in enumerate(states) for name, value in state["network"].items()},
            "members": [{name: value for name, value in state.items() if name != "network"} for state in states],
            "features": None if self.features is None else self.features.state_dict(),
            "pictures": isinstance(self.features, PatchFeatures),
            "gate": None if self.gate is None else self.gate.state_dict(),
            "waiting": [list(pair) for pair in self.waiting],
            "tasks": list(self.tasks),
            "current": self.current,
            "step": self.step,
            "seed": self.seed,
            "log": self.expert_log.state_dict(),
        }

    def check_savable(self) -> None:
        """A feature map of one's own is not in the settings."""
        if self.given is not None:
            kind = "patches" if isinstance(self.given, PatchFeatures) else "inputs"
            if not self._new_features(kind).rebuilds(self.given):
                raise InputError("a feature map of your own cannot be built again from a file: save the learner's state_dict()")

    def restore(self, state: State) -> None:
        """Go on from `state`."""
        self.seed = int(state["seed"])
        self.members = []
        self._open_up_to(len(state["members"]) - 1)
        for number, member in enumerate(self.members):
            prefix = f"{number}."
            network = {k.removeprefix(prefix): v for k, v in state["network"].items() if k.startswith(prefix)}
            member.restore(state["members"][number] | {"network": network})
        self.features, self.gate = self.given, None
        if state["gate"] is not None:
            # a map that was given may be used elsewhere, and stays as it was
            kind = "patches" if state["pictures"] else "inputs"
            features = copy.copy(self.given) if self.given else self._new_features(kind)
            features.load_state_dict(state["features"])
            self._make_gate(features).load_state_dict(state["gate"])
        self.waiting = [self.accept(x, y, None)[:2] for x, y in state["waiting"]]
        self.tasks = [int(task) for task in state["tasks"]]
        self.current = None if state["current"] is None else int(state["current"])
        self.step = int(state["step"])
        self.expert_log.load_state_dict(state["log"])


class Inputs(FeatureMap):
    """The inputs themselves, standardised on the first examples."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__(input_shape, torch.Size(input_shape).numel())

    def _compute(self, x: Tensor) -> Tensor:
        return x.float().flatten(1).clone()
