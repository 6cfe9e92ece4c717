"""The exact posterior of a Bayesian linear model, from sums over the stream."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.linalg import cholesky_ex

from hvcl.core.errors import InputError, RunError
from hvcl.posteriors.evidence import CentredSums, Found, Posterior, follow, given, search
from hvcl.posteriors.panels import add_products, diagonal, empty_panels, lower_triangle

DOUBLE = 4096
"""Up to so many features second moments are sums in double precision, above in single precision; the posterior likewise."""

CHUNK = 2**23
"""Features, over all examples, that are centred at a time: bounds the memory of a large batch."""

FOLLOWED = 512
"""From so many features on (up to `DOUBLE`) factors are kept, and examples that come next are put on top of them."""

ON_TOP = 1 / 6
"""Rows, as a fraction of the features, that are put on top of kept factors before the moments are factorised anew."""

AGAIN = 1e-4
"""Relative error that `remove` allows features to have: a map that computes in single precision gives others, by about 1e-6, when
the same examples come in a batch of another size."""

STILL = 0.03
"""Standard deviation relative to the mean below which that error is one of the mean."""

NOTHING = 1e-9
"""Weight, relative to the largest so far, below which nothing is left: what removed fractions leave of their sum is rounding."""

NEAR = 4.0
"""As long as the examples have grown by no more than this factor since the last search from n / 128, a new one begins where it
ended."""


class MatrixNormal:
    r"""Bayesian linear regression on fixed features, :math:`y = W^T \phi + b + noise`, any number of outputs.

    With the noise :math:`N(0, diag(\sigma^2))`, the prior :math:`W \sim MN(0, I / \lambda, diag(\sigma^2))` and a flat prior over
    b the posterior is matrix-normal,

    .. math:: W \sim MN(M, U, diag(\sigma^2)), \quad U = (A + \lambda I)^{-1}, \quad M = U B,
       \quad A = \sum (\phi - \bar\phi)(\phi - \bar\phi)^T, \quad B = \sum (\phi - \bar\phi)(y - \bar y)^T .

    All of it follows from sums over the examples: n, :math:`\sum\phi, \sum y`, A, B, :math:`T = \sum (y - \bar y)(y - \bar y)^T`.
    So the posterior is the same whatever the order of the examples, two posteriors `merge` by addition, and examples can be taken
    out again (`remove`). A batch of m examples is added around its own mean, with its distance :math:`\delta` to the mean so far,

    .. math:: A \leftarrow A + A_{batch} + \frac{n m}{n + m} \delta \delta^T

    (Chan, Golub & LeVeque, 1983), and B and T likewise, so that nothing cancels however far from the origin the features lie;
    they are taken relative to the mean of the first batch, `centre`, which stays. Sums are in double precision, but second
    moments of more than `DOUBLE` features, lower triangle only, in single precision.

    An example may have a weight w > 0: it counts as w examples, :math:`n = \sum w, A = \sum w (\phi - \bar\phi)(\phi -
    \bar\phi)^T` and so on. Whole numbers are repetitions, to rounding; fractions are a likelihood to the power of w.

    The ridge :math:`\lambda` (prior precision over noise precision) and :math:`\sigma^2` maximise the evidence
    (`hvcl.posteriors.evidence`), unless a ridge is given. It is at least the rounding of the sums,
    :math:`4 \epsilon_{64} tr R + 2 \epsilon F^{-1/2} tr R`, with R the largest second moments around `centre` so far and
    :math:`\epsilon` that of their precision, and more where examples were removed, whose features may have been computed
    again in single precision: what the sums cannot resolve is noise. Should A + lambda I not be positive definite even so, the
    ridge is doubled until it is.

    What `posterior` returns depends on the sums alone, to the last bit, where there are fewer than `FOLLOWED` or more than
    `DOUBLE` features. In between, the factors of the last call are kept, and examples that are added next are put on top of them,
    up to `ON_TOP` times the features, which is far cheaper than factors anew. Then it depends on the calls before as well, by no
    more than rounding (1e-6 of the largest weight in the tests), unless the evidence has several maxima: there, the one that was
    found last is kept until a quarter of the examples is new. `state_dict`, `remove` and `merge` forget the factors; so a model
    that was saved and one that is made from the file go on identically. The examples on top are part of no state and are never
    saved.

    One thread at a time may change a model. A posterior never changes, and may be used in any number of others. A `snapshot`
    gives another thread its posterior while this one goes on changing the model.

    Args:
        features: F.
        outputs: C to begin with; `grow` adds more.
        ridge: a fixed lambda instead of the evidence's.
        centre: what sums are taken relative to ``[F]``, e.g. zero for features that are standardised; None: the mean of the first
            batch. If that is a single example, its features stay in the state.
    """

    def __init__(self, features: int, outputs: int = 0, *, ridge: float | None = None, centre: Tensor | None = None) -> None:
        if features < 1 or outputs < 0:
            raise InputError(f"there must be at least one feature and no negative number of outputs, got {features}, {outputs}")
        if ridge is not None and not 0 < ridge < math.inf:
            raise InputError(f"ridge must be positive, got {ridge}")
        if centre is not None and (centre.shape != (features,) or not bool(centre.isfinite().all())):
            raise InputError(f"the centre must be {features} finite numbers, got shape {tuple(centre.shape)}")
        self.features, self.ridge = features, ridge
        self._given_centre = None if centre is None else centre.double()
        self._clear(outputs)

    def _clear(self, outputs: int) -> None:
        """As if nothing had been learned, with so many outputs."""
        double = torch.float64
        self.count: float = 0  # n: examples, each as often as its weight says
        self.peak: float = 0  # the largest count so far
        self.gone = 0.0  # weight of all that was removed: sum of squares relative to the peaks
        self.updates = 0  # additions and removals: rounding grows with their root
        self.panels = empty_panels(self.features, double if self.features <= DOUBLE else torch.float32)
        self.centre = torch.zeros(self.features, dtype=double) if self._given_centre is None else self._given_centre.clone()
        self.feature_sum = torch.zeros(self.features, dtype=double)  # around the centre
        self.feature_peak = torch.zeros(
            self.features, dtype=double
        )  # largest sums of squares so far, which rounding is relative to
        self.cross = torch.zeros(self.features, outputs, dtype=double)
        self.target_sum = torch.zeros(outputs, dtype=double)
        self.target_peak = torch.zeros(outputs, dtype=double)
        self.target_square = torch.zeros(outputs, outputs, dtype=double)
        self._posterior: Posterior | None = None
        self._snapshot: MatrixNormal | None = None
        self._forget()

    def _forget(self) -> None:
        """Drop the factors: the next posterior follows from the sums alone."""
        self._found: Found | None = None
        self._on_top: list[tuple[Tensor, Tensor]] = []
        if self._posterior is not None and self._posterior.factor.added is not None:
            self._posterior = None

    @property
    def outputs(self) -> int:
        """C, the number of outputs so far."""
        return len(self.target_sum)

    def grow(self, outputs: int) -> None:
        """Append outputs until there are `outputs`; new ones were zero in all examples so far."""
        more = outputs - self.outputs
        if more > 0:
            self._leave_snapshot()
            pad = torch.nn.functional.pad
            self.cross, self.target_sum = pad(self.cross, (0, more)), pad(self.target_sum, (0, more))
            self.target_peak = pad(self.target_peak, (0, more))
            self.target_square = pad(self.target_square, (0, more, 0, more))
            self._posterior = None

    # -- snapshots --------------------------------------------------------------------------------------------------------

    def snapshot(self) -> MatrixNormal:
        """A model that has learned what this one has, and is never to be changed.

        It has the same sums in memory. This model copies them before it changes them, unless the posterior is computed by then,
        which is all that a snapshot is for.
        """
        if self._snapshot is None:
            made = copy.copy(self)
            made._on_top = list(self._on_top)
            self._snapshot = made
        return self._snapshot

    def _leave_snapshot(self) -> None:
        """The sums are about to change: those of the snapshot must not."""
        self._take_over()
        made, self._snapshot = self._snapshot, None
        if made is not None and self._posterior is not None:
            made._posterior = self._posterior
        elif made is not None:
            self.panels = [panel.clone() for panel in self.panels]
            for name in ("cross", "target_square", "feature_sum", "target_sum", "target_peak"):
                setattr(self, name, getattr(self, name).clone())

    def _take_over(self) -> None:
        """What the snapshot has found while the sums are the same."""
        made = self._snapshot
        if made is not None and made._posterior is not None and self._posterior is None:
            self._posterior, self._found, self._on_top = made._posterior, made._found, list(made._on_top)

    # -- the sums ---------------------------------------------------------------------------------------------------------

    def add(self, phi: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Learn from features ``[B, F]`` with targets ``[B, C]`` and weights ``[B]``, positive; None: one for each."""
        self._check(phi, y, weights)
        self.add_checked(phi, y, weights)

    def add_checked(self, phi: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """`add` what is known to fit."""
        self._leave_snapshot()
        if not self.count and len(phi) and self._given_centre is None:
            # a number of phi's own type, so that differences to it are exact
            self.centre = phi.mean(0, dtype=torch.float64).to(phi.dtype).double()
        for some, targets, times in self._chunks(phi, y, weights):
            self._add(some.double() - self.centre, targets.double(), times)

    def _chunks(self, phi: Tensor, y: Tensor, weights: Tensor | None) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        """Parts of a batch that are centred at a time."""
        chunk = max(CHUNK // self.features, 1)
        for first in range(0, len(phi), chunk):
            part = slice(first, first + chunk)
            yield phi[part], y[part], None if weights is None else weights[part].double()

    def _add(self, psi: Tensor, y: Tensor, weights: Tensor | None) -> None:
        batch, of_targets = _Centred(psi, weights), _Centred(y, weights)
        rows, targets = batch.rows, of_targets.rows
        if self.count:
            weight = math.sqrt(self.count * batch.count / (self.count + batch.count))
            away = weight * (batch.mean - self.feature_sum / self.count).unsqueeze(0)
            away_targets = weight * (of_targets.mean - self.target_sum / self.count).unsqueeze(0)
            # around its own mean one example is nothing
            rows = away if len(psi) == 1 else torch.cat([rows, away])
            targets = away_targets if len(psi) == 1 else torch.cat([targets, away_targets])
        self._put_on_top(rows, targets)
        if self.panels:
            add_products(self.panels, rows.to(self.panels[0].dtype))
        self.cross.addmm_(rows.T, targets)
        self.target_square.addmm_(targets.T, targets)
        self.feature_sum += batch.total
        self.target_sum += of_targets.total
        self.count += batch.count
        self._changed()

    def _changed(self) -> None:
        self.peak = max(self.peak, self.count)
        self.updates += 1
        self._posterior = None
        if self.panels:
            self.feature_peak = torch.maximum(self.feature_peak, diagonal(self.panels) + self.feature_sum.square() / self.count)
        self.target_peak = torch.maximum(self.target_peak, self.target_square.diagonal())

    def _put_on_top(self, rows: Tensor, targets: Tensor) -> None:
        if self._found is not None and self._found.factors:
            self._on_top.append((rows, targets))
            if sum(len(some) for some, _ in self._on_top) > ON_TOP * self.features:
                self._found, self._on_top = replace(self._found, factors=(), weights=()), []

    def remove(self, phi: Tensor, y: Tensor, weights: Tensor | None = None) -> None:
        """Unlearn examples that were learned before, with the weights that they had. Without the last one the model is a new one.

        Raises:
            InputError: if what would be left cannot be sums over examples; then nothing has changed. Features and targets that
                would be left must have second moments without a negative eigenvalue beyond rounding (`AGAIN`). This shows an
                example that is linearly independent of those learned, or outweighs them in some direction, but no other.
        """
        self._check(phi, y, weights)
        if not len(phi):
            return
        times = None if weights is None else weights.double()
        batch, of_targets = _Centred(phi.double() - self.centre, times), _Centred(y.double(), times)
        left = self._left(batch.count)
        feature_sum, target_sum = self.feature_sum - batch.total, self.target_sum - of_targets.total
        rows, lines = batch.rows, of_targets.rows
        if left:
            # an addition backwards: from the mean of what is left to that of what goes
            weight = math.sqrt(left * batch.count / self.count)
            rows = torch.cat([rows, weight * (batch.mean - feature_sum / left).unsqueeze(0)])
            lines = torch.cat([lines, weight * (of_targets.mean - target_sum / left).unsqueeze(0)])
        panels = [panel.clone() for panel in self.panels]
        add_products(panels, rows.to(panels[0].dtype), -1)
        cross, square = self.cross - rows.T @ lines, self.target_square - lines.T @ lines
        self._replace(left, panels, cross, square, feature_sum, target_sum, rows.square().sum(0), batch.count)

    def subtract(self, other: MatrixNormal, outputs: list[int] | None = None) -> None:
        """Unlearn all that another model has learned: `merge` backwards. Errors are those of `remove`.

        `outputs` says which output of this model each output of the other one is; the same by default.
        """
        columns = self._columns(other, outputs)
        if other.outputs and int(columns.max()) >= self.outputs:
            raise InputError(f"cannot take out {int(columns.max()) + 1} outputs: only {self.outputs} were learned")
        if not other.count:
            return
        left = self._left(other.count)
        theirs = other.feature_sum + other.count * (other.centre - self.centre)  # around this one's centre
        their_targets = torch.zeros_like(self.target_sum).index_copy_(0, columns, other.target_sum)
        feature_sum, target_sum = self.feature_sum - theirs, self.target_sum - their_targets
        panels = [mine - gone for mine, gone in zip(self.panels, other.panels, strict=True)]
        cross, square = self.cross.clone(), self.target_square.clone()
        cross[:, columns] -= other.cross
        square[columns.unsqueeze(1), columns] -= other.target_square
        squares = diagonal(other.panels)
        if left:
            weight = math.sqrt(left * other.count / self.count)
            row = weight * (theirs / other.count - feature_sum / left).unsqueeze(0)
            line = weight * (their_targets / other.count - target_sum / left).unsqueeze(0)
            add_products(panels, row.to(panels[0].dtype), -1)
            cross, square, squares = cross - row.T @ line, square - line.T @ line, squares + row[0].square()
        self._replace(left, panels, cross, square, feature_sum, target_sum, squares, other.count)

    def blank(self, outputs: Tensor) -> None:
        """Outputs (a mask ``[C]``) that are zero in all examples left: what removed ones left in their sums is rounding."""
        if bool(outputs.any()):
            self._leave_snapshot()
            kept = (~outputs).double()
            self.cross, self.target_sum = self.cross * kept, self.target_sum * kept
            self.target_square = self.target_square * kept * kept.unsqueeze(1)
            self._posterior = None
            self._forget()

    def join(self, outputs: list[int]) -> None:
        """Output i becomes part of output `outputs[i]`: targets of those that become one are added, in all examples so far."""
        columns = torch.tensor(outputs, dtype=torch.long)
        if len(columns) != self.outputs or sorted(set(outputs)) != list(range(max(outputs, default=-1) + 1)):
            raise InputError(f"each of {self.outputs} outputs must become one of 0, 1, ..., got {outputs}")
        self._leave_snapshot()
        left = max(outputs, default=-1) + 1
        self.cross = self.cross.new_zeros(self.features, left).index_add_(1, columns, self.cross)
        self.target_sum = self.target_sum.new_zeros(left).index_add_(0, columns, self.target_sum)
        self.target_peak = self.target_peak.new_zeros(left).index_add_(0, columns, self.target_peak)
        square = self.target_square.new_zeros(left, len(columns)).index_add_(0, columns, self.target_square)
        self.target_square = square.new_zeros(left, left).index_add_(1, columns, square)
        self._posterior = None
        self._forget()

    def _left(self, weight: float) -> float:
        """n without examples of this weight; 0 if only rounding would be left of it."""
        left = self.count - weight
        nothing = min(NOTHING * self.peak, 0.5)
        if left < -nothing:
            raise InputError(f"cannot remove {weight:g} examples: only {self.count:g} were learned")
        return left if left > nothing else 0

    def _replace(
        self,
        left: float,
        panels: list[Tensor],
        cross: Tensor,
        square: Tensor,
        feature_sum: Tensor,
        target_sum: Tensor,
        squares: Tensor,
        weight: float,
    ) -> None:
        """Go on with sums from which examples of some weight, with these sums of `squares`, are taken out, if that can be."""
        # what rounding is relative to
        feature_peak = self.feature_peak + self.peak * (STILL * self.centre).square()
        target_peak = self.target_peak + self.peak * (self.target_sum / self.count).square()
        peaks = torch.cat([feature_peak, target_peak])
        weight_gone = float((squares / feature_peak.clamp_min(1e-300)).sum())
        gone = self.gone + weight_gone + AGAIN * (weight + 1) * self.features / self.peak
        sums = None if left else torch.cat([feature_sum, target_sum])
        if not self._plausible(panels, cross, square, peaks, gone, sums) or bool(squares[feature_peak == 0].any()):
            raise InputError(
                "cannot remove these examples: the second moments would stop being positive definite, "
                "so they cannot all have been learned"
            )
        if not left:
            self._clear(self.outputs)
            return
        self._leave_snapshot()
        self.panels, self.cross, self.target_square = panels, cross, square
        self.feature_sum, self.target_sum, self.count, self.gone = feature_sum, target_sum, left, gone
        self._changed()
        self._forget()

    def _plausible(
        self, panels: list[Tensor], cross: Tensor, square: Tensor, peaks: Tensor, gone: float, sums: Tensor | None
    ) -> bool:
        """Whether sums can be those of examples, up to rounding relative to the largest sums of squares that there have been.

        Second moments of features and targets together must be positive semi-definite. If no example is left, nothing but
        rounding may be left of them, and of the `sums` of features and targets. `gone` is the weight of all that was removed.
        """
        size, rounding = len(peaks), self._rounding()
        if sums is not None and bool((sums.abs() > (rounding + AGAIN) * (self.peak * peaks).sqrt()).any()):
            return False
        matrix = torch.zeros(size, size, dtype=panels[0].dtype)
        lower_triangle(panels, matrix)
        matrix[self.features :, : self.features], matrix[self.features :, self.features :] = cross.T, square
        unit = torch.where(peaks > 0, peaks.rsqrt(), 0).to(matrix.dtype)
        matrix.mul_(unit).mul_(unit.unsqueeze(1))
        if sums is not None:
            return float(matrix.tril_().abs().max()) <= rounding + 2 * AGAIN
        matrix.diagonal().add_(rounding + AGAIN * gone)
        return int(cholesky_ex(matrix)[1]) == 0

    def _rounding(self) -> float:
        """Bound of the rounding of second moments relative to their peaks, as an eigenvalue of their matrix sees it."""
        size = self.features + self.outputs
        epsilon = torch.finfo(self.panels[0].dtype if self.panels else torch.float64).eps
        return 4 * epsilon * size * math.sqrt(1 + self.updates)

    @classmethod
    def of_sums(cls, count: float, feature_sum: Tensor, target_sum: Tensor, rows: Tensor, lines: Tensor) -> MatrixNormal:
        """A model that has learned `count` examples with these sums, to be merged or subtracted.

        Second moments of features and targets around their means are the products of `rows` ``[r, F]`` and `lines` ``[r, C]``,
        whatever their number: triangular factors will do.
        """
        model = cls(len(feature_sum), len(target_sum), centre=torch.zeros(len(feature_sum)))
        if count:
            add_products(model.panels, rows.to(model.panels[0].dtype))
            model.cross, model.target_square = rows.T @ lines, lines.T @ lines
            model.count, model.feature_sum, model.target_sum = count, feature_sum.clone(), target_sum.clone()
            model._changed()
        return model

    def merge(self, other: MatrixNormal, outputs: list[int] | None = None) -> None:
        """Add what another model of the same features has learned, as if this one had seen its examples.

        `outputs` says which output of this model each output of the other one is; the same by default.
        """
        columns = self._columns(other, outputs)
        if other.outputs:
            self.grow(int(columns.max()) + 1)
        if not other.count:
            return
        self._leave_snapshot()
        if not self.count and self._given_centre is None:
            self.centre = other.centre.clone()
        theirs = other.feature_sum + other.count * (other.centre - self.centre)  # around this one's centre
        their_targets = torch.zeros_like(self.target_sum).index_copy_(0, columns, other.target_sum)
        if self.count:
            weight = math.sqrt(self.count * other.count / (self.count + other.count))
            row = weight * (theirs / other.count - self.feature_sum / self.count).unsqueeze(0)
            line = weight * (their_targets / other.count - self.target_sum / self.count).unsqueeze(0)
        else:
            row, line = torch.zeros_like(theirs).unsqueeze(0), torch.zeros_like(their_targets).unsqueeze(0)
        for mine, added in zip(self.panels, other.panels, strict=True):
            mine.add_(added)
        add_products(self.panels, row.to(self.panels[0].dtype))
        self.cross[:, columns] += other.cross
        self.cross.addmm_(row.T, line)
        self.target_square[columns.unsqueeze(1), columns] += other.target_square
        self.target_square.addmm_(line.T, line)
        self.feature_sum = self.feature_sum + theirs
        self.target_sum = self.target_sum + their_targets
        self.count += other.count
        self.peak += other.peak
        self.updates += other.updates
        self.gone += other.gone
        self.feature_peak = self.feature_peak + other.feature_peak
        self.target_peak[columns] += other.target_peak
        self._changed()
        self._forget()

    def _columns(self, other: MatrixNormal, outputs: list[int] | None) -> Tensor:
        """The outputs here of another model of the same features."""
        if other.features != self.features:
            raise InputError(f"cannot merge models of {self.features} and {other.features} features")
        columns = torch.arange(other.outputs) if outputs is None else torch.tensor(outputs, dtype=torch.long)
        if len(columns) != other.outputs or len(columns.unique()) != len(columns) or bool((columns < 0).any()):
            raise InputError(f"outputs must name {other.outputs} different outputs, got {columns.tolist()}")
        return columns

    def check_features(self, phi: Tensor) -> None:
        """Raise `InputError` for features that cannot be learned from."""
        if phi.dim() != 2 or phi.shape[1] != self.features:
            raise InputError(f"features must be [B, {self.features}], got {tuple(phi.shape)}")
        _check_finite("features", phi)

    def _check(self, phi: Tensor, y: Tensor, weights: Tensor | None) -> None:
        self.check_features(phi)
        if weights is not None:
            check_weights(weights, len(phi))
        if y.shape != (len(phi), self.outputs):
            raise InputError(f"targets must be [{len(phi)}, {self.outputs}], got {tuple(y.shape)}")
        _check_finite("targets", y)

    # -- the posterior ----------------------------------------------------------------------------------------------------

    def posterior(self) -> Posterior:
        """The posterior given all examples so far; computed when something has changed, else the same one."""
        self._take_over()
        if self._posterior is None:
            if not self.count:
                raise InputError("there is no posterior before the first example")
            sums, found = self._centred_sums(), None
            last = self._found
            if last is not None and last.factors:
                found = follow(sums, last, *self._all_on_top())
            if found is None:
                near = last is not None and self.count <= NEAR * last.searched
                found = search(sums, last if near else None) if self.ridge is None else given(self.ridge, sums)
                self._on_top = []
            if FOLLOWED <= self.features <= DOUBLE:
                self._found = found[1]
            elif self.features > DOUBLE:  # factors are as large as the sums themselves
                self._found = replace(found[1], factors=(), weights=())
            self._posterior = found[0]  # the last: whoever sees it finds all the rest
        return self._posterior

    def _all_on_top(self) -> tuple[Tensor, Tensor]:
        """Rows ``[k, F]`` and targets ``[k, C]`` that came since the factors were made."""
        rows = [self.cross.new_zeros(0, self.features), *(some for some, _ in self._on_top)]
        pad = torch.nn.functional.pad
        targets = [pad(some, (0, self.outputs - some.shape[1])) for _, some in self._on_top]
        return torch.cat(rows), torch.cat([self.cross.new_zeros(0, self.outputs), *targets])

    def _centred_sums(self) -> CentredSums:
        mean = self.target_sum / self.count
        spread, cross = self.target_square.diagonal().clone(), self.cross.clone()
        # an output that never varied carries no information: what is left there is rounding
        rounding, epsilon = self._rounding(), torch.finfo(torch.float64).eps
        far = mean.abs() * math.sqrt(self.peak)
        constant = spread <= rounding * (self.target_peak + self.target_peak.sqrt() * far) + (64 * epsilon * far).square()
        spread[constant], cross[:, constant] = 0, 0
        trace, single = float(self.feature_peak.sum()), torch.finfo(torch.float32).eps
        floor = (4 * epsilon + 2 * torch.finfo(self.panels[0].dtype).eps / math.sqrt(self.features)) * trace
        floor += 2 * single * math.sqrt(self.gone) * trace / self.features  # of features that were computed again
        feature_mean = self.centre + self.feature_sum / self.count
        return CentredSums(self.count, feature_mean, mean, self.target_sum.clone(), self.panels, cross, spread, floor)

    # -- checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All sums over the examples."""
        self._leave_snapshot()
        where = self._found if self.features > DOUBLE else None
        self._forget()  # the file does not have the factors
        self._found = where
        return {
            "count": self.count,
            "peak": self.peak,
            "gone": self.gone,
            "updates": self.updates,
            "search": [] if where is None or where.power is None else [where.power, where.searched],
            "panels": list(self.panels),
            **{name: getattr(self, name) for name in self._shapes(self.outputs)},
        }

    def _shapes(self, outputs: int) -> dict[str, tuple[int, ...]]:
        """Shapes of all sums but the panels."""
        return {
            "centre": (self.features,),
            "feature_sum": (self.features,),
            "feature_peak": (self.features,),
            "cross": (self.features, outputs),
            "target_sum": (outputs,),
            "target_peak": (outputs,),
            "target_square": (outputs, outputs),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; `RunError` if it has another number of features."""
        if [(panel.shape, panel.dtype) for panel in state["panels"]] != [(panel.shape, panel.dtype) for panel in self.panels]:
            raise RunError(f"the saved sums are not of {self.features} features: were they made with other settings?")
        expected = self._shapes(len(state["target_sum"]))
        for name, shape in expected.items():
            if tuple(state[name].shape) != shape or state[name].dtype != torch.float64:
                raise RunError(f"the saved {name} is {state[name].dtype} of shape {tuple(state[name].shape)}, expected {shape}")
        search = list(state.get("search", ()))  # files of earlier versions have none
        if len(search) not in (0, 2) or not all(math.isfinite(value) for value in search):
            raise RunError(f"the saved search of the ridge is {search}, expected its power of two and the number of examples")
        self.count, self.peak, self.updates = float(state["count"]), float(state["peak"]), int(state["updates"])
        self.gone = float(state["gone"])
        self._leave_snapshot()
        self.panels = [panel.clone() for panel in state["panels"]]
        for name in expected:
            setattr(self, name, state[name].clone())
        self._posterior = None
        self._forget()
        if search:
            self._found = Found(int(search[0]), float(search[1]))


class _Centred:
    """A batch around its mean: its products are those of `rows`, which are scaled by the roots of the weights."""

    def __init__(self, values: Tensor, weights: Tensor | None) -> None:
        if weights is None:
            self.count: float = len(values)
            self.total, self.mean = values.sum(0), values.mean(0)
            self.rows = values - self.mean
        else:
            self.count = float(weights.sum())
            self.total = weights @ values
            self.mean = self.total / self.count
            self.rows = weights.sqrt().unsqueeze(1) * (values - self.mean)


def check_weights(weights: Tensor, examples: int) -> None:
    """Raise `InputError` for weights of examples that are none."""
    if weights.shape != (examples,) or not weights.is_floating_point():
        raise InputError(f"weights must be {examples} numbers, got {weights.dtype} of shape {tuple(weights.shape)}")
    if not bool((weights > 0).all()) or not bool(weights.sum().isfinite()):
        raise InputError("weights must be positive and finite: leave examples of weight zero out")


def _check_finite(name: str, values: Tensor) -> None:
    # of the squares: what overflows in the sums of products would spoil them for good
    if not bool(torch.isfinite(values.float().square().sum())):
        raise InputError(f"{name} hold NaN, infinite or far too large values: clean the data before learning")
