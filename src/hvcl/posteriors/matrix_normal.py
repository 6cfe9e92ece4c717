"""The exact posterior of a Bayesian linear model, from sums over the stream."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hvcl.core.errors import InputError, RunError
from hvcl.posteriors.evidence import CentredSums, Posterior, most_evident_posterior, posterior_given

PANEL = 2048
"""Rows of the second moments that are updated at once; only columns up to the diagonal are kept."""

DOUBLE = 4096
"""Up to so many features the posterior is computed in double precision, above in single precision and refined."""


class MatrixNormal:
    r"""Bayesian linear regression on fixed features, :math:`y = W^T \phi + b + noise`, any number of outputs.

    With the noise :math:`N(0, diag(\sigma^2))`, the prior :math:`W \sim MN(0, I / \lambda, diag(\sigma^2))` and a flat prior over
    b the posterior is matrix-normal,

    .. math:: W \sim MN(M, U, diag(\sigma^2)), \quad U = (A + \lambda I)^{-1}, \quad M = U B,
       \quad A = \sum (\phi - \bar\phi)(\phi - \bar\phi)^T, \quad B = \sum (\phi - \bar\phi)(y - \bar y)^T .

    All of it follows from sums over the examples: :math:`n, \sum\phi, \sum\phi\phi^T, \sum\phi y^T, \sum y, \sum y y^T`. So the
    posterior is the same whatever the order of the examples, two posteriors `merge` by addition, and examples can be taken out
    again (`remove`). Sums of second moments are kept in single precision, lower triangle only; all others in double precision.

    The ridge :math:`\lambda` (prior precision over noise precision) and :math:`\sigma^2` maximise the evidence
    (`hvcl.posteriors.evidence`), unless a ridge is given.

    Args:
        features: F.
        outputs: C to begin with; `grow` adds more.
        ridge: a fixed lambda instead of the evidence's.
    """

    def __init__(self, features: int, outputs: int = 0, *, ridge: float | None = None) -> None:
        if features < 1 or outputs < 0:
            raise InputError(f"there must be at least one feature and no negative number of outputs, got {features}, {outputs}")
        if ridge is not None and not 0 < ridge < math.inf:
            raise InputError(f"ridge must be positive, got {ridge}")
        self.features, self.ridge = features, ridge
        self.count = 0
        self.peak = 0  # the largest count so far: the sums' rounding is that of sums as large
        starts = range(0, features, PANEL)
        self.panels = [torch.zeros(min(PANEL, features - i), min(i + PANEL, features), dtype=torch.float32) for i in starts]
        self.feature_sum = torch.zeros(features, dtype=torch.float64)
        self.cross = torch.zeros(features, outputs, dtype=torch.float64)
        self.target_sum = torch.zeros(outputs, dtype=torch.float64)
        self.target_square = torch.zeros(outputs, outputs, dtype=torch.float64)
        self._posterior: Posterior | None = None

    @property
    def outputs(self) -> int:
        """C, the number of outputs so far."""
        return len(self.target_sum)

    def grow(self, outputs: int) -> None:
        """Append outputs until there are `outputs`; new ones were zero in all examples so far."""
        more = outputs - self.outputs
        if more > 0:
            pad = torch.nn.functional.pad
            self.cross, self.target_sum = pad(self.cross, (0, more)), pad(self.target_sum, (0, more))
            self.target_square = pad(self.target_square, (0, more, 0, more))
            self._posterior = None

    # -- the sums ---------------------------------------------------------------------------------------------------------

    def add(self, phi: Tensor, y: Tensor) -> None:
        """Learn from features ``[B, F]`` with targets ``[B, C]``."""
        self._check(phi, y)
        self._accumulate(phi, y, 1)

    def remove(self, phi: Tensor, y: Tensor) -> None:
        """Unlearn examples that were learned before.

        Raises:
            InputError: if what would be left cannot be sums over examples; then nothing has changed.
        """
        self._check(phi, y)
        if len(phi) > self.count:
            raise InputError(f"cannot remove {len(phi)} examples: only {self.count} were learned")
        before = (self.panels, self.feature_sum, self.cross, self.target_sum, self.target_square, self.count)
        self.panels = [panel.clone() for panel in self.panels]
        self.feature_sum, self.cross = self.feature_sum.clone(), self.cross.clone()
        self.target_sum, self.target_square = self.target_sum.clone(), self.target_square.clone()
        self._accumulate(phi, y, -1)
        if not self._plausible(before[0], before[-1]):
            self.panels, self.feature_sum, self.cross, self.target_sum, self.target_square, self.count = before
            raise InputError(
                "cannot remove these examples: the second moments would stop being positive definite, "
                "so they cannot all have been learned"
            )

    def _accumulate(self, phi: Tensor, y: Tensor, sign: int) -> None:
        phi = phi.float()
        for i, panel in enumerate(self.panels):
            rows = phi[:, i * PANEL : i * PANEL + len(panel)]
            panel.addmm_(rows.T, phi[:, : panel.shape[1]], alpha=sign)
        y = y.double()
        self.feature_sum.add_(phi.sum(0, dtype=torch.float64), alpha=sign)
        self.cross.add_(phi.T @ y.float(), alpha=sign)
        self.target_sum.add_(y.sum(0), alpha=sign)
        self.target_square.addmm_(y.T, y, alpha=sign)
        self.count += sign * len(phi)
        self.peak = max(self.peak, self.count)
        self._posterior = None

    def _plausible(self, before: list[Tensor], count: int) -> bool:
        """Whether the second moments are positive semi-definite, up to the rounding of sums as large as they were at their peak.

        `before` are the panels of `count` examples that some were just taken out of. If none are left, nothing but rounding may
        be left of the moments either; then all sums become zero.
        """
        typical = sum(float(panel[:, i * PANEL :].diagonal().sum()) for i, panel in enumerate(before)) / self.features
        rounding = (1e-5 + _resolution(self.features)) * typical * self.peak / max(count, 1) + 1e-30
        moments = self._centred_moments().double()
        if not self.count:
            if float(moments.diagonal().abs().mean()) > rounding:
                return False
            for sums in (*self.panels, self.feature_sum, self.cross, self.target_sum, self.target_square):
                sums.zero_()
            return True
        moments.diagonal().add_(rounding)
        return int(torch.linalg.cholesky_ex(moments)[1]) == 0

    def merge(self, other: MatrixNormal, outputs: list[int] | None = None) -> None:
        """Add what another model of the same features has learned, as if this one had seen its examples.

        `outputs` says which output of this model each output of the other one is; the same by default.
        """
        if other.features != self.features:
            raise InputError(f"cannot merge models of {self.features} and {other.features} features")
        columns = torch.arange(other.outputs) if outputs is None else torch.tensor(outputs, dtype=torch.long)
        if len(columns) != other.outputs or len(columns.unique()) != len(columns) or bool((columns < 0).any()):
            raise InputError(f"outputs must name {other.outputs} different outputs, got {columns.tolist()}")
        if other.outputs:
            self.grow(int(columns.max()) + 1)
        for mine, theirs in zip(self.panels, other.panels, strict=True):
            mine.add_(theirs)
        self.feature_sum += other.feature_sum
        self.cross[:, columns] += other.cross
        self.target_sum[columns] += other.target_sum
        self.target_square[columns.unsqueeze(1), columns] += other.target_square
        self.count += other.count
        self.peak += other.peak
        self._posterior = None

    def check_features(self, phi: Tensor) -> None:
        """Raise `InputError` for features that cannot be learned from."""
        if phi.dim() != 2 or phi.shape[1] != self.features:
            raise InputError(f"features must be [B, {self.features}], got {tuple(phi.shape)}")
        _check_finite("features", phi)

    def _check(self, phi: Tensor, y: Tensor) -> None:
        self.check_features(phi)
        if y.shape != (len(phi), self.outputs):
            raise InputError(f"targets must be [{len(phi)}, {self.outputs}], got {tuple(y.shape)}")
        _check_finite("targets", y)

    # -- the posterior ----------------------------------------------------------------------------------------------------

    def _centred_moments(self) -> Tensor:
        """A, both triangles."""
        dtype = torch.float64 if self.features <= DOUBLE else torch.float32
        full = torch.empty(self.features, self.features, dtype=dtype)
        for i, panel in enumerate(self.panels):
            rows = slice(i * PANEL, i * PANEL + len(panel))
            left = panel.double()
            if self.count:
                left.addr_(self.feature_sum[rows], self.feature_sum[: panel.shape[1]], alpha=-1 / self.count)
            full[rows, : panel.shape[1]] = left
            full[: i * PANEL, rows] = left[:, : i * PANEL].T
        # within the blocks on the diagonal a product and its transpose are the same but for rounding
        return full

    def posterior(self) -> Posterior:
        """The posterior given all examples so far; computed when something has changed, else the same one."""
        if self._posterior is None:
            if not self.count:
                raise InputError("there is no posterior before the first example")
            sums = self._centred_sums()
            self._posterior = most_evident_posterior(sums) if self.ridge is None else posterior_given(self.ridge, sums)
        return self._posterior

    def _centred_sums(self) -> CentredSums:
        cross = self.cross - torch.outer(self.feature_sum, self.target_sum / self.count)
        spread = self.target_square.diagonal() - self.target_sum.square() / self.count
        # an output that never varied carries no information: what is left there is rounding
        constant = spread <= 1e-12 * self.target_square.diagonal()
        spread[constant], cross[:, constant] = 0, 0
        means = self.feature_sum / self.count, self.target_sum / self.count
        return CentredSums(self.count, *means, self._centred_moments(), cross, spread)

    # -- checkpoints ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All sums over the examples."""
        return {
            "count": self.count,
            "peak": self.peak,
            "panels": list(self.panels),
            "feature_sum": self.feature_sum,
            "cross": self.cross,
            "target_sum": self.target_sum,
            "target_square": self.target_square,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; `RunError` if it has another number of features."""
        if [(panel.shape, panel.dtype) for panel in state["panels"]] != [(panel.shape, panel.dtype) for panel in self.panels]:
            raise RunError(f"the saved sums are not of {self.features} features: were they made with other settings?")
        outputs = len(state["target_sum"])
        expected = {
            "feature_sum": (self.features,),
            "cross": (self.features, outputs),
            "target_sum": (outputs,),
            "target_square": (outputs, outputs),
        }
        for name, shape in expected.items():
            if tuple(state[name].shape) != shape or state[name].dtype != getattr(self, name).dtype:
                raise RunError(f"the saved {name} is {state[name].dtype} of shape {tuple(state[name].shape)}, expected {shape}")
        self.count, self.peak = int(state["count"]), int(state["peak"])
        self.panels = [panel.clone() for panel in state["panels"]]
        self.feature_sum, self.cross = state["feature_sum"].clone(), state["cross"].clone()
        self.target_sum, self.target_square = state["target_sum"].clone(), state["target_square"].clone()
        self._posterior = None


def _check_finite(name: str, values: Tensor) -> None:
    # of the squares: what overflows in the sums of products would spoil them for good
    if not bool(torch.isfinite(values.float().square().sum())):
        raise InputError(f"{name} hold NaN, infinite or far too large values: clean the data before learning")


def _resolution(features: int) -> float:
    """Rounding of sums in single precision, as a multiple of the mean diagonal: an eigenvalue may be as large as the trace."""
    return 4 * torch.finfo(torch.float32).eps * features
