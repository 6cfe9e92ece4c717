"""A network of an agent with its optimiser: what a method changes to keep what was learned."""

from __future__ import annotations

import copy
from typing import Any, Self

from torch import Tensor, nn

from hvcl.optim import SmallAdam, VariationalAdam, load_optimizer_state
from hvcl.rl.networks import mirror

Terms = dict[str, float]


class Part:
    """The actor or the critics, whose network gives ``[B, copies * out]``.

    This one is naive: it minimises the loss that it is given, and does nothing against forgetting.
    A method subclasses it, adds its penalty to the loss (`priced`), and consolidates in `end_task`.
    """

    def __init__(self, network: nn.Module, learning_rate: float) -> None:
        self.network = network
        self.mirror = mirror(network)
        """The network as it predicts: in evaluation mode, without gradients, always with the present weights."""
        self.learning_rate = learning_rate
        self.restart()

    def restart(self) -> None:
        """Make a new optimiser, without momentum."""
        self.optimizer: Any = SmallAdam(list(self.network.parameters()), self.learning_rate)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy whose mirror is that of its own network: copying parameters one by one would part them."""
        made = object.__new__(type(self))
        memo[id(self)] = made
        for name, value in self.__dict__.items():
            if name != "mirror":
                setattr(made, name, copy.deepcopy(value, memo))
        made.mirror = mirror(made.network)
        return made

    def __call__(self, x: Tensor) -> Tensor:
        """The network's outputs, to be learned from."""
        outputs: Tensor = self.network.forward(x)  # without hooks: there are none here
        return outputs

    def step(self, loss: Tensor, progress: float) -> Terms:
        """One step on the loss and what the method adds to it; `progress` is the share of the task that is done."""
        total, terms = self.priced(loss, progress)
        self.optimizer.zero_grad()
        total.backward()
        self.update()
        return terms

    def update(self) -> None:
        """One step of the optimiser on the gradients."""
        self.optimizer.step()

    def priced(self, loss: Tensor, progress: float) -> tuple[Tensor, Terms]:
        """The loss plus the method's penalty, and the penalty's terms by name."""
        return loss, {}

    def end_task(self, inputs: Tensor, curvature: Tensor) -> None:
        """A task is over.

        Args:
            inputs: some of its examples ``[N, in]``.
            curvature: for each example the Fisher information of the likelihood about each output ``[N, out]``.
        """

    def state_dict(self) -> dict[str, Any]:
        """Weights and the state of the optimiser."""
        return {"network": dict(self.network.state_dict()), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


class VariationalPart(Part):
    """A `MoVEStack`, or a network with one inside, with the optimiser that is made for it."""

    def restart(self) -> None:
        """Make a new optimiser, without momentum."""
        self.optimizer = VariationalAdam(self.network, lr=self.learning_rate, lazy=False)

    def update(self) -> None:
        """One step of the optimiser on the gradients, without its hooks."""
        self.optimizer.advance()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.network.load_state_dict(state["network"])
        load_optimizer_state(self.optimizer, state["optimizer"])
