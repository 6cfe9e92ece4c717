r"""What holds as of now: a filter over models of the recent stream, of each concept, and of everything ever learned.

When P(y|x) changes, a model of all rows ever learned answers wrongly, and one of the last few rows knows little. Which of them to
believe is itself inferred from how well each one predicted the last labels, before it had learned them (dynamic model averaging:
Raftery, Karny & Ettler, 2010):

- *everything*: the estimator's own model, sums over all rows;
- *pools* whose sums lose half their weight in 4,096, 1,024, 256 or 64 rows;
- *linear pools* on the features of single columns alone, which few rows determine: of 1,024, 256, 64 and 16 rows;
- *experts*, one for each concept: sums over the rows in which it held, without discount. A new one opens where the recent rows
  are predicted better by a short pool than by the current expert, and takes the last rows over from it; a known one comes back
  where it predicts them about as well. The block in which the change lies is nobody's.

The weights are those of a hidden Markov chain over models (fixed share: Herbster & Warmuth, 1998),

.. math:: w_k \leftarrow (1 - \alpha)\, v_k + \alpha \left(0.9\, u_k + \frac{0.1}{K}\right), \qquad
    v_k = \frac{w_k\, p_k(y|x)}{\sum_j w_j\, p_j(y|x)}, \qquad u_k \leftarrow u_k + 10^{-3}\, (v_k - u_k) ,

where u are the weights that models usually have: most switches lead to one that was right before (mixing past posteriors:
Bousquet & Warmuth, 2002). There are two rates :math:`\alpha`, a quick and a slow one, that are themselves weighted by how well
their mixtures predict. Pools and experts are ridge regressions on a few hundred features, of indicators for classes (clipped to
probabilities) or of standardised numbers. Regressions of indicators are too modest, the more so the fewer features they have:
probabilities are :math:`p^\tau`, normalised, with the sharpness :math:`\tau` of each model that would have predicted its last
labels best. All
models are sums; blocks of 32 rows are added at a time, and nothing but the weights changes within a block. Labels may come late:
nothing changes until they do.

A change is an alarm when, over about the last 50 rows, some pool or expert beats the current expert by more than G = 10 nats and
by more than three standard deviations of that sum, as the rows themselves show it. Linear pools raise no alarm: where they are
better, the relation is simpler than an expert's features, and need not be new.

**Taking rows out** (`ConceptFilter.remove`). A `History` knows which expert has learned a row, and what every pool has left of
it. *Exact*, up to rounding: the sums of pools and experts are those of a filter for which the row had come with weight zero (time
is not turned back: rows before it are as old as they were). *Approximate*: what followed from predicting the row stays. That are
the decisions to open experts, which block belongs to whom, the evidence for a change, noise and sharpness; and weights, which are
products of predictions of rows that are not kept: those of a model that loses a share of its rows lose that share. An expert
without rows is gone, and the expert of the last rows that are left goes on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import is_

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvcl.core.errors import RunError
from hvcl.core.state import State
from hvcl.estimators.history import NOBODY, NOWHERE, OPEN, History
from hvcl.estimators.regression import Regression
from hvcl.estimators.shares import Products
from hvcl.ops import load
from hvcl.ops.rows import Step, believe, members, sharpened
from hvcl.posteriors.matrix_normal import NOTHING

HALF_LIVES = (4096, 1024, 256, 64)
"""Rows after which the pools' sums have lost half their weight."""

LINEAR_HALF_LIVES = (1024, 256, 64, 16)
"""Those of the pools on the features of single columns alone."""

SHARPNESS = np.array([1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0])
"""Powers that probabilities may be raised to."""

SHARP_MEMORY = 0.997
"""What is left of a row's evidence for a power after the next row."""

RATES = (0.03, 0.003)
"""Probabilities of a switch between models from one row to the next."""

SLOW = 1e-3
"""Probability of a switch between these rates."""

KNOWN = 0.9
"""Share of the switches that lead to a model by its usual weight; the others lead to any of them."""

PACE = 1e-3
"""Share of a row in the usual weights."""

BLOCK = 32
"""Rows that are added to the sums at a time."""

PENDING = 4
"""Blocks that can be taken from an expert again; a new expert takes over those in which the concept was the new one."""

MEMORY = 0.98
"""What is left of a row's evidence for a change after the next row."""

NATS, DEVIATIONS = 10.0, 3.0
"""Evidence for a change: so many nats, and so many of its own standard deviations."""

MOVED = 5.0
"""Standard errors from which on a feature's mean has moved."""

MOST = 8
"""Experts that are kept; the one with the fewest rows makes room for another."""

STEP = Step(np.array(RATES), SLOW, KNOWN, PACE)

_RATES = STEP.rate[:, None]

_STAYS = 1 - _RATES

FREEDOM = 5.0
"""Degrees of freedom of the Student t that scores predictions of numbers."""


@dataclass(frozen=True)
class ConceptChange:
    """The relation of rows and targets has changed."""

    row: int
    """Number of rows that were learned when it was noticed."""
    expert: int
    """The expert that learns from now on; numbers are never used twice."""
    known: bool
    """Whether the expert was there before: the concept has come back."""
    moved: tuple[int, ...] = ()
    """Features whose means moved with it, the farthest first."""


@dataclass
class Block:
    """Rows that were learned together: their sums."""

    after: float
    """Time when it began."""
    time: float
    """When it was complete: the stamp of its rows."""
    second: Tensor
    cross: Tensor
    weight: float
    gain: NDArray[np.float64]
    """By how many nats each member predicted them better than the expert that was the current one."""


class ConceptFilter:
    """Answers as of now, from models of the recent stream and of concepts, and from a model of everything that is given.

    Args:
        features: D of the rows; the first is a constant of one.
        outputs: C to begin with; `grow` adds more.
        classes: whether targets are indicators of classes, and answers probabilities; else numbers.
        linear: so many features after the constant are of single columns; zero: there are no linear pools.
    """

    def __init__(self, features: int, outputs: int, classes: bool, linear: int = 0) -> None:
        self.features, self.outputs, self.classes, self.linear = features, outputs, classes, linear
        self.clear()

    def clear(self) -> None:
        """As if there had been no row."""
        self.rows = 0
        self.opened = 0
        self.changes: list[ConceptChange] = []
        self.restart()

    def restart(self, history: History | None = None) -> None:
        """Forget all but how many rows there were: the model of everything answers alone until there are labels again.

        No model holds any row then, unless a `history` says otherwise.
        """
        self.pools = [Regression(self.features, self.outputs, half_life, used) for half_life, used in self._pools]
        self.experts: list[Regression] = []
        self.numbers: list[int] = []
        self.current = 0
        self.pending: list[Block] = []
        self.blocks = 0  # since the last change
        self.ended: list[float] = []
        """Stamps of the blocks that the last call of `learn` has completed."""
        self._open()
        self.history = History([half_life for half_life, _ in self._pools]) if history is None else history
        self.history.turn(self.history.time if self.history.time else NOWHERE, self.expert)
        self._empty_block()
        members = self._members
        self.weights = np.zeros((len(RATES), members))
        self.weights[:, 0] = 1.0
        self.usual = np.full((len(RATES), members), 1 / members)
        self.rates = np.full(len(RATES), 1 / len(RATES))
        self.evidence, self.spread = np.zeros(members), np.zeros(members)
        self.noise = np.ones((members, self.outputs))
        self.measured = 0  # rows that it was measured on
        self.sharp = np.zeros((members, len(SHARPNESS)))  # log-likelihoods of the last labels with each power
        self.powers = np.ones(members)  # those with the largest, chosen anew after every block
        self._laid: tuple[list[Tensor], NDArray[np.float64]] | None = None

    def _empty_block(self) -> None:
        # without memory of their own until there are rows, which replace them
        self.block_second = torch.zeros((), dtype=torch.float64).expand(self.features, self.features)
        self.block_cross = torch.zeros((), dtype=torch.float64).expand(self.features, self.outputs)
        self.block_rows, self.block_weight = 0, 0.0
        self.block_gain = np.zeros(self._members)

    def _open(self) -> None:
        self.experts.append(Regression(self.features, self.outputs))
        self.numbers.append(self.opened)
        self.current = len(self.experts) - 1
        self.opened += 1

    @property
    def _pools(self) -> list[tuple[int, int | None]]:
        """Half-lives of the pools, and the features that they use."""
        linear = [(half_life, 1 + self.linear) for half_life in LINEAR_HALF_LIVES] if self.linear else []
        return [*((half_life, None) for half_life in HALF_LIVES), *linear]

    @property
    def _members(self) -> int:
        """K: everything, the pools, the experts."""
        return 1 + len(self.pools) + len(self.experts)

    @property
    def left(self) -> int:
        """Rows until the block is complete."""
        return BLOCK - self.block_rows

    @property
    def expert(self) -> int:
        """Number of the expert that learns."""
        return self.numbers[self.current]

    @property
    def believed(self) -> NDArray[np.float64]:
        """Weights of everything, the pools and the experts ``[K]``."""
        return np.asarray(self.rates @ self.weights)

    def grow(self, outputs: int) -> None:
        """Room for more outputs."""
        if outputs > self.outputs:
            for model in [*self.pools, *self.experts]:
                model.grow(outputs)
            more = outputs - self.outputs
            self.block_cross = torch.nn.functional.pad(self.block_cross, (0, more))
            for block in self.pending:
                block.cross = torch.nn.functional.pad(block.cross, (0, more))
            self.noise = np.pad(self.noise, ((0, 0), (0, more)), constant_values=1.0)
            self.outputs = outputs

    # -- answers ----------------------------------------------------------------------------------------------------------

    def snapshot(self) -> ConceptFilter:
        """A filter that answers as this one does now, and only that: weights of models are replaced, but sums are changed."""
        made = copy.copy(self)
        made.pools, made.experts = [copy.copy(model) for model in self.pools], [copy.copy(model) for model in self.experts]
        made.numbers = list(self.numbers)
        return made

    def answers(self, phi: Tensor, everything: NDArray[np.float64]) -> NDArray[np.float64]:
        """Answers of all members ``[n, K, C]``; those of the model of everything are given ``[n, C]``."""
        library = load()
        if library is not None:
            return members(library, phi.numpy(), self.coefficients(), everything, self.least)
        found = phi.numpy() @ self.coefficients()
        return self.bounded(np.concatenate([everything[:, None], found.reshape(len(phi), -1, self.outputs)], 1))

    def coefficients(self) -> NDArray[np.float64]:
        """Weights of the pools and the experts side by side ``[D, (K - 1) C]``; nobody may change them."""
        weights, laid = [model.weights for model in [*self.pools, *self.experts]], self._laid
        if laid is None or len(laid[0]) != len(weights) or not all(map(is_, laid[0], weights)):
            laid = self._laid = weights, torch.cat(weights, 1).numpy()
        return laid[1]

    def bounded(self, answers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of which none is (nearly) zero, so that no label is impossible; numbers as they are."""
        if self.least is None:
            return answers
        p = np.maximum(answers, self.least)
        np.minimum(p, 1.0, out=p)
        p /= np.add.reduce(p, 2, keepdims=True)
        return p

    @property
    def least(self) -> float | None:
        """Probability that no label has less than, before they are made to sum to one; of numbers none."""
        return min(0.02, 0.1 / self.outputs) if self.classes else None

    def sharpened(self, answers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities raised to the power that suits each member; numbers as they are."""
        if self.least is None:
            return answers
        library = load()
        if library is not None:
            return sharpened(library, answers, self.powers, self.least)
        p = np.log(answers)
        p *= self.powers[:, None]
        np.exp(p, out=p)
        p /= np.add.reduce(p, 2, keepdims=True)
        return self.bounded(p)

    @property
    def alone(self) -> bool:
        """Whether only the model of everything is believed: before the first label, and after `restart`."""
        return bool((self.weights[:, 0] == 1.0).all())

    def mixture(self, phi: Tensor, everything: NDArray[np.float64]) -> NDArray[np.float64]:
        """Answers as of now ``[n, C]``: probabilities, or means.

        Args:
            phi: features of rows ``[n, D]``, float64.
            everything: answers of the model of everything ``[n, C]``.
        """
        return everything if self.alone else self.mixed(self.answers(phi, everything))

    def mixed(self, answers: NDArray[np.float64]) -> NDArray[np.float64]:
        """What follows from the members' answers ``[n, K, C]``: probabilities, or means ``[n, C]``."""
        return np.asarray(self.believed @ self.sharpened(answers))

    def moments(
        self, phi: Tensor, everything: NDArray[np.float64], variance: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Mean and variance of numbers as of now ``[n, C]``, from those of the model of everything."""
        if self.alone:
            return everything, variance
        answers = self.answers(phi, everything)
        mean = np.einsum("k,nkc->nc", self.believed, answers)
        own = np.repeat(self.noise[None], len(phi), 0)
        own[:, 0] = np.maximum(variance, own[:, 0])
        around = own + (answers - mean[:, None]) ** 2
        return mean, np.einsum("k,nkc->nc", self.believed, around)

    def _log_likelihood(self, answers: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
        """log p_k(y|x) ``[n, K]``."""
        if self.classes:
            return np.asarray(np.log((answers * targets[:, None]).sum(2)))
        squares = (answers - targets[:, None]) ** 2 / self.noise * FREEDOM / (FREEDOM - 2)
        return np.asarray((-0.5 * np.log(self.noise) - 0.5 * (FREEDOM + 1) * np.log1p(squares / FREEDOM)).sum(2))

    # -- learning ---------------------------------------------------------------------------------------------------------

    def begin(self, phi: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Learn rows that have no order: all hold now. The model of everything is still believed alone."""
        weight = torch.ones(len(phi), dtype=torch.float64) if weights is None else weights.double()
        second, cross, total = (phi * weight[:, None]).T @ phi, (phi * weight[:, None]).T @ targets, float(weight.sum())
        for model, share in zip(
            [*self.pools, self.experts[self.current]], [*self.history.share(total).tolist(), 1.0], strict=True
        ):
            model.second.add_(second[: model.used, : model.used], alpha=share)
            model.cross.add_(cross[: model.used], alpha=share)
            model.count += share * total
            model.new = model.count
            model.solve()
        self.history.begin(total, self.expert)
        self.rows += len(phi)

    def learn(
        self, phi: Tensor, targets: Tensor, everything: NDArray[np.float64] | None, weights: Tensor | None = None
    ) -> list[ConceptChange]:
        """Learn rows in their order; returns the changes that they showed.

        Args:
            phi: features ``[n, D]``, float64.
            targets: indicators of classes or numbers ``[n, C]``, float64.
            everything: answers of the model of everything before it has learned these rows ``[n, C]``; None: models were
                weighed by these rows already (`weigh`).
            weights: how many rows each one counts as ``[n]``.
        """
        changes = []
        first, self.ended = 0, []
        while first < len(phi):
            rows = slice(first, min(first + self.left, len(phi)))
            times = None if weights is None else weights[rows].double()
            if everything is not None:
                answers = self.answers(phi[rows], everything[rows])
                self.weigh(answers, targets[rows].numpy(), None if times is None else times.numpy())
            self._sum(phi[rows], targets[rows], times)
            first = rows.stop
            if not self.left:
                change = self._end_block()
                if change is not None:
                    changes.append(change)
        self.changes.extend(changes)
        return changes

    def weigh(
        self, answers: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64] | None = None
    ) -> None:
        """Weigh the models by their answers ``[n, K, C]`` for rows whose targets ``[n, C]`` are known now."""
        if not self.classes:
            logs = self._log_likelihood(answers, targets)
            if weights is not None:
                logs = logs * weights[:, None]
            self._believe(np.exp(np.maximum(logs - logs.max(1, keepdims=True), -50.0)))
            self._count(logs)
            self._measure_noise(answers, targets)
            return
        self.believe(self.sharpened(answers), targets, weights)
        self.count(answers, targets, weights)

    def believe(
        self, sharpened: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64] | None = None
    ) -> None:
        """Believe the models as their `sharpened` answers for labels that are known now suggest.

        Together with `count`, which can wait until the block is complete, it is what `weigh` does for classes.
        """
        likely = (sharpened @ targets[:, :, None])[:, :, 0]
        if weights is not None:
            logs = np.log(likely) * weights[:, None]
            likely = np.exp(np.maximum(logs - logs.max(1, keepdims=True), -50.0))
        self._believe(likely)

    def _believe(self, likely: NDArray[np.float64]) -> None:
        """The recursion of the weights, for likelihoods ``[n, K]`` up to a factor a row."""
        self.rows += len(likely)
        library = load()
        if library is not None:
            self.weights, self.usual, self.rates = self.weights.copy(), self.usual.copy(), self.rates.copy()
            believe(library, likely, STEP, self.weights, self.usual, self.rates)
            return
        share, w, u, v = _RATES * (1 - KNOWN) / likely.shape[1], self.weights, self.usual, self.rates.tolist()
        for row in likely:
            w = w * row
            total = np.add.reduce(w, 1, keepdims=True)
            w /= total
            u = u + PACE * (w - u)
            w = _STAYS * w + _RATES * KNOWN * u + share
            v = [each * mine for each, [mine] in zip(v, total.tolist(), strict=True)]
            whole = sum(v)
            v = [(1 - SLOW) * each / whole + SLOW / len(v) for each in v]
        self.weights, self.usual, self.rates = w, u, np.array(v)

    def count(
        self, answers: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64] | None = None
    ) -> None:
        """Count the answers ``[n, K, C]`` for labels as evidence for a change, and for the powers that suit each member."""
        logs = self._log_likelihood(answers, targets)
        self._count(logs if weights is None else logs * weights[:, None])
        self._weigh_powers(answers, targets, weights)

    def _count(self, logs: NDArray[np.float64]) -> None:
        """Evidence from log-likelihoods ``[n, K]``."""
        gains = logs - logs[:, [1 + len(self.pools) + self.current]]
        self.block_gain = self.block_gain + gains.sum(0)
        count = len(logs)
        fading = MEMORY ** np.arange(count - 1, -1, -1)
        self.evidence = self.evidence * MEMORY**count + fading @ gains
        self.spread = self.spread * MEMORY**count + fading @ gains**2

    def _measure_noise(self, answers: NDArray[np.float64], targets: NDArray[np.float64]) -> None:
        """Mean squares of the errors: of 256 rows mostly those of the last quarter, then a mean that forgets half in 256 rows.

        The first errors are large, when nothing was known, and say nothing of the noise.
        """
        count = len(answers)
        before = self.measured + np.arange(count)
        rate = np.where(before < 256, 4 / (before + 5), 1 - 0.5 ** (1 / 256))
        after = np.append(np.cumprod((1 - rate)[::-1])[::-1], 1.0)
        squares = np.minimum((answers - targets[:, None]) ** 2, 25 * self.noise)
        self.noise = np.maximum(self.noise * after[0] + np.einsum("n,nkc->kc", rate * after[1:], squares), 1e-9)
        self.measured += count

    def _weigh_powers(
        self, answers: NDArray[np.float64], targets: NDArray[np.float64], weights: NDArray[np.float64] | None
    ) -> None:
        """Count how well each member would have predicted the labels with each power."""
        powers = np.exp(np.log(answers)[..., None] * SHARPNESS)
        right = np.einsum("nkcp,nc->nkp", powers, targets) / powers.sum(2)
        logs = np.log(np.maximum(right, self.least or 0.0))
        fading = SHARP_MEMORY ** np.arange(len(logs) - 1, -1, -1)
        if weights is not None:
            fading = fading * weights
        self.sharp = self.sharp * SHARP_MEMORY ** len(logs) + np.einsum("n,nkp->kp", fading, logs)

    def _sum(self, phi: Tensor, targets: Tensor, weights: Tensor | None) -> None:
        """Add rows to the sums of the block."""
        weighted = phi if weights is None else phi * weights[:, None]
        if self.block_rows:
            self.block_second.addmm_(weighted.T, phi)
            self.block_cross.addmm_(weighted.T, targets)
        else:
            self.block_second, self.block_cross = weighted.T @ phi, weighted.T @ targets
        self.block_rows += len(phi)
        self.block_weight += float(len(phi) if weights is None else weights.sum())

    def _end_block(self) -> ConceptChange | None:
        """Pools and the current expert learn the block; a change of concept moves the last blocks to another expert."""
        after, weight = self.history.time, self.block_weight
        block = Block(after, after + weight, self.block_second, self.block_cross, weight, self.block_gain)
        self._empty_block()
        if weight > 0:
            for model in [*self.pools, self.experts[self.current]]:
                model.add(block.second, block.cross, weight)
            self.pending = [*self.pending, block][-PENDING:]
            self.history.time = block.time
        self.ended.append(self.history.time)
        self.blocks += 1
        change = self._change()
        for model in [*self.pools, *self.experts]:
            model.solve()
        self.powers = SHARPNESS[self.sharp.argmax(1)]
        return change

    def _change(self) -> ConceptChange | None:
        """Open another expert, or return to a known one, where the evidence asks for it."""
        first = 1 + len(self.pools)
        candidates = self.evidence.copy()
        # everything and the longest pool hold no news, and linear pools are another kind of model
        candidates[:2] = candidates[first + self.current] = candidates[1 + len(HALF_LIVES) : first] = -np.inf
        clear = self.evidence - DEVIATIONS * np.sqrt(self.spread)
        winner = int(candidates.argmax())
        alarm = (clear > 0) & np.isfinite(candidates) & (self.evidence > NATS)
        if self.blocks <= PENDING or not alarm.any():
            return None
        # the last blocks in which the winner was better; in the first of them the concepts met
        kept = len(self.pending)
        while kept and self.pending[kept - 1].gain[winner] > 0:
            kept -= 1
        moved = self.pending[kept:]
        features = _moved(self.experts[self.current], moved[1:] or moved)
        for block in moved:
            self.experts[self.current].add(block.second, block.cross, -block.weight)
        short, others = candidates[:first].max(), candidates[first:]
        known = bool(others.max() > max(short, NATS) - NATS / 2)
        if known:
            self.current = int(others.argmax())
        else:
            if len(self.experts) == MOST:
                self._drop(min((i for i in range(MOST) if i != self.current), key=lambda i: self.experts[i].count))
            self._open_like_the_shortest()
        for block in moved[1:]:
            self.experts[self.current].add(block.second, block.cross, block.weight)
        if moved:
            self.history.turn(moved[0].after, NOBODY)
        self.history.turn(moved[1].after if len(moved) > 1 else self.history.time, self.expert)
        self._begin_turn()
        return ConceptChange(self.rows, self.expert, known, features)

    def _open_like_the_shortest(self) -> None:
        """Open an expert that is believed as the shortest pool is."""
        self._open()
        shortest = len(HALF_LIVES)
        for name in ("weights", "usual"):
            more = np.hstack([getattr(self, name), getattr(self, name)[:, [shortest]]])
            setattr(self, name, more / more.sum(1, keepdims=True))
        self.noise = np.vstack([self.noise, self.noise[shortest]])
        self.sharp = np.vstack([self.sharp, self.sharp[shortest]])
        self.powers = np.append(self.powers, self.powers[shortest])

    def _begin_turn(self) -> None:
        """The current expert is another one: evidence against it begins anew."""
        self.pending, self.blocks = [], 0
        self.evidence, self.spread, self.block_gain = (np.zeros(self._members) for _ in range(3))

    def _drop(self, place: int) -> None:
        member = 1 + len(self.pools) + place
        del self.experts[place], self.numbers[place]
        self.current -= int(self.current > place)
        for name in ("weights", "usual"):
            kept = np.delete(getattr(self, name), member, 1)
            setattr(self, name, kept / kept.sum(1, keepdims=True))
        self.noise, self.sharp = np.delete(self.noise, member, 0), np.delete(self.sharp, member, 0)
        for name in ("powers", "evidence", "spread", "block_gain"):
            setattr(self, name, np.delete(getattr(self, name), member))
        for block in self.pending:
            block.gain = np.delete(block.gain, member)

    # -- taking rows out --------------------------------------------------------------------------------------------------

    def remove(
        self,
        phi: Tensor,
        targets: Tensor,
        stamps: NDArray[np.float64],
        counts: NDArray[np.float64],
        left: float,
        pools: Mapping[int, Products] | None = None,
        experts: Mapping[int, Products] | None = None,
    ) -> None:
        """Take rows out of all sums that hold them.

        Args:
            phi: features ``[n, D]``, each row times the root of what it counts as.
            targets: ``[n, C]``, likewise.
            stamps: of the rows ``[n]`` (`hvcl.estimators.history`).
            counts: what the rows count as ``[n]``.
            left: share of its rows that the model of everything still has.
            pools: more that single pools hold, by their places.
            experts: more that single experts hold, by their numbers.
        """
        owners = self.history.experts(stamps)
        held = [(owners == number).astype(np.float64) for number in self.numbers]
        more = [(pools or {}).get(place) for place in range(len(self.pools))]
        more += [(experts or {}).get(number) for number in self.numbers]
        kept = [left]
        for model, weights, part in zip(
            [*self.pools, *self.experts], [*self.history.in_pools(stamps).T, *held], more, strict=True
        ):
            rows, lines, times = phi[:, : model.used], targets, counts
            if part is not None:
                factor = part.factor.double()
                rows, lines = torch.cat([rows, factor[:, : model.used]]), torch.cat([lines, factor[:, model.used :]])
                extra = np.eye(1, len(factor))[0] * part.count
                times, weights = np.append(times, extra), np.append(weights, np.ones(len(factor)))
            kept.append(model.remove(rows, lines, times, weights))
        for block in self.pending:
            gone = _sums(phi, targets, stamps == block.time)
            block.second, block.cross = block.second - gone[0], block.cross - gone[1]
            block.weight = max(block.weight - float(counts[stamps == block.time].sum()), 0.0)
        waiting = stamps == OPEN
        if waiting.any():
            gone = _sums(phi, targets, waiting)
            self.block_second, self.block_cross = self.block_second - gone[0], self.block_cross - gone[1]
            weight = self.block_weight - float(counts[waiting].sum())
            self.block_weight = weight if weight > NOTHING * self.block_weight else 0.0
        self._lose(np.array(kept))

    def renew(
        self, until: float, left: float, phi: Tensor, targets: Tensor, counts: NDArray[np.float64], *, alone: bool = False
    ) -> bool:
        """Take rows out that came no later than some time; when is not known. Returns whether everything has begun anew.

        Pools begin anew unless nothing is left of such rows in them, and so do all experts that may have learned them, unless
        there is only one that can have: it loses just these rows.

        Args:
            until: that time.
            left: share of its rows that the model of everything still has.
            phi: features of the rows, as `remove` takes them.
            targets: their targets.
            counts: what they count as.
            alone: whether such an expert begins anew all the same.
        """
        history, first = self.history, 1 + len(self.pools)
        kept, owners = np.ones(self._members), history.owners(until)
        kept[0] = left
        for pool in np.flatnonzero(~history.faded(until)):
            self.pools[pool].clear()
            history.since[pool], kept[1 + pool] = history.time, 0.0
        waiting = until == OPEN or any(block.after < until for block in self.pending)
        sure = len(owners) == 1 and not alone and not waiting
        for place, number in enumerate(self.numbers):
            if number in owners:
                expert = self.experts[place]
                kept[first + place] = expert.remove(phi, targets, counts, np.ones(len(counts))) if sure else 0.0
        if not kept[1:].any():
            self.restart()
            return True
        if until == OPEN:
            self._empty_block()
        self._lose(kept)
        return False

    def _lose(self, kept: NDArray[np.float64]) -> None:
        """Models have lost rows: they are believed as far as they have these shares of them left ``[K]``; 0 is an empty one."""
        weights = self.weights * kept
        weights[:, 0] += ~(weights.sum(1) > 0)
        self.weights = weights / weights.sum(1, keepdims=True)
        empty = [number for number, share in zip(self.numbers, kept[1 + len(self.pools) :], strict=True) if not share]
        current = self.expert
        if current in empty:
            others = [number for _, number in self.history.turns if number in self.numbers and number not in empty]
            if others:
                self.current = self.numbers.index(others[-1])
            else:
                self._open_like_the_shortest()
        for number in empty:
            self._drop(self.numbers.index(number))
        if self.expert != current:
            self.history.turn(self.history.time, self.expert)
            self._begin_turn()
            self._wait_for_rows()

    def _wait_for_rows(self) -> None:
        """No alarm before the current expert may have learned as many rows as the pools hold that could raise it."""
        most = max(model.count for model in self.pools[1 : len(HALF_LIVES)])
        self.blocks = min(0, PENDING - math.ceil((most - self.experts[self.current].count) / BLOCK))

    def merge(self, other: ConceptFilter, order: list[int]) -> None:
        """Add the pools of another site's filter, whose outputs have the numbers `order` here; concepts are found anew.

        Of what both believe in, the mean is believed; their experts, which may be of different concepts, leave their share to the
        pool of 1,024 rows. Rows of blocks that are not complete are in no model.
        """
        mine, theirs, history = self.pools, other.pools, self.history
        rows, opened = self.rows + other.rows, max(self.opened, other.opened)
        late = history.late | other.history.late
        history.merge(other.history)
        kept, alone = 1 + len(self.pools), self.alone and other.alone
        believed = sum(each.weights[:, :kept] for each in (self, other)) / 2
        self.opened = opened
        self.restart(history)
        if not alone:
            self.weights = np.pad(believed, ((0, 0), (0, self._members - kept)))
            self.weights[:, 2] += 1 - self.weights.sum(1)
        self.rows = rows
        for place, (pool, a, b) in enumerate(zip(self.pools, mine, theirs, strict=True)):
            if late[place]:  # it would not be known whose rows it holds from when on
                history.since[place] = history.time
                continue
            pool.second, pool.cross, pool.count = a.second + b.second, a.cross.clone(), a.count + b.count
            pool.cross[:, order[: other.outputs]] += b.cross
            pool.new = pool.count
            pool.solve()
        self._wait_for_rows()

    # -- files ------------------------------------------------------------------------------------------------------------

    def state_dict(self, block: bool = True) -> State:
        """Sums, weights and evidence; without the rows that are no whole block yet unless `block`."""
        second, cross = (self.block_second, self.block_cross) if block else (0 * self.block_second, 0 * self.block_cross)
        rows, weight = (self.block_rows, self.block_weight) if block else (0, 0.0)
        return {
            "rows": self.rows,
            "opened": self.opened,
            "outputs": self.outputs,
            "pools": [model.state_dict() for model in self.pools],
            "experts": [model.state_dict() for model in self.experts],
            "numbers": list(self.numbers),
            "current": self.current,
            "blocks": self.blocks,
            "measured": self.measured,
            "pending": [[b.after, b.time, b.second, b.cross, b.weight, torch.from_numpy(b.gain)] for b in self.pending],
            "block": [second.clone(), cross.clone(), rows, weight],
            "gain": torch.from_numpy(self.block_gain * float(block)),
            "weights": torch.from_numpy(self.weights.copy()),
            "usual": torch.from_numpy(self.usual.copy()),
            "rates": torch.from_numpy(self.rates.copy()),
            "evidence": torch.from_numpy(self.evidence.copy()),
            "spread": torch.from_numpy(self.spread.copy()),
            "noise": torch.from_numpy(self.noise.copy()),
            "sharp": torch.from_numpy(self.sharp.copy()),
            "powers": torch.from_numpy(self.powers.copy()),
            "history": self.history.state_dict(),
            "changes": [[change.row, change.expert, change.known, list(change.moved)] for change in self.changes],
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; `RunError` if it does not fit."""
        self.outputs = int(state["outputs"])
        self.clear()
        features, outputs = self.features, self.outputs
        kinds = self._pools
        if [saved["half_life"] for saved in state["pools"]] != [half_life for half_life, _ in kinds]:
            raise RunError("the saved filter over concepts does not fit this version of hvcl")
        self.pools = [
            Regression.from_state(saved, features, outputs, used) for saved, (_, used) in zip(state["pools"], kinds, strict=True)
        ]
        self.experts = [Regression.from_state(saved, features, outputs) for saved in state["experts"]]
        self.numbers = [int(number) for number in state["numbers"]]
        self.current, self.opened, self.rows = int(state["current"]), int(state["opened"]), int(state["rows"])
        members = self._members
        shapes = {"weights": (len(RATES), members), "rates": (len(RATES),), "noise": (members, outputs)}
        shapes["sharp"], shapes["usual"] = (members, len(SHARPNESS)), (len(RATES), members)
        for name in ("weights", "usual", "rates", "noise", "sharp", "powers", "evidence", "spread", "gain"):
            shape, value = shapes.get(name, (members,)), state[name].numpy().astype(np.float64)
            if value.shape != shape or not np.isfinite(value).all():
                raise RunError(f"the saved filter over concepts does not fit: {name} of shape {value.shape}")
            setattr(self, "block_gain" if name == "gain" else name, value.copy())
        if not 0 <= self.current < len(self.experts):
            raise RunError("the saved filter over concepts does not fit this version of hvcl")
        blocks = [*((second, cross) for _, _, second, cross, _, _ in state["pending"]), state["block"][:2]]
        gains = [gain.shape == (members,) for *_, gain in state["pending"]]
        if not all(gains) or any(a.shape != (features, features) or b.shape != (features, outputs) for a, b in blocks):
            raise RunError("the saved filter over concepts does not fit: blocks of other sizes")
        self.pending = [
            Block(float(after), float(time), second.clone(), cross.clone(), float(weight), gain.numpy().copy())
            for after, time, second, cross, weight, gain in state["pending"]
        ]
        self.history.load_state_dict(state["history"])
        self.blocks, self.measured = int(state["blocks"]), int(state["measured"])
        second, cross, rows, weight = state["block"]
        self.block_second, self.block_cross = second.clone(), cross.clone()
        self.block_rows, self.block_weight = int(rows), float(weight)
        found = state["changes"]
        self.changes = [ConceptChange(int(row), int(expert), bool(known), tuple(moved)) for row, expert, known, moved in found]


def _sums(phi: Tensor, targets: Tensor, rows: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Products of some of the rows with themselves and with their targets."""
    some = torch.from_numpy(np.flatnonzero(rows))
    return phi[some].T @ phi[some], phi[some].T @ targets[some]


def _moved(old: Regression, blocks: list[Block]) -> tuple[int, ...]:
    """Features whose means in the last blocks differ from those of all rows of an expert, the farthest first."""
    count = sum(float(block.second[0, 0]) for block in blocks)
    if not blocks or count < 2 or float(old.second[0, 0]) < 2:
        return ()
    before, rows = old.second, float(old.second[0, 0])
    now = torch.stack([block.second[0] for block in blocks]).sum(0) / count
    mean = before[0] / rows
    variance = (before.diagonal() / rows - mean.square()).clamp_min(0) + 1e-12
    away = (now - mean).abs() / (variance * (1 / count + 1 / rows)).sqrt()
    return tuple(int(i) for i in away.argsort(descending=True) if float(away[i]) > MOVED)
