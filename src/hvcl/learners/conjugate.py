"""Experts with conjugate heads on fixed features, with one feature map and head for all of them or one for each.

All that they learn are sums over the examples, so examples can be unlearned, and shared experts can be merged.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.features import FeatureMap, PatchFeatures
from hvcl.gates import GenerativeGate
from hvcl.gates.generative import Covariance
from hvcl.learners.base import State
from hvcl.posteriors import ClassHead

SKETCH = 128
"""Size of the random projection of the features that the gate of shared experts sees."""

MakeGate = Callable[[int, Covariance], GenerativeGate | None]
"""Makes a gate on so many features with a covariance; None if the expert of every example is given or there is only one."""


class SharedExperts:
    """One feature map and one head, with a column for every pair (expert, label): p(y|x) = sum_m p(m, y|x).

    Experts that the gate joins become one here, too: the sums of their columns are added, label by label, as if all their
    examples had been the one's. Those that it drops become one remainder, which goes by the smallest of their numbers: its
    columns stay, for p(y|x), and the gate gives it no example.

    Args:
        features: a fitted feature map.
        make_gate: makes the gate, on a random projection of the features.
        ridge: of the head; None: from the evidence.
    """

    def __init__(self, features: FeatureMap, make_gate: MakeGate, ridge: float | None) -> None:
        self.features = features
        # the features are standardised: sums around zero, so that no example's features stay in the state as a centre
        self.head = ClassHead(features.features, ridge=ridge, centre=torch.zeros(features.features))
        self.columns: dict[tuple[int, int], int] = {}
        self.joined: dict[int, int] = {}
        """Experts that have become part of another one in the last `learn`, and of which."""
        random = torch.Generator().manual_seed(0)
        self.gate = make_gate(SKETCH, "tied")
        if self.gate is not None:
            # the features are standardised, and the gates of learners with the same map can merge
            self.gate.standardise(0.0, 1.0)
        self.projection = torch.randn(features.features, SKETCH, generator=random) / features.features**0.5

    def snapshot(self) -> SharedExperts:
        """Experts that have learned what these have, and are never to be changed."""
        made = copy.copy(self)
        made.head, made.columns, made.gate = self.head.snapshot(), dict(self.columns), copy.copy(self.gate)
        return made

    @property
    def heads(self) -> list[ClassHead]:
        """All heads: the one there is."""
        return [self.head]

    def learn(self, x: Tensor, y: Tensor, experts: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """Learn from a batch; returns the experts ``[B]``: those given, else those that the gate assigns.

        `weights` ``[B]`` say how many examples each one counts as in the head; the gate counts every example once.
        """
        return self.learn_features(self.features(x), y, experts, weights)

    def learn_features(self, phi: Tensor, y: Tensor, experts: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """`learn` from the features ``[B, D]`` of a batch."""
        self.joined = {}
        if experts is None:
            experts = torch.zeros_like(y) if self.gate is None else self.gate.observe(phi @ self.projection, y)
            self._join()
        self.head.add(phi, self.columns_of(experts, y), weights)
        return experts

    def owners(self, experts: Tensor) -> Tensor:
        """Who has the columns of `experts` now."""
        owner = self._owners(set(experts.tolist()))
        return torch.tensor([owner[expert] for expert in experts.tolist()])

    def _owners(self, experts: set[int]) -> dict[int, int]:
        merged, dropped = ({}, []) if self.gate is None else (self.gate.merged, self.gate.dropped)
        owners = {expert: merged.get(expert, expert) for expert in experts}
        return {expert: dropped[0] if owner in dropped else owner for expert, owner in owners.items()}

    def _join(self) -> None:
        """Let columns follow the gate, where it has joined or dropped experts."""
        self.joined = {}
        if self.gate is None or not self.columns or not (self.gate.merged or self.gate.dropped):
            return
        owners = self._owners({expert for expert, _ in self.columns})
        self.joined = {expert: owners[expert] for expert, _ in self.columns if owners[expert] != expert}
        if self.joined:
            pairs = [(owners[expert], label) for expert, label in self.columns]
            self.columns = {pair: column for column, pair in enumerate(dict.fromkeys(pairs))}
            self.head.join([self.columns[pair] for pair in pairs])

    def columns_of(self, experts: Tensor, y: Tensor) -> Tensor:
        """The head's column of each pair (expert, label) ``[B]``; columns are appended for new pairs."""
        pairs = list(zip(experts.tolist(), y.tolist(), strict=True))
        for pair in sorted(set(pairs)):
            self.columns.setdefault(pair, len(self.columns))
        return torch.tensor([self.columns[pair] for pair in pairs])

    def remove(self, x: Tensor, y: Tensor, experts: Tensor, weights: Tensor | None = None) -> None:
        """Unlearn examples of given experts; `InputError`, and nothing has changed, if they cannot all have been learned."""
        pairs = list(zip(self.owners(experts).tolist(), y.tolist(), strict=True))
        if any(pair not in self.columns for pair in pairs):
            raise InputError("cannot remove these examples: their expert has learned nothing of their targets")
        phi = self.features(x)
        before = copy.deepcopy(self.gate)
        try:
            if self.gate is not None:
                known = ~torch.isin(self.gate.follow(experts), torch.tensor(self.gate.dropped, dtype=torch.long))
                if bool(known.any()):  # of dropped experts it has nothing left
                    self.gate.remove((phi @ self.projection)[known], experts[known], y[known])
            self.head.remove(phi, torch.tensor([self.columns[pair] for pair in pairs]), weights)
        except InputError:
            self.gate = before
            raise

    def predict(self, x: Tensor, outputs: int, task: Tensor | None) -> tuple[Tensor, Tensor]:
        """p(y|x) ``[B, outputs]`` and p(m|x) ``[B, experts]``, which a given task id determines."""
        p = self.head.log_probabilities(self.features(x)).exp()
        experts, labels = self._pairs(p).T
        share = self._shares(p) if task is None else _one_expert(task, int(experts.max()) + 1)
        return p.new_zeros(len(x), outputs).index_add_(1, labels, p), share

    def expert_probabilities(self, phi: Tensor) -> Tensor:
        """p(m|x) ``[B, experts]`` from the features of a batch."""
        return self._shares(self.head.log_probabilities(phi).exp())

    def _shares(self, p: Tensor) -> Tensor:
        """p(m|x) from p(m, y|x) ``[B, columns]``."""
        experts, _ = self._pairs(p).T
        return p.new_zeros(len(p), int(experts.max()) + 1).index_add_(1, experts, p)

    def _pairs(self, p: Tensor) -> Tensor:
        """(expert, label) of every column of p ``[columns, 2]``; columns that have come since p was computed are not in it."""
        return torch.tensor(list(self.columns)[: p.shape[1]])

    def merge(self, other: SharedExperts, first: int) -> None:
        """Add what others with the same feature map have learned; their expert m becomes expert `first` + m."""
        if not self.features.same_as(other.features):
            raise InputError("the two learners have different feature maps: make the second one with `a.empty_copy()`")
        for expert, label in other.columns:
            self.columns.setdefault((expert + first, label), len(self.columns))
        self.joined = {}
        order = [self.columns[expert + first, label] for expert, label in other.columns]
        self.head.merge(other.head, order)
        if self.gate is not None and other.gate is not None:
            self.gate.merge(other.gate, first)
            self._join()

    def state_dict(self) -> State:
        """Feature map, columns, head and gate."""
        return {
            "kind": "patches" if isinstance(self.features, PatchFeatures) else "random",
            "features": self.features.state_dict(),
            "columns": [list(pair) for pair in self.columns],
            "head": self.head.state_dict(),
            "gate": None if self.gate is None else self.gate.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned, but for the feature map, which the constructor takes."""
        self.columns = {(int(expert), int(label)): i for i, (expert, label) in enumerate(state["columns"])}
        self.head.load_state_dict(state["head"])
        if self.head.classes != len(self.columns):
            raise ValueError(f"it has {self.head.classes} columns, and names {len(self.columns)}")
        if self.gate is not None:
            self.gate.load_state_dict(state["gate"])


class SeparateExperts:
    """A feature map and a head for every expert, and a gate on the inputs: p(y|x) = sum_m p(m|x) p(y|x, m).

    Args:
        new_map: makes the feature map of an expert.
        make_gate: makes the gate; must give one.
        ridge: of the heads; None: from the evidence.
    """

    def __init__(self, new_map: Callable[[int], FeatureMap], make_gate: MakeGate, ridge: float | None) -> None:
        self.new_map, self.make_gate, self.ridge = new_map, make_gate, ridge
        self.maps: list[FeatureMap] = []
        self.heads: list[ClassHead] = []
        self.shift = self.scale = torch.zeros(())
        self.gate: GenerativeGate | None = None

    def begin(self, x: Tensor) -> None:
        """Standardise the gate's inputs on the first examples of the stream."""
        flat = x.float().flatten(1)
        self.shift = flat.mean(0)
        self.scale = (flat - self.shift).square().mean().sqrt().clamp_min(1e-6)
        self.gate = self._standardised_gate()

    def _standardised_gate(self) -> GenerativeGate:
        """A gate on inputs that `_gate_input` has standardised."""
        gate = self.make_gate(len(self.shift), "diagonal")
        assert gate is not None
        gate.standardise(0.0, 1.0)
        return gate

    def _gate_input(self, x: Tensor) -> Tensor:
        return (x.float().flatten(1) - self.shift) / self.scale

    def learn(self, x: Tensor, y: Tensor, experts: Tensor | None, weights: Tensor | None = None) -> Tensor:
        """Learn from a batch; returns the experts ``[B]``: those given, else those that the gate assigns."""
        assert self.gate is not None
        if experts is None:
            experts = self.gate.observe(self._gate_input(x))
        else:
            self.gate.learn(self._gate_input(x), experts)
        for expert in experts.unique().tolist():
            mine = experts == expert
            while len(self.maps) <= expert:
                features = self.new_map(len(self.maps))
                features.fit(x[mine])
                self.maps.append(features)
                self.heads.append(ClassHead(features.features, ridge=self.ridge))
            self.heads[expert].add(self.maps[expert](x[mine]), y[mine], None if weights is None else weights[mine])
        return experts

    def remove(self, x: Tensor, y: Tensor, experts: Tensor, weights: Tensor | None = None) -> None:
        """Unlearn examples of given experts; `InputError`, and nothing has changed, if they cannot all have been learned."""
        assert self.gate is not None
        if int(experts.max()) >= len(self.heads) or int(experts.min()) < 0:
            raise InputError(f"there are {len(self.heads)} experts, got {experts.unique().tolist()}")
        before = (copy.deepcopy(self.gate), [copy.copy(head) for head in self.heads])
        try:
            self.gate.remove(self._gate_input(x), experts)
            for expert in experts.unique().tolist():
                mine = experts == expert
                self.heads[expert] = copy.deepcopy(self.heads[expert])
                self.heads[expert].remove(self.maps[expert](x[mine]), y[mine], None if weights is None else weights[mine])
        except InputError:
            self.gate, self.heads = before
            raise

    def predict(self, x: Tensor, outputs: int, task: Tensor | None) -> tuple[Tensor, Tensor]:
        """p(y|x) ``[B, outputs]``, up to a factor, and p(m|x) ``[B, experts]``, which a given task id determines."""
        assert self.gate is not None
        share = self.gate.probabilities(self._gate_input(x)) if task is None else _one_expert(task, len(self.heads))
        p = share.new_zeros(len(x), outputs)
        for expert, head in enumerate(self.heads[: share.shape[1]]):
            rows = (share[:, expert] > 1e-6).nonzero().flatten()
            if len(rows) and head.model.count:
                answers = head.log_probabilities(self.maps[expert](x[rows])).exp()
                p[rows] += share[rows, expert, None] * F.pad(answers, (0, outputs - answers.shape[1]))
        return p + 1e-12, share

    def state_dict(self) -> State:
        """Feature maps, heads, gate, and how its inputs are standardised."""
        assert self.gate is not None
        return {
            "maps": [features.state_dict() for features in self.maps],
            "heads": [head.state_dict() for head in self.heads],
            "gate": self.gate.state_dict(),
            "shift": self.shift,
            "scale": self.scale,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned, into an object that has learned nothing."""
        self.shift, self.scale = state["shift"], state["scale"]
        self.gate = self._standardised_gate()
        self.gate.load_state_dict(state["gate"])
        for number, (features, head) in enumerate(zip(state["maps"], state["heads"], strict=True)):
            self.maps.append(self.new_map(number))
            self.maps[-1].load_state_dict(features)
            self.heads.append(ClassHead(self.maps[-1].features, ridge=self.ridge))
            self.heads[-1].load_state_dict(head)


def _one_expert(task: Tensor, experts: int) -> Tensor:
    """p(m|x) ``[B, n]``, n >= `experts`, where the task id is the expert."""
    return F.one_hot(task, max(experts, int(task.max()) + 1)).double()
