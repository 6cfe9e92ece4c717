r"""A generative gate on the observation in front of growing agents: continual reinforcement learning without boundaries.

p(m|s) ~ p(m) p(phi(s)|m) with conjugate Gaussians (`hvcl.gates.GenerativeGate`), whose statistics only add up: the gate cannot
forget. Every expert m is a SAC of variational networks of its own, which alone learns from its observations. Nobody tells when a
task ends. What the gate reads is phi(s) = (sign(s) log(1 + |s|), 1[s != 0]): an observation that was filled up with zeros shows
which of its places mean something, and the logarithm keeps outliers small.

Policies change what they see, and observations follow each other: a test for a shift of means would never rest. So openings are
decided by densities, observation after observation, in a cumulative sum of log Bayes factors against the present expert,

    S <- max(0, S + clip(max(max_{m != current} log p(phi|m), log p_0(phi)) - log p(phi|current), -c, c)),

with p_0 the broad base measure. The present expert is left when S exceeds the prior odds log(N / concentration); c is those odds
over `patience`, so no lone outlier decides. What was seen since S was last zero then goes to the expert that explains it best, a
new one if that is the base measure. An expert that is left consolidates, and its replay is emptied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hvcl.errors import InputError, RunError
from hvcl.gates import GenerativeGate
from hvcl.rl.agent import Agent, State
from hvcl.rl.environments import Array
from hvcl.rl.methods.hvcl import HVCL, HVCLSACConfig
from hvcl.rl.methods.registry import register
from hvcl.rl.part import Terms
from hvcl.rl.replay import Transitions


@dataclass(frozen=True)
class GrowingSACConfig(HVCLSACConfig):
    """Every expert's agent, and the gate in front."""

    experts: int = 1
    """Experts in every layer of every expert's networks."""
    beta_expert: float = 0.01
    """beta2, weight of the experts' KL (which is divided by `horizon`)."""
    concentration: float = 0.01
    """Concentration of the gate's Chinese-restaurant prior: larger opens experts more readily."""
    patience: int = 16
    """Observations that it takes at least to leave an expert."""
    window: int = 256
    """Observations that a new expert takes as they come."""
    horizon: int = 60_000
    """Steps that stand for the length of a task, which nobody tells."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience < 1 or self.window < 1 or self.horizon < 1 or not self.concentration > 0:
            raise InputError("patience, window and horizon must be at least 1, and concentration positive")


CHUNK = 16
"""Observations that the gate looks at together."""


@register("hvcl-growing", GrowingSACConfig)
class Growing(Agent):
    """A generative gate on the observation that opens SACs of variational networks as they are needed; no boundaries needed."""

    config: GrowingSACConfig

    def __init__(self, observations: int, actions: int, config: GrowingSACConfig, seed: int) -> None:
        super().__init__(observations, actions, seed)
        self.config = config
        # the gate's base measure has variance scale^2 (1 + 1 / mean_precision) = 11: broad for log-scaled numbers
        # a small shrinkage lets the gate be sure of places that are always zero after a few hundred observations
        self.gate = GenerativeGate(2 * observations, covariance="diagonal", growing=False, shrinkage=0.25, seed=seed)
        self.members: list[HVCL] = []
        self.current = 0
        self.suspicion = 0.0
        self.waiting: list[Transitions] = []
        """What the gate has not looked at yet."""
        self.suspect: list[Transitions] = []
        """What speaks against the present expert: since S was last zero."""
        self._open()

    def _open(self) -> None:
        member = HVCL(self.observations, self.actions, self.config, self.seed + 1_000 * len(self.members))
        member.on_task_start(0, self.config.horizon)
        self.members.append(member)

    # -- learning ---------------------------------------------------------------------------------------------------------

    def act(self, observations: Array) -> Array:
        """As the present expert acts."""
        return self.members[self.current].act(observations)

    def observe(self, transitions: Transitions) -> Terms:
        """Let the gate decide whose they are, some at a time; that expert learns from them."""
        self.waiting.append(transitions)
        if sum(len(waiting.reward) for waiting in self.waiting) < CHUNK:
            return {}
        chunk, self.waiting = self.waiting, []
        return self._judge(chunk)

    def _judge(self, chunk: list[Transitions]) -> Terms:
        if not self.gate.experts or float(self.gate.counts[self.current : self.current + 1].sum()) < self.config.window:
            return self._give(chunk)
        odds = math.log(max(float(self.gate.counts.sum()) / self.config.concentration, math.e))
        limit = odds / self.config.patience
        evidence = self._evidence(chunk)
        own = evidence[:, self.current].clone()
        evidence[:, self.current] = -torch.inf
        gaps = (evidence.max(1).values - own).clamp(-limit, limit).tolist()
        for gap in gaps:
            self.suspicion = max(0.0, self.suspicion + gap)
            if self.suspicion > odds:
                break
        self.suspect += chunk
        if self.suspicion > odds:
            self._leave(limit)
        elif self.suspicion > 0:
            return {}
        held, self.suspect = self.suspect, []
        return self._give(held)

    def _leave(self, limit: float) -> None:
        """Go over to the expert that explains the suspects best, a new one if no known one does.

        Their log Bayes factors against the base measure are clipped: a few observations from before the change do not decide.
        """
        evidence = self._evidence(self.suspect)
        gain = (evidence[:, :-1] - evidence[:, -1:]).clamp(-limit, limit).sum(0)
        gain[self.current] = -torch.inf
        following = int(gain.argmax()) if float(gain.max()) > 0 else len(self.members)
        self.members[self.current].on_task_end()
        if following == len(self.members):
            self._open()
        else:
            self.members[following].on_task_start(0, self.config.horizon)
        self.current, self.suspicion = following, 0.0

    def _give(self, held: list[Transitions]) -> Terms:
        """To the present expert, and to the gate's statistics of it."""
        z = self._features(held)
        self.gate.learn(z, torch.full((len(z),), self.current))
        terms: Terms = {}
        for transitions in held:
            terms = self.members[self.current].observe(transitions) or terms
        return terms

    def _evidence(self, chunk: list[Transitions]) -> Tensor:
        """log p(phi|m) of every expert and, last, of the base measure, ``[rows, experts + 1]``."""
        z = self._features(chunk)
        known = self.gate.log_likelihood(z)
        base = self.gate.novelty(z) + known.max(1).values
        return torch.cat([known, base.unsqueeze(1)], 1)

    def _features(self, chunk: list[Transitions]) -> Tensor:
        return features(np.concatenate([transitions.observation for transitions in chunk]))

    # -- acting -----------------------------------------------------------------------------------------------------------

    def experts_of(self, observations: Array) -> Tensor:
        """The expert of each observation ``[n]``."""
        if not self.gate.experts:
            return torch.zeros(len(observations), dtype=torch.long)
        return self.gate.log_probabilities(features(self.check(observations))).argmax(1)

    def predict(self, observations: Array, task: int | None = None) -> Array:
        """What the expert of each observation does."""
        experts = self.experts_of(observations).numpy()
        actions = np.zeros((len(experts), self.actions), np.float32)
        for expert in np.unique(experts):
            mine = experts == expert
            actions[mine] = self.members[expert].predict(observations[mine])
        return actions

    def usage(self, observations: Array) -> dict[str, list[float]]:
        """The share of the observations that each expert answers for."""
        counts = torch.bincount(self.experts_of(observations), minlength=len(self.members))
        return {"gate": (counts / counts.sum()).tolist()}

    # -- state --------------------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> int:
        """Numbers in all actors and in the gate."""
        return sum(member.parameters for member in self.members) + self.gate.parameters

    def state_dict(self) -> State:
        """The gate, all members, what is held back."""
        return {
            "gate": self.gate.state_dict(),
            "members": [member.state_dict() for member in self.members],
            "current": self.current,
            "suspicion": self.suspicion,
            "waiting": [_tensors(transitions) for transitions in self.waiting],
            "suspect": [_tensors(transitions) for transitions in self.suspect],
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from `state`."""
        if not state["members"]:
            raise RunError("the saved agent has no experts: it was not made by this method")
        self.gate.load_state_dict(state["gate"])
        del self.members[1:]
        for _ in state["members"][1:]:
            self._open()
        for member, saved in zip(self.members, state["members"], strict=True):
            member.load_state_dict(saved)
        self.current, self.suspicion = int(state["current"]), float(state["suspicion"])
        self.waiting = [_arrays(saved) for saved in state["waiting"]]
        self.suspect = [_arrays(saved) for saved in state["suspect"]]


def features(observations: Array) -> Tensor:
    """phi(s) = (sign(s) log(1 + |s|), 1[s != 0]) ``[n, 2 D]``, float64."""
    s = torch.from_numpy(observations).double()
    return torch.cat([s.sign() * s.abs().log1p(), (s != 0).double()], 1)


def _tensors(transitions: Transitions) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(part)) for part in transitions]


def _arrays(saved: list[Tensor]) -> Transitions:
    return Transitions(*(part.numpy() for part in saved))
