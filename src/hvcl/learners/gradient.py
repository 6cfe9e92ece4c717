"""What all learners share that train a network by gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.random import RandomState
from hvcl.learners.base import Learner, State
from hvcl.networks import ConvFactory, DenseFactory, build_network, plain_conv
from hvcl.optim import load_optimizer_state

Terms = dict[str, Tensor | float]
"""Named scalars of a loss; "loss" is a tensor with a gradient, the others may be plain numbers."""


@dataclass(frozen=True)
class GradientConfig:
    """Network and optimiser."""

    hidden: tuple[int, ...] = (256, 256)
    """Units of the dense layers."""
    channels: tuple[int, ...] = ()
    """Channels of the convolutions (3x3, stride 2) in front; none for a dense network."""
    dropout: float = 0.0
    """Dropout after every dense layer."""
    learning_rate: float = 6e-4
    """Step size of Adam."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, cuda:1, ..."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be positive, got {self.learning_rate}")


class GradientLearner(Learner):
    """A network trained by Adam on cross-entropy. A method says what to add: override `loss` and `end_task`.

    Task-IL masks the logits to the head of each example's task, in training and in prediction.
    """

    network: nn.Module

    def __init__(self, problem: Problem, config: GradientConfig, seed: int) -> None:
        super().__init__(problem)
        self.config = config
        self.device = _device(config.device)
        self.random = RandomState(seed)
        self._heads = _head_mask(problem, self.device)
        self.start()

    def start(self) -> None:
        """A new network and a new optimiser."""
        with self.random.active():
            self.network = self.build().to(self.device)
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Adam unless a method says otherwise."""
        return torch.optim.Adam(self.network.parameters(), lr=self.config.learning_rate, fused=True)

    def build(self) -> nn.Module:
        """The network: plain layers unless a method says otherwise."""
        return self.assemble()

    def assemble(self, dense: DenseFactory = nn.Linear, conv: ConvFactory = plain_conv) -> nn.Sequential:
        """The configured architecture of any kind of layers."""
        config = self.config
        return build_network(
            self.network_input_shape,
            self.network_outputs,
            hidden=config.hidden,
            channels=config.channels,
            dropout=config.dropout,
            dense=dense,
            conv=conv,
        )

    @property
    def network_input_shape(self) -> tuple[int, ...]:
        """Shape of what the network takes: the problem's inputs unless a method says otherwise."""
        return self.problem.input_shape

    @property
    def network_outputs(self) -> int:
        """Number of the network's outputs: the problem's unless a method says otherwise."""
        return self.problem.outputs

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step of Adam on `loss`; one that fails before the weights move has changed nothing, counters neither."""
        x, y = x.to(self.device), y.to(self.device)
        before = dict(vars(self))
        try:
            with self.random.active():
                terms = self.loss(x, y, task)
                loss = terms["loss"]
                assert isinstance(loss, Tensor)
                self.optimizer.zero_grad()
                loss.backward()
                self.correct_gradient(x, y, task)
                self.optimizer.step()
        except BaseException:
            vars(self).update(before)
            raise
        return {name: value.item() if isinstance(value, Tensor) else value for name, value in terms.items()}

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """The named terms of the loss on a batch; "loss" is what is minimised."""
        return {"loss": self.cross_entropy(x, y, task)}

    def cross_entropy(self, x: Tensor, y: Tensor, task: Tensor | None) -> Tensor:
        """Minus the mean log-likelihood of a batch; a method that replays adds what it replays."""
        return F.cross_entropy(self.logits(x, task), y)

    def correct_gradient(self, x: Tensor, y: Tensor, task: Tensor | None) -> None:
        """Between gradient and step: a method may change the parameters' `grad` here."""

    def logits(self, x: Tensor, task: Tensor | None) -> Tensor:
        """The network's outputs, minus infinity outside the head of each example's task."""
        return self.masked(self.network(x), task)

    def masked(self, outputs: Tensor, task: Tensor | None) -> Tensor:
        """Outputs of the network with minus infinity outside the head of each example's task."""
        if task is None or self._heads is None:
            return outputs
        return outputs.masked_fill(~self._heads[task.to(self.device)], -torch.inf)

    @torch.no_grad()
    def infer(self, x: Tensor, task: Tensor | None) -> Tensor:
        """Softmax of the logits, in evaluation mode."""
        self.network.eval()
        try:
            return self.probabilities(x.to(self.device), task).cpu()
        finally:
            self.network.train()

    def probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """Class probabilities in evaluation mode."""
        return self.logits(x, task).softmax(1)

    @property
    def num_parameters(self) -> int:
        """Number of trainable numbers in the network."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def state_dict(self) -> State:
        """Network (priors are its buffers), optimiser, random state."""
        return {
            "network": dict(self.network.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "random": self.random.state(),
        }

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.random.load_state(state["random"])


def _device(name: str) -> torch.device:
    try:
        number = torch.zeros((), device=name)
        number.item()  # fails on a device that only looks like one: meta
        return number.device
    except (RuntimeError, AssertionError) as error:  # torch raises the latter for a CUDA that it was built without
        reason = str(error).splitlines()[0]
        raise InputError(f"cannot compute on device {name!r} ({reason}): cpu always works") from None


def _head_mask(problem: Problem, device: torch.device) -> Tensor | None:
    """``[tasks, outputs]``: which outputs belong to which task's head."""
    if problem.task_outputs is None:
        return None
    mask = torch.zeros(len(problem.task_outputs), problem.outputs, dtype=torch.bool, device=device)
    for number, outputs in enumerate(problem.task_outputs):
        mask[number, list(outputs)] = True
    return mask
