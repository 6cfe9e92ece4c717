r"""The shift test: does a batch come from a known expert, from a mixture of known experts, or from a new one?

In d dimensions the evidence for a new mean pays d/2 log n (the Occam factor), and features that are not Gaussian break any
likelihood ratio that takes the model at its word: sub-groups of one task appear to be new ones. So shifts are tested on a sketch
of k numbers (a fixed random projection, and the length of z), by what the central limit theorem vouches for: means. A group of n
examples with label means u_y is compared with an expert's means c_y (from N_y examples), in the metric W of the sketch's pooled
within-component covariance:

    F = mean_P h_P |sum_(y in P) h_y (u_y - c_y) / h_P|^2_W / rho_P  over  the group's own within-label scatter in that metric,
    h_y = 1 / (1/n_y + 1/N_y),        h_P = sum_(y in P) h_y

which is 1 on average if the group comes from the expert, whatever the distribution. What makes it so on real streams:

- Pools P of labels. A label is a pool of its own if h_y is at least `POOL`; rarer ones are pooled until that many examples vouch
  for the mean of their shifts. A mean of three examples is not Gaussian, and must not count as much as one of three hundred.
- rho_P, the variance of the pool's labels relative to all: the spread of a rare label is not that of the frequent ones, which
  dominate W and the scatter. It is estimated from the expert's and the group's examples, and is at least the group's own, that
  between the shifts of the pool's labels included, so that an outlier inflates numerator and denominator alike.
- Repeated rows. n examples that are `repeats` times the same rows are n / repeats ones: counts and scatter are divided. `repeats`
  is 1 + (n - 1) times the rate at which two examples of the group are equal, beyond that between this group and those before, for
  columns of a few values coincide by chance, too (`Repeats`).

The log Bayes factor for a mean of its own, with the prior's precision set by the evidence (empirical Bayes) and degrees of
freedom matched to the moments of the scatter (nu1 = pools * r, nu2 = (n - labels) * r, r = tr(A)^2 / tr(A^2), A = W times
scatter) is

    e = (nu1 + nu2)/2 log((nu1 F + nu2) / (nu1 + nu2)) - nu1/2 log F,      P(e > t | no shift) <= exp(-t),

the bound being Chernoff's for the F distribution; for features that are not Gaussian it holds as far as the central limit theorem
does. Measured on patch features of MNIST and CIFAR (training data, without pools): without a shift F is 0.96 to 1.03 on average,
and e stays below 5.5 in all of some thousands of batches but one (10.4, with 12 examples a label); at a shift e is 56 (deer and
dogs after birds and cats) to 1,900 with 256 examples.

Labels that the expert has never seen add evidence of their own (a Polya urn's). The Chinese-restaurant prior asks for
e > log(N / concentration) with N examples so far, so a test opens an expert falsely with a probability of at most
concentration / N. The same prior odds must be exceeded to leave the current expert for another known one: streams are sticky.

A batch is assigned to the most likely expert that is not rejected; else, if the nearest mixture of known experts is not rejected,
example by example to those; else a new expert opens, for the whole batch or, if a mixture with known experts explains it better
by a wide margin, for its share of it.

Limits: a task whose means (given the label) and length do not differ from a known one's in the sketch is not detected as new;
within a task, examples must come in random order, but for rows that are repeated a few times in a row: sorted ones are a stream
that shifts; and a shift to a task whose few rows repeat themselves is seen when its second batch coincides with the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hvcl.gates.statistics import ComponentStatistics, cholesky, whiten

SHARES = (0.8, 0.6, 0.45, 0.3, 0.2, 0.1)
"""Shares of a mixed batch that a new expert is tried with."""

FREEDOM = 8
"""Examples beyond one a label that a group needs for a scatter of its own."""

POOL = 8.0
"""Examples that must vouch for the mean of a pool of labels."""

PRIOR_FREEDOM = 4.0
"""Weight, in examples, of the assumption that a label varies as much as all others."""

BUCKETS = 1024
"""Cells that rows are counted in to find repeated ones; rows that share one by chance inflate `repeats` by some per cent."""

MIXING_GAIN = 0.5
"""Nats per example by which a mixture with known experts must beat one new expert for the whole batch. Pure batches of CIFAR and
MNIST gain up to 0.35, because features are not Gaussian; batches of which half is new gain 0.07 to 0.85 on CIFAR, 4 to 24 on
MNIST. So tasks that overlap as those of CIFAR do are mostly not separated."""


class Sketch:
    """The k + 1 numbers of a feature vector that shifts are tested on: a fixed random projection, and its length.

    Args:
        dim: number of features.
        size: k; there is no projection if `dim` is not larger.
        seed: of the projection.
    """

    def __init__(self, dim: int, size: int, seed: int) -> None:
        self.size = min(dim, size) + 1
        self._projection: Tensor | None = None
        if dim > size:
            random = torch.Generator().manual_seed(seed)
            self._projection = torch.randn(dim, size, generator=random, dtype=torch.float64) / math.sqrt(dim)

    def __call__(self, z: Tensor) -> Tensor:
        """The sketch ``[B, size]`` of features ``[B, dim]``."""
        length = z.square().mean(1, keepdim=True).sqrt()
        return torch.cat([z if self._projection is None else z @ self._projection, length], 1)


class Repeats:
    """How often rows are repeated within a group of examples, beyond what the columns' few values explain.

    Rows are counted by a hash of their bits in `BUCKETS` cells. For independent examples two rows of one group are equal as often
    as rows of successive groups; the excess is due to rows that are repeated next to each other.
    """

    def __init__(self, dim: int) -> None:
        random = torch.Generator().manual_seed(0)
        self._odd = 2 * torch.randint(-(2**62), 2**62, (dim,), generator=random) + 1
        self.recent = torch.zeros(BUCKETS, dtype=torch.float64)
        """Cells of the last groups, each counting half as much as the next."""

    def cells(self, z: Tensor) -> Tensor:
        """The cell of each row ``[B]`` of `z` ``[B, dim]``, float64."""
        bits = (z + 0.0).contiguous().view(torch.int64)  # + 0.0: a negative zero is a zero
        return ((bits * self._odd).sum(1) >> 54) & (BUCKETS - 1)

    def counts(self, cells: Tensor) -> Tensor:
        """Rows in each cell ``[BUCKETS]``."""
        return torch.bincount(cells, minlength=BUCKETS).double()

    def of_first(self, cells: Tensor) -> float:
        """How often rows are repeated in the first group of a stream: its second half stands for the group before."""
        half = len(cells) // 2
        return _repeats(self.counts(cells), self.counts(cells[:half]), self.counts(cells[half:]))

    def of(self, counts: Tensor) -> float:
        """How often rows are repeated in a group with so many rows in each cell."""
        return _repeats(counts, counts, self.recent)

    def remember(self, counts: Tensor) -> None:
        """A group is complete: the next one is compared with it."""
        self.recent = self.recent / 2 + counts / counts.sum()


def _repeats(group: Tensor, one: Tensor, other: Tensor) -> float:
    n = float(group.sum())
    pairs = float(one.sum()) * float(other.sum())
    if n < 2 or not pairs:
        return 1.0
    within = float((group * (group - 1)).sum()) / (n * (n - 1))
    between = float((one * other).sum()) / pairs
    return 1 + (n - 1) * max(0.0, within - between)


class ShiftTest:
    """Assigns examples to known experts or to a new one, whose number is the number of experts so far.

    Args:
        learned: statistics of the experts so far, of which there must be at least one. They must not change.
        concentration: of the Chinese-restaurant prior.
        scale: prior standard deviation of a feature within an expert.
        mean_precision: prior precision, in examples, of the means of labels that an expert has not seen.
    """

    def __init__(self, learned: ComponentStatistics, *, concentration: float, scale: float, mean_precision: float) -> None:
        self.learned, self.concentration, self.mean_precision = learned, concentration, mean_precision
        self.log_odds = math.log(max(learned.examples / concentration, 1.0))
        """Prior log odds against a new expert, which the evidence must exceed."""
        size, count = learned.sketch_dim, learned.count[:, None]
        root = learned.sketch_total / count.sqrt()
        scatter = learned.sketch_square - root.T @ root
        scatter.diagonal().add_(size * scale**2)
        free = learned.examples - len(learned.keys) + float(learned.spare)
        covariance = scatter / (size + max(free, 0.0))
        self.factor = cholesky(covariance)
        self.unit = covariance.diagonal()
        """Pooled variance of each number of the sketch ``[k]``."""
        self.mean = whiten(self.factor, learned.sketch_total / count)
        """Whitened means of the components."""
        self.spread = ((learned.sketch_diagonal - root.square()).clamp_min(0) / self.unit).mean(1)
        """Scatter of each component, in units of the pooled variance: about its count."""
        self.numbers = torch.tensor(learned.open)
        """Numbers of the experts, closed ones left out. Below, an expert is its place among them."""
        experts, self.labels = torch.tensor(learned.keys).T.contiguous()
        self.experts = torch.searchsorted(self.numbers, experts)
        """The expert of each component."""
        self.counts = torch.zeros(len(self.numbers), dtype=torch.float64).index_add_(0, self.experts, learned.count)

    def assign(self, sketch: Tensor, labels: Tensor, current: int, repeats: float = 1.0, *, room: bool = True) -> Tensor:
        """Experts ``[B]`` of a batch that is large enough to be tested by itself; no new ones if there is no `room`.

        Args:
            sketch: of the examples ``[B, k]``.
            labels: of the examples ``[B]``.
            current: the expert of the examples before, which the prior favours.
            repeats: how often each row is repeated.
            room: whether there may be another expert.
        """
        group, place = Group.of(sketch, labels, repeats)
        known = ExpertMeans(self, group.labels)
        group, white = group.whitened(self.factor, self.unit), whiten(self.factor, sketch)
        best, rejected = self._best(known, group, current)
        if not rejected:
            return torch.full_like(labels, best)
        scores = known.scores(white, place)
        centre, evidence = known.mixture(group)
        if evidence <= self.log_odds:
            # a label that no expert has seen is evidence for none of them
            own = -0.5 * (white - group.mean[place]).square().sum(1, keepdim=True)
            among = torch.where(scores.isfinite().any(1, keepdim=True), scores, own)
            shares, log_likelihood = mix(among, self.counts / self.counts.sum())
            if log_likelihood > group.log_likelihood():
                return self.numbers[(among + shares.log()).argmax(1)]
        return self._open(group, white, place, scores, centre) if room else torch.full_like(labels, best)

    def most_likely(self, current: int, repeats: float, *parts: ComponentStatistics) -> tuple[int, bool]:
        """The most likely expert of all examples in `parts`, and whether all experts and mixtures of them are rejected."""
        group = Group.over(parts, repeats)
        known = ExpertMeans(self, group.labels)
        group = group.whitened(self.factor, self.unit)
        best, rejected = self._best(known, group, current)
        return best, rejected and known.mixture(group)[1] > self.log_odds

    def distance(self, sketch: Tensor) -> Tensor:
        """Squared Mahalanobis distance ``[B]`` in the sketch to the nearest component, per number of the sketch."""
        white = whiten(self.factor, sketch)
        squares = white.square().sum(1, keepdim=True) + self.mean.square().sum(1) - 2 * white @ self.mean.T
        return (squares / (1 + 1 / self.learned.effective)).min(1).values.clamp_min(0) / sketch.shape[1]

    def between(self, expert: int, other: int) -> float:
        """Evidence that two experts do not have the same means: e of the module's docstring, each as a group of the other's."""
        return max(self._against(expert, other), self._against(other, expert))

    def _against(self, expert: int, other: int) -> float:
        """Evidence against the examples of `other` coming from `expert`."""
        expert, other = torch.searchsorted(self.numbers, torch.tensor([expert, other])).tolist()
        labels = self.labels[self.experts == other].sort().values
        known = ExpertMeans(self, labels)
        count, spread = known.count[other], known.spread[other]
        # its own scatter is not known, but in the pooled metric scatters are about round
        scatter = torch.eye(len(self.unit), dtype=torch.float64) * float(spread.sum())
        return known.evidence(Group(labels, count, known.mean[other], scatter, spread, float(count.sum()) - len(count)), expert)

    def _best(self, known: ExpertMeans, group: Group, current: int) -> tuple[int, bool]:
        """The number of the most likely expert of a whole group that is not rejected, if there is one; and whether all are."""
        scores = known.group_scores(group)
        scores[self.numbers == current] += self.log_odds  # streams are sticky: another must be better by the prior odds
        ranking = scores.argsort(descending=True).tolist()
        for expert in ranking:
            if known.evidence(group, expert) <= self.log_odds:
                return int(self.numbers[expert]), False
        return int(self.numbers[ranking[0]]), True

    def _open(self, group: Group, white: Tensor, place: Tensor, scores: Tensor, centre: Tensor) -> Tensor:
        """A new expert for the batch, or for the share of it that known experts do not explain.

        If a share f of the batch is new, the batch's means lie at centre + f (new means - centre), where `centre` is what known
        experts explain. So f alone places the new means, and nothing is left to overfit: the f with the highest
        likelihood wins. The new means are then refined by EM.
        """
        new = self.learned.experts
        prior = torch.cat([self.counts, torch.tensor([self.concentration], dtype=torch.float64)])
        prior /= prior.sum()

        def explain(mean: Tensor) -> tuple[Tensor, float]:
            every = torch.cat([scores, -0.5 * (white - mean[place]).square().sum(1, keepdim=True)], 1)
            shares, log_likelihood = mix(every, prior)
            return (every + shares.log()).softmax(1), log_likelihood

        best, mean = -0.5 * group.trace + MIXING_GAIN * len(white), group.mean
        for share in SHARES:
            tried = centre + (group.mean - centre) / share
            log_likelihood = explain(tried)[1]
            if log_likelihood > best:
                best, mean = log_likelihood, tried
        if mean is group.mean:  # no share was better than all of it
            return torch.full_like(place, new)
        for _ in range(10):
            weight = explain(mean)[0][:, -1:]
            mass = torch.zeros(len(mean), 1, dtype=mean.dtype).index_add_(0, place, weight)
            total = torch.zeros_like(mean).index_add_(0, place, weight * white)
            mean = torch.where(mass > 1, total / mass, mean)
        experts = torch.cat([self.numbers, torch.tensor([new])])[explain(mean)[0].argmax(1)]
        # EM may lose the new expert again; then the whole batch is assigned to it
        return experts if bool((experts == new).any()) else torch.full_like(place, new)


@dataclass(frozen=True)
class Group:
    """Examples that are tested together: labels ``[L]``, their counts and means, and the scatter within labels, of the sketch.

    Counts and scatters are those of independent examples: divided by how often each row is repeated.
    """

    labels: Tensor
    count: Tensor
    mean: Tensor
    scatter: Tensor
    """Over all labels ``[k, k]``."""
    spread: Tensor
    """Of each label: its diagonal ``[L, k]`` or, once whitened, that in units of the pooled variance, on average ``[L]``."""
    free: float
    """Examples that the scatter comes from, less one a label."""
    repeats: float = 1.0

    @staticmethod
    def of(sketch: Tensor, labels: Tensor, repeats: float = 1.0) -> tuple[Group, Tensor]:
        """The group of a batch's examples, and the index ``[B]`` of each example's label in it."""
        known, place = labels.unique(return_inverse=True)
        count = torch.bincount(place).double()
        mean = torch.zeros(len(known), sketch.shape[1], dtype=torch.float64).index_add_(0, place, sketch) / count[:, None]
        centred = sketch - mean[place]
        spread = torch.zeros_like(mean).index_add_(0, place, centred.square())
        return Group._made(known, count, mean, centred.T @ centred, spread, repeats), place

    @staticmethod
    def over(parts: tuple[ComponentStatistics, ...], repeats: float = 1.0) -> Group:
        """The group of all examples in some statistics, whichever expert they were assigned to."""
        every = torch.tensor([label for part in parts for _, label in part.keys])
        labels, place = every.unique(return_inverse=True)

        def summed(name: str) -> Tensor:
            values = torch.cat([getattr(part, name) for part in parts])
            return values.new_zeros(len(labels), *values.shape[1:]).index_add_(0, place, values)

        count = summed("count")
        mean = summed("sketch_total") / count[:, None]
        square = sum((part.sketch_square for part in parts[1:]), parts[0].sketch_square)
        spread = (summed("sketch_diagonal") - mean.square() * count[:, None]).clamp_min(0)
        return Group._made(labels, count, mean, square - (mean * count[:, None]).T @ mean, spread, repeats)

    @staticmethod
    def _made(labels: Tensor, count: Tensor, mean: Tensor, scatter: Tensor, spread: Tensor, repeats: float) -> Group:
        free = float(count.sum()) / repeats - len(count)
        return Group(labels, count / repeats, mean, scatter / repeats, spread / repeats, free, repeats)

    def whitened(self, factor: Tensor, unit: Tensor) -> Group:
        """The group in coordinates in which the pooled covariance is the identity; `unit` is its diagonal before."""
        scatter = whiten(factor, whiten(factor, self.scatter).T)
        spread = (self.spread / unit).mean(1)
        return replace(self, mean=whiten(factor, self.mean), scatter=scatter, spread=spread)

    @property
    def trace(self) -> float:
        """Of the scatter of all examples, repeated ones as often as they came."""
        return self.repeats * float(self.scatter.trace())

    def log_likelihood(self) -> float:
        """log p(examples | a new expert of their own, whose means are not known), up to a constant."""
        return -0.5 * self.trace - 0.5 * self.mean.shape[1] * float((self.count * self.repeats).log().sum())

    def evidence(self, centre: Tensor, variance: Tensor, seen: Tensor, spread: Tensor, count: Tensor) -> float:
        """e of the module's docstring, over the labels `seen` ``[L]``.

        Args:
            centre: the expert's means ``[L, k]``.
            variance: of these, 1 / N_y ``[L]``.
            seen: whether the expert has seen the label ``[L]``.
            spread: scatter of the expert's examples in units of the pooled variance ``[L]``.
            count: the number of these examples ``[L]``.
        """
        trace = float(self.scatter.trace())
        if self.free < FREEDOM or trace <= 0 or not bool(seen.any()):
            return 0.0
        own, others = (self.count - 1).clamp_min(0), (count - 1).clamp_min(0)
        relative = (self.spread + spread + PRIOR_FREEDOM) / (own + others + PRIOR_FREEDOM)
        expected = float((own * relative).sum())
        if expected <= 0:
            return 0.0
        level = float(self.spread.sum()) / expected
        information = 1 / (1 / self.count + variance)
        offset = self.mean - centre
        shifts = []
        for pool in _pools(information, seen):
            weight = float(information[pool].sum())
            varied = float((information[pool] * relative[pool]).sum()) / weight
            mean = information[pool] @ offset[pool] / weight
            # the labels' own shifts vary about the pool's as their examples do about their means
            apart = float(information[pool] @ (offset[pool] - mean).square().mean(1))
            free = float(own[pool].sum()) + len(pool) - 1
            if free >= PRIOR_FREEDOM and level > 0:
                varied = max(varied, (float(self.spread[pool].sum()) + apart) / free / level)
            shifts.append(weight * float(mean.square().sum()) / varied)
        ratio = sum(shifts) / len(shifts) / (trace / expected)
        if ratio <= 1:
            return 0.0
        rank = trace**2 / float(self.scatter.square().sum())
        above, below = len(shifts) * rank, self.free * rank
        return 0.5 * (above + below) * math.log((above * ratio + below) / (above + below)) - 0.5 * above * math.log(ratio)


def _pools(information: Tensor, seen: Tensor) -> list[list[int]]:
    """The labels `seen`, in pools with an `information` of at least `POOL` each, if all together have that."""
    pools: list[list[int]] = []
    open_pool: list[int] = []
    amount = 0.0
    values = information.tolist()
    for label in sorted(seen.nonzero().flatten().tolist(), key=values.__getitem__):
        open_pool.append(label)
        amount += values[label]
        if amount >= POOL:
            pools.append(open_pool)
            open_pool, amount = [], 0.0
    # nothing is left over but for labels that are too few all together: they come in the order of their information
    return [*pools, open_pool] if open_pool else pools


class ExpertMeans:
    """The experts' means of a group's labels, in whitened coordinates of the sketch."""

    def __init__(self, test: ShiftTest, labels: Tensor) -> None:
        learned = test.learned
        experts, size = len(test.numbers), learned.sketch_dim
        self.examples = torch.zeros(experts, dtype=torch.float64).index_add_(0, test.experts, learned.effective)
        self.distinct = torch.zeros(experts, dtype=torch.float64).index_add_(0, test.experts, torch.ones_like(learned.count))
        column = torch.searchsorted(labels, test.labels).clamp_max(len(labels) - 1)
        rows = (labels[column] == test.labels).nonzero().flatten()
        place = (test.experts[rows], column[rows])
        self.count = torch.zeros(experts, len(labels), dtype=torch.float64)
        self.count[place] = learned.effective[rows]
        self.spread = torch.zeros_like(self.count)
        self.spread[place] = test.spread[rows] * learned.effective[rows] / learned.count[rows]
        self.mean = torch.zeros(experts, len(labels), size, dtype=torch.float64)
        self.mean[place] = test.mean[rows]
        self.seen = self.count > 0
        self.precision = torch.where(self.seen, self.count, test.mean_precision)

    def evidence(self, group: Group, expert: int) -> float:
        """Log Bayes factor against `group` coming from `expert`."""
        return self.shift(group, expert) + label_surprise(group, self.seen[expert], self.examples[expert], self.distinct[expert])

    def shift(self, group: Group, expert: int) -> float:
        """The part of `evidence` that is due to the means."""
        return group.evidence(
            self.mean[expert], 1 / self.precision[expert], self.seen[expert], self.spread[expert], self.count[expert]
        )

    def mixture(self, group: Group) -> tuple[Tensor, float]:
        """The mixture of known experts, for each label, whose mean is nearest to the group's; and the evidence against it."""
        centre, variance = torch.zeros_like(group.mean), torch.ones_like(group.count)
        seen = self.seen.any(0)
        for column in seen.nonzero().flatten().tolist():
            experts = self.seen[:, column]
            shares = nearest_in_hull(self.mean[experts, column], group.mean[column])
            centre[column] = shares @ self.mean[experts, column]
            variance[column] = (shares.square() / self.precision[experts, column]).sum()
        surprise = label_surprise(group, seen, self.examples.sum(), self.distinct.sum())
        return centre, group.evidence(centre, variance, seen, self.spread.sum(0), self.count.sum(0)) + surprise

    def group_scores(self, group: Group) -> Tensor:
        """log p(the group's means | expert), ``[experts]``, up to a constant."""
        variance = 1 / group.count + 1 / self.precision
        distance = (group.mean - self.mean).square().sum(2) / variance
        scores = -0.5 * (distance + group.mean.shape[1] * variance.log()).sum(1)
        surprises = [label_surprise(group, s, n, d) for s, n, d in zip(self.seen, self.examples, self.distinct, strict=True)]
        return scores - torch.tensor(surprises, dtype=torch.float64)

    def scores(self, white: Tensor, place: Tensor) -> Tensor:
        """log p(z | expert, label) of examples ``[B, experts]``, in the sketch, up to a constant.

        Minus infinity for a label that the expert has not seen: its wide prior must not attract the examples.
        """
        variance = (1 + 1 / self.precision)[:, place].T
        distance = (white[:, None] - self.mean.transpose(0, 1)[place]).square().sum(2) / variance
        scores = -0.5 * (distance + white.shape[1] * variance.log())
        return scores.masked_fill(~self.seen[:, place].T, -torch.inf)


def label_surprise(group: Group, seen: Tensor, examples: Tensor, distinct: Tensor) -> float:
    """Evidence of labels that an expert with `examples` examples of `distinct` labels has never `seen`.

    The share of examples with unseen labels, at its most likely value, against a Polya urn in which every label that the
    expert has found so far makes another one likely: log of the ratio for the whole sequence. None if there are fewer of them
    than the urn expects.
    """
    new, total = float(group.count[~seen].sum()), float(group.count.sum())
    a, b = max(float(distinct), 1.0), max(float(examples), 1.0)
    if new <= total * a / (a + b):
        return 0.0
    old = total - new
    best = new * math.log(new / total) + (old * math.log(old / total) if old > 0 else 0.0)
    urn = math.lgamma(a + new) + math.lgamma(b + old) - math.lgamma(a + b + total)
    urn -= math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return best - urn


def mix(scores: Tensor, prior: Tensor) -> tuple[Tensor, float]:
    """Proportions of a batch's mixture by EM (the prior counts as one example), and its log-likelihood."""
    shares = torch.full_like(prior, 1 / len(prior))
    for _ in range(30):
        mass = (scores + shares.log()).softmax(1).sum(0) + prior
        shares = mass / mass.sum()
    return shares, float((scores + shares.log()).logsumexp(1).sum())


def nearest_in_hull(points: Tensor, target: Tensor, steps: int = 200) -> Tensor:
    """Weights on the simplex whose combination of `points` ``[n, k]`` is nearest to `target` (pairwise Frank-Wolfe)."""
    weights = torch.zeros(len(points), dtype=points.dtype)
    weights[(points - target).square().sum(1).argmin()] = 1
    for _ in range(steps if len(points) > 1 else 0):
        slope = points @ (weights @ points - target)
        towards, away = int(slope.argmin()), int(slope.masked_fill(weights <= 0, -torch.inf).argmax())
        direction = points[towards] - points[away]
        length = float(direction.square().sum())
        step = min(float(slope[away] - slope[towards]) / length if length else 0.0, float(weights[away]))
        if step <= 1e-12:
            break
        weights[towards] += step
        weights[away] -= step
    return weights
