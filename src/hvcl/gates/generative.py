r"""The generative gate: which expert a feature vector comes from, by Bayes' rule, with statistics that only add up.

    p(m|z) ~ p(m) p(z|m),        p(z|m) = sum_y p(y|m) p(z|m,y),        p(m) ~ examples of expert m

Every p(z|m,y) is a Gaussian with conjugate statistics (count, sum, second moments, in float64), so the gate cannot forget, the
order of examples does not matter, and statistics of two gates merge by addition.

**Recommended use.** ``gate = GenerativeGate(dim, covariance="tied")`` on standardised features (`hvcl.features`), then
``experts = gate.observe(z, y)`` for every training batch, labels included: with labels a shift is far easier to see, because
in Domain-IL label 0 is "airplane" in one task and "bird" in the next. At test time ``gate.probabilities(z)`` is p(m|z). With
told boundaries build it with ``growing=False`` and call ``gate.new_expert()`` at each. "diagonal" suits inputs whose tasks
differ a lot (permuted pixels; pass ``scale=0.3`` for pixels in [0, 1]); "tied" is the better recogniser wherever d^2 numbers fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hvcl.core.errors import InputError, RunError

Covariance = Literal["diagonal", "tied"]

SHARES = (0.8, 0.6, 0.45, 0.3, 0.2, 0.1)
"""Shares of a mixed batch that a new expert is tried with."""

FREEDOM = 8
"""Examples beyond one a label that a group needs for a scatter of its own."""

MIXING_GAIN = 0.5
"""Nats per example by which a mixture with known experts must beat one new expert for the whole batch. Pure batches of CIFAR and
MNIST gain up to 0.35, because features are not Gaussian; batches of which half is new gain 0.07 to 0.85 on CIFAR, 4 to 24 on
MNIST. So tasks that overlap as those of CIFAR do are mostly not taken apart."""


class GenerativeGate:
    r"""Conjugate Gaussians behind a Chinese-restaurant prior; experts open as the data need them.

    **Recognition.** With n, s the count and sum of a component (expert m, label y), posterior-predictive moments are

    - "diagonal": normal-inverse-gamma in every dimension, mu | v ~ N(0, v / kappa0), v ~ IG(a0, b0), a0 = 1 + shrinkage / 2,
      b0 = scale^2 shrinkage / 2. Predictive: mean s / (n + kappa0), variance (1 + 1 / (n + kappa0)) b_n / (a_n - 1).
    - "tied": one covariance for all components, inverse-Wishart with prior scatter scale^2 shrinkage I and
      d + 1 + shrinkage degrees of freedom; mu | S ~ N(0, S / kappa0). Predictive covariance (1 + 1 / (n + kappa0)) S_n with
      S_n = (shrinkage scale^2 I + sum of z z^T - sum_c s_c s_c^T / (n_c + kappa0)) / (shrinkage + n).

    The predictive Student-t is replaced by the Gaussian with its mean and covariance (they differ by O(1/n)), which makes
    recognition two matrix products.

    **Opening.** In d dimensions the evidence for a new mean pays d/2 log n (the Occam factor), and features that are not
    Gaussian break any likelihood ratio that takes the model at its word: sub-groups of one task look like new ones. So
    openings are decided on a sketch of k numbers (a fixed random projection, and the length of z), by what the central limit
    theorem vouches for: means. A group of n examples with label means u_y is held against an expert's means c_y (from N_y
    examples), in the metric W of the sketch's pooled within-component covariance:

        F = mean_y |u_y - c_y|^2_W / (1/n_y + 1/N_y)  over  the group's own within-label scatter in the same metric

    which is 1 on average if the group comes from the expert, whatever the distribution. The log Bayes factor for a mean of
    its own, with the prior's precision set by the evidence (empirical Bayes) and degrees of freedom matched to the moments of
    the scatter (nu1 = labels * r, nu2 = (n - labels) * r, r = tr(A)^2 / tr(A^2), A = W times scatter) is

        e = (nu1 + nu2)/2 log((nu1 F + nu2) / (nu1 + nu2)) - nu1/2 log F,      P(e > t | no shift) <= exp(-t),

    the bound being Chernoff's for the F distribution; for features that are not Gaussian it holds as far as the central limit
    theorem does. Measured on patch features of MNIST and CIFAR (training data): without a shift F is 0.96 to 1.03 on average, and
    e stays below 5.5 in all of some thousands of batches but one (10.4, with 12 examples a label); at a shift e is 56 (deer and
    dogs after birds and cats) to 1,900 with 256 examples.

    Labels that the expert has never seen add their own evidence (a Polya urn's). The Chinese-restaurant prior asks for
    e > log(N / concentration) with N examples so far, so a test opens an expert falsely with a probability of at most
    concentration / N. The same odds must be beaten to leave the present expert for another known one: streams are sticky.

    A batch goes to the most likely expert that it does not refute; else, if it does not refute the nearest mixture of known
    experts, example by example to those; else a new expert opens, for the whole batch or, if a mixture with known experts
    explains it better by a wide margin, for its share of it.

    A batch with fewer than `window` examples goes to one expert as a whole, and is tested together with those before it: they
    are held back (not learned) until they are `window` examples, so that weak evidence adds up. A lone outlier inflates
    numerator and denominator of F alike, and opens nothing. A new expert takes its first `window` examples as they come. So
    with small batches, up to about `window` examples after a shift are still with the old expert. Everything is deterministic.

    Limits: a task whose means (given the label) and length do not differ from a known one's in the sketch is not seen as new; and
    within a task, examples must come in random order: sorted ones are a stream that shifts.

    Args:
        dim: features.
        covariance: "tied" (d^2 numbers in all) or "diagonal" (2 d numbers a component).
        concentration: of the Chinese-restaurant prior: larger opens more readily.
        scale: prior standard deviation of a feature within an expert.
        mean_precision: kappa0, in examples.
        shrinkage: weight of the prior covariance, in examples.
        temperature: p(m|z) ~ p(m) p(z|m)^(1/temperature). One is Bayes' rule; features that are not Gaussian make it
            overconfident, and 3 lowers the log loss of recognition on patch features of MNIST, CIFAR-10 and CIFAR-100 alike
            (validation data), at the same accuracy.
        sketch: numbers in the projection, k; no projection if dim is not larger.
        window: examples that make a test worth while.
        growing: whether to open experts unasked; otherwise `new_expert` alone does.
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
        seed: int = 0,
    ) -> None:
        if covariance not in ("diagonal", "tied"):
            raise InputError(f"covariance must be 'diagonal' or 'tied', got {covariance!r}")
        if dim < 1 or sketch < 1 or window < 2:
            raise InputError(f"dim and sketch must be at least 1, window at least 2, got {dim}, {sketch}, {window}")
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
        self.seed = seed
        self.current = 0
        """The expert that the last examples went to."""
        self._due = True  # the next examples open an expert, asked or not
        self._projection: Tensor | None = None
        if dim > sketch:
            random = torch.Generator().manual_seed(seed)
            self._projection = torch.randn(dim, sketch, generator=random, dtype=torch.float64) / math.sqrt(dim)
        self._learned = _Statistics(dim, min(dim, sketch) + 1, covariance == "tied")
        self._held = self._learned.empty()  # small batches that are not learned yet
        self._factors: Tensor | None = None

    @property
    def experts(self) -> int:
        """Number of experts so far."""
        return max((expert for expert, _ in self._learned.keys), default=-1) + 1

    @property
    def counts(self) -> Tensor:
        """Examples that each expert has learned from ``[experts]``."""
        experts = torch.tensor([expert for expert, _ in self._learned.keys], dtype=torch.long)
        return torch.zeros(self.experts, dtype=torch.float64).index_add_(0, experts, self._learned.count)

    @property
    def num_parameters(self) -> int:
        """Number of learned numbers that recognition depends on."""
        components = len(self._learned.keys)
        return components * (1 + self.dim) + (self.dim * (self.dim + 1) // 2 if self._learned.tied else components * self.dim)

    def new_expert(self) -> None:
        """Told that what comes next is new: the next examples open an expert."""
        self._commit()
        self._due = True

    @torch.no_grad()
    def observe(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        """Decide which expert each example of a batch belongs to, opening one if need be, and learn from them.

        Args:
            z: features ``[B, dim]``, finite.
            y: labels ``[B]``, integers of at least 0.

        Returns:
            the experts ``[B]``.
        """
        z, labels = self._checked(z, y)
        sketch = self._sketch(z)
        if self._due:
            self.current, self._due = self.experts, False
            experts = torch.full_like(labels, self.current)
        elif not self.growing or self._is_young(len(z)):
            experts = torch.full_like(labels, self.current)
        elif len(z) < self.window:
            return self._hold(z, sketch, labels)
        else:
            self._commit()
            experts = self._assign(sketch, labels)
            self.current = int(experts.mode()[0])
        self._learned.add(z, sketch, experts, labels)
        self._factors = None
        return experts

    @torch.no_grad()
    def learn(self, z: Tensor, experts: Tensor, y: Tensor | None = None) -> None:
        """Add examples to experts that are known by other means."""
        z, labels = self._checked(z, y)
        self._check_experts(experts, labels)
        self._commit()
        self._learned.add(z, self._sketch(z), experts, labels)
        self._factors, self._due = None, False

    @torch.no_grad()
    def remove(self, z: Tensor, experts: Tensor, y: Tensor | None = None) -> None:
        """Take examples out again. What was never learned is refused, as far as counts and second moments can tell."""
        z, labels = self._checked(z, y)
        self._check_experts(experts, labels)
        self._commit()
        part = self._learned.empty()
        part.add(z, self._sketch(z), experts, labels)
        self._learned.subtract(part)
        self._factors = None
        self._due = self._due or self.current >= self.experts

    @torch.no_grad()
    def merge(self, other: GenerativeGate, first: int = 0) -> None:
        """Add another gate's statistics; its expert m is taken to be expert `first` + m of this one."""
        if self._settings() != other._settings():
            raise InputError(f"only gates with equal settings can merge, got {self._settings()} and {other._settings()}")
        self._commit()
        for part in (other._learned, other._held):
            self._learned.merge(part, first)
        self._due, self._factors = self._due and not self.experts, None

    # -- recognition -----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def log_likelihood(self, z: Tensor) -> Tensor:
        """log p(z|m), ``[B, experts]``, float64."""
        z, _ = self._checked(z, None)
        if not self.experts:
            raise InputError("the gate has no experts yet: let it observe examples first")
        learned = self._learned
        precision = learned.count[:, None] + self.mean_precision
        means = learned.total / precision
        if learned.tied:
            factor = self._factor()
            z, means = _whiten(factor, z), _whiten(factor, means)
            inflation = (1 + 1 / precision)[:, 0]
            log_det = 2 * factor.diagonal().log().sum() + self.dim * inflation.log()
            distance = (z.square().sum(1, keepdim=True) + means.square().sum(1) - 2 * z @ means.T) / inflation
        else:
            scatter = (learned.square - learned.total.square() / precision).clamp_min(0)
            variance = (self.shrinkage * self.scale**2 + scatter) / (self.shrinkage + learned.count[:, None])
            weight = 1 / (variance * (1 + 1 / precision))
            log_det = -weight.log().sum(1)
            distance = z.square() @ weight.T - 2 * z @ (weight * means).T + (weight * means.square()).sum(1)
        scores = -0.5 * (distance + log_det + self.dim * math.log(2 * math.pi))
        experts = torch.tensor([expert for expert, _ in learned.keys])
        scores = scores + (learned.count / self.counts[experts]).log()  # p(y|m)
        return torch.stack([scores[:, experts == expert].logsumexp(1) for expert in range(self.experts)], 1)

    def log_probabilities(self, z: Tensor) -> Tensor:
        """log p(m|z), ``[B, experts]``, float64."""
        return (self.log_likelihood(z) / self.temperature + self.counts.log()).log_softmax(1)

    def probabilities(self, z: Tensor) -> Tensor:
        """p(m|z), ``[B, experts]``, float64."""
        return self.log_probabilities(z).exp()

    def novelty(self, z: Tensor) -> Tensor:
        """log p(z) under the base measure minus that under the best expert, ``[B]``: positive where no expert fits."""
        best = self.log_likelihood(z).max(1).values
        variance = self.scale**2 * (1 + 1 / self.mean_precision)
        base = -0.5 * (z.double().square().sum(1) / variance + self.dim * math.log(2 * math.pi * variance))
        return base - best

    def _factor(self) -> Tensor:
        """Cholesky factor of the tied covariance S_n."""
        if self._factors is None:
            learned = self._learned
            root = learned.total / (learned.count[:, None] + self.mean_precision).sqrt()
            scatter = learned.square - root.T @ root
            scatter.diagonal().add_(self.shrinkage * self.scale**2)
            self._factors = _cholesky(scatter / (self.shrinkage + learned.examples))
        return self._factors

    # -- opening ---------------------------------------------------------------------------------------------------------------

    @property
    def _odds(self) -> float:
        """The log odds that evidence must beat."""
        return math.log(max(self._learned.examples / self.concentration, 1.0))

    def _is_young(self, batch: int) -> bool:
        """Whether there is too little to hold a batch against: the present expert then takes it as it comes."""
        young = self._learned.examples < self.window
        return young or (batch < self.window and float(self.counts[self.current]) < self.window)

    def _sketch(self, z: Tensor) -> Tensor:
        """What openings are decided on ``[B, k + 1]``."""
        length = z.square().mean(1, keepdim=True).sqrt()
        return torch.cat([z if self._projection is None else z @ self._projection, length], 1)

    def _assign(self, sketch: Tensor, labels: Tensor) -> Tensor:
        """Experts ``[B]`` of a batch that is large enough to be tested by itself."""
        group, place = _Group.of(sketch, labels)
        known = _Known(self._learned, group.labels, self.experts, self.scale, self.mean_precision)
        group, white = group.whitened(known.factor), _whiten(known.factor, sketch)
        best, refuted = self._best(known, group)
        if not refuted:
            return torch.full_like(labels, best)
        scores = known.scores(white, place)
        centre, evidence = known.mixture(group)
        if evidence <= self._odds:
            # labels that nobody has seen speak for no expert
            own = -0.5 * (white - group.mean[place]).square().sum(1, keepdim=True)
            among = torch.where(scores.isfinite().any(1, keepdim=True), scores, own)
            shares, log_likelihood = _mix(among, self.counts / self.counts.sum())
            if log_likelihood > group.log_likelihood():
                return (among + shares.log()).argmax(1)
        return self._open(group, white, place, scores, centre)

    def _best(self, known: _Known, group: _Group) -> tuple[int, bool]:
        """The most likely expert of a whole group among those that are not refuted; if all are, among all of them."""
        scores = known.group_scores(group)
        scores[self.current] += self._odds  # streams are sticky: another expert must be better by the prior odds
        ranking = [expert for expert in scores.argsort(descending=True).tolist() if known.examples[expert] > 0]
        for expert in ranking:
            if known.evidence(group, expert) <= self._odds:
                return expert, False
        return ranking[0], True

    def _open(self, group: _Group, white: Tensor, place: Tensor, scores: Tensor, centre: Tensor) -> Tensor:
        """A new expert for the batch, or for the share of it that known experts do not explain.

        If a share f of the batch is new, the batch's means lie at centre + f (new means - centre), where `centre` is what known
        experts explain. So f alone places the new means, and nothing is left to overfit: the f with the highest
        likelihood wins. The new means are then refined by EM.
        """
        prior = torch.cat([self.counts, torch.tensor([self.concentration], dtype=torch.float64)])
        prior /= prior.sum()

        def explain(mean: Tensor) -> tuple[Tensor, float]:
            every = torch.cat([scores, -0.5 * (white - mean[place]).square().sum(1, keepdim=True)], 1)
            shares, log_likelihood = _mix(every, prior)
            return (every + shares.log()).softmax(1), log_likelihood

        best, mean = float(-0.5 * group.scatter.trace()) + MIXING_GAIN * len(white), group.mean
        for share in SHARES:
            tried = centre + (group.mean - centre) / share
            log_likelihood = explain(tried)[1]
            if log_likelihood > best:
                best, mean = log_likelihood, tried
        if mean is group.mean:  # no share was better than all of it
            return torch.full_like(place, self.experts)
        for _ in range(10):
            weight = explain(mean)[0][:, -1:]
            mass = torch.zeros(len(mean), 1, dtype=mean.dtype).index_add_(0, place, weight)
            total = torch.zeros_like(mean).index_add_(0, place, weight * white)
            mean = torch.where(mass > 1, total / mass, mean)
        experts = explain(mean)[0].argmax(1)
        # EM may lose the new expert again; then the batch is its best guess
        return experts if bool((experts == self.experts).any()) else torch.full_like(place, self.experts)

    def _hold(self, z: Tensor, sketch: Tensor, labels: Tensor) -> Tensor:
        """The expert of a small batch, tested together with those before it that are held back."""
        batch = self._held.empty()
        batch.add(z, sketch, torch.full_like(labels, self.current), labels)
        self.current, refuted = self._test(self._held, batch)
        if refuted:
            self._commit()
            self.current = self.experts
        batch.rename(self.current)
        self._held.merge(batch)
        if refuted or self._held.examples >= self.window:
            self._commit()
        return torch.full_like(labels, self.current)

    def _test(self, *parts: _Statistics) -> tuple[int, bool]:
        """The most likely expert of all examples in `parts`, and whether they refute all experts and mixtures of them."""
        group = _Group.over(*parts)
        known = _Known(self._learned, group.labels, self.experts, self.scale, self.mean_precision)
        group = group.whitened(known.factor)
        best, refuted = self._best(known, group)
        return best, refuted and known.mixture(group)[1] > self._odds

    def _commit(self) -> None:
        """Learn what was held back."""
        if self._held.examples:
            self._learned.merge(self._held)
            self._held = self._held.empty()
            self._factors = None

    # -- state and checks ------------------------------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """What must agree for statistics to mean the same."""
        return {"dim": self.dim, "covariance": self.covariance, "sketch": self._learned.sketch_dim, "seed": self.seed}

    def state_dict(self) -> dict[str, Any]:
        """Statistics as tensors, the rest as plain values."""
        return {
            "settings": self._settings(),
            "learned": self._learned.state_dict(),
            "held": self._held.state_dict(),
            "current": self.current,
            "due": self._due,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        if state.get("settings") != self._settings():
            raise RunError(f"the saved gate does not fit this one: saved {state.get('settings')}, here {self._settings()}")
        self._learned.load_state_dict(state["learned"])
        self._held.load_state_dict(state["held"])
        self.current, self._due = int(state["current"]), bool(state["due"])
        self._factors = None

    def _checked(self, z: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        """Features in float64 and labels, -1 where there are none; `InputError` for what does not fit."""
        if z.dim() != 2 or z.shape[1] != self.dim or not len(z):
            raise InputError(f"features must have shape (batch, {self.dim}) with at least one example, got {tuple(z.shape)}")
        if not z.is_floating_point() or not bool(z.isfinite().all()):
            raise InputError("features must be finite floating-point numbers: clean the data before learning")
        if y is None:
            return z.double().cpu(), torch.full((len(z),), -1)
        if y.shape != z.shape[:1] or y.is_floating_point() or int(y.min()) < 0:
            raise InputError(f"labels must be {len(z)} integers of at least 0, got {y.dtype} of shape {tuple(y.shape)}")
        return z.double().cpu(), y.long().cpu()

    def _check_experts(self, experts: Tensor, labels: Tensor) -> None:
        if experts.shape != labels.shape or experts.is_floating_point() or int(experts.min()) < 0:
            raise InputError(f"experts must be {len(labels)} integers of at least 0, got {experts.dtype} {tuple(experts.shape)}")


class _Statistics:
    """Counts, sums and second moments of components (expert, label), and second moments of the sketch over all of them."""

    def __init__(self, dim: int, sketch_dim: int, tied: bool) -> None:
        self.dim, self.sketch_dim, self.tied = dim, sketch_dim, tied
        self.keys: list[tuple[int, int]] = []
        self.count = torch.zeros(0, dtype=torch.float64)
        self.total = torch.zeros(0, dim, dtype=torch.float64)
        self.square = torch.zeros(dim if tied else 0, dim, dtype=torch.float64)  # of each component, or all of them together
        self.sketch_total = torch.zeros(0, sketch_dim, dtype=torch.float64)
        self.sketch_square = torch.zeros(sketch_dim, sketch_dim, dtype=torch.float64)

    def empty(self) -> _Statistics:
        """No examples, same sizes."""
        return _Statistics(self.dim, self.sketch_dim, self.tied)

    @property
    def examples(self) -> float:
        """Number of examples."""
        return float(self.count.sum())

    def add(self, z: Tensor, sketch: Tensor, experts: Tensor, labels: Tensor) -> None:
        """Learn examples."""
        pairs, place = torch.stack([experts, labels], 1).unique(dim=0, return_inverse=True)
        rows = self._rows([(expert, label) for expert, label in pairs.tolist()])[place]
        self.count.index_add_(0, rows, torch.ones(len(z), dtype=torch.float64))
        self.total.index_add_(0, rows, z)
        self.sketch_total.index_add_(0, rows, sketch)
        self.sketch_square.addmm_(sketch.T, sketch)
        if self.tied:
            self.square.addmm_(z.T, z)
        else:
            self.square.index_add_(0, rows, z.square())

    def merge(self, other: _Statistics, first: int = 0) -> None:
        """Add all of another's, whose expert m is this one's `first` + m."""
        rows = self._rows([(expert + first, label) for expert, label in other.keys])
        self.count.index_add_(0, rows, other.count)
        self.total.index_add_(0, rows, other.total)
        self.sketch_total.index_add_(0, rows, other.sketch_total)
        self.sketch_square += other.sketch_square
        if self.tied:
            self.square += other.square
        else:
            self.square.index_add_(0, rows, other.square)

    def subtract(self, other: _Statistics) -> None:
        """Take another's out; refused, without a change, if this leaves what no examples can have."""
        missing = [key for key in other.keys if key not in self.keys]
        if missing:
            raise InputError(f"cannot remove examples of (expert, label) {missing[0]}: none were learned")
        rows = self._rows(other.keys)
        count = self.count.index_add(0, rows, -other.count)
        total = self.total.index_add(0, rows, -other.total)
        square = self.square - other.square if self.tied else self.square.index_add(0, rows, -other.square)
        # by Cauchy and Schwarz: the squared sum is at most count times the sum of squares, up to rounding
        left = count[:, None].clamp_min(1e-9)
        bound = (total.square() / left).sum(0) if self.tied else total.square() / left
        moments = square.diagonal() if self.tied else square
        tolerance = 1e-9 * (self.square.diagonal() if self.tied else self.square) + 1e-9
        if bool((count < 0).any()) or bool((bound > moments + tolerance).any()):
            raise InputError("cannot remove these examples: they were not all learned with these experts and labels")
        kept = count > 0
        self.keys = [key for key, keep in zip(self.keys, kept.tolist(), strict=True) if keep]
        self.sketch_total = self.sketch_total.index_add(0, rows, -other.sketch_total)[kept]
        self.count, self.total, self.square = count[kept], total[kept], square if self.tied else square[kept]
        self.sketch_square = self.sketch_square - other.sketch_square

    def rename(self, expert: int) -> None:
        """All examples, which are with one expert, are now with this one."""
        self.keys = [(expert, label) for _, label in self.keys]

    def _rows(self, keys: list[tuple[int, int]]) -> Tensor:
        """The row of each key, made where it is missing."""
        new = [key for key in dict.fromkeys(keys) if key not in self.keys]
        if new:
            self.keys = self.keys + new
            for name in ("count", "total", "sketch_total", *(() if self.tied else ("square",))):
                old = getattr(self, name)
                setattr(self, name, torch.cat([old, old.new_zeros(len(new), *old.shape[1:])]))
        place = {key: row for row, key in enumerate(self.keys)}
        return torch.tensor([place[key] for key in keys], dtype=torch.long)

    def state_dict(self) -> dict[str, Any]:
        """Tensors and the components' names."""
        names = ("count", "total", "square", "sketch_total", "sketch_square")
        return {"keys": [list(key) for key in self.keys], **{name: getattr(self, name).clone() for name in names}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        keys = [(int(expert), int(label)) for expert, label in state["keys"]]
        by_key = ("count", "total", "sketch_total", *(() if self.tied else ("square",)))
        for name in ("count", "total", "square", "sketch_total", "sketch_square"):
            own, saved = getattr(self, name), state[name]
            shape = (len(keys), *own.shape[1:]) if name in by_key else tuple(own.shape)
            if tuple(saved.shape) != shape or saved.dtype != own.dtype:
                raise RunError(f"the saved gate does not fit this one: {name} has shape {tuple(saved.shape)}, expected {shape}")
            setattr(self, name, saved.clone())
        self.keys = keys


@dataclass(frozen=True)
class _Group:
    """Examples that are tested together: count and mean of each label, scatter within labels, all of the sketch."""

    labels: Tensor
    count: Tensor
    mean: Tensor
    scatter: Tensor

    @staticmethod
    def of(sketch: Tensor, labels: Tensor) -> tuple[_Group, Tensor]:
        """The examples of a batch, and each example's place among the labels."""
        known, place = labels.unique(return_inverse=True)
        count = torch.bincount(place).double()
        mean = torch.zeros(len(known), sketch.shape[1], dtype=torch.float64).index_add_(0, place, sketch) / count[:, None]
        centred = sketch - mean[place]
        return _Group(known, count, mean, centred.T @ centred), place

    @staticmethod
    def over(*parts: _Statistics) -> _Group:
        """All examples in some statistics, whichever expert they are with."""
        every = torch.tensor([label for part in parts for _, label in part.keys])
        labels, place = every.unique(return_inverse=True)
        count = torch.zeros(len(labels), dtype=torch.float64).index_add_(0, place, torch.cat([part.count for part in parts]))
        totals = torch.cat([part.sketch_total for part in parts])
        mean = torch.zeros(len(labels), totals.shape[1], dtype=torch.float64).index_add_(0, place, totals) / count[:, None]
        square = sum((part.sketch_square for part in parts[1:]), parts[0].sketch_square)
        return _Group(labels, count, mean, square - (mean * count[:, None]).T @ mean)

    def whitened(self, factor: Tensor) -> _Group:
        """In coordinates where the learned components have unit covariance."""
        scatter = _whiten(factor, _whiten(factor, self.scatter).T)
        return _Group(self.labels, self.count, _whiten(factor, self.mean), scatter)

    def log_likelihood(self) -> float:
        """With a mean of its own for every label, each at the price of log(n)/2 a number; up to a constant."""
        return float(-0.5 * self.scatter.trace() - 0.5 * self.mean.shape[1] * self.count.log().sum())

    def evidence(self, centre: Tensor, variance: Tensor, seen: Tensor) -> float:
        """e of the class's docstring for means `centre` ``[L, k]`` with `variance` ``[L]``, over the labels `seen` ``[L]``."""
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


class _Known:
    """What the experts know about a group's labels, in whitened coordinates of the sketch."""

    def __init__(self, learned: _Statistics, labels: Tensor, experts: int, scale: float, mean_precision: float) -> None:
        size = learned.sketch_dim
        root = learned.sketch_total / learned.count[:, None].sqrt()
        scatter = learned.sketch_square - root.T @ root
        scatter.diagonal().add_(size * scale**2)
        self.factor = _cholesky(scatter / (size + learned.examples - len(learned.keys)))
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
        self.mean = _whiten(self.factor, (total / self.precision[..., None]).flatten(0, 1)).view_as(total)

    def evidence(self, group: _Group, expert: int) -> float:
        """Log Bayes factor against `group` coming from `expert`."""
        shift = group.evidence(self.mean[expert], 1 / self.precision[expert], self.seen[expert])
        return shift + _surprise(group, self.seen[expert], self.examples[expert], self.distinct[expert])

    def mixture(self, group: _Group) -> tuple[Tensor, float]:
        """The mixture of known experts, for each label, whose mean is nearest to the group's; and the evidence against it."""
        centre, variance = torch.zeros_like(group.mean), torch.ones_like(group.count)
        seen = self.seen.any(0)
        for column in seen.nonzero().flatten().tolist():
            experts = self.seen[:, column]
            shares = _nearest_in_hull(self.mean[experts, column], group.mean[column])
            centre[column] = shares @ self.mean[experts, column]
            variance[column] = (shares.square() / self.precision[experts, column]).sum()
        surprise = _surprise(group, seen, self.examples.sum(), self.distinct.sum())
        return centre, group.evidence(centre, variance, seen) + surprise

    def group_scores(self, group: _Group) -> Tensor:
        """log p(the group's means | expert), ``[experts]``, up to a constant."""
        variance = 1 / group.count + 1 / self.precision
        distance = (group.mean - self.mean).square().sum(2) / variance
        scores = -0.5 * (distance + group.mean.shape[1] * variance.log()).sum(1)
        surprises = [_surprise(group, s, n, d) for s, n, d in zip(self.seen, self.examples, self.distinct, strict=True)]
        return scores - torch.tensor(surprises, dtype=torch.float64)

    def scores(self, white: Tensor, place: Tensor) -> Tensor:
        """log p(z | expert, label) of examples ``[B, experts]``, in the sketch, up to a constant; minus infinity for a label that
        the expert has not seen: a wide prior must not claim what it knows nothing of."""
        variance = (1 + 1 / self.precision)[:, place].T
        distance = (white[:, None] - self.mean.transpose(0, 1)[place]).square().sum(2) / variance
        scores = -0.5 * (distance + white.shape[1] * variance.log())
        return scores.masked_fill(~self.seen[:, place].T, -torch.inf)


def _surprise(group: _Group, seen: Tensor, examples: Tensor, distinct: Tensor) -> float:
    """Evidence of labels that an expert with so many `examples` and `distinct` labels has never `seen`.

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


def _cholesky(covariance: Tensor) -> Tensor:
    """Lower factor; only rounding can make the statistics' covariance indefinite."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed:
        raise InputError("features are of too different sizes for float64 statistics: standardise them, and look for outliers")
    return factor


def _whiten(factor: Tensor, rows: Tensor) -> Tensor:
    """Rows in the coordinates where a covariance with this Cholesky factor is the identity."""
    white: Tensor = torch.linalg.solve_triangular(factor, rows.T, upper=False)
    return white.T


def _mix(scores: Tensor, prior: Tensor) -> tuple[Tensor, float]:
    """Proportions of a batch's mixture by EM (the prior counts as one example), and its log-likelihood."""
    shares = torch.full_like(prior, 1 / len(prior))
    for _ in range(30):
        mass = (scores + shares.log()).softmax(1).sum(0) + prior
        shares = mass / mass.sum()
    return shares, float((scores + shares.log()).logsumexp(1).sum())


def _nearest_in_hull(points: Tensor, target: Tensor, steps: int = 200) -> Tensor:
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
