r"""What each group of rows has added to the models of the filter over concepts, so that it can be taken out without its rows.

With the features and targets of a row side by side, :math:`v = (\phi, y)`, all sums are those of products :math:`v v^T`. Kept
are triangular factors R with :math:`R^T R = \sum v v^T`, in single precision: one for every block that has rows of the group; and
once these have more rows than columns, in their place one for every pool and for every expert that has learned of it. With
w = D + C columns the price is :math:`4 n w` bytes for a group of n rows, and at most :math:`4 (5 + e) w^2` for one of any size
whose rows e experts have learned, with little more for the linear pools. Every part has its time, so that it is known what each
pool has left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvcl.core.errors import RunError
from hvcl.core.state import State
from hvcl.estimators.groups import Key
from hvcl.estimators.history import NOBODY, OPEN, History
from hvcl.posteriors.matrix_normal import NOTHING


@dataclass(frozen=True)
class Products:
    """Sums of products of rows."""

    count: float
    """What the rows count as."""
    factor: Tensor
    """R ``[r, w]``, float32."""

    @classmethod
    def of(cls, rows: Tensor, count: float) -> Products:
        """Of rows ``[n, w]``, float64, each times the root of what it counts as."""
        factor: Tensor = torch.linalg.qr(rows, mode="r")[1]
        return cls(count, factor.float().contiguous())

    def scaled(self, weight: float) -> Products:
        """A part of each row."""
        return Products(self.count * weight, self.factor * weight**0.5)

    def plus(self, *others: Products) -> Products:
        """All of them."""
        parts = (self, *others)
        return Products.of(torch.cat([part.factor.double() for part in parts]), sum(part.count for part in parts))

    def minus(self, rows: Tensor, count: float) -> Products | None:
        """Without some of its rows, as `of` takes them; None: nothing is left."""
        left = self.count - count
        if left <= NOTHING * self.count:
            return None
        # in the space of its rows, which has no more dimensions than there are rows
        basis, root = torch.linalg.qr(self.factor.double().T)
        gone = rows @ basis
        values, vectors = torch.linalg.eigh(root @ root.T - gone.T @ gone)
        return Products.of(values.clamp_min(0).sqrt().unsqueeze(1) * (basis @ vectors).T, left)

    def selected(self, columns: Tensor) -> Products:
        """Of some of the columns."""
        return Products(self.count, self.factor[:, columns])

    def state_dict(self) -> State:
        """As a number and a tensor."""
        return {"count": self.count, "factor": self.factor}

    @classmethod
    def from_state(cls, state: State, columns: int) -> Products:
        """From what `state_dict` returned; `RunError` if it has other columns."""
        count, factor = float(state["count"]), state["factor"]
        if factor.dim() != 2 or factor.shape[1] != columns or factor.dtype != torch.float32 or not count > 0:
            raise RunError(f"the saved groups do not fit: a factor of shape {tuple(factor.shape)}, expected {columns} columns")
        return cls(count, factor.clone())


@dataclass
class Share:
    """One group's part of the models."""

    blocks: list[tuple[float, Products]] = field(default_factory=list)
    """By stamp, the newest last."""
    pools: dict[int, Products] = field(default_factory=dict)
    """By the pool's place: what it had left at `time` of rows that are in no block here any more."""
    experts: dict[int, Products] = field(default_factory=dict)
    """By the expert's number: of the same rows."""
    time: float = 0.0


class Shares:
    """The share of every group.

    Args:
        features: D.
        outputs: C.
        used: number of the features that each pool uses.
    """

    def __init__(self, features: int, outputs: int, used: Sequence[int]) -> None:
        self.features, self.outputs, self.used = features, outputs, list(used)
        self.groups: dict[Key, Share] = {}
        self._open: set[Key] = set()

    def grow(self, outputs: int) -> None:
        """Room for more outputs."""
        more = outputs - self.outputs
        if more > 0:
            self.outputs = outputs
            self._each(lambda part: Products(part.count, torch.nn.functional.pad(part.factor, (0, more))))

    def _each(self, changed: Callable[[Products], Products]) -> None:
        for share in self.groups.values():
            share.blocks = [(stamp, changed(part)) for stamp, part in share.blocks]
            share.pools = {place: changed(part) for place, part in share.pools.items()}
            share.experts = {number: changed(part) for number, part in share.experts.items()}

    def _columns(self, pool: int) -> Tensor:
        """Those of a pool among all."""
        return torch.cat([torch.arange(self.used[pool]), self.features + torch.arange(self.outputs)])

    # -- rows come --------------------------------------------------------------------------------------------------------

    def add(
        self, key: Key, rows: Tensor, stamps: NDArray[np.float64], counts: NDArray[np.float64], history: History, final: float
    ) -> None:
        """Rows of a group.

        Args:
            key: of the group.
            rows: features and targets ``[n, D + C]``, each row times the root of what it counts as.
            stamps: of the rows, in order ``[n]``.
            counts: what they count as ``[n]``.
            history: says who has learned them.
            final: blocks up to this time belong to the same expert for good.
        """
        share = self.groups.setdefault(key, Share())
        for stamp in dict.fromkeys(stamps.tolist()):
            mine = stamps == stamp
            part = Products.of(rows[torch.from_numpy(mine)], float(counts[mine].sum()))
            if share.blocks and share.blocks[-1][0] == stamp:
                part = share.blocks.pop()[1].plus(part)
            share.blocks.append((stamp, part))
            self._open |= {key} if stamp == OPEN else set()
        if sum(len(part.factor) for _, part in share.blocks) > self.features + self.outputs:
            self._fold(share, history, final)

    def end(self, time: float) -> None:
        """The block is complete: this is the stamp of its rows."""
        for key in self._open & self.groups.keys():
            self.groups[key].blocks = [(time if stamp == OPEN else stamp, part) for stamp, part in self.groups[key].blocks]
        self._open = set()

    def _fold(self, share: Share, history: History, final: float) -> None:
        """Parts of pools and experts in the place of blocks."""
        old = [(stamp, part) for stamp, part in share.blocks if stamp <= final]
        if not old:
            return
        stamps = np.array([stamp for stamp, _ in old])
        left, owners = history.in_pools(stamps), history.experts(stamps)
        pools, experts = self._now(share, history), dict(share.experts)
        for pool in range(len(self.used)):
            parts = [part.scaled(weight) for (_, part), weight in zip(old, left[:, pool].tolist(), strict=True) if weight]
            if parts:
                parts = [part.selected(self._columns(pool)) for part in parts]
                pools[pool] = pools[pool].plus(*parts) if pool in pools else parts[0].plus(*parts[1:])
        for number in set(owners.tolist()) - {NOBODY}:
            parts = [part for (_, part), owner in zip(old, owners.tolist(), strict=True) if owner == number]
            experts[number] = experts[number].plus(*parts) if number in experts else parts[0].plus(*parts[1:])
        share.blocks = [(stamp, part) for stamp, part in share.blocks if stamp > final]
        share.pools, share.experts, share.time = pools, experts, history.time

    def _now(self, share: Share, history: History) -> dict[int, Products]:
        """What pools have left of the parts that are in no block."""
        left = history.in_pools(np.array([share.time]))[0]
        return {pool: part.scaled(left[pool]) for pool, part in share.pools.items() if left[pool]}

    # -- rows go ----------------------------------------------------------------------------------------------------------

    def of(self, key: Key) -> tuple[Tensor, NDArray[np.float64], NDArray[np.float64]]:
        """Rows with the products of a group's blocks ``[n, D + C]``, their stamps ``[n]``, and what they count as ``[n]``."""
        blocks = self.groups[key].blocks if key in self.groups else []
        rows = torch.cat([torch.zeros(0, self.features + self.outputs), *(part.factor for _, part in blocks)]).double()
        stamps = [np.full(len(part.factor), stamp) for stamp, part in blocks]
        counts = [np.eye(1, len(part.factor))[0] * part.count for _, part in blocks]
        return rows, np.concatenate([np.zeros(0), *stamps]), np.concatenate([np.zeros(0), *counts])

    def folded(self, key: Key, history: History) -> tuple[dict[int, Products], dict[int, Products]]:
        """What pools, by place, and experts, by number, hold of a group beside its blocks."""
        share = self.groups.get(key, Share())
        return self._now(share, history), share.experts

    def take(self, key: Key, rows: Tensor, stamps: NDArray[np.float64], counts: NDArray[np.float64], history: History) -> None:
        """Some rows of a group are taken out; arguments are those of `add`."""
        share = self.groups.get(key, Share())
        blocks, folded = list[tuple[float, Products]](), np.isfinite(stamps)
        for stamp, part in share.blocks:
            mine = stamps == stamp
            folded &= ~mine
            left = part.minus(rows[torch.from_numpy(mine)], float(counts[mine].sum())) if mine.any() else part
            blocks += [] if left is None else [(stamp, left)]
        share.blocks = blocks
        if not folded.any():
            self._tidy(key)
            return
        weights, owners = history.in_pools(stamps), history.experts(stamps)
        pools = self._now(share, history)
        share.pools = self._without(pools, {pool: np.where(folded, weights[:, pool], 0.0) for pool in pools}, rows, counts, True)
        shares = {number: (folded & (owners == number)).astype(np.float64) for number in share.experts}
        share.experts, share.time = self._without(share.experts, shares, rows, counts, False), history.time
        self._tidy(key)

    def _tidy(self, key: Key) -> None:
        """A group without rows is none."""
        share = self.groups.get(key)
        if share is not None and not (share.blocks or share.pools or share.experts):
            del self.groups[key]

    def _without(
        self,
        parts: dict[int, Products],
        weights: dict[int, NDArray[np.float64]],
        rows: Tensor,
        counts: NDArray[np.float64],
        pools: bool,
    ) -> dict[int, Products]:
        """Parts without rows that have these weights in them."""
        found = {}
        for place, part in parts.items():
            some = rows * torch.from_numpy(np.sqrt(weights[place])).unsqueeze(1)
            left = part.minus(some[:, self._columns(place)] if pools else some, float(counts @ weights[place]))
            if left is not None:
                found[place] = left
        return found

    def scatter(self) -> None:
        """No model holds any row."""
        self.groups, self._open = {}, set()

    def scatter_open(self) -> None:
        """No model holds the rows of the block that is not complete."""
        for key in self._open & self.groups.keys():
            self.groups[key].blocks = [(stamp, part) for stamp, part in self.groups[key].blocks if stamp != OPEN]
        self._open = set()

    # -- sites and files --------------------------------------------------------------------------------------------------

    def moved(self, by: float, calls: int, history: History, order: Sequence[int], outputs: int) -> dict[Key, Share]:
        """The shares when all times have moved, and experts and the block that is not complete are nobody's.

        Args:
            by: how far times have moved.
            calls: by how much the numbers of calls that brought rows without an order have.
            history: before.
            order: numbers of the outputs then.
            outputs: how many there are then.
        """
        targets = torch.tensor(order[: self.outputs], dtype=torch.long)

        def ordered(part: Products) -> Products:
            used = part.factor.shape[1] - self.outputs
            factor = part.factor.new_zeros(len(part.factor), used + outputs)
            factor[:, :used], factor[:, used + targets] = part.factor[:, :used], part.factor[:, used:]
            return Products(part.count, factor)

        found = {}
        for key, share in self.groups.items():
            blocks = [
                (stamp - calls if stamp < 0 else stamp + by, ordered(part)) for stamp, part in share.blocks if stamp != OPEN
            ]
            pools = {pool: ordered(part) for pool, part in self._now(share, history).items()}
            found[key] = Share(blocks, pools, {}, history.time + by)
        return found

    def merge(self, *sites: dict[Key, Share]) -> None:
        """The shares of several sites, of the same time, become these."""
        self.scatter()
        for site in sites:
            for key, share in site.items():
                mine = self.groups.setdefault(key, Share(time=share.time))
                mine.blocks = sorted([*mine.blocks, *share.blocks], key=lambda block: block[0])
                for pool, part in share.pools.items():
                    mine.pools[pool] = mine.pools[pool].plus(part) if pool in mine.pools else part

    def state_dict(self, block: bool = True) -> State:
        """All parts; without those of the block that is not complete unless `block`."""
        return {
            "keys": list(self.groups),
            "shares": [
                {
                    "blocks": [[stamp, part.state_dict()] for stamp, part in share.blocks if stamp != OPEN],
                    "open": [part.state_dict() for stamp, part in share.blocks if stamp == OPEN and block],
                    "pools": [[pool, part.state_dict()] for pool, part in share.pools.items()],
                    "experts": [[number, part.state_dict()] for number, part in share.experts.items()],
                    "time": share.time,
                }
                for share in self.groups.values()
            ],
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; `RunError` if it is of other features."""
        self.scatter()
        whole = self.features + self.outputs
        for key, saved in zip(state["keys"], state["shares"], strict=True):
            blocks = [(float(stamp), Products.from_state(part, whole)) for stamp, part in saved["blocks"]]
            waiting = [(OPEN, Products.from_state(part, whole)) for part in saved["open"]]
            pools = {int(p): Products.from_state(part, self.used[int(p)] + self.outputs) for p, part in saved["pools"]}
            experts = {int(number): Products.from_state(part, whole) for number, part in saved["experts"]}
            self.groups[key] = Share(blocks + waiting, pools, experts, float(saved["time"]))
            self._open |= {key} if waiting else set()
