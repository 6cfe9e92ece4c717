"""A dense MoVE layer's `weight`, for code that passes the weight of a linear map on instead of calling the layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hvcl.core.errors import InputError

if TYPE_CHECKING:
    from hvcl.layers.linear import MoVELinear

_OUT_WEIGHT, _OUT_BIAS = 11, 12
"""Places of the output projection among the arguments of F.multi_head_attention_forward, which it passes on in this order."""

_METADATA: frozenset[Any] = frozenset(
    getattr(Tensor, name).__get__
    for name in (
        *("shape", "ndim", "dtype", "device", "layout", "requires_grad", "is_leaf", "grad", "grad_fn"),
        *("is_cpu", "is_cuda", "is_meta", "is_mkldnn", "is_mps", "is_nested", "is_quantized", "is_sparse", "is_xpu"),
    )
) | {Tensor.size, Tensor.dim, Tensor.numel, Tensor.is_floating_point, Tensor.is_complex, Tensor.element_size, Tensor.__len__}


class ExpertWeights(Tensor):
    """Stands for the weights of all experts of a `MoVELinear` where others expect one matrix ``[out, in]``.

    `F.linear(x, layer.weight, layer.bias)` is ``layer(x)``, and `F.multi_head_attention_forward` takes it (with ``layer.bias``)
    for its output projection: so `nn.MultiheadAttention`, `nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer` work with
    MoVE layers in place of ``out_proj``, ``linear1`` and ``linear2``. (Their ``in_proj_weight`` is a packed parameter of their
    own and no layer: it stays what it is.) Their fused inference paths step aside for it, as for every tensor subclass.

    It has shape, type, device and `requires_grad` of such a matrix. Everything else raises `InputError`: which matrix acts
    depends on the input, so there are no numbers that it could give, and none to be changed. The posteriors' means are
    ``layer.posterior.mean``, ``[experts, in, out]``.
    """

    _layer: MoVELinear

    @staticmethod
    def of(layer: MoVELinear) -> ExpertWeights:
        """The handle of a layer."""
        mean = layer.posterior.mean
        shape = (layer.out_features, layer.in_features)
        handle: ExpertWeights = Tensor._make_wrapper_subclass(
            ExpertWeights, shape, dtype=mean.dtype, device=mean.device, requires_grad=mean.requires_grad
        )
        handle._layer = layer
        return handle

    def __repr__(self) -> str:  # type: ignore[override]
        return f"<the weights of {self._layer.experts} experts, {self._layer.out_features} x {self._layer.in_features}>"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See the class."""
        kwargs = kwargs or {}
        if func is F.linear:
            return _linear(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return _attention(args, kwargs)
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        raise _refusal(getattr(func, "__name__", str(func)))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """What gets past `__torch_function__`: nothing can."""
        raise _refusal(str(func))


def _refusal(name: str) -> InputError:
    return InputError(
        f"a MoVE layer's weight is not one matrix, so {name} cannot use it: call the layer itself, or take the means of its "
        "experts, layer.posterior.mean"
    )


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if not isinstance(weight, ExpertWeights) or isinstance(x, ExpertWeights):
        raise _refusal("linear")
    answer: Tensor = _layer_of(weight, bias)(x)
    return answer


def _layer_of(weight: ExpertWeights, bias: Tensor | None) -> MoVELinear:
    """The layer, if the bias that came with its weight is its own."""
    if bias is not weight._layer.bias:
        raise InputError("a MoVE layer's weight goes with its own bias: pass layer.bias together with layer.weight")
    return weight._layer


def _attention(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Attention without its output projection, and then the layer."""
    before, (weight, bias), after = args[:_OUT_WEIGHT], args[_OUT_WEIGHT : _OUT_BIAS + 1], args[_OUT_BIAS + 1 :]
    if not isinstance(weight, ExpertWeights) or any(isinstance(value, ExpertWeights) for value in (*before, *kwargs.values())):
        raise _refusal("multi_head_attention_forward")
    layer = _layer_of(weight, bias)
    nothing = torch.eye(layer.in_features, dtype=weight.dtype, device=weight.device)
    attend: Any = F.multi_head_attention_forward
    mixed, attention = attend(*before, nothing, None, *after, **kwargs)
    return layer(mixed), attention
