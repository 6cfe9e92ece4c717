r"""When rows came, and which models of the filter over concepts have learned them: what is needed to take them out again.

The filter's time is the weight of all rows in complete blocks. A row has a stamp: the time when its block was complete. At time t
the pool with half-life h holds :math:`2^{-(t - s) / h}` of a row with stamp s, and the expert whose turn it was then all of it.
Rows that came without an order have the number of their call for a stamp: -1, -2, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from hvcl.core.errors import RunError
from hvcl.core.state import State

OPEN, NOWHERE = math.inf, -math.inf
"""Stamps of rows whose block is not complete yet, and of rows that no model holds."""

NOBODY = -1
"""Number of no expert: where two concepts met."""

FADED = 24.0
"""Half-lives after which nothing is left of a row in a pool: 6e-8 of it."""


@dataclass(frozen=True)
class Unordered:
    """A call that brought rows without an order."""

    time: float
    """When it came."""
    weight: float
    """Of its rows."""
    expert: int
    """Who has learned them."""


class History:
    """Time, whose turn it was to learn, and since when each pool remembers.

    Args:
        half_lives: of the pools.
    """

    def __init__(self, half_lives: Sequence[float]) -> None:
        self.half_lives = np.array(half_lives, dtype=np.float64)
        self.time = 0.0
        self.turns: list[tuple[float, int]] = []
        """Times after which an expert learned, with its number."""
        self.begun: list[Unordered] = []
        self.since = np.full(len(half_lives), NOWHERE)
        """Pools hold only rows that are younger than this ``[P]``."""

    def turn(self, after: float, expert: int) -> None:
        """Blocks that are complete after this time belong to this expert."""
        self.turns.append((after, expert))

    def begin(self, weight: float, expert: int) -> None:
        """Rows without an order have come; their stamp is minus the number of such calls."""
        self.begun.append(Unordered(self.time, weight, expert))

    def share(self, weight: float) -> NDArray[np.float64]:
        """What each pool takes of rows without an order: as much as it holds in the long run ``[P]``."""
        return np.asarray(np.minimum(1.0, self.half_lives / math.log(2) / weight))

    def times(self, stamps: NDArray[np.float64]) -> NDArray[np.float64]:
        """When rows with these stamps had been learned ``[n]``."""
        return self._of_calls(stamps, stamps, [call.time for call in self.begun])

    def in_pools(self, stamps: NDArray[np.float64]) -> NDArray[np.float64]:
        """What each pool has left of rows with these stamps ``[n, P]``."""
        times = np.where(np.isfinite(stamps), self.times(stamps), NOWHERE)[:, None]
        left = np.exp2(-(self.time - times) / self.half_lives) * (times > self.since)
        for pool in range(left.shape[1]) if self.begun else ():
            shares = [float(self.share(call.weight)[pool]) for call in self.begun]
            left[:, pool] *= self._of_calls(stamps, np.ones(len(stamps)), shares)
        return np.asarray(np.where(left > 2.0 ** (-2 * FADED), left, 0.0))

    def experts(self, stamps: NDArray[np.float64]) -> NDArray[np.int64]:
        """Numbers of the experts that have learned rows with these stamps ``[n]``; `NOBODY` where none has."""
        after = np.array([time for time, _ in self.turns])
        numbers = np.array([NOBODY, *(expert for _, expert in self.turns)], dtype=np.float64)
        found = self._of_calls(stamps, numbers[after.searchsorted(stamps)], [call.expert for call in self.begun])
        return np.where(np.isfinite(stamps), found, NOBODY).astype(np.int64)

    def _of_calls(self, stamps: NDArray[np.float64], ordered: NDArray[np.float64], calls: Sequence[float]) -> NDArray[np.float64]:
        """For each row one of `calls` if it came without an order, else its own of `ordered` ``[n]``."""
        early = (stamps < 0) & np.isfinite(stamps)
        if not early.any():
            return ordered
        return np.where(early, np.array(calls)[np.where(early, -1 - stamps, 0).astype(np.int64)], ordered)

    def owners(self, until: float) -> set[int]:
        """Numbers of the experts that have learned rows up to a time; `NOBODY` among them where a block was nobody's."""
        calls = {call.expert for call in self.begun if call.time <= until}
        return calls | {expert for after, expert in self.turns if after < until}

    def faded(self, until: float) -> NDArray[np.bool_]:
        """Pools that hold nothing of rows that came no later than this ``[P]``."""
        return np.asarray((self.since >= until) | ((self.time - until) / self.half_lives >= FADED))

    @property
    def late(self) -> NDArray[np.bool_]:
        """Pools that lack rows which they would have something of if they had not begun anew ``[P]``."""
        return np.asarray((self.since > NOWHERE) & ((self.time - self.since) / self.half_lives < FADED))

    def merge(self, other: History) -> None:
        """Go on as both, with the time of the one that is longer: rows of both are as old as they were, and nobody's."""
        time = max(self.time, other.time)
        self.begun = [
            replace(call, time=call.time + time - each.time, expert=NOBODY) for each in (self, other) for call in each.begun
        ]
        self.time, self.turns, self.since = time, [], np.full(len(self.half_lives), NOWHERE)

    def state_dict(self) -> State:
        """As tensors."""
        calls = [(call.time, call.weight, call.expert) for call in self.begun]
        return {
            "time": self.time,
            "turns": torch.tensor(self.turns, dtype=torch.float64).reshape(-1, 2),
            "begun": torch.tensor(calls, dtype=torch.float64).reshape(-1, 3),
            "since": torch.from_numpy(self.since.copy()),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; `RunError` if it is of other pools."""
        shapes = {"turns": (len(state["turns"]), 2), "begun": (len(state["begun"]), 3), "since": self.since.shape}
        if any(tuple(state[name].shape) != shape or state[name].dtype != torch.float64 for name, shape in shapes.items()):
            raise RunError("the saved filter over concepts does not fit this version of hvcl: its history has other sizes")
        self.time, self.since = float(state["time"]), state["since"].numpy().copy()
        self.turns = [(after, int(expert)) for after, expert in state["turns"].tolist()]
        self.begun = [Unordered(time, weight, int(expert)) for time, weight, expert in state["begun"].tolist()]
