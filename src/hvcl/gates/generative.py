r"""The generative gate: which expert a feature vector comes from, by Bayes' rule, with statistics that only add up.

    p(m|z) ~ p(m) p(z|m),        p(z|m) = sum_y p(y|m) p(z|m,y),        p(m) ~ examples of expert m

Every p(z|m,y) is a Gaussian with conjugate statistics (count, sum, second moments, in float64), so the gate cannot forget, the
order of examples does not matter, and statistics of two gates merge by addition.

**Recommended use.** ``gate = GenerativeGate(dim, covariance="tied")`` on features of any offset and scale, then
``experts = gate.observe(z, y)`` for every training batch, labels included: with labels a shift is far easier to see, because
in Domain-IL label 0 is "airplane" in one task and "bird" in the next. At test time ``gate.probabilities(z)`` is p(m|z). Where
task boundaries are known, use ``growing=False`` and call ``gate.new_expert()`` at each. "diagonal" suits inputs whose tasks
differ a lot (permuted pixels); "tied" is the better recogniser wherever d^2 numbers fit.
"""

from __future__ import annotations

import copy
import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hvcl.core.errors import HvclError, InputError, RunError
from hvcl.gates.calibration import Calibration
from hvcl.gates.shift import FREEDOM, Repeats, ShiftTest, Sketch
from hvcl.gates.standardise import LARGEST, compressed, location_and_scale
from hvcl.gates.statistics import ComponentStatistics, cholesky, whiten

Covariance = Literal["diagonal", "tied"]


@dataclass(frozen=True)
class ColumnShift:
    """By how much the mean of every feature differs between two experts, in standard deviations within them."""

    labels: Tensor
    """Labels that both have seen ``[L]``; -1 alone if all examples are compared, or none had a label."""
    shift: Tensor
    """Given the label ``[L, dim]``."""
    error: Tensor
    """Its standard error ``[L]``, the same for all features."""

    @property
    def mean(self) -> Tensor:
        """Mean of the shifts over the labels ``[dim]``, each weighted by its precision; opposite shifts cancel out."""
        weight = self.error.pow(-2)
        return weight @ self.shift / weight.sum()

    @property
    def mean_error(self) -> float:
        """Standard error of `mean`."""
        return 1 / math.sqrt(float(self.error.pow(-2).sum()))


class GenerativeGate:
    r"""Conjugate Gaussians behind a Chinese-restaurant prior; experts open as the data need them.

    **Standardisation.** Centre and spread of the features are estimated robustly from the first `window` examples (which are kept
    until then, and belong to the first expert) or given (`standardise`), and never change again. Values beyond 10 spreads from
    the centre are compressed logarithmically before they enter any sum (`hvcl.gates.standardise`), and counted in `outlying`: one
    value of 1e10 does not spoil the statistics. z below is the feature vector after that; densities are of the features as given.

    **Recognition.** With n, s the count and sum of a component (expert m, label y), posterior-predictive moments are

    - "diagonal": normal-inverse-gamma in every dimension, mu | v ~ N(0, v / kappa0), v ~ IG(a0, b0), a0 = 1 + shrinkage / 2,
      b0 = scale^2 shrinkage / 2. Predictive: mean s / (n + kappa0), variance (1 + 1 / (n + kappa0)) b_n / (a_n - 1).
    - "tied": one covariance for all components, inverse-Wishart with prior scatter scale^2 shrinkage I and
      d + 1 + shrinkage degrees of freedom; mu | S ~ N(0, S / kappa0). Predictive covariance (1 + 1 / (n + kappa0)) S_n with
      S_n = (shrinkage scale^2 I + sum of z z^T - sum_c s_c s_c^T / (n_c + kappa0)) / (shrinkage + n).

    The predictive Student-t is replaced by the Gaussian with its mean and covariance (they differ by O(1/n)), which makes
    recognition two matrix products.

    **Opening.** Whether a batch comes from a known expert, from a mixture of them or from a new one is decided by a test on a
    sketch of the features whose false alarms are bounded: see `hvcl.gates.shift`.

    A batch with fewer than `window` examples is assigned to one expert as a whole, and is tested together with those before it:
    they are held back (not learned) until they are `window` examples, so that weak evidence adds up. A new expert takes its first
    `window` examples without a test. So with small batches, up to about `window` examples after a shift are still assigned to
    the old expert. Everything is deterministic.

    **False experts.** On stationary streams of 10,000 examples at most one in 100 opens a second expert, with class shares down
    to 0.5 %, offsets up to 1e6 deviations, scales from 1e-6 to 1e6, rows repeated up to 16 times in a row, and tails as heavy as
    Student's t with 3 degrees of freedom (`tests/gates/test_detection.py` has a sample of these).

    **How many experts.** At most `max_experts`; without a bound, a stream that drifts or is sorted opens one after another. With
    `merging`, two experts of at least 2 `window` examples each that have become one (the evidence that their means differ is
    below half the prior log odds) are joined by addition: the smaller is closed, and its number is not given again. With
    `expiry`, experts that had no example among the last `expiry` ones are dropped: what they knew is forgotten. Closed experts
    keep their number and have probability zero; `merged` and `follow` say who answers for them. A shift that is found when there
    are `max_experts` joins the two nearest experts to make room, if there is `merging`; else the examples go to the most likely
    one.

    Args:
        dim: number of features.
        covariance: "tied" (d^2 numbers in all) or "diagonal" (2 d numbers a component).
        concentration: of the Chinese-restaurant prior: larger opens more readily.
        scale: prior standard deviation of a feature within an expert, in units of the spread.
        mean_precision: kappa0, in examples.
        shrinkage: weight of the prior covariance, in examples.
        temperature: p(m|z) ~ p(m) p(z|m)^(1/temperature). One is Bayes' rule; features that are not Gaussian make it
            overconfident, and 3 lowers the log loss of recognition on patch features of MNIST, CIFAR-10 and CIFAR-100 alike
            (validation data), at the same accuracy.
        sketch: size of the random projection, k; no projection if dim is not larger.
        window: smallest number of examples that are tested for a shift.
        growing: whether detected shifts open experts; otherwise only `new_expert` does.
        max_experts: open experts at any time, at most (`learn` opens those it is given all the same); None: no bound.
        merging: whether experts that have become one are joined.
        expiry: examples after which an expert that had none of them is dropped; None: never.
        seed: of the projection.
    """

    def __init__(
        self,
        dim: int,
        *,
        covariance: Covariance = "tied",
        concentration: float = 0.01,
        scale: float = 1.0,
        mean_precision: float = 0.1,
        shrinkage: float = 100.0,
        temperature: float = 1.0,
        sketch: int = 128,
        window: int = 128,
        growing: bool = True,
        max_experts: int | None = None,
        merging: bool = False,
        expiry: int | None = None,
        seed: int = 0,
    ) -> None:
        if covariance not in ("diagonal", "tied"):
            raise InputError(f"covariance must be 'diagonal' or 'tied', got {covariance!r}")
        if dim < 1 or sketch < 1 or window < 2:
            raise InputError(f"dim and sketch must be at least 1, window at least 2, got {dim}, {sketch}, {window}")
        for name, limit in {"max_experts": max_experts, "expiry": expiry}.items():
            if limit is not None and limit < 1:
                raise InputError(f"{name} must be at least 1, or None, got {limit}")
        numbers = {"concentration": concentration, "scale": scale, "mean_precision": mean_precision}
        for name, value in {**numbers, "shrinkage": shrinkage, "temperature": temperature}.items():
            if not value > 0:
                raise InputError(f"{name} must be positive, got {value}")
        self.dim = dim
        self.covariance = covariance
        self.concentration = concentration
        self.scale = scale
        self.mean_precision = mean_precision
        self.shrinkage = shrinkage
        self.temperature = temperature
        self.window = window
        self.growing = growing
        self.max_experts, self.merging, self.expiry = max_experts, merging, expiry
        self.seed = seed
        self.current = 0
        """The expert that the last examples were assigned to."""
        self.centre: Tensor | None = None
        """Centre of the features ``[dim]``; None until there are enough examples to estimate it."""
        self.spread: Tensor | None = None
        """Spread of the features ``[dim]``."""
        self.outlying = 0
        """Values of learned features that were compressed because they lie far from the centre."""
        self.merged: dict[int, int] = {}
        """Experts that were joined with others, and with which: the open (or dropped) ones that answer for them now."""
        self._seen = 0  # examples so far
        self._used: dict[int, int] = {}  # open experts, and the examples so far when each was last given one
        self._calibration = Calibration()
        self._due = True  # the next examples open an expert without a test
        self._sketch = Sketch(dim, sketch, seed)
        self._repeats = Repeats(dim)
        self._learned = ComponentStatistics(dim, self._sketch.size, covariance == "tied")
        self._held = self._learned.empty()  # small batches that are not learned yet
        self._held_rows = torch.zeros_like(self._repeats.recent)
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []  # first examples, as they came: features, experts, labels
        self._factors: Tensor | None = None
        self._test: ShiftTest | None = None
        self._settled: GenerativeGate | None = None

    @property
    def experts(self) -> int:
        """Number of experts so far, closed ones included: numbers are not given again."""
        return max([self._learned.experts, *(int(experts.max()) + 1 for _, experts, _ in self._waiting)])

    @property
    def counts(self) -> Tensor:
        """Examples that each expert has learned from ``[experts]``."""
        return self._ready()._learned.expert_counts

    @property
    def open(self) -> list[int]:
        """The experts that are not closed."""
        return self._ready()._learned.open

    @property
    def dropped(self) -> list[int]:
        """The experts that are closed and were not joined with another one."""
        return sorted(self._ready()._learned.closed - self.merged.keys())

    def follow(self, experts: Tensor) -> Tensor:
        """Who answers now for `experts`, numbers that `observe` gave earlier: those that were joined with others are replaced."""
        numbers = torch.tensor([self.merged.get(expert, expert) for expert in range(int(experts.max()) + 1)], dtype=torch.long)
        return numbers[experts]

    @property
    def num_parameters(self) -> int:
        """Number of learned values that p(m|z) depends on."""
        learned = self._ready()._learned
        components = len(learned.keys)
        return components * (1 + self.dim) + (self.dim * (self.dim + 1) // 2 if learned.tied else components * self.dim)

    def standardise(self, centre: Tensor | float, spread: Tensor | float) -> None:
        """Set centre and spread ``[dim]`` before the first example, instead of estimating them."""
        if self.experts or self.centre is not None:
            raise InputError("centre and spread are fixed already: set them before the first example")
        shape = torch.zeros(self.dim, dtype=torch.float64)
        centre, spread = (shape + torch.as_tensor(value).double().cpu() for value in (centre, spread))
        if centre.shape != shape.shape or spread.shape != shape.shape or not bool(centre.isfinite().all()):
            raise InputError(f"centre and spread must be {self.dim} finite numbers, or one for all")
        if not bool((spread > 0).all()) or not bool(spread.isfinite().all()):
            raise InputError("spreads must be positive and finite")
        self.centre, self.spread = centre, spread

    def empty_copy(self) -> GenerativeGate:
        """A gate with the same settings, centre and spread that has learned nothing: for a part of a stream that is merged."""
        made = copy.deepcopy(self._ready())
        made._learned, made._held = self._learned.empty(), self._learned.empty()
        made._repeats, made._held_rows = Repeats(self.dim), torch.zeros_like(self._held_rows)
        made.current, made.outlying, made._due = 0, 0, True
        made.merged, made._seen, made._used, made._calibration = {}, 0, {}, Calibration()
        made._changed()
        return made

    def new_expert(self) -> None:
        """A task boundary is known to lie here: the next examples open a new expert, without a test."""
        self._commit()
        self._due = True

    @torch.no_grad()
    def observe(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """Assign each example of a batch to an expert, opening a new one at a shift, and learn from them.

        Args:
            z: features ``[B, dim]``, finite.
            y: labels ``[B]``, integers of at least 0.

        Returns:
            the experts ``[B]``.
        """
        z, labels = self._checked(z, y)
        if self.centre is None:
            return self._wait(z, labels)
        cells = self._repeats.cells(z)
        z, outlying = self._standardised(z)
        sketch = self._sketch(z)
        counts = self._repeats.counts(cells)
        if self._due:
            self._due = False
            if self._can_open:
                self._make_room()
                self.current = self.experts
            experts = torch.full_like(labels, self.current)
        elif not self.growing or self._too_few_to_test(len(z)):
            experts = torch.full_like(labels, self.current)
        elif len(z) < self.window:
            return self._hold(z, sketch, labels, counts, outlying)
        else:
            self._commit()
            repeats = self._repeats.of(counts)
            experts = self._shift_test().assign(sketch, labels, self.current, repeats, room=self._can_open)
            if int(experts.max()) == self.experts:
                self._make_room()
                experts = self.follow(experts)
            self.current = int(experts.mode()[0])
        self._add(z, sketch, experts, labels, cells)
        self.outlying += outlying
        self._tidy()
        return self.follow(experts)

    @torch.no_grad()
    def learn(self, z: Tensor, experts: Tensor, y: Tensor | None = None) -> None:
        """Add examples ``[B, dim]`` to the statistics of given experts ``[B]``."""
        z, labels = self._checked(z, y)
        self._check_experts(experts, labels)
        self._due = False
        if self.centre is None:
            self._keep(z, experts.long().cpu(), labels)
            return
        self._commit()
        cells = self._repeats.cells(z)
        z, outlying = self._standardised(z)
        self._add(z, self._sketch(z), experts.long().cpu(), labels, cells)
        self.outlying += outlying

    @torch.no_grad()
    def remove(self, z: Tensor, experts: Tensor, y: Tensor | None = None) -> None:
        """Unlearn examples ``[B, dim]`` of `experts` ``[B]``; centre and spread of the features stay.

        Raises:
            InputError: if counts and second moments show that they cannot all have been learned; then nothing has changed.
        """
        z, labels = self._checked(z, y)
        self._check_experts(experts, labels)
        ready = self._ready()
        if ready.centre is None:
            raise InputError("cannot remove these examples: none were learned")
        z, outlying = ready._standardised(z)
        part = self._learned.empty()
        part.add(z, self._sketch(z), self.follow(experts.long().cpu()), labels)
        ready._commit()
        ready._learned.subtract(part)
        ready.outlying -= outlying
        self._take(ready)
        self._due = self._due or self.current >= self.experts

    @torch.no_grad()
    def merge(self, other: GenerativeGate, first: int = 0) -> None:
        """Add another gate's statistics; its expert m becomes expert `first` + m of this one.

        Raises:
            InputError: if the settings differ, or the features are standardised differently (make the other one by `empty_copy`,
                or `standardise` both); then nothing has changed.
        """
        if self._settings() != other._settings():
            raise InputError(f"only gates with equal settings can merge, got {self._settings()} and {other._settings()}")
        if not other.experts:
            return
        other = other._ready()
        ready = self._ready() if self.experts else self.empty_copy()
        if ready.centre is None or ready.spread is None:
            ready.centre, ready.spread = other.centre, other.spread
        if not _same(ready.centre, other.centre) or not _same(ready.spread, other.spread):
            raise InputError("the gates standardise their features differently: make the second one by the first's empty_copy()")
        ready._commit()
        for part in (other._learned, other._held):
            ready._learned.merge(part, first)
        ready.outlying += other.outlying
        ready._seen += other._seen
        ready._used = ready._used | {expert: ready._seen for expert in ready._learned.open if expert not in ready._used}
        merged = ready.merged | {expert + first: into + first for expert, into in other.merged.items()}
        ready.merged = {expert: into for expert, into in merged.items() if expert not in ready._learned.open}
        ready._calibration = ready._calibration.plus(other._calibration)
        self._take(ready)
        self._due = self._due and not self.experts

    # -- recognition -----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def log_likelihood(self, z: Tensor) -> Tensor:
        """log p(z|m), ``[B, experts]``, float64."""
        z, _ = self._checked(z, None)
        if not self.experts:
            raise InputError("the gate has no experts yet: let it observe examples first")
        ready = self._ready()
        return ready._log_likelihood(ready._standardised(z)[0])

    @torch.no_grad()
    def novelty_p_value(self, z: Tensor) -> Tensor:
        """The share of learned examples that were at least as far from all they were compared with, ``[B]``: small means novel.

        Flagging p <= alpha has a false-alarm rate of about alpha on examples like those learned, whatever their distribution: the
        distance (Mahalanobis, in the sketch, to the nearest component) of every learned example is measured before it is learned
        and counted in a histogram, in which those of the last half of the stream (10,000 examples at most) count most. Examples
        that open an expert are not counted. p is at least 1 / (1 + their number), and 1 before there are any.
        """
        z, _ = self._checked(z, None)
        if not self.experts:
            raise InputError("the gate has no experts yet: let it observe examples first")
        ready = self._ready()
        return ready._calibration.share(ready._shift_test().distance(self._sketch(ready._standardised(z)[0])))

    @torch.no_grad()
    def column_shift(self, expert: int, other: int) -> ColumnShift:
        """By how much the mean of every feature differs between two open experts, given the label: which columns moved.

        Shifts are `expert`'s mean minus `other`'s, in standard deviations within experts and labels, after compression of
        outliers. Labels that only one has seen are left out; if they have none in common, all examples are compared as if they
        had no labels.
        """
        ready = self._ready()
        learned = ready._learned
        for number in (expert, other):
            if number not in learned.open:
                raise InputError(f"expert {number} is not open: {learned.open} are")
        rows = [{label: row for row, (own, label) in enumerate(learned.keys) if own == number} for number in (expert, other)]
        labels = sorted(rows[0].keys() & rows[1].keys())
        groups = [[[mine[label]] for label in labels] if labels else [list(mine.values())] for mine in rows]
        count, effective, total = (
            [torch.stack([values[group].sum(0) for group in side]) for side in groups]
            for values in (learned.count, learned.effective, learned.total)
        )
        means = [t / n[:, None] for t, n in zip(total, count, strict=True)]
        squares = (learned.total.square() / learned.count[:, None]).sum(0)
        if learned.tied:
            scatter, free = learned.square.diagonal() - squares, learned.examples - len(learned.keys) + float(learned.spare)
        else:
            scatter, free = learned.square.sum(0) - squares, learned.examples - len(learned.keys)
        variance = scatter.clamp_min(0) / max(free, 1.0)
        if not labels:  # the labels' means vary, too
            for side, mean in zip(rows, means, strict=True):
                own = list(side.values())
                apart = learned.total[own] / learned.count[own, None] - mean
                variance = variance + 0.5 * (learned.count[own, None] * apart.square()).sum(0) / learned.count[own].sum()
        deviation = variance.sqrt().clamp_min(1e-12)
        return ColumnShift(
            torch.tensor(labels or [-1]),
            (means[0] - means[1]) / deviation,
            (1 / effective[0] + 1 / effective[1]).sqrt(),
        )

    def _log_likelihood(self, z: Tensor) -> Tensor:
        """`log_likelihood` of features that are standardised."""
        assert self.spread is not None
        learned = self._learned
        precision = learned.count[:, None] + self.mean_precision
        means = learned.total / precision
        if learned.tied:
            factor = self._factor()
            z, means = whiten(factor, z), whiten(factor, means)
            inflation = (1 + 1 / precision)[:, 0]
            log_det = 2 * factor.diagonal().log().sum() + self.dim * inflation.log()
            distance = (z.square().sum(1, keepdim=True) + means.square().sum(1) - 2 * z @ means.T) / inflation
        else:
            scatter = (learned.square - learned.total.square() / precision).clamp_min(0)
            variance = (self.shrinkage * self.scale**2 + scatter) / (self.shrinkage + learned.count[:, None])
            weight = 1 / (variance * (1 + 1 / precision))
            log_det = -weight.log().sum(1)
            distance = z.square() @ weight.T - 2 * z @ (weight * means).T + (weight * means.square()).sum(1)
        scores = -0.5 * (distance + log_det + self.dim * math.log(2 * math.pi)) - self.spread.log().sum()
        experts = torch.tensor([expert for expert, _ in learned.keys])
        scores = scores + (learned.count / self.counts[experts]).log()  # p(y|m)
        result = scores.new_full((len(z), learned.experts), -torch.inf)
        for expert in learned.open:
            result[:, expert] = scores[:, experts == expert].logsumexp(1)
        return result

    def log_probabilities(self, z: Tensor) -> Tensor:
        """log p(m|z), ``[B, experts]``, float64."""
        return (self.log_likelihood(z) / self.temperature + self.counts.log()).log_softmax(1)

    def probabilities(self, z: Tensor) -> Tensor:
        """p(m|z), ``[B, experts]``, float64."""
        return self.log_probabilities(z).exp()

    def novelty(self, z: Tensor) -> Tensor:
        """log p(z) under the base measure minus that under the best expert, ``[B]``: positive where no expert fits."""
        best = self.log_likelihood(z).max(1).values
        ready = self._ready()
        assert ready.spread is not None
        z, _ = ready._standardised(self._checked(z, None)[0])
        variance = self.scale**2 * (1 + 1 / self.mean_precision)
        base = -0.5 * (z.square().sum(1) / variance + self.dim * math.log(2 * math.pi * variance))
        return base - ready.spread.log().sum() - best

    def _factor(self) -> Tensor:
        """Cholesky factor of the tied covariance S_n."""
        if self._factors is None:
            learned = self._learned
            root = learned.total / (learned.count[:, None] + self.mean_precision).sqrt()
            scatter = learned.square - root.T @ root
            scatter.diagonal().add_(self.shrinkage * self.scale**2)
            self._factors = cholesky(scatter / (self.shrinkage + learned.examples + float(learned.spare)))
        return self._factors

    # -- first examples --------------------------------------------------------------------------------------------------------

    def _wait(self, z: Tensor, labels: Tensor) -> Tensor:
        """Assign the first examples of all without a test, and keep them until there are enough to standardise."""
        if self._due:
            self.current, self._due = self.experts, False
        experts = torch.full_like(labels, self.current)
        self._keep(z, experts, labels)
        return experts

    def _keep(self, z: Tensor, experts: Tensor, labels: Tensor) -> None:
        self._waiting = [*self._waiting, (z.clone(), experts.clone(), labels.clone())]
        self._changed()
        if sum(len(experts) for _, experts, _ in self._waiting) >= self.window:
            self._take(self._ready())

    def _ready(self) -> GenerativeGate:
        """This gate or, before there are enough examples to standardise, a copy that makes do with those there are."""
        if not self._waiting:
            return self
        if self._settled is None:
            made = copy.copy(self)
            made._learned, made._held, made._repeats = self._learned.empty(), self._held.empty(), Repeats(self.dim)
            made._used, made._calibration = {}, Calibration()
            z, experts, labels = (torch.cat(parts) for parts in zip(*self._waiting, strict=True))
            made._waiting = []
            made.centre, made.spread = location_and_scale(z)
            cells = made._repeats.cells(z)
            z, made.outlying = made._standardised(z)
            made._add(z, made._sketch(z), experts, labels, cells)
            self._settled = made
        return self._settled

    def _take(self, ready: GenerativeGate) -> None:
        """Go on as `ready`, which `_ready` gave."""
        statistics = ("_learned", "_held", "_held_rows", "_repeats", "_calibration", "_waiting", "_seen", "_used")
        for name in ("centre", "spread", "outlying", "merged", *statistics):
            setattr(self, name, getattr(ready, name))
        self._changed()

    def _standardised(self, z: Tensor) -> tuple[Tensor, int]:
        assert self.centre is not None
        assert self.spread is not None
        return compressed(z, self.centre, self.spread)

    def _changed(self) -> None:
        """Forget what was computed from the statistics."""
        self._factors, self._test, self._settled = None, None, None

    # -- opening ---------------------------------------------------------------------------------------------------------------

    def _add(self, z: Tensor, sketch: Tensor, experts: Tensor, labels: Tensor, cells: Tensor) -> None:
        """Learn a batch, whose rows are in these `cells`."""
        counts = self._repeats.counts(cells)
        first = not bool(self._repeats.recent.any())
        repeats = self._repeats.of_first(cells) if first else self._repeats.of(counts)
        self._calibrate(z, sketch, experts, labels)
        self._learned.add(z, sketch, experts, labels, repeats)
        self._repeats.remember(counts)
        self._use(experts)
        self._changed()

    def _use(self, experts: Tensor) -> None:
        """Note that these experts were given examples."""
        self._seen += len(experts)
        self._used = self._used | dict.fromkeys(experts.unique().tolist(), self._seen)

    def _calibrate(self, z: Tensor, sketch: Tensor, experts: Tensor, labels: Tensor) -> None:
        """Count the distances of examples of known experts, which are not learned yet."""
        if self._learned.keys:
            known = torch.isin(experts, torch.tensor(self._learned.open))
            if bool(known.any()):
                self._calibration.count(self._shift_test().distance(sketch[known]))
        elif len(z) >= 4 * FREEDOM:  # the first examples of all: half of them stand for what is known
            part, half = self._learned.empty(), len(z) // 2
            part.add(z[:half], sketch[:half], experts[:half], labels[:half])
            self._calibration.count(self._test_of(part).distance(sketch[half:]))

    @property
    def _has_room(self) -> bool:
        """Whether there may be another open expert."""
        return self.max_experts is None or len(self._learned.open) < self.max_experts

    @property
    def _can_open(self) -> bool:
        """Whether there is room for another expert, or can be made."""
        return self._has_room or (self.merging and len(self._learned.open) > 1)

    def _make_room(self) -> None:
        """Join the two nearest experts if there is no room for another one."""
        if not self._has_room:
            test = self._shift_test()
            self._join(*min(itertools.combinations(self._learned.open, 2), key=lambda pair: test.between(*pair)))

    def _join(self, one: int, other: int) -> None:
        """Two experts become one: the one with more examples goes on."""
        counts = self._learned.expert_counts
        into, closed = (one, other) if counts[one] >= counts[other] else (other, one)
        self._learned.join(closed, into)
        self.merged = {expert: into if old == closed else old for expert, old in self.merged.items()} | {closed: into}
        self._used = {expert: seen for expert, seen in self._used.items() if expert != closed} | {into: self._seen}
        self.current = into if self.current == closed else self.current
        self._changed()

    def _tidy(self) -> None:
        """Join the current expert with one that has become the same, and drop those that were not used for long."""
        if self._held.examples:  # they belong to experts that must stay until they are learned
            return
        if self.merging:
            counts, test = self._learned.expert_counts, self._shift_test()
            grown = [expert for expert in self._learned.open if counts[expert] >= 2 * self.window]
            others = [expert for expert in grown if expert != self.current] if self.current in grown else []
            evidence = {other: test.between(self.current, other) for other in others}
            if evidence and min(evidence.values()) <= test.log_odds / 2:
                self._join(self.current, min(evidence, key=evidence.__getitem__))
        if self.expiry is not None:
            for expert, last in self._used.items():
                if expert != self.current and self._seen - last > self.expiry:
                    self._learned.drop(expert)
                    self._used = {own: seen for own, seen in self._used.items() if own != expert}
                    self._changed()

    def _shift_test(self) -> ShiftTest:
        """The test with what is learned by now."""
        if self._test is None:
            self._test = self._test_of(self._learned)
        return self._test

    def _test_of(self, learned: ComponentStatistics) -> ShiftTest:
        return ShiftTest(learned, concentration=self.concentration, scale=self.scale, mean_precision=self.mean_precision)

    def _too_few_to_test(self, batch: int) -> bool:
        """Whether too little is learned to test a batch of this size: the current expert then takes it."""
        young = self._learned.examples < self.window
        return young or (batch < self.window and float(self.counts[self.current]) < self.window)

    def _hold(self, z: Tensor, sketch: Tensor, labels: Tensor, rows: Tensor, outlying: int) -> Tensor:
        """The expert of a small batch, tested together with those before it that are held back."""
        batch = self._held.empty()
        batch.add(z, sketch, torch.full_like(labels, self.current), labels)
        repeats = self._repeats.of(self._held_rows + rows)
        self.current, rejected = self._shift_test().most_likely(self.current, repeats, self._held, batch)
        if rejected and self._can_open:
            self._commit()
            self._make_room()
            self.current = self.experts
        else:
            rejected = False
            self._calibration.count(self._shift_test().distance(sketch))
        batch.reassign(self.current)
        self._held.merge(batch)
        self._held_rows = self._held_rows + rows
        self.outlying += outlying
        self._use(torch.full_like(labels, self.current))
        if rejected or self._held.examples >= self.window:
            self._commit()
            self._tidy()
        return torch.full_like(labels, self.current)

    def _commit(self) -> None:
        """Learn the examples that were held back."""
        if self._held.examples:
            self._held.effective = self._held.count / self._repeats.of(self._held_rows)
            self._learned.merge(self._held)
            self._repeats.remember(self._held_rows)
            self._held, self._held_rows = self._held.empty(), torch.zeros_like(self._held_rows)
            self._changed()

    # -- state and checks ------------------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """The settings that must agree for statistics to be exchanged between gates."""
        return {"dim": self.dim, "covariance": self.covariance, "sketch": self._learned.sketch_dim, "seed": self.seed}

    def state_dict(self) -> dict[str, Any]:
        """Statistics as tensors, the rest as plain values."""
        return {
            "settings": self._settings(),
            "centre": self.centre,
            "spread": self.spread,
            "outlying": self.outlying,
            "waiting": [list(part) for part in self._waiting],
            "learned": self._learned.state_dict(),
            "held": self._held.state_dict(),
            "merged": sorted(map(list, self.merged.items())),
            "used": sorted(map(list, self._used.items())),
            "seen": self._seen,
            "calibration": self._calibration.counts,
            "rows": {"held": self._held_rows, "recent": self._repeats.recent},
            "current": self.current,
            "due": self._due,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; `RunError` if it is of a gate with other settings, and nothing has changed then."""
        before = dict(self.__dict__)
        self._learned, self._held, self._repeats = copy.copy(self._learned), copy.copy(self._held), copy.copy(self._repeats)
        try:
            self._load(state)
        except BaseException as error:
            self.__dict__.clear()
            self.__dict__.update(before)
            if isinstance(error, KeyError | TypeError | ValueError | AttributeError | IndexError) and not isinstance(
                error, HvclError
            ):
                raise RunError(f"the saved gate does not fit this one ({error!r})") from None
            raise

    def _load(self, state: dict[str, Any]) -> None:
        """`load_state_dict` without the precautions; no tensor of before is changed in place."""
        if state.get("settings") != self._settings():
            raise RunError(f"the saved gate does not fit this one: saved {state.get('settings')}, here {self._settings()}")
        missing = sorted(self.state_dict().keys() - state.keys())
        if missing:
            raise RunError(
                f"the saved gate does not fit this one: it has no {', '.join(missing)}. Was it saved by an older version?"
            )
        centre, spread, rows = state["centre"], state["spread"], state["rows"]
        vectors = [(value, self.dim) for value in (centre, spread) if value is not None]
        vectors += [(rows[name], len(self._held_rows)) for name in ("held", "recent")]
        vectors += [(state["calibration"], len(self._calibration.counts))]
        if (centre is None) != (spread is None) or any(v.shape != (n,) or v.dtype != torch.float64 for v, n in vectors):
            raise RunError("the saved gate does not fit this one: its centre, spread or row counts have other sizes")
        self._learned.load_state_dict(state["learned"])
        self._held.load_state_dict(state["held"])
        self.centre, self.spread = centre, spread
        waiting = [(*self._checked(z, None if int(y.min()) < 0 else y), experts) for z, experts, y in state["waiting"]]
        self._waiting = [(z.clone(), experts.clone(), labels) for z, labels, experts in waiting]
        self._repeats.recent, self._held_rows = rows["recent"].clone(), rows["held"].clone()
        self.merged = {int(expert): int(into) for expert, into in state["merged"]}
        self._used = {int(expert): int(seen) for expert, seen in state["used"]}
        self._seen, self._calibration = int(state["seen"]), Calibration(state["calibration"].clone())
        self.outlying = int(state["outlying"])
        self.current, self._due = int(state["current"]), bool(state["due"])
        self._changed()

    def _checked(self, z: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        """Features in float64 and labels, all -1 if none are given; `InputError` for what does not fit."""
        if z.dim() != 2 or z.shape[1] != self.dim or not len(z):
            raise InputError(f"features must have shape (batch, {self.dim}) with at least one example, got {tuple(z.shape)}")
        if not z.is_floating_point() or not bool(z.isfinite().all()):
            raise InputError("features must be finite floating-point numbers: clean the data before learning")
        if bool((z.double().abs() > LARGEST).any()):
            raise InputError(f"features must not exceed {LARGEST:g}: check for outliers, and the units")
        if y is None:
            return z.double().cpu(), torch.full((len(z),), -1)
        if y.shape != z.shape[:1] or y.is_floating_point() or int(y.min()) < 0:
            raise InputError(f"labels must be {len(z)} integers of at least 0, got {y.dtype} of shape {tuple(y.shape)}")
        return z.double().cpu(), y.long().cpu()

    def _check_experts(self, experts: Tensor, labels: Tensor) -> None:
        if experts.shape != labels.shape or experts.is_floating_point() or int(experts.min()) < 0:
            raise InputError(f"experts must be {len(labels)} integers of at least 0, got {experts.dtype} {tuple(experts.shape)}")


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and torch.equal(a, b)
