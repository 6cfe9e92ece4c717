"""A user's own network as a feature map."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError, RunError
from hvcl.features.base import FeatureMap


class FrozenModule(FeatureMap):
    """The outputs of any torch module, e.g. a pretrained backbone, flattened. It is put into evaluation mode and never trained.

    The module's own weights are not part of `state`: whoever loads a state brings the same module. Its fingerprint is, so that
    another one is refused.

    Args:
        module: takes ``[B, *input_shape]``, gives ``[B, ...]``.
        input_shape: shape of one example.
        batch: examples that are put through at once.
    """

    def __init__(self, module: nn.Module, input_shape: tuple[int, ...], *, batch: int = 256) -> None:
        if batch < 1:
            raise InputError(f"batch must be at least 1, got {batch}")
        self.module, self.batch = module.eval().requires_grad_(False), batch
        with torch.no_grad():
            out = module(torch.zeros(1, *input_shape))
        if not isinstance(out, Tensor) or out.dim() == 0 or len(out) != 1:
            raise InputError("the module must give one tensor with one row an example")
        super().__init__(input_shape, out[0].numel())

    def _prepare(self, x: Tensor) -> None:
        self.state["fingerprint"] = self._fingerprint()

    def _fingerprint(self) -> Tensor:
        """SHA-256 of all weights and buffers with their names, uint8 ``[32]``."""
        digest = hashlib.sha256()
        for name, value in sorted(self.module.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.detach().cpu().flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
        return torch.tensor(list(digest.digest()), dtype=torch.uint8)

    def _compute(self, x: Tensor) -> Tensor:
        return torch.cat([self.module(part).reshape(len(part), -1).float() for part in x.split(self.batch)])

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on with what was fitted elsewhere, by a map of the same module."""
        if state and ("fingerprint" not in state or not torch.equal(self._fingerprint(), state["fingerprint"])):
            raise RunError("the saved state does not fit this module: bring the one that it was made with")
        super().load_state_dict(state)
