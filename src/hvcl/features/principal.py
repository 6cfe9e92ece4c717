"""The leading principal directions of feature vectors, half whitened."""

from __future__ import annotations

import torch
from torch import Tensor

from hvcl.core.errors import InputError, RunError

HALF = 0.5
"""Power of a direction's deviation that it is divided by: 0 rotates, 1 whitens."""

LEAST = 1e-6
"""Smallest deviation of a direction, as a share of the largest, that is not only rounding."""


class PrincipalDirections:
    r"""Coordinates of feature vectors along their leading principal directions, fitted to the first of a stream.

    With mean m, directions V and deviations s of the first n feature vectors,

    .. math:: u(\phi) = c\, (\phi - m) V_k \operatorname{diag}(s_k)^{-1/2},

    c such that the mean square of a coordinate of these n is one. A network learns faster on uncorrelated inputs, and a posterior
    that factorises over weights holds what it has learned better: the precision of a weight is then not shared with others.

    Args:
        features: D, length of a feature vector.
        directions: k, at most D, and less than the feature vectors that they are fitted to.
    """

    def __init__(self, features: int, directions: int) -> None:
        if not 1 <= directions <= features:
            raise InputError(f"there are 1 to {features} principal directions of {features} features, got {directions}")
        self.features, self.directions = features, directions
        self.state: dict[str, Tensor] = {}

    @torch.no_grad()
    def fit(self, phi: Tensor) -> None:
        """Fit the directions to feature vectors ``[n, features]``."""
        if len(phi) <= self.directions:
            raise InputError(
                f"{self.directions} directions need more than {self.directions} examples to be fitted to, got {len(phi)}"
            )
        mean = phi.double().mean(0)
        centred = phi.double() - mean
        if len(phi) < self.features:  # the smaller of the two matrices of products
            values, vectors = torch.linalg.eigh(centred @ centred.T)
            basis = centred.T @ vectors[:, -self.directions :].flip(1)
        else:
            values, vectors = torch.linalg.eigh(centred.T @ centred)
            basis = vectors[:, -self.directions :].flip(1)
        basis = torch.nn.functional.normalize(basis, dim=0)
        deviations = (values[-self.directions :].flip(0).clamp_min(0) / len(phi)).sqrt()
        deviations = deviations.clamp_min(LEAST * float(deviations[0].clamp_min(torch.finfo(torch.float32).tiny)))
        # each direction has the sign of its largest entry, whatever the routine's
        signs = basis.gather(0, basis.abs().argmax(0, keepdim=True)).sign()
        basis = basis * signs / deviations**HALF
        scale = deviations.square().div(deviations ** (2 * HALF)).mean().rsqrt()
        self.state = {"mean": mean.float(), "basis": (basis * scale).float().contiguous()}

    @torch.no_grad()
    def __call__(self, phi: Tensor) -> Tensor:
        """u(phi) ``[B, directions]``."""
        if not self.state:
            raise InputError("these directions are not fitted: call fit with the first feature vectors of the stream")
        return (phi - self.state["mean"]) @ self.state["basis"]

    def state_dict(self) -> dict[str, Tensor]:
        """The fitted tensors; empty before `fit`."""
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned; `RunError` if it does not fit."""
        shapes = {name: tuple(value.shape) for name, value in state.items()}
        if state and shapes != {"mean": (self.features,), "basis": (self.features, self.directions)}:
            raise RunError("the saved directions do not fit these: were they made with other settings?")
        self.state = {name: value.clone() for name, value in state.items()}
