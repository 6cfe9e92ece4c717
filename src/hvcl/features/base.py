"""The interface of feature maps: inputs become feature vectors by a function that is fixed once it is fitted."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from hvcl.core.errors import InputError, RunError
from hvcl.features.cache import active_cache


class FeatureMap(ABC):
    r"""A map phi from inputs ``[B, *input_shape]`` to features ``[B, features]`` that is fixed once it is fitted.

    Exact recursions need a phi that never changes. A map may use the first examples of a stream (`fit`): to take patches
    from them, and to bring its features to mean zero and variance one *on these examples*, which is an affine change of
    coordinates that makes sums over the stream well conditioned in float32. From then on it is frozen.

    All that it has fitted are the tensors of `state`, so that a map can be saved and rebuilt bit-identically.
    """

    keeps_pieces: ClassVar[bool] = False
    """Whether `state` holds pieces of the examples that the map was fitted to (patches, mixtures), not only means."""

    def __init__(self, input_shape: tuple[int, ...], features: int) -> None:
        if features < 1:
            raise InputError(f"a feature map needs at least 1 feature, got {features}")
        self.input_shape = tuple(input_shape)
        self.features = features
        self.state: dict[str, Tensor] = {}

    @property
    def fitted(self) -> bool:
        """Whether the map can be used."""
        return "shift" in self.state

    @torch.no_grad()
    def fit(self, x: Tensor) -> None:
        """Fit the map to the first examples of a stream ``[n, *input_shape]``; a second call raises `InputError`."""
        if self.fitted:
            raise InputError("this feature map is fitted already, and must not change any more: build a new one")
        self._check(x)
        self._prepare(x)
        phi = self._finite(self._compute(x))
        mean = phi.mean(0)
        deviation = (phi - mean).square_().mean(0).sqrt_()
        # a feature that hardly varies on the first examples may vary later: do not blow it up
        floor = 0.1 * deviation.mean().clamp_min(1e-6)
        self.state["shift"], self.state["scale"] = mean, 1 / deviation.clamp_min(floor)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """phi(x), float32."""
        if not self.fitted:
            raise InputError("this feature map is not fitted: call fit with the first examples of the stream")
        self._check(x)
        cache = active_cache()
        if cache is not None and self.is_rowwise(x):
            return cache.features(self.state["shift"], x, self._standardised)
        return self._standardised(x)

    def _standardised(self, x: Tensor) -> Tensor:
        return self._finite(self._compute(x).sub_(self.state["shift"]).mul_(self.state["scale"]))

    def is_rowwise(self, x: Tensor) -> bool:
        """Whether the features of an example like these are the same, number by number, whatever the batch that it is in.

        Only then a `FeatureCache` is asked. A product of matrices rounds differently with the size of the batch: no, unless a
        map knows better.
        """
        return False

    def require_inputs(self, input_shape: tuple[int, ...]) -> None:
        """Raise `InputError` unless the map takes inputs of this shape."""
        if self.input_shape != tuple(input_shape):
            raise InputError(f"the feature map takes {self.input_shape}, the problem's inputs are {tuple(input_shape)}")

    def _prepare(self, x: Tensor) -> None:
        """Fit what `_compute` needs, and put it into `state`."""

    @abstractmethod
    def _compute(self, x: Tensor) -> Tensor:
        """Features before they are standardised, a new tensor ``[B, features]``."""

    def _check(self, x: Tensor) -> None:
        if tuple(x.shape[1:]) != self.input_shape or x.dim() < 2:
            expected = ", ".join(map(str, self.input_shape))
            raise InputError(f"this feature map takes inputs of shape (batch, {expected}), got {tuple(x.shape)}")
        if len(x) == 0:
            raise InputError("the batch is empty: give at least one example")
        if not bool(torch.isfinite(x.sum())) and not bool(x.isfinite().all()):
            raise InputError("the inputs hold NaN or infinite values: clean the data before learning")

    def _finite(self, phi: Tensor) -> Tensor:
        if not bool(torch.isfinite(phi.sum())):
            raise InputError("the features of these inputs are not finite: the inputs are far too large, or the module is broken")
        return phi

    def state_dict(self) -> dict[str, Tensor]:
        """All fitted tensors; empty before `fit`."""
        return dict(self.state)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned; `RunError` if it does not fit this map, or the map is fitted to something else."""
        shift = state.get("shift")
        if state and (shift is None or shift.shape != (self.features,)):
            raise RunError("the saved feature map does not fit this one: was it made with other settings?")
        if self.fitted and not _equal(state, self.state):
            raise RunError(
                "the saved feature map does not fit this one, which is fitted already: others may use it, build a new one"
            )
        before, self.state = self.state, {name: value.clone() for name, value in state.items()}
        if state:
            try:
                self(torch.zeros(1, *self.input_shape))
                fits = state["shift"].dtype == state["scale"].dtype == torch.float32
            except (KeyError, RuntimeError, TypeError, ValueError):
                fits = False
            if not fits:
                self.state = before
                raise RunError("the saved feature map does not fit this one: was it made with other settings?")

    def rebuilds(self, other: FeatureMap) -> bool:
        """Whether this map, which is not fitted, becomes `other` by loading its state."""
        made = copy.copy(self)
        try:
            made.load_state_dict(other.state_dict())
        except RunError:
            return False
        return other.fitted and made.same_as(other)

    def same_as(self, other: FeatureMap) -> bool:
        """Whether the two maps give the same features, number by number."""
        return type(self) is type(other) and self.input_shape == other.input_shape and _equal(self.state, other.state)


def _equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())
