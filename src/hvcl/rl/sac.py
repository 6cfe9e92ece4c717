r"""Soft actor-critic with automatic temperature (Haarnoja et al., 2018a, 2018b).

    critics   J_Q  = 1/2 sum_i E[ w (Q_i(s, a) - y)^2 ],   y = r + gamma (1 - end) ( min_i Q'_i(s', a') - alpha log pi(a'|s') )
    actor     J_pi = E[ alpha log pi(a|s) - min_i Q_i(s, a) ],                          a ~ pi(.|s), reparameterised
    alpha     J    = -log alpha E[ log pi(a|s) + H ],       H = -(number of actions that the task reads)
    targets   Q'  <- Q' + tau (Q - Q')

w are the weights of prioritized replay; with `priority` 0 replay is uniform and they are 1. Padded actions are zero at the
critics and have no part in log-probabilities and entropy targets. Networks that are random variables (MoVE layers) are sampled
where they learn; targets and actions are computed with their means.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.random import RandomState
from hvcl.rl.agent import Agent, AgentConfig, State
from hvcl.rl.dense import StackedDense
from hvcl.rl.environments import Array
from hvcl.rl.losses import soft_value_loss, weighted_squares
from hvcl.rl.part import Part, Terms
from hvcl.rl.replay import PrioritizedReplay, Transitions
from hvcl.rl.squashed import mode, sample, split
from hvcl.rl.temperature import Temperature

FISHER_EXAMPLES = 1_000
"""Transitions of a finished task that methods may measure something on."""


@dataclass(frozen=True)
class SACConfig(AgentConfig):
    """Soft actor-critic; the paper's values where it states them."""

    tau: float = 0.005
    """How far the target critics follow in one update."""
    batch_size: int = 256
    """Transitions in an update."""
    updates_per_step: float = 0.5
    """Updates for each step of an environment."""
    warmup: int = 1_000
    """Steps of each task with random actions and without updates."""
    capacity: int = 1_000_000
    """Transitions that are kept; the oldest make room."""
    priority: float = 0.6
    """alpha of prioritized replay; 0 is uniform."""
    correction: float = 0.4
    """beta of prioritized replay at the start of a task; it rises to 1."""
    keep_replay: bool = False
    """Keep the transitions of earlier tasks at a switch, where the default empties the replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.tau <= 1 and self.updates_per_step >= 0 and 0 <= self.correction <= 1):
            raise InputError("tau must lie in (0, 1], correction in [0, 1], and updates_per_step be at least 0")
        if self.batch_size < 1 or self.warmup < 0:
            raise InputError("batch_size must be at least 1 and warmup at least 0")


class SAC(Agent):
    """Soft actor-critic on plain networks; as a method it is naive: weights are carried over from task to task."""

    config: SACConfig

    def __init__(self, observations: int, actions: int, config: SACConfig, seed: int) -> None:
        super().__init__(observations, actions, seed)
        self.config = config
        self.random = RandomState(seed)
        self.replay = PrioritizedReplay(config.capacity, observations, actions, config.priority, seed)
        self.task_steps, self.step = 1, 0
        self._due = 0.0
        self.start()

    def start(self) -> None:
        """New networks, optimisers and temperature."""
        with self.random.active():
            self.actor = self.make_part(self.observations, 2 * self.actions)
            self.critic = self.make_part(self.observations + self.actions, None)
        self.target = copy.deepcopy(self.critic.mirror)
        self._pairs: tuple[list[Tensor], list[Tensor]] = [*self.target.parameters()], [*self.critic.network.parameters()]
        self.temperature = Temperature(self.config.learning_rate)

    def make_part(self, inputs: int, outputs: int | None) -> Part:
        """The actor, or the pair of critics (`outputs` None). Methods have parts of their own."""
        network = StackedDense(inputs, outputs or 1, self.config.hidden, copies=1 if outputs is not None else 2)
        return Part(network, self.config.learning_rate)

    # -- the algorithm ----------------------------------------------------------------------------------------------------

    def update(self) -> Terms:
        """One step of the critics, the actor, the temperature and the targets."""
        config, alpha = self.config, self.temperature.alpha
        batch = self.replay.sample(config.batch_size, config.correction + (1 - config.correction) * self.progress)
        with self.random.active():
            with torch.no_grad():
                next_action, next_log_pi = sample(self.actor.mirror(batch.next_observation), batch.mask)
                next_q = self.target(torch.cat([batch.next_observation, next_action], 1)).amin(1) - alpha * next_log_pi
                goal = batch.reward + config.discount * (1 - batch.terminal) * next_q

            error = self.critic(batch.pair) - goal.unsqueeze(1)
            critic_loss = weighted_squares(error, batch.weight)
            of_critic = self.critic.step(critic_loss, self.progress)
            self.replay.reprioritize(batch.places, error.detach().abs().mean(1).numpy())

            action, log_pi = sample(self.actor(batch.observation), batch.mask)
            q = self.critic.mirror(torch.cat([batch.observation, action], 1))
            actor_loss = soft_value_loss(log_pi, q, alpha)
            of_actor = self.actor.step(actor_loss, self.progress)

        surprise = (log_pi.detach().sum() - batch.mask.sum()).item() / config.batch_size
        self.temperature.step(surprise)
        with torch.no_grad():
            torch._foreach_lerp_(*self._pairs, config.tau)
        terms = {"critic": critic_loss.item(), "actor": actor_loss.item(), "alpha": alpha, "surprise": surprise}
        return terms | {f"critic_{k}": v for k, v in of_critic.items()} | {f"actor_{k}": v for k, v in of_actor.items()}

    # -- acting and learning ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def act(self, observations: Array) -> Array:
        """A draw from the policy; random actions while the task is new."""
        inputs = torch.from_numpy(self.check(observations))
        with self.random.active():
            if self.step < self.config.warmup:
                return (2 * torch.rand(len(inputs), self.actions) - 1).numpy()
            return sample(self.actor.mirror(inputs), torch.ones(len(inputs), self.actions))[0].numpy()

    @torch.no_grad()
    def predict(self, observations: Array, task: int | None = None) -> Array:
        """The mode of the policy, without exploration."""
        return mode(self.actor.mirror(torch.from_numpy(self.check(observations)))).numpy()

    def observe(self, transitions: Transitions) -> Terms:
        """Remember, and make the updates that are due."""
        self.replay.add(transitions)
        count = len(transitions.reward)
        self.step += count
        if self.step < self.config.warmup or not self.config.updates_per_step:
            return {}
        self._due += count * self.config.updates_per_step
        terms: Terms = {}
        while self._due >= 1:
            self._due -= 1
            terms = self.update()
        return terms

    @property
    def progress(self) -> float:
        """The share of the task that is done."""
        return min(1.0, self.step / self.task_steps)

    def on_task_start(self, task: int, steps: int) -> None:
        """Restart the count of steps."""
        self.task_steps, self.step, self._due = max(1, steps), 0, 0.0

    def on_task_end(self) -> None:
        """Let the parts do what their method does, then empty the replay."""
        if len(self.replay):
            with self.random.active():
                batch = self.replay.sample(FISHER_EXAMPLES, 1.0)
                self.actor.end_task(batch.observation, self.policy_curvature(batch.observation, batch.mask))
                self.critic.end_task(batch.pair, torch.ones(FISHER_EXAMPLES, 2))
        if not self.config.keep_replay:
            self.replay.clear()

    @torch.no_grad()
    def policy_curvature(self, observation: Tensor, mask: Tensor) -> Tensor:
        """Fisher information of the Gaussian about mean (1 / sigma^2) and log sigma (2); squashing does not change it."""
        _, log_sigma = split(self.actor.mirror(observation))
        return torch.cat([torch.exp(-2 * log_sigma) * mask, 2 * mask], 1)

    # -- state ----------------------------------------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Number of trainable numbers in the actor."""
        return sum(parameter.numel() for parameter in self.actor.network.parameters())

    def state_dict(self) -> State:
        """Networks, optimisers, temperature, replay, position, random state."""
        return {
            "actor": self.actor.state_dict(),
            "critic": self.critic.state_dict(),
            "target": dict(self.target.state_dict()),
            "temperature": self.temperature.state_dict(),
            "replay": self.replay.state_dict(),
            "random": self.random.state(),
            "position": [self.task_steps, self.step, self._due],
        }

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.actor.load_state_dict(state["actor"])
        self.critic.load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        self.temperature.load_state_dict(state["temperature"])
        self.replay.load_state_dict(state["replay"])
        self.random.load_state(state["random"])
        self.task_steps, self.step, self._due = int(state["position"][0]), int(state["position"][1]), float(state["position"][2])
