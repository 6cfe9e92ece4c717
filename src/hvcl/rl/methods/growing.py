r"""A generative gate on the observation in front of growing agents: continual reinforcement learning without boundaries.

p(m|s) ~ p(m) p(s|m) with conjugate densities (`hvcl.rl.observation_gate`), whose statistics only add up: the gate cannot forget.
Every expert m is a SAC of variational networks of its own, which alone learns from its observations. Task boundaries
are not known.

A policy that improves visits other states, so new observations are no evidence of a new task. The first observation of an
episode, however, does not depend on the policy. So a second gate of the same kind holds the density p_1(s|m) of first
observations, and every new episode is evidence for or against the current expert m, in a cumulative sum of log Bayes factors:

    S_k <- max(0, S_k + log p_1(s_1|k) - log p_1(s_1|m)),        k any other expert, or a new one

The agent switches from m to k once S_k exceeds log(N / concentration), with N the number of episodes so far: the prior odds of
the Chinese-restaurant process against a new expert; an expert with few episodes is not left for a new one. Tasks are assumed to
change between episodes, and to differ in the distribution of first observations. The beginning of an episode is detected from
the transitions: its first observation is not the next observation of the last transition. When the agent switches, the previous
expert consolidates and its replay is emptied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import InputError, RunError
from hvcl.rl.agent import Agent, State
from hvcl.rl.environments import Array
from hvcl.rl.methods.hvcl import HVCL, HVCLSACConfig
from hvcl.rl.methods.registry import register
from hvcl.rl.observation_gate import ObservationGate
from hvcl.rl.part import Terms
from hvcl.rl.replay import Transitions

CONTAMINATION = 1e-3
"""Probability that a number of an observation has nothing to do with its expert, in the gate that agents act by."""

YOUNG = 10
"""Episodes that an expert needs before a new one can replace it: with fewer its density is too broad to be compared."""


@dataclass(frozen=True)
class GrowingSACConfig(HVCLSACConfig):
    """Every expert's agent, and the gate in front."""

    experts: int = 1
    """Experts in every layer of every expert's networks."""
    beta_expert: float = 0.01
    """beta2, weight of the experts' KL (which is divided by `horizon`)."""
    concentration: float = 0.1
    """Concentration of the gate's Chinese-restaurant prior: larger opens experts more readily."""
    horizon: int = 60_000
    """Steps that count as the length of a task, which is not known."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.horizon < 1 or not self.concentration > 0:
            raise InputError("horizon must be at least 1, and concentration positive")


@register("hvcl-growing", GrowingSACConfig)
class Growing(Agent):
    """A generative gate on the observation that opens SACs of variational networks as they are needed; no boundaries needed."""

    config: GrowingSACConfig

    def __init__(self, observations: int, actions: int, config: GrowingSACConfig, seed: int) -> None:
        super().__init__(observations, actions, seed)
        self.config = config
        self.gate = ObservationGate(observations, CONTAMINATION)
        """p(m|s) of all observations, by which the agent chooses the expert that acts."""
        self.starts = ObservationGate(observations)
        """p(m|s) of first observations of episodes, by which it chooses the expert that learns."""
        self.members: list[HVCL] = []
        self.current = 0
        self.suspicion = torch.zeros(2, dtype=torch.double)
        """S of every expert (0 for the current one) and, last, of a new one."""
        self.arrived: Array = np.zeros((0, observations), np.float32)
        """The next observations of the last transitions."""
        self._open()

    def _open(self) -> None:
        member = HVCL(self.observations, self.actions, self.config, self.seed + 1_000 * len(self.members))
        member.on_task_start(0, self.config.horizon)
        self.members.append(member)
        self.gate.open()
        self.starts.open()

    # -- learning ---------------------------------------------------------------------------------------------------------

    def act(self, observations: Array) -> Array:
        """Actions of the current expert."""
        return self.members[self.current].act(observations)

    def observe(self, transitions: Transitions) -> Terms:
        """Where episodes begin, choose the expert that they belong to; the current expert learns from the transitions."""
        seen = transitions.observation
        goes_on = (seen == self.arrived).all(1) if len(seen) == len(self.arrived) else np.zeros(len(seen), bool)
        self.arrived = transitions.next_observation.copy()
        if not goes_on.all():
            self._begin(seen[~goes_on])
        self.gate.learn(seen, self.current)
        return self.members[self.current].observe(transitions)

    def _begin(self, first: Array) -> None:
        """Switch experts if first observations of episodes are evidence for another one, or for a new one."""
        evidence = self.starts.log_likelihood(first).sum(0)
        self.suspicion = (self.suspicion + evidence - evidence[self.current]).clamp_min(0.0)
        if float(self.starts.counts[self.current]) < YOUNG:
            self.suspicion[-1] = 0.0
        following = int(self.suspicion.argmax())
        episodes = max(1.0, float(self.starts.counts.sum()))
        if float(self.suspicion[following]) > math.log(episodes / self.config.concentration):
            self.members[self.current].on_task_end()
            if following == len(self.members):
                self._open()
            else:
                self.members[following].on_task_start(0, self.config.horizon)
            self.current, self.suspicion = following, torch.zeros(len(self.members) + 1, dtype=torch.double)
        self.starts.learn(first, self.current)

    # -- acting -----------------------------------------------------------------------------------------------------------

    def experts_of(self, observations: Array) -> Tensor:
        """The expert of each observation ``[n]``."""
        return self.gate.log_probabilities(self.check(observations)).argmax(1)

    def predict(self, observations: Array, task: int | None = None) -> Array:
        """The actions of each observation's expert."""
        experts = self.experts_of(observations).numpy()
        actions = np.zeros((len(experts), self.actions), np.float32)
        for expert in np.unique(experts):
            mine = experts == expert
            actions[mine] = self.members[expert].predict(observations[mine])
        return actions

    def usage(self, observations: Array) -> dict[str, list[float]]:
        """The share of the observations that belong to each expert."""
        counts = torch.bincount(self.experts_of(observations), minlength=len(self.members))
        return {"gate": (counts / counts.sum()).tolist()}

    # -- state --------------------------------------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Numbers in all actors and in both gates."""
        return sum(member.num_parameters for member in self.members) + self.gate.num_parameters + self.starts.num_parameters

    def state_dict(self) -> State:
        """The gates, all members, the current expert with its evidence, and the last next observations."""
        return {
            "gate": self.gate.state_dict(),
            "starts": self.starts.state_dict(),
            "members": [member.state_dict() for member in self.members],
            "current": self.current,
            "suspicion": self.suspicion,
            "arrived": torch.from_numpy(self.arrived.copy()),
        }

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        if not state["members"]:
            raise RunError("the saved agent has no experts: it was not made by this method")
        del self.members[1:]
        for _ in state["members"][1:]:
            self._open()
        self.gate.load_state_dict(state["gate"])
        self.starts.load_state_dict(state["starts"])
        for member, saved in zip(self.members, state["members"], strict=True):
            member.restore(saved)
        self.current, self.suspicion = int(state["current"]), state["suspicion"].clone()
        self.arrived = state["arrived"].numpy().copy()
