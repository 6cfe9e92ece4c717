r"""Proximal policy optimisation (Schulman et al., 2017) with a head for every task: the backbone of the paper's own rivals.

Whenever `rollout` steps are collected, advantages A follow by generalised advantage estimation (Schulman et al., 2016), and for
some epochs of minibatches

    actor     J_pi = -E[ min(r A, clip(r, 1 - epsilon, 1 + epsilon) A) ],       r = pi(a|s) / pi_old(a|s)
    critic    J_V  = 1/2 E[ (V(s) - (V_old(s) + A))^2 ]

are minimised, with advantages standardised over the minibatch. The policy is a Gaussian whose actions are clipped by the
environment; actions that a task does not read have no part in its density. The last layer of both networks holds one head after
another: a task reads and changes its own only (Adam starts anew with every task, so that no momentum moves the heads of earlier
ones). Hence the task id must be given, in learning and in acting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.random import RandomState
from hvcl.rl.agent import Agent, AgentConfig, State
from hvcl.rl.dense import StackedDense
from hvcl.rl.environments import Array
from hvcl.rl.part import Part, Terms
from hvcl.rl.replay import Transitions
from hvcl.rl.squashed import split

_LOG_ROOT = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True)
class PPOConfig(AgentConfig):
    """Proximal policy optimisation with a head for every task."""

    trace: float = 0.95
    """lambda of the advantage estimation."""
    clip: float = 0.2
    """epsilon: how far the policy's probabilities may move between rollouts."""
    rollout: int = 2_048
    """Steps between updates."""
    epochs: int = 10
    """Passes over a rollout."""
    batch_size: int = 64
    """Steps in a minibatch."""
    heads: int = 8
    """Tasks that there is room for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.rollout, self.epochs, self.batch_size, self.heads) < 1:
            raise InputError("rollout, epochs, batch_size and heads must be at least 1")
        if not (0 <= self.trace <= 1 and self.clip > 0):
            raise InputError("trace must lie in [0, 1], and clip be positive")


class PPO(Agent):
    """Proximal policy optimisation whose trunk is carried over from task to task."""

    config: PPOConfig

    def __init__(self, observations: int, actions: int, config: PPOConfig, seed: int) -> None:
        super().__init__(observations, actions, seed)
        self.config = config
        self.random = RandomState(seed)
        with self.random.active():
            self.actor = self.make_part(observations, config.heads * 2 * actions)
            self.critic = self.make_part(observations, config.heads)
        with torch.no_grad():  # policies start near zero: what is clipped teaches nothing
            list(self.actor.network.parameters())[-2].mul_(0.01)
        self.most_tasks = config.heads
        self.task = 0
        self.task_steps, self.step = 1, 0
        self.recent: list[Tensor] = []
        """Observations and masks of the last rollout that was learned from."""
        self.rollout: list[list[Tensor]] = []
        """For each step: observation, action, log pi, reward, next observation, terminal, mask; rows are environments."""
        self._chosen: tuple[Tensor, Tensor] | None = None

    def make_part(self, inputs: int, outputs: int) -> Part:
        """The actor or the critic, with all heads side by side. Methods have parts of their own."""
        return Part(StackedDense(inputs, outputs, self.config.hidden), self.config.learning_rate)

    def head(self, outputs: Tensor, task: int | None = None) -> Tensor:
        """The outputs of one task's head."""
        return outputs.view(len(outputs), self.config.heads, -1)[:, self.task if task is None else task]

    # -- the algorithm ----------------------------------------------------------------------------------------------------

    def improve(self) -> Terms:
        """Learn from the rollout, and drop it."""
        config = self.config
        observation, action, old_log_pi, advantage, goal, mask = self.advantages()
        self.rollout, self.recent = [], [observation, mask]
        sums: dict[str, float] = {}
        count = 0
        for _ in range(config.epochs):
            for rows in torch.randperm(len(observation)).split(config.batch_size):
                a = advantage[rows]
                a = (a - a.mean()) / (a.std() + 1e-8) if len(rows) > 1 else a
                ratio = (log_density(self.head(self.actor(observation[rows])), action[rows], mask[rows]) - old_log_pi[rows]).exp()
                gain = torch.minimum(ratio * a, ratio.clamp(1 - config.clip, 1 + config.clip) * a)
                actor_loss = -gain.mean()
                of_actor = self.actor.step(actor_loss, self.progress)

                error = self.head(self.critic(observation[rows]))[:, 0] - goal[rows]
                critic_loss = 0.5 * error.square().mean()
                of_critic = self.critic.step(critic_loss, self.progress)

                terms = {"actor": actor_loss.item(), "critic": critic_loss.item()}
                terms |= {f"critic_{k}": v for k, v in of_critic.items()} | {f"actor_{k}": v for k, v in of_actor.items()}
                count += 1
                for name, value in terms.items():
                    sums[name] = sums.get(name, 0.0) + value
        return {name: value / count for name, value in sums.items()}

    @torch.no_grad()
    def advantages(self) -> tuple[Tensor, ...]:
        """The rollout's rows: observation, action, log pi, advantage, goal of the critic, mask.

        An episode goes on from one step to the next where the observation that a step led to is the one that the next begins
        with; elsewhere it ended or was broken off, and the critic's value of where it led to stands for the rest.
        """
        config = self.config
        parts = [torch.stack(list(values)) for values in zip(*self.rollout, strict=True)]
        observation, action, log_pi, reward, following, terminal, mask = parts  # [steps, environments, ...]
        shape = reward.shape
        value = self.value(observation.flatten(0, 1)).view(shape)
        next_value = self.value(following.flatten(0, 1)).view(shape)
        surprise = reward + config.discount * (1 - terminal) * next_value - value
        goes_on = torch.zeros(shape)
        goes_on[:-1] = (following[:-1] == observation[1:]).all(2).float() * (1 - terminal[:-1])
        advantage = torch.zeros(shape)
        trace = torch.zeros(shape[1])
        for t in reversed(range(len(reward))):
            trace = surprise[t] + config.discount * config.trace * goes_on[t] * trace
            advantage[t] = trace
        rows = (observation, action, log_pi, advantage, advantage + value, mask)
        return tuple(part.flatten(0, 1) for part in rows)

    def value(self, observation: Tensor) -> Tensor:
        """V(s) ``[B]``."""
        return self.head(self.critic.mirror(observation))[:, 0]

    # -- acting and learning ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, observations: Array) -> Array:
        """A draw from the policy."""
        with self.random.active():
            outputs = self.head(self.actor.mirror(torch.from_numpy(self.check(observations))))
            mean, log_sigma = split(outputs)
            action = torch.addcmul(mean, log_sigma.exp(), torch.randn_like(mean))
        self._chosen = outputs, action
        return action.numpy()

    def predict(self, observations: Array, task: int | None = None) -> Array:
        """The policy's mean, from the head of `task` (None: the present one)."""
        task = self._known(self.task if task is None else task)
        with torch.no_grad():
            return self.head(self.actor.mirror(torch.from_numpy(self.check(observations))), task).chunk(2, 1)[0].numpy()

    def observe(self, transitions: Transitions) -> Terms:
        """Collect, and learn when the rollout is full."""
        if self._chosen is None:
            raise InputError("observe follows act: the agent has not acted yet")
        (outputs, action), self._chosen = self._chosen, None
        mask = torch.from_numpy(transitions.mask)
        log_pi = log_density(outputs, action, mask)
        others = (transitions.reward, transitions.next_observation, transitions.terminal)
        copies = [torch.from_numpy(np.array(part, np.float32)) for part in (transitions.observation, *others)]
        self.rollout.append([copies[0], action, log_pi, *copies[1:], mask])
        self.step += len(action)
        if len(self.rollout) * len(action) < self.config.rollout:
            return {}
        with self.random.active():
            return self.improve()

    @property
    def progress(self) -> float:
        """The share of the task that is done."""
        return min(1.0, self.step / self.task_steps)

    def on_task_start(self, task: int, steps: int) -> None:
        """Switch to the head of the task, with a new optimiser."""
        self.task, self.task_steps, self.step = self._known(task), max(1, steps), 0
        self.rollout, self.recent = [], []
        for part in (self.actor, self.critic):
            part.restart()

    def on_task_end(self) -> None:
        """Let the parts do what their method does, on the observations of the last full rollout."""
        if not self.recent:
            return
        observation, mask = self.recent
        with self.random.active(), torch.no_grad():
            _, log_sigma = split(self.head(self.actor.mirror(observation)))
            curvature = torch.cat([torch.exp(-2 * log_sigma) * mask, 2 * mask], 1)
            self.actor.end_task(observation, self._at_head(curvature))
            self.critic.end_task(observation, self._at_head(torch.ones(len(observation), 1)))

    def _at_head(self, values: Tensor) -> Tensor:
        """Values of the present head's outputs among those of all heads, which have 0."""
        every = torch.zeros(len(values), self.config.heads, values.shape[1])
        every[:, self.task] = values
        return every.flatten(1)

    def _known(self, task: int) -> int:
        if not 0 <= task < self.config.heads:
            raise InputError(f"there are heads for {self.config.heads} tasks, and task {task} is none of them: set heads")
        return task

    # -- state ----------------------------------------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Number of trainable numbers in the actor."""
        return sum(parameter.numel() for parameter in self.actor.network.parameters())

    def state_dict(self) -> State:
        """Networks, optimisers, the rollout so far, position, random state."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "rollout": self.rollout,
            "recent": self.recent,
            "random": self.random.state(),
            "position": [self.task, self.task_steps, self.step],
        }

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.rollout, self.recent = [list(step) for step in state["rollout"]], list(state["recent"])
        self.random.load_state(state["random"])
        self.task, self.task_steps, self.step = (int(number) for number in state["position"])


def log_density(outputs: Tensor, action: Tensor, mask: Tensor) -> Tensor:
    """log N(action; mu, sigma^2) ``[B]`` over the actions that a task reads."""
    mean, log_sigma = split(outputs)
    density = -0.5 * ((action - mean) / log_sigma.exp()).square() - log_sigma - _LOG_ROOT
    return (density * mask).sum(1)
