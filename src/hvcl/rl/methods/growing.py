r"""A generative gate on the observation in front of growing agents: continual reinforcement learning without boundaries.

p(m|s) ~ p(m) p(s|m) with conjugate densities (`hvcl.rl.observation_gate`), whose statistics only add up: the gate cannot forget.
Every expert m is a SAC of variational networks of its own, which alone learns from its observations. Nobody tells when a task
ends.

A policy that gets better sees other things, so new observations are no sign of a new task. Where episodes begin, however, no
policy has a hand in. So a second gate of the same kind holds the density p_1(s|m) of first observations, and every episode that
begins speaks for or against the present expert m, in a cumulative sum of log Bayes factors:

    S_k <- max(0, S_k + log p_1(s_1|k) - log p_1(s_1|m)),        k any other expert, or a new one

The present expert is left for k once S_k exceeds log(N / concentration), with N the number of episodes so far: the prior odds of
a Chinese restaurant against a new table; one that has seen few episodes is not left for a new one. Tasks are taken to change
between episodes, and to differ in how these begin. That an episode has begun is seen from the transitions: its first observation
is not where the last one led. An expert that is left consolidates, and its replay is emptied.
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
"""Share of an expert's numbers that the gate lets be anything, where agents act."""

YOUNG = 10
"""Episodes that an expert has to itself before it can be left for a new one: until then it is too broad to be compared."""


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
    """Steps that stand for the length of a task, which nobody tells."""

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
        """Of all observations: whose they are when the agent acts."""
        self.starts = ObservationGate(observations)
        """Of first observations: whose they are when it learns."""
        self.members: list[HVCL] = []
        self.current = 0
        self.suspicion = torch.zeros(2, dtype=torch.double)
        """S of every expert (0 for the present one) and, last, of a new one."""
        self.arrived: Array = np.zeros((0, observations), np.float32)
        """Where the last transitions led."""
        self._open()

    def _open(self) -> None:
        member = HVCL(self.observations, self.actions, self.config, self.seed + 1_000 * len(self.members))
        member.on_task_start(0, self.config.horizon)
        self.members.append(member)
        self.gate.open()
        self.starts.open()

    # -- learning ---------------------------------------------------------------------------------------------------------

    def act(self, observations: Array) -> Array:
        """As the present expert acts."""
        return self.members[self.current].act(observations)

    def observe(self, transitions: Transitions) -> Terms:
        """Decide whose episodes they are when these begin; that expert learns from them."""
        seen = transitions.observation
        goes_on = (seen == self.arrived).all(1) if len(seen) == len(self.arrived) else np.zeros(len(seen), bool)
        self.arrived = transitions.next_observation.copy()
        if not goes_on.all():
            self._begin(seen[~goes_on])
        self.gate.learn(seen, self.current)
        return self.members[self.current].observe(transitions)

    def _begin(self, first: Array) -> None:
        """Go over to the expert whose episodes begin like these, a new one if no known one's do."""
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
    def num_parameters(self) -> int:
        """Numbers in all actors and in both gates."""
        return sum(member.num_parameters for member in self.members) + self.gate.num_parameters + self.starts.num_parameters

    def state_dict(self) -> State:
        """The gates, all members, where the last transitions led."""
        return {
            "gate": self.gate.state_dict(),
            "starts": self.starts.state_dict(),
            "members": [member.state_dict() for member in self.members],
            "current": self.current,
            "suspicion": self.suspicion,
            "arrived": torch.from_numpy(self.arrived.copy()),
        }

    def restore(self, state: State) -> None:
        """Go on from `state`."""
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
