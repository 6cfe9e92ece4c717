r"""The hierarchy with an exact recursion: conjugate heads on fixed features, and a generative gate that opens experts.

An expert stands for one task. Which one an example belongs to is known (task boundaries, Task-IL), or inferred by a generative
gate that detects shifts of the stream (`hvcl.gates.GenerativeGate`). All that is learned are sums over the examples, so nothing
is forgotten, no example is kept after the first ones, and the order of the examples of an expert does not matter.

- shared (the default): one feature map and one head (`hvcl.posteriors.ClassHead`) for all pairs (expert, label):

      p(y|x) = sum_m p(m, y|x) .

  So "bird or airplane" is answered by ten columns that distinguish birds from cats as well. Should the gate divide the stream
  badly, the regression behind the sum over experts is still the one without any experts.
- separate: every expert has a feature map and a head of its own, p(y|x) = sum_m p(m|x) p(y|x, m), with p(m|x) from the gate. For
  tasks whose inputs have nothing in common (permuted pixels).

On a stream without an end, `max_experts` with `merging` keeps the cost of a batch the same however many shifts there are:
experts that have become one are joined, and the two nearest where another one needs room. Joining adds sums, so the learner is
the one that had known from the start that the two are one. `expiry` drops experts that are not used again: the gate forgets them,
and what comes back is new; their sums stay, for p(y|x), as those of one remainder. None of this is on by default, and separate
experts have none of it.

The feature map is fitted to the first examples of the stream (`warmup`) and never changes again. Until then these examples are
kept, and saved with the learner; afterwards the map holds pieces of them (`memory` says so): patches of pictures, or random
mixtures. A map that is given, fitted, holds none. The learner takes one pass over the stream: a second one would count every
example twice.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hvcl.core.configuration import to_json
from hvcl.core.errors import InputError, RunError
from hvcl.core.problem import Problem
from hvcl.core.random import float32
from hvcl.core.room import check_memory
from hvcl.features import FeatureChoice, FeatureMap, PatchFeatures, RandomFeatures
from hvcl.gates import GenerativeGate
from hvcl.gates.generative import Covariance
from hvcl.learners.base import Learner, State
from hvcl.learners.conjugate import SeparateExperts, SharedExperts
from hvcl.learners.experts import ExpertLog
from hvcl.learners.registry import register
from hvcl.learners.warmup import WarmUp, check_warmup, memory_words
from hvcl.posteriors.matrix_normal import check_weights


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
    """Random features: number of features."""
    field: int | None = None
    """Random features of images: side of the receptive fields in pixels; none: all of the input."""
    ridge: float | None = None
    """Prior precision over noise precision; none: from the evidence."""
    separate: bool = False
    """A feature map and a head for every expert, chosen by the gate; else one for all."""
    gate: bool = True
    """Open experts where the stream shifts, if task boundaries are not known; else one expert for everything."""
    concentration: float = 0.01
    """Concentration of the gate's Chinese-restaurant prior: larger opens experts more readily."""
    max_experts: int | None = None
    """Experts that the gate has open at most; what comes then goes to the most likely one. None: no bound."""
    merging: bool = False
    """Join experts that have become one, and the two nearest to make room for another: their sums are added."""
    expiry: int | None = None
    """Examples after which an expert that had none of them is dropped by the gate; none: never."""
    warmup: int = 256
    """Examples that the feature map is fitted to. They are kept until then, in saved files, too."""

    def __post_init__(self) -> None:
        check_warmup(self.warmup)
        if self.ridge is not None and not 0 < self.ridge < math.inf:
            raise InputError(f"ridge must be positive, got {self.ridge}")
        if not self.concentration > 0:
            raise InputError(f"concentration must be positive, got {self.concentration}")
        if self.max_experts is not None and self.max_experts < 1:
            raise InputError(f"max_experts must be at least 1, or none, got {self.max_experts}")
        if self.expiry is not None and self.expiry < 1:
            raise InputError(f"expiry must be at least 1, or none, got {self.expiry}")
        if self.separate and (self.merging or self.expiry is not None):
            raise InputError("separate experts have feature maps of their own: leave `merging` and `expiry` out, or share")
        if self.separate and not self.gate:
            raise InputError("separate experts need the gate to choose among them")
        if self.separate and self.features == "patches":
            raise InputError("separate experts have random features: leave `features` out, or share")


@register("exact", ExactConfig)
class Exact(Learner):
    """Exact recursion: conjugate heads on fixed features, experts opened by a generative gate; one pass.

    Args:
        problem: shapes, and what is known about the tasks.
        config: settings.
        seed: of the feature map.
        features: a custom feature map, e.g. a `FrozenModule`, fitted or not; None: chosen by the settings.
    """

    one_pass = True
    expert_log: ExpertLog

    def __init__(self, problem: Problem, config: ExactConfig, seed: int, features: FeatureMap | None = None) -> None:
        super().__init__(problem)
        if features is not None:
            features.require_inputs(problem.input_shape)
        if features is not None and config.separate:
            raise InputError("separate experts have feature maps of their own: leave `features` out, or share")
        for name in ("random_features", "filters"):
            number = getattr(config, name)
            check_memory(4.0 * number * number, f"{name}={number}, whose products are summed,")
        self.config, self.seed = config, seed
        self.experts_given = problem.task_examples is not None or problem.task_outputs is not None
        """Whether the expert of every training example is known, as its task is: from boundaries or task ids."""
        self.custom_features = features
        self._map_was_given = features is not None and features.fitted
        self.task = self.step = 0
        self.warmup = WarmUp(config.warmup)
        self.experts: SharedExperts | SeparateExperts | None = None
        """None until the warm-up is over."""
        self.expert_log = ExpertLog()
        self.last_experts: Tensor | None = None
        """The experts that the examples of the last batch were assigned to, which `remove` needs to unlearn them."""
        if features is None:
            self._choice(0).check()  # settings that do not fit the inputs are an error now, not after the warm-up
        elif features.fitted:
            self._make_experts(None)

    # -- learning -----------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """Add the batch to the sums; the first `warmup` examples are kept until the feature map is fitted to them."""
        if self.experts is None:
            with self.warmup.adding(x, y, task):
                if self.warmup.complete:
                    self.end_warmup()
        else:
            self._learn(x, y, task)
        return {"experts": float(len(self.expert_log.records))}

    def observe_weighted(self, x: Tensor, y: Tensor, weights: Tensor, task: Tensor | None = None) -> None:
        """`observe` examples with weights ``[B]``: one of weight 0.5 counts as half an example in the sums, and once in the gate.

        Raises:
            InputError: if they do not fit, or the feature map is not fitted yet; then nothing has changed.
        """
        with float32():
            x, y, task = self.accept(x, y, task)
            check_weights(weights, len(y))
            if self.experts is None:
                raise InputError("examples with weights need a feature map: end the warm-up first, or give the learner a map")
            self._learn(x, y, task, weights)

    def observe_features(self, phi: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """`observe` examples of which only the features ``[B, D]`` in the learner's own map are given; no tasks, shared experts.

        Raises:
            InputError: if they do not fit; then nothing has changed.
        """
        if not isinstance(self.experts, SharedExperts) or self.experts_given:
            raise InputError("only shared experts whose tasks are not given learn from features: use observe")
        if y.is_floating_point() or not len(y) or int(y.min()) < 0 or int(y.max()) >= self.problem.outputs:
            raise InputError(f"targets must be whole numbers from 0 to {self.problem.outputs - 1}")
        with float32():
            self._record(self.experts.learn_features(phi, y, None, weights), y)

    def end_warmup(self) -> None:
        """Fit the feature map to the examples of the warm-up, if there are any, and learn from them."""
        if self.warmup.batches:
            self._make_experts(self.warmup.inputs)
            for x, y, task in self.warmup.take():
                self._learn(x, y, task)

    def _make_experts(self, x: Tensor | None) -> None:
        """Experts whose features are fitted to `x`, which may be None if they are fitted already."""
        if self.config.separate:
            assert x is not None
            self.experts = SeparateExperts(self._new_map, self._make_gate, self.config.ridge)
            self.experts.begin(x)
        else:
            features = self.custom_features
            if features is None:
                assert x is not None
                features = self._choice(0).fit(x)
            elif not features.fitted:
                assert x is not None
                features.fit(x)
            self.experts = SharedExperts(features, self._make_gate, self.config.ridge)

    def _choice(self, expert: int) -> FeatureChoice:
        """The feature maps that an expert may have."""
        shape, config, seed = self.problem.input_shape, self.config, self.seed + 7919 * expert
        return FeatureChoice(
            shape,
            # an expert's inputs need not be pictures because another's are
            "random" if config.separate else config.features,
            patches=lambda: PatchFeatures(
                shape, config.filters, sizes=config.sizes, grid=config.grid, mirror=config.mirror, seed=seed
            ),
            otherwise=lambda: RandomFeatures(shape, config.random_features, field=config.field, seed=seed),
        )

    def _new_map(self, expert: int) -> FeatureMap:
        """The feature map of a separate expert, not fitted yet."""
        return self._choice(expert).make(patches=False)

    def _make_gate(self, dim: int, covariance: Covariance) -> GenerativeGate | None:
        if (self.experts_given and not self.config.separate) or not self.config.gate:
            return None
        return GenerativeGate(
            dim,
            covariance=covariance,
            concentration=self.config.concentration,
            growing=not self.experts_given,
            max_experts=None if self.experts_given else self.config.max_experts,
            merging=self.config.merging and not self.experts_given,
            expiry=None if self.experts_given else self.config.expiry,
            seed=self.seed,
        )

    def _learn(self, x: Tensor, y: Tensor, task: Tensor | None, weights: Tensor | None = None) -> None:
        assert self.experts is not None
        given = None
        if self.experts_given:
            given = task if task is not None else torch.full_like(y, self.task)
        self._record(self.experts.learn(x, y, given, weights), y)

    def _record(self, assigned: Tensor, y: Tensor) -> None:
        if isinstance(self.experts, SharedExperts):
            for expert, into in self.experts.joined.items():
                self.expert_log.join(expert, into)
        self.last_experts = assigned
        self.expert_log.record(self.step, assigned, y)
        self.step += 1

    def end_task(self) -> None:
        """The next task's examples belong to another expert."""
        self.end_warmup()
        self.task += 1

    def remove(self, x: Tensor, y: Tensor, experts: Tensor | None = None, weights: Tensor | None = None) -> None:
        """Unlearn examples exactly: the learner becomes what it would be without them, but for the feature map, which is fixed.

        Args:
            x: inputs as they were learned.
            y: their targets.
            experts: the experts that they were assigned to (`last_experts` after `observe`; the number of the task where
                boundaries are known). May be left out if every target belongs to one expert only, and during the warm-up.
            weights: those that they were learned with; None: one for each.

        Raises:
            InputError: if they cannot all have been learned; then nothing has changed.
        """
        x, y, _ = self.accept(x, y, None if self.problem.task_outputs is None else torch.zeros_like(y))
        if experts is not None and (experts.shape != y.shape or experts.is_floating_point()):
            raise InputError(f"experts must be {len(y)} integers, got {experts.dtype} of shape {tuple(experts.shape)}")
        if self.experts is None:
            self.warmup.remove(x, y)
            return
        if experts is None:
            owners = {label: [r.expert for r in self.expert_log.records if r.labels.get(label)] for label in y.unique().tolist()}
            for label, found in owners.items():
                if len(found) != 1:
                    raise InputError(
                        f"target {label} was learned by {len(found)} experts: give the expert of each example as `experts`"
                    )
            experts = torch.tensor([owners[label][0] for label in y.tolist()])
        self.experts.remove(x, y, experts, weights)
        self.expert_log.remove(self.experts.owners(experts) if isinstance(self.experts, SharedExperts) else experts, y)

    def snapshot(self) -> Exact | None:
        """A learner that answers as this one does now, for threads that ask while this one learns: it is never to be changed.

        It is as good as free: sums are copied when this one goes on, if nobody has asked by then. None while there is no shared
        feature map: separate experts, and learners in their warm-up, have none.
        """
        if not isinstance(self.experts, SharedExperts):
            return None
        made = copy.copy(self)
        made.experts, made.expert_log = self.experts.snapshot(), copy.copy(self.expert_log)
        return made

    def empty_copy(self) -> Exact:
        """A learner with the same feature map that has learned nothing: for the parts of a stream that are merged later."""
        if not isinstance(self.experts, SharedExperts):
            raise InputError("there is no shared feature map yet: let the learner see its first examples, or give it one")
        return Exact(self.problem, self.config, self.seed, self.experts.features)

    # -- predicting ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def infer(self, x: Tensor, task: Tensor | None) -> Tensor:
        """p(y|x); uniform before the first example."""
        if self.experts is None and self.warmup.batches:
            ready = copy.deepcopy(self)
            ready.end_warmup()
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
            # the head of a task without examples is uniform
            p = (p + 1e-30) * heads[task]
        return p / p.sum(1, keepdim=True)

    @property
    def memory(self) -> str:
        """The examples of the warm-up, and the pieces of them that feature maps are made of; none if a fitted map was given."""
        if self._map_was_given:
            return "none"
        return memory_words(self.config.warmup, self.custom_features is None or self.custom_features.keeps_pieces)

    @property
    def num_parameters(self) -> int:
        """Number of weights of all heads."""
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
            "waiting": [{"x": x, "y": y, "task": task} for x, y, task in self.warmup.batches],
            "experts": None if self.experts is None else self.experts.state_dict(),
            "log": self.expert_log.state_dict(),
        }

    def check_savable(self) -> None:
        """A custom feature map is not in the settings; one that was taken over from another learner is."""
        if self.custom_features is not None:
            made = self._choice(0).make(isinstance(self.custom_features, PatchFeatures))
            if not made.rebuilds(self.custom_features):
                raise InputError("a feature map of your own cannot be built again from a file: save the learner's state_dict()")

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned; `RunError` if it was made with other settings."""
        if state["config"] != to_json(self.config):
            raise RunError("the saved state does not fit this learner: it was made with other settings")
        self.seed, self.task, self.step = int(state["seed"]), int(state["task"]), int(state["step"])
        self.warmup.batches = [self.accept(part["x"], part["y"], part["task"]) for part in state["waiting"]]
        self.expert_log.load_state_dict(state["log"])
        saved = state["experts"]
        self.experts = None if saved is None else self._load_experts(saved)

    def _load_experts(self, saved: State) -> SharedExperts | SeparateExperts:
        if self.config.separate:
            separate = SeparateExperts(self._new_map, self._make_gate, self.config.ridge)
            separate.load_state_dict(saved)
            return separate
        # a custom map may be used elsewhere, and stays as it was
        features = copy.copy(self.custom_features) or self._choice(0).make(saved["kind"] == "patches")
        features.load_state_dict(saved["features"])
        shared = SharedExperts(features, self._make_gate, self.config.ridge)
        shared.load_state_dict(saved)
        return shared
