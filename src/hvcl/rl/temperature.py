r"""SAC's automatic temperature (Haarnoja et al., 2018b)."""

from __future__ import annotations

import math
from typing import Any

from hvcl.core.errors import InputError


class Temperature:
    r"""The weight alpha of the entropy, learned so that the policy's mean entropy meets a target.

    Minimises :math:`J(\log\alpha) = -\log\alpha \, E[\log\pi(a|s) + \bar H]` by Adam on the one number log alpha, written out.
    """

    def __init__(self, learning_rate: float, initial: float = 1.0) -> None:
        if not initial > 0:
            raise InputError(f"the initial temperature must be positive, got {initial}")
        self.learning_rate = learning_rate
        self.log_alpha = math.log(initial)
        self._first = self._second = 0.0
        self._steps = 0

    @property
    def alpha(self) -> float:
        """The weight of the entropy."""
        return math.exp(self.log_alpha)

    def step(self, surprise: float) -> None:
        """One step of Adam; `surprise` is the mean of log pi(a|s) plus the target entropy."""
        gradient = -surprise
        self._steps += 1
        self._first += 0.1 * (gradient - self._first)
        self._second += 0.001 * (gradient * gradient - self._second)
        rate = self.learning_rate / (1 - 0.9**self._steps)
        root = math.sqrt(self._second / (1 - 0.999**self._steps))
        self.log_alpha -= rate * self._first / (root + 1e-8)

    def state_dict(self) -> dict[str, Any]:
        """The log temperature and the state of its optimiser."""
        return {"log_alpha": self.log_alpha, "first": self._first, "second": self._second, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.log_alpha, self._first = float(state["log_alpha"]), float(state["first"])
        self._second, self._steps = float(state["second"]), int(state["steps"])
