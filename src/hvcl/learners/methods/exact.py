r"""The hierarchy with an exact recursion: conjugate heads on fixed features, and a generative gate that opens experts.

An expert stands for one task; it is told (boundaries, Task-IL), or found by a generative gate that sees the stream shift
(`hvcl.gates.GenerativeGate`). All that is learned are sums over the examples, so nothing is forgotten, no example is kept, and
the order of the examples of an expert does not matter.

- shared (the default): one feature map and one head (`hvcl.posteriors.ClassHead`) for all pairs (expert, label):

      p(y|x) = sum_m p(m, y|x) .

  So "bird or airplane" is answered by ten columns that tell birds from cats as well. Should the gate divide the stream badly, the
  regression behind the sum over experts is still the one that knows no experts at all.
- separate: every expert has a feature map and a head of its own, p(y|x) = sum_m p(m|x) p(y|x, m), with p(m|x) from the gate. For
  tasks whose inputs have nothing in common (permuted pixels).

The feature map is taken from the first examples of the stream (`warmup`) and never changes again. One pass over the stream is all
that there is to be had: a second one would count every example twice.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hvcl.core.configuration import to_json
from hvcl.core.errors import InputError, RunError
from hvcl.core.problem import Problem
from hvcl.features import FeatureMap, PatchFeatures, RandomFeatures, is_picture
from hvcl.gates import GenerativeGate
from hvcl.learners.base import Learner, State
from hvcl.learners.experts import ExpertLog
from hvcl.learners.registry import register
from hvcl.posteriors import ClassHead

SKETCH = 128
"""Random projections of the features that a gate sees where the experts share them."""

Waiting = tuple[Tensor, Tensor, Tensor | None]
"""A batch: inputs, targets, task ids."""

SMALLEST_PICTURE = 16
"""Side from which on patches are taken of pictures."""


@dataclass(frozen=True)
class ExactConfig:
    """The feature map, the head and the gate."""

    features: Literal["auto", "patches", "random"] = "auto"
    """Feature map: whitened patches or random features; auto: patches for pictures (neighbouring pixels vary together)."""
    filters: int = 400
    """Patches: number of filters. There are 2 * grid^2 features a filter."""
    sizes: tuple[int, ...] = (5, 8)
    """Patches: their sizes in pixels."""
    grid: int = 2
    """Patches: cells across and down that responses are pooled over."""
    mirror: bool = False
    """Patches: features that are the same for an image and its mirror image."""
    random_features: int = 3000
    """Random features: how many."""
    field: int | None = None
    """Random features of images: side of the receptive fields in pixels; none: all of the input."""
    ridge: float | None = None
    """Prior precision over noise precision; none: from the evidence."""
    separate: bool = False
    """A feature map and a head for every expert, chosen by the gate; else one for all."""
    gate: bool = True
    """Open experts where the stream shifts, if boundaries are not told; else one expert for everything."""
    concentration: float = 0.01
    """Concentration of the gate's Chinese-restaurant prior: larger opens experts more readily."""
    warmup: int = 256
    """Examples that the feature map is taken from."""

    def __post_init__(self) -> None:
        if self.warmup < 2:
            raise InputError(f"warmup must be at least 2, got {self.warmup}")
        if self.ridge is not None and not 0 < self.ridge < math.inf:
            raise InputError(f"ridge must be positive, got {self.ridge}")
        if not self.concentration > 0:
            raise InputError(f"concentration must be positive, got {self.concentration}")
        if self.separate and not self.gate:
            raise InputError("separate experts need the gate to choose among them")
        if self.separate and self.features == "patches":
            raise InputError("separate experts have random features: leave `features` out, or share")


@register("exact", ExactConfig)
class Exact(Learner):
    """Exact recursion: conjugate heads on fixed features, experts opened by a generative gate; one pass.

    Args:
        problem: shapes, and what is told.
        config: settings.
        seed: of the feature map.
        features: a feature map of one's own, e.g. a `FrozenModule`, fitted or not; the settings' choice if None.
    """

    one_pass = True
    expert_log: ExpertLog

    def __init__(self, problem: Problem, config: ExactConfig, seed: int, features: FeatureMap | None = None) -> None:
        super().__init__(problem)
        if features is not None and features.input_shape != tuple(problem.input_shape):
            raise InputError(f"the feature map takes {features.input_shape}, the problem's inputs are {problem.input_shape}")
        if features is not None and config.separate:
            raise InputError("separate experts have feature maps of their own: leave `features` out, or share")
        self.config, self.seed = config, seed
        self.told = problem.task_examples is not None or problem.task_outputs is not None
        self.given = features
        self.task = self.step = 0
        self.waiting: list[Waiting] = []
        self.experts: _Shared | _Separate | None = None
        self.expert_log = ExpertLog()
        self.last_experts: Tensor | None = None
        """The experts that the examples of the last batch went to: what `remove` needs to take them out again."""
        if features is None:
            for kind in self._kinds():  # settings that do not fit the inputs are an error now, not after the warm-up
                self._new_map(0, kind)
        elif features.fitted:
            self._begin(None)

    # -- learning -----------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """Add the batch to the sums; the first `warmup` examples wait for the feature map that is taken from them."""
        if self.experts is None:
            before = self.waiting
            self.waiting = [*before, (x.clone(), y.clone(), None if task is None else task.clone())]
            if sum(len(waiting) for waiting, _, _ in self.waiting) >= self.config.warmup:
                try:
                    self._flush()
                except InputError:
                    self.waiting = before
                    raise
        else:
            self._learn(x, y, task)
        return {"experts": float(len(self.expert_log.records))}

    def _flush(self) -> None:
        """Take the feature map from the examples that wait, then learn from them."""
        if self.waiting:
            self._begin(torch.cat([x for x, _, _ in self.waiting]))
            waiting, self.waiting = self.waiting, []
            for x, y, task in waiting:
                self._learn(x, y, task)

    def _begin(self, x: Tensor | None) -> None:
        if self.config.separate:
            assert x is not None
            self.experts = _Separate(self._new_map, self._make_gate, self.config.ridge)
            self.experts.begin(x)
        else:
            features = self.given
            if features is None or not features.fitted:
                assert x is not None
                features = features or self._new_map(0, self._kind(x))
                features.fit(x)
            self.experts = _Shared(features, self._make_gate, self.config.ridge)

    def _kinds(self) -> list[str]:
        """The kinds of feature maps that may come to be used."""
        if self.config.separate:
            return ["random"]
        if self.config.features != "auto":
            return [self.config.features]
        shape = self.problem.input_shape
        return ["random", "patches"] if len(shape) == 3 and min(shape[1:]) >= SMALLEST_PICTURE else ["random"]

    def _kind(self, x: Tensor) -> str:
        kinds = self._kinds()
        return kinds[-1] if len(kinds) == 1 or is_picture(x) else "random"

    def _new_map(self, number: int, kind: str) -> FeatureMap:
        config, seed = self.config, self.seed + 7919 * number
        if kind == "patches":
            options: dict[str, Any] = {"sizes": config.sizes, "grid": config.grid, "mirror": config.mirror}
            return PatchFeatures(self.problem.input_shape, config.filters, seed=seed, **options)
        return RandomFeatures(self.problem.input_shape, config.random_features, field=config.field, seed=seed)

    def _make_gate(self, dim: int, covariance: Literal["diagonal", "tied"]) -> GenerativeGate | None:
        if (self.told and not self.config.separate) or not self.config.gate:
            return None
        return GenerativeGate(
            dim, covariance=covariance, concentration=self.config.concentration, growing=not self.told, seed=self.seed
        )

    def _learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> None:
        assert self.experts is not None
        told = None
        if self.told:
            told = task if task is not None else torch.full_like(y, self.task)
        assigned = self.experts.learn(x, y, told)
        self.last_experts = assigned
        self.expert_log.record(self.step, assigned, y)
        self.step += 1

    def end_task(self) -> None:
        """The next task's examples belong to another expert."""
        self._flush()
        self.task += 1

    def remove(self, x: Tensor, y: Tensor, experts: Tensor | None = None) -> None:
        """Unlearn examples exactly: afterwards it is as if they had never been seen (but for the feature map, which is fixed).

        Args:
            x: inputs as they were learned.
            y: their targets.
            experts: the experts that they went to (`last_experts` after `observe`; with boundaries, the task's number). May be
                left out if every target belongs to one expert only, and while examples wait for the feature map.

        Raises:
            InputError: if they cannot all have been learned; then nothing has changed.
        """
        x, y, _ = self.accept(x, y, None if self.problem.task_outputs is None else torch.zeros_like(y))
        if experts is not None and (experts.shape != y.shape or experts.is_floating_point()):
            raise InputError(f"experts must be {len(y)} integers, got {experts.dtype} of shape {tuple(experts.shape)}")
        if self.experts is None:
            self.waiting = _without(self.waiting, x, y)
            return
        if experts is None:
            owners = {label: [r.expert for r in self.expert_log.records if r.labels.get(label)] for label in y.unique().tolist()}
            for label, found in owners.items():
                if len(found) != 1:
                    raise InputError(
                        f"target {label} was learned by {len(found)} experts: say by `experts` which one each example went to"
                    )
            experts = torch.tensor([owners[label][0] for label in y.tolist()])
        self.experts.remove(x, y, experts)
        self.expert_log.remove(experts, y)

    def empty_copy(self) -> Exact:
        """A learner with the same feature map that has learned nothing: for the parts of a stream that are merged later."""
        if not isinstance(self.experts, _Shared):
            raise InputError("there is no shared feature map yet: let the learner see its first examples, or give it one")
        return Exact(self.problem, self.config, self.seed, self.experts.features)

    # -- predicting ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def infer(self, x: Tensor, task: Tensor | None) -> Tensor:
        """p(y|x); uniform before the first example."""
        if self.experts is None and self.waiting:
            ready = copy.deepcopy(self)
            ready._flush()
            p = ready.infer(x, task)
            self.expert_probabilities = ready.expert_probabilities
            return p
        outputs = self.problem.outputs
        self.expert_probabilities = None
        if self.experts is None or not self.expert_log.seen:
            p = torch.full((len(x), outputs), 1 / outputs)
        else:
            p, share = self.experts.predict(x, outputs, task)
            p, self.expert_probabilities = p.float(), share.float()
        if task is not None:
            assert self.problem.task_outputs is not None
            heads = torch.zeros(len(self.problem.task_outputs), outputs)
            for number, units in enumerate(self.problem.task_outputs):
                heads[number, list(units)] = 1
            # a head without any examples yet is uniform
            p = (p + 1e-30) * heads[task]
        return p / p.sum(1, keepdim=True)

    @property
    def num_parameters(self) -> int:
        """Numbers in the heads' weights."""
        heads = [] if self.experts is None else self.experts.heads
        return sum((head.model.features + 1) * head.classes for head in heads)

    # -- checkpoints --------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Feature maps, sums, gate and log."""
        return {
            "config": to_json(self.config),
            "seed": self.seed,
            "task": self.task,
            "step": self.step,
            "waiting": [{"x": x, "y": y, "task": task} for x, y, task in self.waiting],
            "experts": None if self.experts is None else self.experts.state_dict(),
            "log": self.expert_log.state_dict(),
        }

    def check_savable(self) -> None:
        """A feature map of one's own is not in the settings; one that was taken over from another learner is."""
        if self.given is not None:
            kind = "patches" if isinstance(self.given, PatchFeatures) else "random"
            if not self._new_map(0, kind).rebuilds(self.given):
                raise InputError("a feature map of your own cannot be built again from a file: save the learner's state_dict()")

    def restore(self, state: State) -> None:
        """Go on from `state`."""
        if state["config"] != to_json(self.config):
            raise RunError("the saved state does not fit this learner: it was made with other settings")
        self.seed, self.task, self.step = int(state["seed"]), int(state["task"]), int(state["step"])
        self.waiting = [self.accept(part["x"], part["y"], part["task"]) for part in state["waiting"]]
        self.expert_log.load_state_dict(state["log"])
        saved = state["experts"]
        self.experts = None if saved is None else self._load_experts(saved)

    def _load_experts(self, saved: State) -> _Shared | _Separate:
        if self.config.separate:
            separate = _Separate(self._new_map, self._make_gate, self.config.ridge)
            separate.load_state_dict(saved)
            return separate
        # a map that was given may be used elsewhere, and stays as it was
        features = copy.copy(self.given) if self.given else self._new_map(0, saved["kind"])
        features.load_state_dict(saved["features"])
        shared = _Shared(features, self._make_gate, self.config.ridge)
        shared.load_state_dict(saved)
        return shared


def merge(a: Exact, b: Exact, *, apart: bool = False) -> Exact:
    """A learner that has learned what `a` and `b` have, exactly as if it had seen both their streams.

    Args:
        a: stays as it is.
        b: stays as it is. Must have the same feature map, e.g. from ``a.empty_copy()``.
        apart: expert m of `b` is not expert m of `a` (they saw different tasks): those of `b` are added behind those of `a`.
    """
    mine, theirs = ((learner.problem.outputs, learner.problem.task_outputs, learner.told, learner.config) for learner in (a, b))
    if mine != theirs:
        raise InputError("only learners of the same problem with the same settings can be merged")
    result = copy.deepcopy(a)
    other = copy.deepcopy(b)
    result._flush()
    other._flush()
    if other.experts is None:
        return result
    if result.experts is None:
        return other
    if not isinstance(result.experts, _Shared) or not isinstance(other.experts, _Shared):
        raise InputError("separate experts have feature maps of their own and cannot be merged: use shared ones")
    first = 1 + max((r.expert for r in result.expert_log.records), default=-1) if apart else 0
    result.experts.merge(other.experts, first)
    result.expert_log.merge(other.expert_log, first)
    result.step += other.step
    result.task = result.task + other.task + 1 if apart else max(result.task, other.task)
    result.last_experts = None
    return result


def _without(waiting: list[Waiting], x: Tensor, y: Tensor) -> list[Waiting]:
    """The batches that wait without these examples."""
    left = list(waiting)
    for example, target in zip(x, y.tolist(), strict=True):
        for i, (inputs, targets, tasks) in enumerate(left):
            found = ((inputs == example).flatten(1).all(1) & (targets == target)).nonzero()
            if len(found):
                keep = torch.arange(len(targets)) != found[0]
                left[i] = (inputs[keep], targets[keep], None if tasks is None else tasks[keep])
                break
        else:
            raise InputError("cannot remove these examples: they were not all learned")
    return [part for part in left if len(part[1])]


MakeGate = Callable[[int, Literal["diagonal", "tied"]], "GenerativeGate | None"]


class _Shared:
    """One feature map and one head, with a column for every pair (expert, label)."""

    def __init__(self, features: FeatureMap, make_gate: MakeGate, ridge: float | None) -> None:
        self.features = features
        self.head = ClassHead(features.features, ridge=ridge)
        self.columns: dict[tuple[int, int], int] = {}
        random = torch.Generator().manual_seed(0)
        self.gate = make_gate(SKETCH, "tied")
        self.projection = torch.randn(features.features, SKETCH, generator=random) / features.features**0.5

    @property
    def heads(self) -> list[ClassHead]:
        return [self.head]

    def learn(self, x: Tensor, y: Tensor, told: Tensor | None) -> Tensor:
        phi = self.features(x)
        if told is not None:
            experts = told
        elif self.gate is not None:
            experts = self.gate.observe(phi @ self.projection, y)
        else:
            experts = torch.zeros_like(y)
        self.head.add(phi, self.columns_of(experts, y))
        return experts

    def columns_of(self, experts: Tensor, y: Tensor) -> Tensor:
        """The head's columns of pairs (expert, label); new ones for pairs that are new."""
        pairs = list(zip(experts.tolist(), y.tolist(), strict=True))
        for pair in sorted(set(pairs)):
            self.columns.setdefault(pair, len(self.columns))
        return torch.tensor([self.columns[pair] for pair in pairs])

    def remove(self, x: Tensor, y: Tensor, experts: Tensor) -> None:
        pairs = list(zip(experts.tolist(), y.tolist(), strict=True))
        if any(pair not in self.columns for pair in pairs):
            raise InputError("cannot remove these examples: their expert has learned nothing of their targets")
        phi = self.features(x)
        before = copy.deepcopy(self.gate)
        try:
            if self.gate is not None:
                self.gate.remove(phi @ self.projection, experts, y)
            self.head.remove(phi, torch.tensor([self.columns[pair] for pair in pairs]))
        except InputError:
            self.gate = before
            raise

    def predict(self, x: Tensor, outputs: int, task: Tensor | None) -> tuple[Tensor, Tensor]:
        """p(y|x) and p(m|x); the expert of a given task answers alone."""
        p = self.head.log_probabilities(self.features(x)).exp()
        experts, labels = torch.tensor(list(self.columns)).T
        count = int(experts.max()) + 1
        share = p.new_zeros(len(x), count).index_add_(1, experts, p) if task is None else _given(task, count)
        return p.new_zeros(len(x), outputs).index_add_(1, labels, p), share

    def merge(self, other: _Shared, first: int) -> None:
        if not self.features.same_as(other.features):
            raise InputError("the two learners have different feature maps: make the second one with `a.empty_copy()`")
        for expert, label in other.columns:
            self.columns.setdefault((expert + first, label), len(self.columns))
        order = [self.columns[expert + first, label] for expert, label in other.columns]
        self.head.merge(other.head, order)
        if self.gate is not None and other.gate is not None:
            self.gate.merge(other.gate, first)

    def state_dict(self) -> State:
        return {
            "kind": "patches" if isinstance(self.features, PatchFeatures) else "random",
            "features": self.features.state_dict(),
            "columns": [list(pair) for pair in self.columns],
            "head": self.head.state_dict(),
            "gate": None if self.gate is None else self.gate.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.columns = {(int(expert), int(label)): i for i, (expert, label) in enumerate(state["columns"])}
        self.head.load_state_dict(state["head"])
        if self.head.classes != len(self.columns):
            raise ValueError(f"it has {self.head.classes} columns, and names {len(self.columns)}")
        if self.gate is not None:
            self.gate.load_state_dict(state["gate"])


class _Separate:
    """A feature map and a head for every expert, and a gate on the inputs that chooses among them."""

    def __init__(self, new_map: Callable[[int, str], FeatureMap], make_gate: MakeGate, ridge: float | None) -> None:
        self.new_map, self.make_gate, self.ridge = new_map, make_gate, ridge
        self.maps: list[FeatureMap] = []
        self.heads: list[ClassHead] = []
        self.shift = self.scale = torch.zeros(())
        self.gate: GenerativeGate | None = None

    def begin(self, x: Tensor) -> None:
        """From the first examples: where inputs lie, for the gate."""
        flat = x.float().flatten(1)
        self.shift = flat.mean(0)
        self.scale = (flat - self.shift).square().mean().sqrt().clamp_min(1e-6)
        self.gate = self.make_gate(flat.shape[1], "diagonal")

    def _gate_input(self, x: Tensor) -> Tensor:
        return (x.float().flatten(1) - self.shift) / self.scale

    def learn(self, x: Tensor, y: Tensor, told: Tensor | None) -> Tensor:
        assert self.gate is not None
        if told is None:
            experts = self.gate.observe(self._gate_input(x))
        else:
            experts = told
            self.gate.learn(self._gate_input(x), told)
        for expert in experts.unique().tolist():
            mine = experts == expert
            while len(self.maps) <= expert:
                # random features only: an expert's inputs need not be pictures because another's are
                features = self.new_map(len(self.maps), "random")
                features.fit(x[mine])
                self.maps.append(features)
                self.heads.append(ClassHead(features.features, ridge=self.ridge))
            self.heads[expert].add(self.maps[expert](x[mine]), y[mine])
        return experts

    def remove(self, x: Tensor, y: Tensor, experts: Tensor) -> None:
        assert self.gate is not None
        if int(experts.max()) >= len(self.heads) or int(experts.min()) < 0:
            raise InputError(f"there are {len(self.heads)} experts, got {experts.unique().tolist()}")
        before = (copy.deepcopy(self.gate), [copy.copy(head) for head in self.heads])
        try:
            self.gate.remove(self._gate_input(x), experts)
            for expert in experts.unique().tolist():
                mine = experts == expert
                self.heads[expert] = copy.deepcopy(self.heads[expert])
                self.heads[expert].remove(self.maps[expert](x[mine]), y[mine])
        except InputError:
            self.gate, self.heads = before
            raise

    def predict(self, x: Tensor, outputs: int, task: Tensor | None) -> tuple[Tensor, Tensor]:
        """p(y|x), up to a factor, and p(m|x)."""
        assert self.gate is not None
        share = self.gate.probabilities(self._gate_input(x)) if task is None else _given(task, len(self.heads))
        p = share.new_zeros(len(x), outputs)
        for expert, head in enumerate(self.heads[: share.shape[1]]):
            rows = (share[:, expert] > 1e-6).nonzero().flatten()
            if len(rows) and head.model.count:
                answers = head.log_probabilities(self.maps[expert](x[rows])).exp()
                p[rows] += share[rows, expert, None] * F.pad(answers, (0, outputs - answers.shape[1]))
        return p + 1e-12, share

    def state_dict(self) -> State:
        assert self.gate is not None
        return {
            "maps": [features.state_dict() for features in self.maps],
            "heads": [head.state_dict() for head in self.heads],
            "gate": self.gate.state_dict(),
            "shift": self.shift,
            "scale": self.scale,
        }

    def load_state_dict(self, state: State) -> None:
        self.shift, self.scale = state["shift"], state["scale"]
        self.gate = self.make_gate(len(self.shift), "diagonal")
        assert self.gate is not None
        self.gate.load_state_dict(state["gate"])
        for number, (features, head) in enumerate(zip(state["maps"], state["heads"], strict=True)):
            self.maps.append(self.new_map(number, "random"))
            self.maps[-1].load_state_dict(features)
            self.heads.append(ClassHead(self.maps[-1].features, ridge=self.ridge))
            self.heads[-1].load_state_dict(head)


def _given(task: Tensor, experts: int) -> Tensor:
    """p(m|x) of at least this many experts where the task is given."""
    return F.one_hot(task, max(experts, int(task.max()) + 1)).double()
