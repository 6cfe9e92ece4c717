"""Schedules for the weight beta of an information cost."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from hvcl.core.errors import InputError


class Schedule(ABC):
    """The weight of a term as training goes on."""

    @abstractmethod
    def value(self, progress: float) -> float:
        """The weight at `progress`, the fraction of the current task that is done (0 at its start, 1 at its end)."""

    def observe(self, nats: float) -> None:
        """Adapt to the term's unweighted value in nats, after every step; schedules that do not adapt ignore it."""

    def state_dict(self) -> dict[str, float]:
        """The adapted state; empty for schedules that do not adapt."""
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore what `state_dict` returned."""


class Constant(Schedule):
    """Always the same weight."""

    def __init__(self, beta: float) -> None:
        _require_nonnegative("beta", beta)
        self.beta = beta

    def value(self, progress: float) -> float:
        """beta, whatever the progress."""
        return self.beta


class Cyclic(Schedule):
    """Cyclic annealing (Fu et al., 2019): in each cycle the weight rises from 0 to beta over the first part, then holds.

    Args:
        beta: the weight at the top.
        cycles: cycles per task.
        ramp: fraction of a cycle over which the weight rises.
    """

    def __init__(self, beta: float, cycles: int = 4, ramp: float = 0.5) -> None:
        _require_nonnegative("beta", beta)
        if cycles < 1:
            raise InputError(f"cycles must be at least 1, got {cycles}")
        if not 0 < ramp <= 1:
            raise InputError(f"ramp must lie in (0, 1], got {ramp}")
        self.beta, self.cycles, self.ramp = beta, cycles, ramp

    def value(self, progress: float) -> float:
        """beta * min(1, position in the cycle / ramp); at and after the end of the task the top."""
        if progress >= 1:
            return self.beta
        return self.beta * min(1.0, (progress * self.cycles) % 1.0 / self.ramp)


class TargetInformation(Schedule):
    r"""Dual ascent on log beta so that the mean KL, in bits, meets a target: "this gate may process 1.58 bits".

    .. math:: \log\beta \leftarrow \log\beta + \eta \, (KL_{bits} - target) / \max(target, 10^{-3})

    clipped to a finite range, so that a target that cannot be met does not run off.
    """

    RANGE = (math.log(1e-6), math.log(1e6))

    def __init__(self, target_bits: float, initial_beta: float = 1.0, rate: float = 0.01) -> None:
        if target_bits <= 0 or initial_beta <= 0 or rate <= 0:
            raise InputError(f"target_bits, initial_beta and rate must be positive, got {target_bits}, {initial_beta}, {rate}")
        self.target_bits, self.rate = target_bits, rate
        self.log_beta = math.log(initial_beta)

    def value(self, progress: float) -> float:
        """The current beta."""
        return math.exp(self.log_beta)

    def observe(self, nats: float) -> None:
        """One step of dual ascent; a value that is not finite is passed over."""
        bits = nats / math.log(2)
        if math.isfinite(bits):
            step = self.rate * max(-1.0, min(1.0, (bits - self.target_bits) / max(self.target_bits, 1e-3)))
            self.log_beta = min(max(self.log_beta + step, self.RANGE[0]), self.RANGE[1])

    def state_dict(self) -> dict[str, float]:
        """The current log beta."""
        return {"log_beta": self.log_beta}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore what `state_dict` returned."""
        self.log_beta = float(state["log_beta"])


def _require_nonnegative(name: str, value: float) -> None:
    if not value >= 0:
        raise InputError(f"{name} must be at least 0, got {value}")
