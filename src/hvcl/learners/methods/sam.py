r"""Self-attention meta-learner: SAM (Sokar, Mocanu & Pechenizkiy, 2021).

Before the stream a network learns prior knowledge that new tasks can be built upon. After the activation h of each of its layers
an attention module recalibrates the units (of a convolution: the channels), by what the input has in all of them,

    h <- h * sigmoid( V relu( U m ) ) ,         m = h, or the mean of h over the places of a picture,

with U of units / r rows. Weights theta and attention phi are meta-learned together (MAML, Finn et al., 2017): of episodes of N
classes with K examples each,

    min sum_episodes L_query( w - alpha grad_w L_support(w) ) ,      w = (theta, phi, a linear head) ,

with the second derivatives. Then theta and phi are frozen. Every task of the stream learns a branch of its own on top of what the
attention selects, with its own labels only, and no task can change another's. Branches are asked together: their outputs stand
side by side in one softmax, and the probabilities of a label are added up over branches (in Class-IL, where each label has one
branch, that is the paper's task-agnostic inference). In Task-IL the branch of the task is asked alone.

What the prior knowledge is learned from: not from the stream, nor from any data set, but from invented characters
(`hvcl.learners.invented`), in the shape of the stream's pictures, drawn anew for each seed; in place of Omniglot, which the
authors have for MNIST, and of ImageNet, which they have for CIFAR. Streams of rows have invented Gaussians. Pictures are
expected in [0, 1], as the benchmarks have them. It is learned when the first batch arrives.

For MNIST the authors' branch is a linear head on two shared layers; with ``specific`` the last hidden layers belong to the
branches as well. Their code has the attention, the branches and a network that was meta-learned elsewhere; steps, rates and sizes
of episodes are not in it, and are chosen here.

Deviates from the paper: the data of the prior knowledge; Adam for the branches, not SGD; leaky ReLUs.

On a task-free stream (but in Task-IL) there is one branch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensor_like
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientConfig, GradientLearner
from hvcl.learners.invented import invent
from hvcl.learners.registry import register
from hvcl.networks import build_network, initialise, trunk

CLASSES, EXAMPLES = 200, 20
"""Invented classes, and examples of each."""

EPISODES = 4
"""Of each meta-learning step."""


@dataclass(frozen=True)
class SAMConfig(GradientConfig):
    """Self-attention meta-learner."""

    learning_rate: float = 0.01
    """Step size of Adam, for the branches."""
    weight_decay: float = 0.005
    """Weight of half the squares of the branches' weights, as the authors have it: it keeps branches comparable."""
    specific: int = 0
    """Dense hidden layers, the last ones, that every task has for itself; the others are shared prior knowledge."""
    reduction: int = 10
    """r, how many times fewer units the attention has than the layer it is for."""
    meta_steps: int = 300
    """Steps of meta-learning before the stream; with 0 the prior knowledge is a random network."""
    meta_rate: float = 3e-3
    """Size of these steps (of Adam)."""
    inner_rate: float = 0.4
    """alpha, size of a gradient step within an episode."""
    inner_steps: int = 3
    """Gradient steps within an episode."""
    ways: int = 5
    """N, classes of an episode."""
    shots: int = 5
    """K, examples of each class that an episode learns from; the class's others are its queries."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("reduction", "inner_steps", "shots"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 2 <= self.ways <= CLASSES or self.shots >= EXAMPLES:
            found = f"{self.ways} and {self.shots}"
            raise InputError(f"ways must lie between 2 and {CLASSES}, shots below {EXAMPLES}, got {found}")
        for name in ("weight_decay", "meta_steps", "specific"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not (self.meta_rate > 0 and self.inner_rate > 0):
            raise InputError(f"meta_rate and inner_rate must be positive, got {self.meta_rate} and {self.inner_rate}")
        if self.specific > len(self.hidden) or (self.specific == len(self.hidden) and not self.channels):
            raise InputError(f"specific must leave a layer to share, got {self.specific} of hidden {self.hidden}")


@register("sam", SAMConfig)
class SAM(GradientLearner):
    """Self-attention meta-learner: branches for tasks on frozen prior knowledge, of which attention selects what is needed."""

    config: SAMConfig
    network: nn.ModuleDict

    def __init__(self, problem: Problem, config: SAMConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.task = 0
        self.prepared = False
        """Whether there is prior knowledge."""
        self.labels = torch.zeros(len(self.branches), problem.outputs, dtype=torch.bool)
        """Output units that each branch has learned."""

    # -- the network -----------------------------------------------------------------------------------------------------------

    def build(self) -> nn.Module:
        """Shared layers with attention, and as many branches as there are tasks."""
        config, problem = self.config, self.problem
        own = len(config.hidden) - config.specific
        layers, _, width = trunk(self.network_input_shape, hidden=config.hidden[:own], channels=config.channels)
        shared = nn.Sequential()
        units = 0
        for layer in layers.values():
            shared.append(layer)
            if isinstance(layer, nn.Linear | nn.Conv2d):
                units = len(layer.weight)
                if config.channels:
                    initialise(layer)
            elif isinstance(layer, nn.LeakyReLU):
                shared.append(Attention(units, config.reduction))
        count = len(problem.task_outputs or problem.task_examples or (None,))
        branches = [
            build_network((width,), problem.outputs, hidden=config.hidden[own:], dropout=config.dropout) for _ in range(count)
        ]
        return nn.ModuleDict({"shared": shared.requires_grad_(False), "branches": nn.ModuleList(branches)})

    @property
    def shared(self) -> nn.Module:
        """The prior knowledge."""
        return self.network["shared"]

    @property
    def branches(self) -> nn.ModuleList:
        """One for each task."""
        found = self.network["branches"]
        assert isinstance(found, nn.ModuleList)
        return found

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam for the branches."""
        config = self.config
        return torch.optim.Adam(self.branches.parameters(), config.learning_rate, weight_decay=config.weight_decay, fused=True)

    # -- before the stream -----------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Meta-learn the prior knowledge from invented classes, and freeze it."""
        config = self.config
        classes = invent(self.network_input_shape, CLASSES, EXAMPLES).to(self.device)
        with torch.no_grad():
            width = self.shared(classes[0, :1]).shape[1]
        learner = nn.Sequential(self.shared, nn.Linear(width, config.ways).to(self.device)).requires_grad_()
        weights: dict[str, Tensor] = dict(learner.named_parameters())
        optimizer = torch.optim.Adam(weights.values(), lr=config.meta_rate, fused=True)
        for _ in range(config.meta_steps):
            losses = []
            for _ in range(EPISODES):
                support, query = episode(classes, config.ways, config.shots)
                adapted = adapt(learner, weights, support, config.inner_rate, config.inner_steps)
                losses.append(F.cross_entropy(functional_call(learner, adapted, (query[0],)), query[1]))
            optimizer.zero_grad()
            torch.stack(losses).mean().backward()
            optimizer.step()
        self.shared.requires_grad_(False)
        self.prepared = True

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step of the task's branch; before the first, the prior knowledge is learned."""
        if not self.prepared:
            with self.random.active():
                self.prepare()
        self.labels[self.branch if task is None else task, y] = True
        return super().learn(x, y, task)

    @property
    def branch(self) -> int:
        """The current task's, outside Task-IL."""
        return min(self.task, len(self.branches) - 1)

    def logits(self, x: Tensor, task: Tensor | None) -> Tensor:
        """Outputs of each example's branch: of the current task or, in Task-IL, of its own; minus infinity for other labels."""
        selected = self.shared(x)
        if task is None:
            return self.of_branch(self.branch, selected)
        outputs = selected.new_empty(len(x), self.problem.outputs)
        for number in task.unique().tolist():
            mine = (task == number).to(self.device)
            outputs[mine] = self.branches[number](selected[mine])
        return self.masked(outputs, task)

    def of_branch(self, number: int, selected: Tensor) -> Tensor:
        """Outputs of a branch, minus infinity for labels that it has never seen."""
        outputs: Tensor = self.branches[number](selected)
        return outputs.masked_fill(~self.labels[number].to(self.device), -torch.inf)

    def probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """Of the task's branch; outside Task-IL of all branches together, of which the probabilities of a label are added up."""
        if task is not None:
            return super().probabilities(x, task)
        trained = self.labels.any(1).nonzero().flatten().tolist()
        if not trained:
            return torch.full((len(x), self.problem.outputs), 1 / self.problem.outputs)
        selected = self.shared(x)
        together = torch.stack([self.of_branch(number, selected) for number in trained], 1)
        return together.flatten(1).softmax(1).view(together.shape).sum(1)

    def end_task(self) -> None:
        """The next task has the next branch."""
        self.task += 1

    @property
    def memory(self) -> str:
        """No example; what it knows before the stream."""
        return "none (invented data before the stream)" if self.config.meta_steps else "none"

    def state_dict(self) -> State:
        """Network, optimiser, random state, and which branch has learned what."""
        return super().state_dict() | {"task": self.task, "prepared": self.prepared, "labels": self.labels}

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        self.task, self.prepared = int(state["task"]), bool(state["prepared"])
        self.labels = tensor_like(state["labels"], self.labels, "labels")


class Attention(nn.Module):
    """Recalibrates units, or the channels of pictures, by what there is in all of them."""

    def __init__(self, units: int, reduction: int) -> None:
        super().__init__()
        fewer = max(units // reduction, 1)
        self.squeeze = nn.Linear(units, fewer, bias=False)
        self.excite = nn.Linear(fewer, units, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """``[B, units, ...]``, each unit weighted between 0 and 1."""
        mean = h.flatten(2).mean(2) if h.dim() > 2 else h
        weights: Tensor = self.excite(self.squeeze(mean).relu()).sigmoid()
        return h * weights.view(*weights.shape, *[1] * (h.dim() - 2))


Examples = tuple[Tensor, Tensor]
"""Inputs and labels."""


def episode(classes: Tensor, ways: int, shots: int) -> tuple[Examples, Examples]:
    """Support and query of random classes, from ``[classes, examples, *shape]``."""
    chosen = classes[torch.randperm(len(classes))[:ways]][:, torch.randperm(classes.shape[1])]
    parts = chosen[:, :shots], chosen[:, shots:]
    support, query = ((part.flatten(0, 1), torch.arange(ways).repeat_interleave(part.shape[1])) for part in parts)
    return (support[0], support[1].to(classes.device)), (query[0], query[1].to(classes.device))


def adapt(network: nn.Module, weights: dict[str, Tensor], support: Examples, rate: float, steps: int) -> dict[str, Tensor]:
    """Weights after gradient steps on the support, as a function of those before."""
    for _ in range(steps):
        loss = F.cross_entropy(functional_call(network, weights, (support[0],)), support[1])
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: w - rate * slope for (name, w), slope in zip(weights.items(), slopes, strict=True)}
    return weights
