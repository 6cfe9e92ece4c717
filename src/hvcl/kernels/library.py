"""Compiling, finding and loading the C library."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import pooch  # type: ignore[import-untyped]
import torch
from torch import Tensor

_SOURCE = Path(__file__).with_name("kernels.c")
_COMPILE = ("-O3", "-march=native", "-ffast-math", "-fPIC", "-c")
# linked without -ffast-math: with it, loading the library would switch the whole process to flush-to-zero
_LINKS = (("-shared", "-lmvec", "-lm"), ("-shared", "-lm"))


class AdamStep(ctypes.Structure):
    """Numbers of one Adam step, as the C source has them."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("rate", "beta1", "beta2", "root", "epsilon", "kl_weight"))


class ExpertUpdate(NamedTuple):
    """One expert's Adam step and gradients (None where there is none)."""

    expert: int
    step: AdamStep
    g_mean: Tensor | None = None
    g_rho: Tensor | None = None
    g_noise: Tensor | None = None


class Kernels:
    """The compiled functions, on float32 CPU tensors that are contiguous; arguments as in kernels.c."""

    def __init__(self, library: ctypes.CDLL) -> None:
        size, pointer, seed, flag = ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int

        def function(name: str, *arguments: Any) -> Callable[..., None]:
            found = getattr(library, name)
            found.argtypes, found.restype = arguments, None
            return cast(Callable[..., None], found)

        self._variational_update = function("variational_update", size, pointer, size, pointer, flag, *[pointer] * 13)
        self._mean_update = function("mean_update", size, pointer, *[size] * 3, pointer, *[pointer] * 7)
        self._gate_forward = function("gate_forward", *[size] * 3, *[pointer] * 14)
        self._gate_backward = function("gate_backward", *[size] * 3, *[pointer] * 14)
        self._mix_forward = function("mix_forward", size, size, *[pointer] * 4)
        self._mix_backward = function("mix_backward", size, size, *[pointer] * 6)
        self._pool_forward = function("pool_forward", *[size] * 3, *[pointer] * 3)
        self._pool_backward = function("pool_backward", *[size] * 3, *[pointer] * 3)
        self._scale_noise = function("scale_noise", size, *[pointer] * 3)
        self._standard_normals = function("standard_normals", size, seed, pointer)
        self._local_noise = function("local_noise", *[size] * 3, seed, *[pointer] * 5)
        self._local_noise_backward = function("local_noise_backward", *[size] * 3, seed, *[pointer] * 7)
        self._random_flip = function("random_flip", size, seed, flag, pointer, pointer)

    def variational_update(
        self, updates: Sequence[ExpertUpdate], mode: int, stacked: Sequence[Tensor], shared: Sequence[Tensor | None], kl: Tensor
    ) -> None:
        """One Adam step of some experts' means and sigmas; their KLs after it go to `kl` [M]."""
        experts, steps = _experts(updates), _steps(updates)
        gradients = [_pointers([getattr(u, name) for u in updates]) for name in ("g_mean", "g_rho", "g_noise")]
        addresses = [t.data_ptr() for t in stacked]
        size = stacked[0][0].numel()
        self._variational_update(
            len(updates), experts, size, steps, mode, *addresses, *gradients, _pointers(shared), kl.data_ptr()
        )

    def mean_update(
        self, updates: Sequence[ExpertUpdate], layout: tuple[int, int, int], stacked: Sequence[Tensor], kl: Tensor
    ) -> None:
        """One Adam step of some experts' means; the means' parts of the KL after it go to `kl` [M]."""
        gradients = _pointers([u.g_mean for u in updates])
        addresses = [t.data_ptr() for t in stacked]
        self._mean_update(len(updates), _experts(updates), *layout, _steps(updates), *addresses, gradients, kl.data_ptr())

    def gate_forward(self, x: Tensor, weight: Tensor, *arrays: Tensor) -> None:
        """See kernels.c."""
        self._gate_forward(*x.shape, len(weight), x.data_ptr(), weight.data_ptr(), *[t.data_ptr() for t in arrays])

    def gate_backward(self, x: Tensor, weight: Tensor, *arrays: Tensor | None) -> None:
        """See kernels.c."""
        self._gate_backward(*x.shape, len(weight), x.data_ptr(), weight.data_ptr(), *map(_address, arrays))

    def mix_forward(self, y: Tensor, weights: Tensor, slots: Tensor | None) -> Tensor:
        """Every row's answer, weighted, back in its place."""
        rows = len(y) if slots is None else len(slots)
        out = y.new_empty(rows, *y.shape[1:])
        self._mix_forward(rows, y[0].numel(), y.data_ptr(), weights.data_ptr(), _address(slots), out.data_ptr())
        return out

    def mix_backward(self, grad: Tensor, y: Tensor, weights: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gradients of the answers and the weights, in slot order."""
        g_y, g_w = torch.empty_like(y), torch.empty_like(weights)
        arrays = (grad.data_ptr(), y.data_ptr(), weights.data_ptr(), _address(rows), g_y.data_ptr(), g_w.data_ptr())
        self._mix_backward(len(y), y[0].numel(), *arrays)
        return g_y, g_w

    def pool_forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and maximum of every channel's places ``[B, 2 C]``, and where the maximum is."""
        out, where = x.new_empty(len(x), 2 * x.shape[1]), torch.empty(x.shape[:2], dtype=torch.int64)
        self._pool_forward(*x.shape[:2], x[:1, :1].numel(), x.data_ptr(), out.data_ptr(), where.data_ptr())
        return out, where

    def pool_backward(self, grad: Tensor, where: Tensor, shape: torch.Size) -> Tensor:
        """Gradient of what was pooled."""
        g_x = grad.new_empty(shape)
        places = g_x[:1, :1].numel()
        self._pool_backward(shape[0], shape[1], places, grad.data_ptr(), where.data_ptr(), g_x.data_ptr())
        return g_x

    def scale_noise(self, rho: Tensor, shared: Tensor) -> Tensor:
        """exp(rho) * shared."""
        noise = torch.empty_like(shared)
        self._scale_noise(shared.numel(), rho.data_ptr(), shared.data_ptr(), noise.data_ptr())
        return noise

    def standard_normals(self, seed: int, out: Tensor) -> Tensor:
        """Fill `out` with standard normals."""
        self._standard_normals(out.numel(), seed, out.data_ptr())
        return out

    def random_flip(self, seed: int, x: Tensor) -> Tensor:
        """`x` with the fair random signs of `seed`."""
        out = torch.empty_like(x)
        self._random_flip(x.numel(), seed, 0, x.data_ptr(), out.data_ptr())
        return out

    def add_random_flip(self, seed: int, x: Tensor, out: Tensor) -> None:
        """Add `x` with the fair random signs of `seed` to `out`."""
        self._random_flip(x.numel(), seed, 1, x.data_ptr(), out.data_ptr())

    def local_noise(self, seed: int, experts: Tensor, norm: Tensor, sigma: Tensor, y: Tensor) -> None:
        """Add local reparameterisation noise with a sigma per channel to `y`, in place."""
        arrays = (experts, norm, sigma, _room(y), y)
        self._local_noise(*y.shape[:2], norm[0].numel(), seed, *map(_address, arrays))

    def local_noise_backward(
        self, seed: int, experts: Tensor, norm: Tensor, sigma: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of norm and sigma, with the noise that `seed` gave."""
        g_norm, g_sigma = torch.empty_like(norm), torch.zeros_like(sigma)
        arrays = (experts, norm, sigma, _room(grad), grad, g_norm, g_sigma)
        self._local_noise_backward(*grad.shape[:2], norm[0].numel(), seed, *map(_address, arrays))
        return g_norm, g_sigma


def load_kernels(tensor: Tensor) -> Kernels | None:
    """The compiled functions if they can work on tensors like this one, else None."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    return _load()


@lru_cache(maxsize=1)
def _load() -> Kernels | None:
    """The library; None without a compiler, or if HVCL_NO_KERNELS is set in the environment."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None or os.environ.get("HVCL_NO_KERNELS"):
        return None
    try:
        return Kernels(ctypes.CDLL(str(_library(compiler))))
    except (OSError, subprocess.SubprocessError):
        return None


def _library(compiler: str) -> Path:
    """The compiled library in the cache folder; compiled now if it is not there."""
    key = hashlib.sha256("\0".join([_SOURCE.read_text(), *_COMPILE, compiler, _processor()]).encode()).hexdigest()[:16]
    path = Path(pooch.os_cache("hvcl")) / "kernels" / f"kernels-{key}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled, library = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        _call(compiler, *_COMPILE, str(_SOURCE), "-o", str(compiled))
        for link in _LINKS:
            try:
                _call(compiler, str(compiled), *link, "-o", str(library))
                ctypes.CDLL(str(library))  # a library without its vector functions links but does not load
                break
            except (OSError, subprocess.SubprocessError):
                if link is _LINKS[-1]:
                    raise
        os.replace(library, path)
    return path


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def _processor() -> str:
    """What -march=native depends on: a cache folder may be shared between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return next((line for line in lines if line.startswith("flags")), platform.machine())


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _room(y: Tensor) -> Tensor:
    """For one example's noise, rounded up to whole lanes."""
    return y.new_empty(y[0].numel() + 64)


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*map(_address, tensors))


def _experts(updates: Sequence[ExpertUpdate]) -> Any:
    return (ctypes.c_int64 * len(updates))(*[u.expert for u in updates])


def _steps(updates: Sequence[ExpertUpdate]) -> Any:
    return (AdamStep * len(updates))(*[u.step for u in updates])
