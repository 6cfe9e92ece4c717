r"""The base of learners that replay generated examples instead of stored ones.

At a boundary the networks so far are frozen: a generator G of the tasks up to t - 1 and a classifier that labels what it
generates. From then on every loss is

    L = w * L(current batch) + (1 - w) * L(generated batch),         w the method's `share`,

for the classifier and for the generator alike. No example of the data is kept.

In Class-IL and Domain-IL the labelling classifier chooses among the labels that occurred before the boundary; in Task-IL every
generated example is labelled by one head among those seen, drawn at random (or by the head of its class, if the generator is
class-conditional). Task-free streams announce no boundaries: then a generative gate detects them (`BoundaryDetector`), and a
conditional generator is conditioned on labels alone, not on tasks, since their number is not known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.random import RandomState
from hvcl.core.state import tensor_like
from hvcl.generative import Generated, Layers, LikelihoodName, MoVEVAE, sample_from
from hvcl.learners.base import State
from hvcl.learners.boundaries import BoundaryDetector
from hvcl.learners.gradient import GradientConfig, GradientLearner


@dataclass(frozen=True)
class GenerativeConfig(GradientConfig):
    """The generator beside the network, with the hidden layers and channels of the network unless set otherwise."""

    latent: int = 64
    """Dimensions of the VAE's latent variable."""
    likelihood: LikelihoodName = "bce"
    """The VAE's model of inputs: bce (pixels in [0, 1]), logistic (discretised, for photographs), gaussian (any numbers)."""
    conditional: bool = False
    """A class-conditional generator: each (task, label) has a latent Gaussian of its own, and is replayed in its proportion."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(latent=self.latent)


def at_least_one(**sizes: int) -> None:
    """Raise `InputError` for a size below 1, by its name."""
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} must be at least 1, got {size}")


@dataclass(frozen=True)
class DistillingConfig(GenerativeConfig):
    """A generator, and labels that may be soft."""

    temperature: float = 2.0
    """T, what old and new outputs are divided by before they are compared."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.temperature > 0:
            raise InputError(f"temperature must be positive, got {self.temperature}")


class Replayed(NamedTuple):
    """Generated examples for replay."""

    x: Tensor
    targets: Tensor
    """Class probabilities ``[n, outputs]``."""
    task: Tensor | None
    """Task-IL: the task of the head that each is replayed through."""
    condition: Tensor
    """The condition that each was generated for."""


class GenerativeReplay(GradientLearner):
    """Replays what a generator makes, labelled by the network of the last boundary."""

    config: GenerativeConfig

    def __init__(self, problem: Problem, config: GenerativeConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.finished = 0
        """Number of finished tasks."""
        self.seen = torch.zeros(problem.outputs, dtype=torch.bool, device=self.device)
        """Labels that have occurred."""
        self.known = self.seen.clone()
        """Labels that had occurred at the last boundary."""
        self.heads = torch.zeros(0, dtype=torch.long)
        """Task-IL: tasks that had occurred at the last boundary."""
        self._tasks_seen: set[int] = set()
        self.replayed: Replayed | None = None
        """The generated examples that are replayed with the current batch."""
        self.detector = BoundaryDetector(problem.input_shape, seed) if problem.task_examples is None else None
        """Detects the boundaries of a task-free stream; None where boundaries are known."""

    # -- what a method defines -------------------------------------------------------------------------------------------------

    @property
    def share(self) -> float:
        """w, the weight of the current batch: by default 1/t at task t, so that every task counts the same."""
        return 1 / (self.finished + 1)

    @property
    def temperature(self) -> float:
        """T, 1 for methods that have none."""
        return self.config.temperature if isinstance(self.config, DistillingConfig) else 1.0

    @abstractmethod
    def vaes(self) -> Sequence[MoVEVAE]:
        """The VAEs that together generate examples of all that was learned up to now."""

    @abstractmethod
    def remember(self) -> None:
        """At a boundary: keep what replay needs, e.g. frozen copies of the networks."""

    @abstractmethod
    def draw(self, count: int) -> Replayed | None:
        """Generated examples of past tasks; None before the first boundary."""

    def check(self, x: Tensor) -> None:
        """Raise `InputError` for inputs that the generator does not describe."""
        self.vaes()[0].check(x)

    def train_generator(self, x: Tensor, y: Tensor) -> dict[str, float]:
        """One step of the generator, if it is not a part of the network; returns named terms."""
        return {}

    def answers(self, network: nn.Module, x: Tensor, task: Tensor | None) -> Tensor:
        """Logits of generated examples: by default those of the network that labels."""
        logits: Tensor = network(x)
        return logits

    def targets(self, logits: Tensor, condition: Tensor) -> Tensor:
        """Targets ``[n, outputs]`` from the labelling classifier's logits: by default probabilities, softened by T."""
        return (logits / self.temperature).softmax(1)

    def hard_targets(self, logits: Tensor, condition: Tensor) -> Tensor:
        """One-hot targets: the class that an example was generated for, or else the labelling classifier's prediction."""
        label = condition % self.problem.outputs if self.config.conditional else logits.argmax(1)
        return F.one_hot(label, self.problem.outputs).to(logits)

    def replay_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy between targets and softened answers, times T^2: its gradient keeps its size whatever T is.

        Logits may be minus infinity where the target is 0.
        """
        answers = (logits / self.temperature).log_softmax(1).masked_fill(targets == 0, 0.0)
        return -(self.temperature**2) * (targets * answers).sum(1).mean()

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step on the batch and as many generated examples; on a task-free stream, boundary detection comes first."""
        self.check(x)
        if self.detector is not None and self.detector.crossed(x, y, task):
            self.end_task()
        with self.random.active():
            self.replayed = self.draw(len(x))
        terms = super().learn(x, y, task)
        with self.random.active():
            terms |= self.train_generator(x.to(self.device), y.to(self.device))
        self.replayed = None
        self.seen[y.to(self.device)] = True
        if task is not None:
            self._tasks_seen.update(task.unique().tolist())
        return terms

    def cross_entropy(self, x: Tensor, y: Tensor, task: Tensor | None) -> Tensor:
        """w * cross-entropy of the batch + (1 - w) * cross-entropy of what is replayed, in one forward pass."""
        if self.replayed is None:
            return super().cross_entropy(x, y, task)
        tasks = None if task is None or self.replayed.task is None else torch.cat([task.to(self.device), self.replayed.task])
        logits = self.logits(torch.cat([x, self.replayed.x]), tasks)
        return self.blend(F.cross_entropy(logits[: len(x)], y), self.replay_loss(logits[len(x) :], self.replayed.targets))

    def blend(self, current: Tensor, replayed: Tensor) -> Tensor:
        """w * current + (1 - w) * replayed."""
        return self.share * current + (1 - self.share) * replayed

    def with_replay(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs for the generator, current ones first; their weights, which sum to 1; their conditions."""
        condition = self.condition(y)
        weights = x.new_full((len(x),), 1 / len(x))
        if self.replayed is None:
            return x, weights, condition
        old = self.replayed
        rest = x.new_full((len(old.x),), (1 - self.share) / len(old.x))
        conditions = None if condition is None else torch.cat([condition, old.condition])
        return torch.cat([x, old.x]), torch.cat([self.share * weights, rest]), conditions

    def end_task(self) -> None:
        """Keep what replay needs, if any example was seen yet."""
        super().end_task()
        if not bool(self.seen.any()):
            return
        self.finished += 1
        self.known = self.seen.clone()
        self.heads = torch.tensor(sorted(self._tasks_seen), dtype=torch.long)
        with self.random.active():
            self.remember()

    # -- conditions ------------------------------------------------------------------------------------------------------------

    @property
    def tasks_apart(self) -> int:
        """Tasks that one VAE distinguishes: where boundaries are known its classes are pairs (task, label)."""
        return len(self.problem.task_examples) if self.problem.task_examples else 1

    @property
    def conditions(self) -> int:
        """Number of conditions of one VAE."""
        return self.tasks_apart * self.problem.outputs if self.config.conditional else 1

    def condition(self, y: Tensor) -> Tensor | None:
        """The conditions of examples of the current task; None if the generator is not conditional."""
        if not self.config.conditional:
            return None
        return min(self.finished, self.tasks_apart - 1) * self.problem.outputs + y

    # -- generating ------------------------------------------------------------------------------------------------------------

    def new_vae(
        self,
        layers: Layers | None = None,
        hidden: tuple[int, ...] | None = None,
        channels: tuple[int, ...] | None = None,
    ) -> MoVEVAE:
        """A VAE for the problem, by default of plain layers and with the hidden layers and channels of the network."""
        config = self.config
        vae = MoVEVAE(
            self.problem.input_shape,
            layers,
            latent=config.latent,
            hidden=config.hidden if hidden is None else hidden,
            channels=config.channels if channels is None else channels,
            likelihood=config.likelihood,
            conditions=self.conditions,
        )
        return vae.to(self.device)

    def make_replay(self, count: int, network: nn.Module, vaes: Sequence[MoVEVAE]) -> Replayed:
        """`count` examples from some VAEs, labelled by a network in evaluation mode."""
        with torch.no_grad():
            generated, _ = sample_from(vaes, count)
            task = self._heads_for(generated, self.heads)
            logits = self.masked(self.answers(network, generated.x, task), task)
            if task is None:
                logits = logits.masked_fill(~self.known, -torch.inf)
            return Replayed(generated.x, self.targets(logits, generated.condition), task, generated.condition)

    def _heads_for(self, generated: Generated, heads: Tensor) -> Tensor | None:
        """Task-IL: the head of the class that each was generated for, else a random one of `heads`."""
        if self._heads is None:
            return None
        if self.config.conditional:
            return self._heads[:, generated.condition % self.problem.outputs].float().argmax(0)
        return heads[torch.randint(len(heads), (len(generated.x),))].to(self.device)

    def judge(self, x: Tensor, task: Tensor | None) -> tuple[Tensor, Tensor]:
        """Class probabilities and last hidden layer of generated examples."""
        return self.predict(x, task), self.features(x)

    @property
    def latent_experts(self) -> int:
        """Number of experts of the latent mean."""
        return self.vaes()[0].experts

    @torch.no_grad()
    def generate(
        self, count: int, seed: int, *, label: int | None = None, expert: int | None = None
    ) -> tuple[Generated, Tensor | None]:
        """Generated examples, from a random state of their own; in Task-IL with the heads to classify them by.

        Args:
            count: how many inputs.
            seed: of the random state.
            label: only inputs of this output unit, of all tasks that have it; needs `conditional=True`.
            expert: only inputs from this expert of the latent mean.
        """
        condition = None
        if label is not None:
            if not self.config.conditional:
                raise InputError("this generator cannot generate a given label: set conditional=True")
            if not 0 <= label < self.problem.outputs:
                raise InputError(f"label must lie between 0 and {self.problem.outputs - 1}, got {label}")
            condition = range(label, self.conditions, self.problem.outputs)
        with RandomState(seed).active():
            generated, _ = sample_from(self.vaes(), count, condition=condition, expert=expert)
            return generated, self._heads_for(generated, torch.tensor(sorted(self._tasks_seen)))

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """Each input as the generator gives it back; where there are several VAEs, the one that does it best."""
        x, _ = self.accept_inputs(x, None if self._heads is None else torch.zeros(len(x), dtype=torch.long))
        x = x.to(self.device)
        answers = torch.stack([vae.reconstruct(x) for vae in self.vaes()])
        errors = (answers - x).flatten(2).square().sum(2)
        return answers[errors.argmin(0), torch.arange(len(x), device=self.device)].cpu()

    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        """The classifier's last hidden layer ``[B, units]``, in evaluation mode."""
        if not isinstance(self.network, nn.Sequential):
            raise InputError("features are those before the last layer: override `features` for a network that is no sequence")
        self.network.eval()
        try:
            hidden: Tensor = self.network[:-1](x.to(self.device))
            return hidden.cpu()
        finally:
            self.network.train()

    # -- state -----------------------------------------------------------------------------------------------------------------

    @property
    def memory(self) -> str:
        """Generated examples are not stored ones; a detector of boundaries keeps the first examples for a while."""
        if self.detector is None or self.problem.task_outputs is not None:
            return super().memory
        return self.detector.gate.memory

    def state_dict(self) -> State:
        """As any network's, the tasks and labels that were seen, and the boundary detector."""
        own = {"finished": self.finished, "seen": self.seen, "known": self.known, "heads": self.heads}
        detector = None if self.detector is None else self.detector.state_dict()
        return super().state_dict() | own | {"tasks_seen": sorted(self._tasks_seen), "finder": detector}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        if self.detector is not None:
            self.detector.load_state_dict(state["finder"])
        self.finished = int(state["finished"])
        self.seen, self.known = (tensor_like(state[name], self.seen, name) for name in ("seen", "known"))
        self.heads = tensor_like(state["heads"], torch.zeros(len(state["heads"]), dtype=torch.long), "heads")
        self._tasks_seen = {int(task) for task in state["tasks_seen"]}
