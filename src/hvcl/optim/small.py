"""Adam for small plain networks, where torch's own spends more time on bookkeeping than on numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hvcl.core.errors import InputError


class SmallAdam:
    """The numbers of ``torch.optim.Adam(parameters, lr, fused=True)``, by one call a step and without hooks, groups or closures.

    Every parameter must have a gradient when `step` is called.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        self.parameters: list[Tensor] = [*parameters]
        self.lr = lr
        self._first: list[Tensor] = [torch.zeros_like(p) for p in parameters]
        self._second: list[Tensor] = [torch.zeros_like(p) for p in parameters]
        self._count = torch.zeros((), dtype=torch.float32)
        self._counts = [self._count] * len(parameters)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step of Adam."""
        self._count += 1
        torch._fused_adam_(
            self.parameters,
            [p.grad for p in self.parameters if p.grad is not None],
            self._first,
            self._second,
            [],
            self._counts,
            lr=self.lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Moments and the number of steps."""
        return {"first": self._first, "second": self._second, "count": self._count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from `state_dict`; one that does not fit raises `InputError`, and nothing has changed."""
        firsts: Any = state_dict.get("first")
        seconds: Any = state_dict.get("second")
        for moments in (firsts, seconds):
            if not isinstance(moments, list) or len(moments) != len(self.parameters):
                raise InputError("the optimiser's state does not fit: it needs a first and a second moment of every parameter")
        pairs = [
            *zip(self._first, firsts, strict=True),
            *zip(self._second, seconds, strict=True),
            (self._count, state_dict.get("count")),
        ]
        for mine, saved in pairs:
            if not isinstance(saved, Tensor) or saved.shape != mine.shape or saved.dtype != mine.dtype:
                given = f"{saved.dtype} of shape {tuple(saved.shape)}" if isinstance(saved, Tensor) else type(saved).__name__
                raise InputError(
                    f"the optimiser's state does not fit: {given}, expected {mine.dtype} of shape {tuple(mine.shape)}"
                )
        for mine, saved in pairs:
            mine.copy_(saved)
