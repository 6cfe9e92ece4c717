r"""MoVE layers that grow behind one generative gate: hierarchical variational continual learning without boundaries.

    p(y|x) = sum_m p(m|x) p(y|x, path m)

- p(m|x) is a `GenerativeGate` on fixed features phi(x): conjugate statistics that only add up, and a Chinese-restaurant prior
  that opens an expert where the stream shifts. It cannot forget.
- One network of MoVE layers, with `hvcl`'s objective; path m goes through expert m of every layer. When the gate opens an expert,
  every layer grows by one (`MoVELayer.add_expert`): from scratch, or from the expert before, or from the one that explains the
  new examples best (`start`). A batch's examples train the experts of their paths, and no others. When the gate switches to
  another expert, the posterior of the previous one becomes its prior: task-free consolidation.
- The first layers may be `shared`: the first expert learns them, then they are frozen, and all paths begin with them.
- With `front` the network stands on phi(x), too, instead of learning its first layers: fixed features of pictures are quick, and
  all that is learned is learned above them. With `directions` it stands on their leading principal directions.

Where task boundaries are known every task is an expert of its own. In Task-IL the task id is given, in training and in
prediction: it determines the expert, and the gate is not used.

Deviates from the paper: one gate, generative and exact, chooses the path through all layers, where the paper has a softmax gate
in each (`hvcl --gate softmax`): those do not tell tasks apart by themselves.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import copied
from hvcl.features import FeatureMap
from hvcl.layers import MoVEConv2d, MoVELayer, MoVELinear, MoVEOptions, follow
from hvcl.learners.base import State
from hvcl.learners.experts import ExpertLog
from hvcl.learners.feature_gate import FeatureGate, FeatureGateConfig
from hvcl.learners.methods.hvcl import HVCL, HVCLConfig
from hvcl.learners.registry import register
from hvcl.learners.warmup import Batch, check_warmup

NEGLIGIBLE = 1e-4
"""Experts with less than this probability are left out of predictions."""

WEIGHTS = ("network", "optimizer")
"""What of the state one step of the network changes, at its very end."""

LARGE = 1e6
"""Inputs beyond this may overflow the network's gradient: a step on them is undone if its weights are not finite any more."""


@dataclass(frozen=True)
class GrowingConfig(FeatureGateConfig, HVCLConfig):
    """The network and its objective, and the gate in front."""

    gate: Literal["softmax", "generative"] = "generative"
    """One generative gate for all layers; the paper's softmax gates are the method hvcl."""
    experts: int = 1
    """Experts that every layer starts with; the gate opens the others."""
    beta_expert: float = 0.01
    """beta2, weight of the experts' KL (which is divided by the number of examples)."""
    schedule: Literal["constant", "cyclic", "target"] = "constant"
    """How the betas evolve: constant, cyclic annealing within each task, or by dual ascent towards target_bits."""
    diversity: float = 0.0
    """w_div, weight of the log determinant of the kernel matrix of the experts of a layer."""
    front: bool = False
    """The network takes the gate's features as its inputs (dense layers only), instead of the inputs themselves."""
    directions: int = 0
    """With `front`: the network takes so many principal directions of the features, fewer than `warmup`; 0: the features."""
    start: Literal["fresh", "last", "best"] = "fresh"
    """A new expert starts from scratch, or from the posterior (then also its prior) of the last one, or of the one that explains
    the examples best that it is opened with."""
    shared: int = 0
    """Layers, from the input on, that all paths share: the first expert learns them, then they stay as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_warmup(self.warmup)
        if self.max_experts is not None and self.max_experts < 1:
            raise InputError(f"max_experts must be at least 1, or none, got {self.max_experts}")
        if self.front and self.channels:
            raise InputError("networks on fixed features have no convolutions: leave channels empty, or front out")
        if self.directions < 0 or self.directions >= self.warmup or (self.directions and not self.front):
            raise InputError(f"directions are those of a front's features, 0 or fewer than the warm-up, got {self.directions}")
        if self.experts != 1 or self.top_k != 1:
            raise InputError("a generative gate opens the experts itself, and chooses one path: leave experts and top_k at 1")
        if self.gate_input or self.gate_grid != 1:
            raise InputError("gate_input and gate_grid are of softmax gates: a generative gate has features of its own")
        layers = len(self.channels) + len(self.hidden) + 1
        if not 0 <= self.shared < layers:
            raise InputError(f"shared must leave the paths at least one of the {layers} layers, got {self.shared}")


@register("hvcl-growing", GrowingConfig, choices={"gate": {"softmax": "hvcl"}})
class Growing(HVCL):
    """Hierarchical variational continual learning with one generative gate, which opens experts; no boundaries needed.

    Args:
        problem: shapes, and what is known about the tasks.
        config: settings.
        seed: of the network and the features.
        features: a custom feature map for the gate (and, with `front`, the network), e.g. a `FrozenModule`, fitted or not; None:
            chosen by the settings.
    """

    config: GrowingConfig
    gates: ClassVar[str] = "generative"
    expert_log: ExpertLog

    def __init__(self, problem: Problem, config: GrowingConfig, seed: int, features: FeatureMap | None = None) -> None:
        self.seed = seed
        growing = problem.task_examples is None
        self.gate = FeatureGate(
            tuple(problem.input_shape), config, seed, growing=growing, features=features, directions=config.directions
        )
        self.experts = 0
        """Experts of every layer that is not shared; 0 before there is a network."""
        self.current: int | None = None
        """The expert of most of the last batch; None right after a known boundary."""
        self.steps: list[int] = []
        """Batches that each expert has learned from since it was consolidated."""
        self.seen = 0
        """Examples since the last known boundary."""
        self.tasks: list[int] = []
        """Task-IL: the task of each expert."""
        self.batches = 0
        """Batches so far."""
        self.expert_log = ExpertLog()
        self._before: State | None = None
        super().__init__(problem, config, seed)

    # -- the network -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A network with one expert; on features, as soon as there are some."""
        self.experts, self.steps = 0, []
        if not self.config.front or self.gate.ready:
            super().start()
            self.experts, self.steps = 1, [0]

    @property
    def network_input_shape(self) -> tuple[int, ...]:
        """That of the inputs or, with `front`, of the features."""
        if not self.config.front:
            return self.problem.input_shape
        return (self.gate.network_features,)

    def build(self) -> nn.Module:
        """MoVE layers that are told their path, but for the shared ones, which have one expert."""
        numbers = itertools.count()

        def options() -> MoVEOptions:
            return self.move_options() | {"gate": "path" if next(numbers) >= self.config.shared else "softmax"}

        def dense(inputs: int, outputs: int) -> nn.Module:
            return MoVELinear(inputs, outputs, 1, **options())

        def conv(inputs: int, outputs: int) -> nn.Module:
            return MoVEConv2d(inputs, outputs, 3, stride=2, padding=1, experts=1, **options())

        return self.with_norms(self.assemble(dense, conv))

    @property
    def _paths(self) -> list[MoVELayer]:
        """The layers that have an expert for each path."""
        return [layer for layer in self.network.modules() if isinstance(layer, MoVELayer) and layer.gate_kind == "path"]

    def _open_up_to(self, expert: int, x: Tensor, y: Tensor, task: Tensor | None, experts: Tensor) -> None:
        """Give every layer the experts up to this one that it has not got yet."""
        if not self.experts:
            self.start()
        while self.experts <= expert:
            mine = experts == self.experts
            like = None if self.config.start == "fresh" else self.experts - 1
            if self.config.start == "best" and mine.any():
                like = self._best(x[mine], y[mine], None if task is None else task[mine])
            with self.random.active():
                self._grow(like)

    def _grow(self, like: int | None) -> None:
        """One expert more, and an optimiser that knows it: moments begin anew, those of the older experts, too."""
        for layer in self._paths:
            layer.add_expert(like)
        self._freeze()
        self.experts += 1
        self.steps.append(0)
        self.optimizer = self.make_optimizer()

    def _freeze(self) -> None:
        """What is shared is learned by the first expert."""
        for layer in self.network.modules():
            if isinstance(layer, MoVELayer) and layer.gate_kind != "path":
                layer.requires_grad_(False)

    @torch.no_grad()
    def _best(self, x: Tensor, y: Tensor, task: Tensor | None) -> int:
        """The expert with the highest likelihood of these examples."""
        losses = []
        self.network.eval()
        for expert in range(self.experts):
            with follow(self.network, expert):
                logits = self.network(x)
            # in Task-IL the head of a new task is one that nobody has trained: its outputs, as they are
            losses.append(F.cross_entropy(self.masked(logits, task), y))
        self.network.train()
        return int(torch.stack(losses).argmin())

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """The gate divides the batch, and the network takes one step, every example along its path.

        With `front`, the network learns the examples of the warm-up when it is over. Inputs that are so large that the weights
        would not be finite any more are refused (`InputError`). Whatever fails, nothing has changed: what the gate has learned
        from the batch it forgets again.
        """
        large = float(x.abs().max()) > LARGE
        before = copied({name: value for name, value in self.state_dict().items() if name not in WEIGHTS})
        self._before = copied(self._weights()) if large or not self.gate.ready else None
        try:
            terms = self._divide(x, y, task)
            if large and self.experts and not all(bool(weight.isfinite().all()) for weight in self.network.parameters()):
                raise InputError(f"the inputs are too large to learn from, up to {float(x.abs().max()):g}: check for outliers")
        except BaseException:
            self.restore(before | (copied(self._weights()) if self._before is None else self._before))
            raise
        finally:
            self._before = None
        return terms

    def _weights(self) -> State:
        """What the last part of a step changes, all at once."""
        if not self.experts:
            return {"network": {}}
        return {"network": dict(self.network.state_dict()), "optimizer": self.optimizer.state_dict()}

    def _divide(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """`learn` without the precautions."""
        if not self.gate.ready and self.config.front:
            waiting = [*self.gate.warmup.batches, (x, y, task)]
            self.gate.observe(x, y, task)
            return self._learn_waiting(waiting) if self.gate.ready else {}
        inputs = self.gate.embed(x) if self.config.front else x
        experts = self._by_task(task) if task is not None else self._by_gate(inputs, y)
        return self._learn(inputs, y, task, experts)

    def _by_gate(self, inputs: Tensor, y: Tensor) -> Tensor:
        """The experts that the gate assigns; where boundaries are known it learns every example once, in a task's first epoch."""
        before, count = self.seen, self.problem.examples_of(self.experts - 1)
        self.seen += len(y)
        if count is not None and before >= count and self.current is not None and self.gate.ready:
            return torch.full_like(y, self.current)
        return self.gate.observe_features(inputs, y) if self.config.front else self.gate.observe(inputs, y)

    def _learn_waiting(self, batches: list[Batch]) -> dict[str, float]:
        """The network learns the batches of the warm-up, which the gate's first expert (in Task-IL: their task's) has learned."""
        terms: dict[str, float] = {}
        for x, y, task in batches:
            self.seen += len(y)
            experts = torch.zeros_like(y) if task is None else self._by_task(task)
            terms = self._learn(self.gate.embed(x), y, task, experts)
        return terms

    def _learn(self, x: Tensor, y: Tensor, task: Tensor | None, experts: Tensor) -> dict[str, float]:
        """A step on a batch of inputs (or features) along these paths."""
        x = self.gate.network_inputs(x) if self.config.front else x
        most = int(experts.mode()[0])
        if self._before is None and (most != self.current or int(experts.max()) >= self.experts):
            self._before = copied(self._weights())  # priors change, or experts are added, before the step
        if self.current is not None and most != self.current:
            self._consolidate(self.current)
        self.current = most
        self._open_up_to(int(experts.max()), x, y, task, experts)
        with follow(self.network, experts):
            terms = super().learn(x, y, task)
        self.steps[most] += 1
        self.expert_log.record(self.batches, experts, y.cpu())
        self.batches += 1
        return terms | {"gate_experts": float(self.experts)}

    @property
    def task_examples(self) -> int:
        """N_t: where tasks are known, the number of examples of the current expert's; else `num_data`."""
        return self.problem.examples_of(self.current or 0) or self.config.num_data

    @property
    def progress(self) -> float:
        """Fraction of its task that the current expert has done; on a task-free stream, of `cycle_steps`."""
        expert = self.current or 0
        steps = self.problem.steps_of(expert)
        if steps is not None:
            return self.steps[expert] / steps
        return self.steps[expert] % self.config.cycle_steps / self.config.cycle_steps

    def _by_task(self, task: Tensor) -> Tensor:
        """Task-IL: the expert of each example's task; a new task gets a new expert."""
        for number in task.unique().tolist():
            if number not in self.tasks:
                self.tasks.append(number)
        return torch.tensor([self.tasks.index(number) for number in task.tolist()])

    def _consolidate(self, expert: int) -> None:
        """The posterior of an expert becomes its prior, in every layer."""
        for layer in self._paths:
            layer.consolidate([expert])
        self.steps[expert] = 0

    def end_task(self) -> None:
        """The current expert's posterior becomes its prior, and the next examples open another expert."""
        waiting = self.gate.new_expert()
        if waiting and self.config.front:
            self._learn_waiting(waiting)
        if self.current is not None:
            self._consolidate(self.current)
        self.current, self.seen = None, 0

    @property
    def memory(self) -> str:
        """The gate's warm-up; in Task-IL there is a gate only for its features (`front`)."""
        return self.gate.memory if self.problem.task_outputs is None or self.config.front else "none"

    # -- prediction ------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def infer(self, x: Tensor, task: Tensor | None) -> Tensor:
        """p(y|x) = sum_m p(m|x) p(y|x, path m)."""
        if self.config.front:
            if not self.experts:  # nothing is learned during the warm-up
                return torch.full((len(x), self.problem.outputs), 1 / self.problem.outputs)
            x = self.gate.embed(x)
        self.expert_probabilities = weights = self.responsibilities(x, task)
        x = self.gate.network_inputs(x) if self.config.front else x
        mixed = torch.zeros(len(x), self.problem.outputs)
        for expert in range(self.experts):
            rows = (weights[:, expert] > NEGLIGIBLE).nonzero().flatten()
            if len(rows):
                with follow(self.network, expert):
                    answers = super().infer(x[rows], None if task is None else task[rows])
                # inputs that overflow the network tell it nothing
                answers = torch.where(answers.isfinite().all(1, keepdim=True), answers, self._uniform(rows, task))
                mixed.index_add_(0, rows, weights[rows, expert, None] * answers)
        return mixed / mixed.sum(1, keepdim=True)

    def _uniform(self, rows: Tensor, task: Tensor | None) -> Tensor:
        """Uniform probabilities of these rows; in Task-IL over the heads of their tasks."""
        zeros = torch.zeros(len(rows), self.problem.outputs, device=self.device)
        return self.masked(zeros, None if task is None else task[rows]).softmax(1).cpu()

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
        """Weights of all experts, and the gate's statistics."""
        return self.gate.num_parameters + (super().num_parameters if self.experts else 0)

    # -- state -----------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Network, optimiser, random state, features, gate and log."""
        own = super().state_dict() if self.experts else {"network": {}, "random": self.random.state()}
        return own | {
            **self.gate.state_dict(),
            "experts": self.experts,
            "steps": list(self.steps),
            "tasks": list(self.tasks),
            "current": self.current,
            "seen": self.seen,
            "batches": self.batches,
            "log": self.expert_log.state_dict(),
        }

    def check_savable(self) -> None:
        """A custom feature map is not in the settings."""
        self.gate.check_savable()

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.seed = int(state["seed"])
        self.gate.load_state_dict(state)
        count = int(state["experts"])
        self.start()
        if count:
            # no more than there are numbers for in the file
            known = {name: len(values) for name, values in state["network"].items() if name.endswith("posterior.mean")}
            if count != max(known.values(), default=0):
                raise ValueError(f"there are {count} experts and weights of {max(known.values(), default=0)}")
            while self.experts < count:
                self._grow(None)
            super().restore(state)
        else:
            self.experts = 0
            self.random.load_state(state["random"])
        self.steps = [int(step) for step in state["steps"]]
        self.tasks = [int(task) for task in state["tasks"]]
        self.current = None if state["current"] is None else int(state["current"])
        self.batches, self.seen = int(state["batches"]), int(state["seen"])
        self.expert_log.load_state_dict(state["log"])
