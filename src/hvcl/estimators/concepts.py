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

.. math:: w_k \leftarrow (1 - \alpha)\, \frac{w_k\, p_k(y|x)}{\sum_j w_j\, p_j(y|x)} + \frac{\alpha}{K} ,

with two rates :math:`\alpha`, a quick and a slow one, that are themselves weighted by how well their mixtures predict. Pools and
experts are ridge regressions on a few hundred features, of indicators for classes (clipped to probabilities) or of standardised
numbers. Regressions of indicators are too modest, the more so the fewer features they have: probabilities are
:math:`p^\tau`, normalised, with the sharpness :math:`\tau` of each model that would have predicted its last labels best. All
models are sums; blocks of 32 rows are added at a time, and nothing but the weights changes within a block. Labels may come late:
nothing changes until they do.

A change is an alarm when, over about the last 50 rows, some pool or expert beats the current expert by more than G = 10 nats and
by more than three standard deviations of that sum, as the rows themselves show it. Linear pools raise no alarm: where they are
better, the relation is simpler than an expert's features, and need not be new.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv, sposv
from torch import Tensor

from hvcl.core.errors import RunError
from hvcl.core.state import State
from hvcl.ops import load
from hvcl.ops.rows import believe, members, sharpened

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

RIDGE = 1.0
"""Of all regressions: their features have about unit size."""

BLOCK = 32
"""Rows that are added to the sums at a time."""

PENDING = 4
"""Blocks that can be taken from an expert again; a new expert takes over those in which the concept was the new one."""

MEMORY = 0.98
"""What is left of a row's evidence for a change after the next row."""

NATS, DEVIATIONS = 10.0, 3.0
"""Evidence for a change: so many nats, and so many of its own standard deviations."""

SINGLE = 256
"""Half-life up to which regressions are solved in single precision."""

MOVED = 5.0
"""Standard errors from which on a feature's mean has moved."""

MOST = 8
"""Experts that are kept; the one with the fewest rows makes room for another."""

STALE = 8
"""Regressions are solved anew when an eighth of their rows is new."""

RATE = np.array(RATES)

_RATES = RATE[:, None]

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


class Regression:
    """Ridge regression from sums that may be discounted.

    Args:
        features: D.
        outputs: C.
        half_life: rows after which the sums have lost half their weight; infinite: never.
        used: the first so many features are used; None: all.
    """

    def __init__(self, features: int, outputs: int, half_life: float = math.inf, used: int | None = None) -> None:
        self.half_life = half_life
        self.used = features if used is None else used
        self.second = torch.zeros(self.used, self.used, dtype=torch.float64)
        self.cross = torch.zeros(self.used, outputs, dtype=torch.float64)
        self.weights = torch.zeros(features, outputs, dtype=torch.float64)
        self.count = 0.0
        self.new = 0.0

    def add(self, second: Tensor, cross: Tensor, count: float) -> None:
        """Sums over a block of rows; a negative count takes them out."""
        second, cross = second[: self.used, : self.used], cross[: self.used]
        if math.isfinite(self.half_life):
            left = 0.5 ** (count / self.half_life)
            # one pass over the sums, which are larger than a cache
            torch.add(second, self.second, alpha=left, out=self.second)
            torch.add(cross, self.cross, alpha=left, out=self.cross)
            self.count *= left
        else:
            sign = 1.0 if count > 0 else -1.0
            self.second.add_(second, alpha=sign)
            self.cross.add_(cross, alpha=sign)
        self.count = max(self.count + count, 0.0)
        self.new += abs(count)

    def solve(self) -> None:
        """New weights, if enough rows are new."""
        if self.new and self.new * STALE >= self.count:
            # the sums of few rows are far from singular beside the ridge: single precision will do
            single, places = self.half_life <= SINGLE and self.used > STALE, np.arange(self.used)
            for dtype, solve in ((np.float32, sposv), (np.float64, dposv))[0 if single else 1 :]:
                ridged: NDArray[Any] = self.second.numpy().astype(dtype)
                cross: NDArray[Any] = self.cross.numpy().astype(dtype, order="F")
                ridged[places, places] += RIDGE
                # in place, and of one triangle: torch copies the matrix, transposed, and clears the other one
                _, weights, failed = solve(ridged.T, cross, overwrite_a=True, overwrite_b=True)
                if not failed:
                    self.weights[: self.used] = torch.from_numpy(weights)
                    break
            self.new = 0.0

    def grow(self, outputs: int) -> None:
        """Room for more outputs."""
        more = outputs - self.cross.shape[1]
        self.cross = torch.nn.functional.pad(self.cross, (0, more))
        self.weights = torch.nn.functional.pad(self.weights, (0, more))

    def state_dict(self) -> State:
        """Sums and weights."""
        return {
            "half_life": None if math.isinf(self.half_life) else self.half_life,
            "second": self.second,
            "cross": self.cross,
            "weights": self.weights,
            "count": self.count,
            "new": self.new,
        }

    @classmethod
    def from_state(cls, state: State, features: int, outputs: int, used: int | None = None) -> Regression:
        """What `state_dict` returned; `RunError` if it does not fit."""
        made = cls(features, outputs, math.inf if state["half_life"] is None else float(state["half_life"]), used)
        for name in ("second", "cross", "weights"):
            value = state[name]
            if value.shape != getattr(made, name).shape or value.dtype != torch.float64 or not bool(value.isfinite().all()):
                raise RunError(f"the saved filter over concepts does not fit: {name} of shape {tuple(value.shape)}")
            setattr(made, name, value.clone())
        made.count, made.new = float(state["count"]), float(state["new"])
        return made


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
        self.restart()

    def restart(self) -> None:
        """Forget all but how many rows there were: the model of everything answers alone until there are labels again."""
        self.rows = getattr(self, "rows", 0)
        self.opened = getattr(self, "opened", 0)
        self.pools = [Regression(self.features, self.outputs, half_life, used) for half_life, used in self._pools]
        self.experts: list[Regression] = []
        self.numbers: list[int] = []
        self.current = 0
        self.pending: list[tuple[Tensor, Tensor, float, NDArray[np.float64]]] = []
        self.blocks = 0  # since the last change
        self.changes: list[ConceptChange] = getattr(self, "changes", [])
        self._open()
        self._empty_block()
        members = self._members
        self.weights = np.zeros((len(RATES), members))
        self.weights[:, 0] = 1.0
        self.rates = np.full(len(RATES), 1 / len(RATES))
        self.evidence, self.spread = np.zeros(members), np.zeros(members)
        self.noise = np.ones((members, self.outputs))
        self.measured = 0  # rows that it was measured on
        self.sharp = np.zeros((members, len(SHARPNESS)))  # log-likelihoods of the last labels with each power
        self.powers = np.ones(members)  # those with the largest, chosen anew after every block
        self._laid: tuple[list[Tensor], list[int], NDArray[np.float64]] | None = None

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
            self.pending = [(a, torch.nn.functional.pad(b, (0, more)), count, gain) for a, b, count, gain in self.pending]
            self.noise = np.pad(self.noise, ((0, 0), (0, more)), constant_values=1.0)
            self.outputs = outputs

    # -- answers ----------------------------------------------------------------------------------------------------------

    def answers(self, phi: Tensor, everything: NDArray[np.float64]) -> NDArray[np.float64]:
        """Answers of all members ``[n, K, C]``; those of the model of everything are given ``[n, C]``."""
        library = load()
        if library is not None:
            return members(library, phi.numpy(), self.coefficients(), everything, self.least)
        found = phi.numpy() @ self.coefficients()
        return self.bounded(np.concatenate([everything[:, None], found.reshape(len(phi), -1, self.outputs)], 1))

    def coefficients(self) -> NDArray[np.float64]:
        """Weights of the pools and the experts side by side ``[D, (K - 1) C]``; nobody may change them."""
        weights = [model.weights for model in [*self.pools, *self.experts]]
        versions = [each._version for each in weights]
        if (
            self._laid is None
            or self._laid[1] != versions
            or any(a is not b for a, b in zip(self._laid[0], weights, strict=False))
        ):
            self._laid = weights, versions, torch.cat(weights, 1).numpy()
        return self._laid[2]

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
        for model in [*self.pools, self.experts[self.current]]:
            share = min(1.0, model.half_life / math.log(2) / total) if math.isfinite(model.half_life) else 1.0
            model.second.add_(second[: model.used, : model.used], alpha=share)
            model.cross.add_(cross[: model.used], alpha=share)
            model.count += share * total
            model.new = model.count
            model.solve()
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
        first = 0
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
            self.weights, self.rates = self.weights.copy(), self.rates.copy()
            believe(library, likely, RATE, SLOW, self.weights, self.rates)
            return
        share, w, v = _RATES / likely.shape[1], self.weights, self.rates.tolist()
        for row in likely:
            w = w * row
            total = np.add.reduce(w, 1, keepdims=True)
            w *= _STAYS / total
            w += share
            v = [each * mine for each, [mine] in zip(v, total.tolist(), strict=True)]
            whole = sum(v)
            v = [(1 - SLOW) * each / whole + SLOW / len(v) for each in v]
        self.weights, self.rates = w, np.array(v)

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
        """Mean squares of the errors: a running mean over the rows so far, then one that forgets half in 256 rows."""
        count = len(answers)
        rate = np.maximum(1 - 0.5 ** (1 / 256), 1 / (self.measured + np.arange(count) + 2))
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
        second, cross, weight, gain = self.block_second, self.block_cross, self.block_weight, self.block_gain
        self._empty_block()
        if weight > 0:
            for model in [*self.pools, self.experts[self.current]]:
                model.add(second, cross, weight)
            self.pending = [*self.pending, (second, cross, weight, gain)][-PENDING:]
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
        while kept and self.pending[kept - 1][3][winner] > 0:
            kept -= 1
        moved = self.pending[kept:]
        features = _moved(self.experts[self.current], moved[1:] or moved)
        for second, cross, count, _ in moved:
            self.experts[self.current].add(second, cross, -count)
        short, others = candidates[:first].max(), candidates[first:]
        known = bool(others.max() > max(short, NATS) - NATS / 2)
        if known:
            self.current = int(others.argmax())
        else:
            if len(self.experts) == MOST:
                self._drop(min((i for i in range(MOST) if i != self.current), key=lambda i: self.experts[i].count))
            self._open()
            shortest = len(HALF_LIVES)
            self.weights = np.hstack([self.weights, self.weights[:, [shortest]]])
            self.weights /= self.weights.sum(1, keepdims=True)
            self.noise = np.vstack([self.noise, self.noise[shortest]])
            self.sharp = np.vstack([self.sharp, self.sharp[shortest]])
        for second, cross, count, _ in moved[1:]:
            self.experts[self.current].add(second, cross, count)
        self.pending, self.blocks = [], 0
        self.evidence, self.spread, self.block_gain = (np.zeros(self._members) for _ in range(3))
        return ConceptChange(self.rows, self.expert, known, features)

    def _drop(self, place: int) -> None:
        member = 1 + len(self.pools) + place
        del self.experts[place], self.numbers[place]
        self.current -= int(self.current > place)
        self.weights = np.delete(self.weights, member, 1)
        self.weights /= self.weights.sum(1, keepdims=True)
        self.noise, self.sharp = np.delete(self.noise, member, 0), np.delete(self.sharp, member, 0)

    def merge(self, other: ConceptFilter, order: list[int]) -> None:
        """Add the pools of another site's filter, whose outputs have the numbers `order` here; concepts are found anew.

        Of what both believe in, the mean is believed; their experts, which may be of different concepts, leave their share to the
        pool of 1,024 rows.
        """
        mine, theirs = self.pools, other.pools
        rows, changes = self.rows + other.rows, self.changes
        kept, alone = 1 + len(self.pools), self.alone and other.alone
        believed = sum(each.weights[:, :kept] for each in (self, other)) / 2
        self.restart()
        if not alone:
            self.weights = np.pad(believed, ((0, 0), (0, self._members - kept)))
            self.weights[:, 2] += 1 - self.weights.sum(1)
        self.rows, self.changes = rows, changes
        for pool, a, b in zip(self.pools, mine, theirs, strict=True):
            pool.second, pool.cross, pool.count = a.second + b.second, a.cross.clone(), a.count + b.count
            pool.cross[:, order] += b.cross[:, : len(order)]
            pool.new = pool.count
            pool.solve()

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
            "pending": [[second, cross, count, torch.from_numpy(gain)] for second, cross, count, gain in self.pending],
            "block": [second.clone(), cross.clone(), rows, weight],
            "gain": torch.from_numpy(self.block_gain * float(block)),
            "weights": torch.from_numpy(self.weights.copy()),
            "rates": torch.from_numpy(self.rates.copy()),
            "evidence": torch.from_numpy(self.evidence.copy()),
            "spread": torch.from_numpy(self.spread.copy()),
            "noise": torch.from_numpy(self.noise.copy()),
            "sharp": torch.from_numpy(self.sharp.copy()),
            "powers": torch.from_numpy(self.powers.copy()),
            "changes": [[change.row, change.expert, change.known, list(change.moved)] for change in self.changes],
        }

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; `RunError` if it does not fit."""
        self.outputs = int(state["outputs"])
        self.restart()
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
        shapes["sharp"] = (members, len(SHARPNESS))
        for name in ("weights", "rates", "noise", "sharp", "powers", "evidence", "spread", "gain"):
            shape, value = shapes.get(name, (members,)), state[name].numpy().astype(np.float64)
            if value.shape != shape or not np.isfinite(value).all():
                raise RunError(f"the saved filter over concepts does not fit: {name} of shape {value.shape}")
            setattr(self, "block_gain" if name == "gain" else name, value.copy())
        if not 0 <= self.current < len(self.experts):
            raise RunError("the saved filter over concepts does not fit this version of hvcl")
        blocks = [*state["pending"], state["block"]]
        gains = [gain.shape == (members,) for *_, gain in state["pending"]]
        if not all(gains) or any(b[0].shape != (features, features) or b[1].shape != (features, outputs) for b in blocks):
            raise RunError("the saved filter over concepts does not fit: blocks of other sizes")
        self.pending = [(a.clone(), b.clone(), float(count), gain.numpy().copy()) for a, b, count, gain in state["pending"]]
        self.blocks, self.measured = int(state["blocks"]), int(state["measured"])
        second, cross, rows, weight = state["block"]
        self.block_second, self.block_cross = second.clone(), cross.clone()
        self.block_rows, self.block_weight = int(rows), float(weight)
        found = state["changes"]
        self.changes = [ConceptChange(int(row), int(expert), bool(known), tuple(moved)) for row, expert, known, moved in found]


def _moved(old: Regression, blocks: list[tuple[Tensor, Tensor, float, NDArray[np.float64]]]) -> tuple[int, ...]:
    """Features whose means in the last blocks differ from those of all rows of an expert, the farthest first."""
    count = sum(float(second[0, 0]) for second, *_ in blocks)
    if not blocks or count < 2 or float(old.second[0, 0]) < 2:
        return ()
    before, rows = old.second, float(old.second[0, 0])
    now = torch.stack([second[0] for second, *_ in blocks]).sum(0) / count
    mean = before[0] / rows
    variance = (before.diagonal() / rows - mean.square()).clamp_min(0) + 1e-12
    away = (now - mean).abs() / (variance * (1 / count + 1 / rows)).sqrt()
    return tuple(int(i) for i in away.argsort(descending=True) if float(away[i]) > MOVED)
