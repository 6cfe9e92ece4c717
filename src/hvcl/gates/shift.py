r"""The shift test: does a batch come from a known expert, from a mixture of known experts, or from a new one?

In d dimensions the evidence for a new mean pays d/2 log n (the Occam factor), and features that are not Gaussian break any
likelihood ratio that takes the model at its word: sub-groups of one task appear to be new ones. So shifts are tested on a sketch
of k numbers (a fixed random projection, and the length of z), by what the central limit theorem vouches for: means. A group of n
examples with label means u_y is compared with an expert's means c_y (from N_y examples), in the metric W of the sketch's pooled
within-component covariance:

    F = mean_y |u_y - c_y|^2_W / (1/n_y + 1/N_y)  over  the group's own within-label scatter in the same metric

which is 1 on average if the group comes from the expert, whatever the distribution. The log Bayes factor for a mean of its own,
with the prior's precision set by the evidence (empirical Bayes) and degrees of freedom matched to the moments of the scatter
(nu1 = labels * r, nu2 = (n - labels) * r, r = tr(A)^2 / tr(A^2), A = W times scatter) is

    e = (nu1 + nu2)/2 log((nu1 F + nu2) / (nu1 + nu2)) - nu1/2 log F,      P(e > t | no shift) <= exp(-t),

the bound being Chernoff's for the F distribution; for features that are not Gaussian it holds as far as the central limit theorem
does. Measured on patch features of MNIST and CIFAR (training data): without a shift F is 0.96 to 1.03 on average, and e stays
below 5.5 in all of some thousands of batches but one (10.4, with 12 examples a label); at a shift e is 56 (deer and dogs after
birds and cats) to 1,900 with 256 examples.

Labels that the expert has never seen add evidence of their own (a Polya urn's). The Chinese-restaurant prior asks for
e > log(N / concentration) with N examples so far, so a test opens an expert falsely with a probability of at most
concentration / N. The same prior odds must be exceeded to leave the current expert for another known one: streams are sticky.

A batch is assigned to the most likely expert that is not rejected; else, if the nearest mixture of known experts is not rejected,
example by example to those; else a new expert opens, for the whole batch or, if a mixture with known experts explains it better
by a wide margin, for its share of it. A lone outlier inflates numerator and denominator of F alike, and opens nothing.

Limits: a task whose means (given the label) and length do not differ from a known one's in the sketch is not detected as new; and
within a task, examples must come in random order: sorted ones are a stream that shifts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hvcl.gates.statistics import ComponentStatistics, cholesky, whiten

SHARES = (0.8, 0.6, 0.45, 0.3, 0.2, 0.1)
"""Shares of a mixed batch that a new expert is tried with."""

FREEDOM = 8
"""Examples beyond one a label that a group needs for a scatter of its own."""

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


class ShiftTest:
    """Assigns examples to known experts or to a new one, whose number is the number of experts so far.

    Args:
        learned: statistics of the experts so far, of which there must be at least one.
        current: the expert of the examples before, which the prior favours.
        concentration: of the Chinese-restaurant prior.
        scale: prior standard deviation of a feature within an expert.
        mean_precision: prior precision of the means, in examples.
    """

    def __init__(
        self, learned: ComponentStatistics, current: int, *, concentration: float, scale: float, mean_precision: float
    ) -> None:
        self.learned, self.current, self.concentration = learned, current, concentration
        self.scale, self.mean_precision = scale, mean_precision
        self.log_odds = math.log(max(learned.examples / concentration, 1.0))
        """Prior log odds against a new expert, which the evidence must exceed."""

    def assign(self, sketch: Tensor, labels: Tensor) -> Tensor:
        """Experts ``[B]`` of a batch that is large enough to be tested by itself."""
        group, place = Group.of(sketch, labels)
        known = self._means(group)
        group, white = group.whitened(known.factor), whiten(known.factor, sketch)
        best, rejected = self._best(known, group)
        if not rejected:
            return torch.full_like(labels, best)
        scores = known.scores(white, place)
        centre, evidence = known.mixture(group)
        if evidence <= self.log_odds:
            # a label that no expert has seen is evidence for none of them
            own = -0.5 * (white - group.mean[place]).square().sum(1, keepdim=True)
            among = torch.where(scores.isfinite().any(1, keepdim=True), scores, own)
            counts = self.learned.expert_counts
            shares, log_likelihood = mix(among, counts / counts.sum())
            if log_likelihood > group.log_likelihood():
                return (among + shares.log()).argmax(1)
        return self._open(group, white, place, scores, centre)

    def most_likely(self, *parts: ComponentStatistics) -> tuple[int, bool]:
        """The most likely expert of all examples in `parts`, and whether all experts and mixtures of them are rejected."""
        group = Group.over(*parts)
        known = self._means(group)
        group = group.whitened(known.factor)
        best, rejected = self._best(known, group)
        return best, rejected and known.mixture(group)[1] > self.log_odds

    def _means(self, group: Group) -> ExpertMeans:
        return ExpertMeans(self.learned, group.labels, self.learned.experts, self.scale, self.mean_precision)

    def _best(self, known: ExpertMeans, group: Group) -> tuple[int, bool]:
        """The most likely expert of a whole group among those that are not rejected; if all are, among all of them."""
        scores = known.group_scores(group)
        scores[self.current] += self.log_odds  # streams are sticky: another expert must be better by the prior odds
        ranking = [expert for expert in scores.argsort(descending=True).tolist() if known.examples[expert] > 0]
        for expert in ranking:
            if known.evidence(group, expert) <= self.log_odds:
                return expert, False
        return ranking[0], True

    def _open(self, group: Group, white: Tensor, place: Tensor, scores: Tensor, centre: Tensor) -> Tensor:
        """A new expert for the batch, or for the share of it that known experts do not explain.

        If a share f of the batch is new, the batch's means lie at centre + f (new means - centre), where `centre` is what known
        experts explain. So f alone places the new means, and nothing is left to overfit: the f with the highest
        likelihood wins. The new means are then refined by EM.
        """
        new = self.learned.experts
        prior = torch.cat([self.learned.expert_counts, torch.tensor([self.concentration], dtype=torch.float64)])
        prior /= prior.sum()

        def explain(mean: Tensor) -> tuple[Tensor, float]:
            every = torch.cat([scores, -0.5 * (white - mean[place]).square().sum(1, keepdim=True)], 1)
            shares, log_likelihood = mix(every, prior)
            return (every + shares.log()).softmax(1), log_likelihood

        best, mean = float(-0.5 * group.scatter.trace()) + MIXING_GAIN * len(white), group.mean
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
        experts = explain(mean)[0].argmax(1)
        # EM may lose the new expert again; then the whole batch is assigned to it
        return experts if bool((experts == new).any()) else torch.full_like(place, new)


@dataclass(frozen=True)
class Group:
    """Examples that are tested together: labels ``[L]``, their counts and means, and the scatter within labels, of the sketch."""

    labels: Tensor
    count: Tensor
    mean: Tensor
    scatter: Tensor

    @staticmethod
    def of(sketch: Tensor, labels: Tensor) -> tuple[Group, Tensor]:
        """The group of a batch's examples, and the index ``[B]`` of each example's label in it."""
        known, place = labels.unique(return_inverse=True)
        count = torch.bincount(place).double()
        mean = torch.zeros(len(known), sketch.shape[1], dtype=torch.float64).index_add_(0, place, sketch) / count[:, None]
        centred = sketch - mean[place]
        return Group(known, count, mean, centred.T @ centred), place

    @staticmethod
    def over(*parts: ComponentStatistics) -> Group:
        """The group of all examples in some statistics, whichever expert they were assigned to."""
        every = torch.tensor([label for part in parts for _, label in part.keys])
        labels, place = every.unique(return_inverse=True)
        count = torch.zeros(len(labels), dtype=torch.float64).index_add_(0, place, torch.cat([part.count for part in parts]))
        totals = torch.cat([part.sketch_total for part in parts])
        mean = torch.zeros(len(labels), totals.shape[1], dtype=torch.float64).index_add_(0, place, totals) / count[:, None]
        square = sum((part.sketch_square for part in parts[1:]), parts[0].sketch_square)
        return Group(labels, count, mean, square - (mean * count[:, None]).T @ mean)

    def whitened(self, factor: Tensor) -> Group:
        """The group in the coordinates in which the learned components have unit covariance."""
        scatter = whiten(factor, whiten(factor, self.scatter).T)
        return Group(self.labels, self.count, whiten(factor, self.mean), scatter)

    def log_likelihood(self) -> float:
        """Log-likelihood with a mean of its own for every label, each at the price of log(n)/2 a number; up to a constant."""
        return float(-0.5 * self.scatter.trace() - 0.5 * self.mean.shape[1] * self.count.log().sum())

    def evidence(self, centre: Tensor, variance: Tensor, seen: Tensor) -> float:
        """e of the module's docstring against means `centre` ``[L, k]`` of `variance` ``[L]``, over the labels `seen` ``[L]``."""
        free = float(self.count.sum()) - len(self.count)
        trace = float(self.scatter.trace())
        if free < FREEDOM or trace <= 0 or not bool(seen.any()):
            return 0.0
        rank = trace**2 / float(self.scatter.square().sum())
        shift = (self.mean - centre).square().sum(1) / (1 / self.count + variance)
        ratio = float(shift[seen].mean()) / (trace / free)
        if ratio <= 1:
            return 0.0
        above, below = float(seen.sum()) * rank, free * rank
        return 0.5 * (above + below) * math.log((above * ratio + below) / (above + below)) - 0.5 * above * math.log(ratio)


class ExpertMeans:
    """The experts' means of a group's labels, in whitened coordinates of the sketch."""

    def __init__(self, learned: ComponentStatistics, labels: Tensor, experts: int, scale: float, mean_precision: float) -> None:
        size = learned.sketch_dim
        root = learned.sketch_total / learned.count[:, None].sqrt()
        scatter = learned.sketch_square - root.T @ root
        scatter.diagonal().add_(size * scale**2)
        self.factor = cholesky(scatter / (size + learned.examples - len(learned.keys)))
        self.count = torch.zeros(experts, len(labels), dtype=torch.float64)
        total = torch.zeros(experts, len(labels), size, dtype=torch.float64)
        self.examples = torch.zeros(experts, dtype=torch.float64)
        self.distinct = torch.zeros(experts, dtype=torch.float64)
        column = {label: i for i, label in enumerate(labels.tolist())}
        for row, (expert, label) in enumerate(learned.keys):
            self.examples[expert] += learned.count[row]
            self.distinct[expert] += 1
            if label in column:
                self.count[expert, column[label]] = learned.count[row]
                total[expert, column[label]] = learned.sketch_total[row]
        self.seen = self.count > 0
        self.precision = self.count + mean_precision
        self.mean = whiten(self.factor, (total / self.precision[..., None]).flatten(0, 1)).view_as(total)

    def evidence(self, group: Group, expert: int) -> float:
        """Log Bayes factor against `group` coming from `expert`."""
        shift = group.evidence(self.mean[expert], 1 / self.precision[expert], self.seen[expert])
        return shift + label_surprise(group, self.seen[expert], self.examples[expert], self.distinct[expert])

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
        return centre, group.evidence(centre, variance, seen) + surprise

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
    expert has found so far makes another one likely: log of the ratio for the whole sequence.
    """
    new, total = float(group.count[~seen].sum()), float(group.count.sum())
    if not new:
        return 0.0
    old = total - new
    best = new * math.log(new / total) + (old * math.log(old / total) if old else 0.0)
    a, b = max(float(distinct), 1.0), max(float(examples), 1.0)
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
