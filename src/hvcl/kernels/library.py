"""Compiling, finding and loading the C library."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import warnings
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


_COLUMNS = 1024
"""As in the C source."""


class AdamStep(ctypes.Structure):
    """Numbers of one Adam step, as the C source has them."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("rate", "beta1", "beta2", "root", "epsilon", "kl_weight"))


def _fields(kind: type, names: str) -> list[tuple[str, type]]:
    return [(name, kind) for name in names.split()]


class Products(ctypes.Structure):
    """Gradients that are still to be multiplied out, as the C source has them."""

    _fields_ = (
        *_fields(ctypes.c_int64, "inputs outputs"),
        *_fields(ctypes.c_void_p, "starts left right noise_left noise_right shared room"),
    )


class Dense(ctypes.Structure):
    """One pass through a dense layer, as the C source has it: sizes, seeds, and the addresses of all arrays."""

    _fields_ = (
        *_fields(ctypes.c_int64, "rows inputs outputs experts moved flipout"),
        *_fields(ctypes.c_uint64, "seed seed_in seed_out"),
        *_fields(ctypes.c_void_p, "x mean bias rho gate_weight gate_bias prior_weight prior_bias"),
        *_fields(ctypes.c_void_p, "log_p ratio weights usage statistics out rows_of slot_of counts choice starts"),
        *_fields(ctypes.c_void_p, "sorted answers norm noise sigma flipped shared scaled"),
        *_fields(ctypes.c_int64, "keep_scaled"),
        *_fields(ctypes.c_void_p, "room g_out g_usage g_statistics g_answers turned g_weights"),
        *_fields(ctypes.c_void_p, "g_bias g_rho g_gate_weight g_gate_bias g_x g_sorted"),
    )


class Price(ctypes.Structure):
    """The KLs and the diversity of one layer's experts, as the C source has them."""

    _fields_ = (
        *_fields(ctypes.c_int64, "inputs outputs"),
        *_fields(ctypes.c_void_p, "mean rho raw prior_mean prior_log_sigma width usage kl laplacian g_usage g_mean g_rho g_bias"),
        *_fields(ctypes.c_void_p, "bias old_bias holds certainties"),
    )


class Network(ctypes.Structure):
    """One pass through a stack of small networks, as the C source has it."""

    _fields_ = (
        *_fields(ctypes.c_int64, "layers copies experts rows learns diverse stride"),
        *_fields(ctypes.c_uint64, "seed"),
        *_fields(ctypes.c_double, "slope jitter"),
        *_fields(ctypes.c_void_p, "calls prices given x answers terms statistics g_answers g_terms g_statistics g_x"),
    )


class Chain(ctypes.Structure):
    """One pass through a stack of small plain networks, as the C source has it."""

    _fields_ = (
        *_fields(ctypes.c_int64, "layers copies rows stride"),
        *_fields(ctypes.c_double, "slope"),
        *_fields(ctypes.c_void_p, "sizes parameters x hidden answers g_answers gradients room g_x"),
    )


class Conv(ctypes.Structure):
    """One pass through a convolutional layer, as the C source has it."""

    _fields_ = (
        *_fields(ctypes.c_int64, "rows channels height width units out_height out_width experts"),
        *_fields(ctypes.c_int64, "kernel_height kernel_width stride_height stride_width"),
        *_fields(ctypes.c_int64, "padding_height padding_width dilation_height dilation_width flipout chunk"),
        *_fields(ctypes.c_uint64, "seed seed_in seed_out"),
        *_fields(ctypes.c_void_p, "x mean bias rho weights rows_of starts out answers noise norm sigma"),
        *_fields(ctypes.c_void_p, "shared scaled signs_in signs_out images patches more room"),
        *_fields(ctypes.c_void_p, "g_out g_answers g_weights g_mean g_noise g_bias g_rho g_x"),
    )


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

        gemm = _find_gemm()
        self.has_gemm = gemm is not None
        """Whether torch's own matrix products can be called from C: without them a large product is better left to torch."""
        self._use_gemm = function("use_gemm", pointer)
        self._use_gemm(gemm)
        self._product = function("product", *[size] * 3, pointer, flag, pointer, flag, ctypes.c_float, pointer)
        self._dense_forward = function("dense_forward", pointer)
        self._dense_backward = function("dense_backward", pointer)
        # with addresses instead of tensors, for callers whose memory stays where it is
        self.network_forward, self.network_backward = function("network_forward", pointer), function("network_backward", pointer)
        self.chain_forward, self.chain_backward = function("chain_forward", pointer), function("chain_backward", pointer)
        limits = (ctypes.c_double, ctypes.c_double)
        self.squash_forward = function("squash_forward", size, size, *limits, *[pointer] * 3, size, *[pointer] * 3)
        self.squash_backward = function(
            "squash_backward", size, size, *limits, *[pointer] * 2, size, *[pointer] * 2, size, pointer, pointer
        )
        self.tree_update = function("tree_update", size, size, pointer, pointer)
        self.tree_find = function("tree_find", size, size, ctypes.c_int64, *[pointer] * 3)
        self._conv_forward = function("conv_forward", pointer)
        self._conv_backward = function("conv_backward", pointer)
        self._pair_distances = function("pair_distances", size, size, pointer, flag, ctypes.c_double, size, *[pointer] * 3)
        self._repel = function("repel", size, size, pointer, pointer, flag, size, *[pointer] * 3)
        self._variational_update = function("variational_update", size, pointer, size, pointer, flag, *[pointer] * 14)
        self._mean_update = function("mean_update", size, pointer, *[size] * 3, pointer, *[pointer] * 8)
        self._gate_forward = function("gate_forward", *[size] * 3, *[pointer] * 14)
        self._gate_backward = function("gate_backward", *[size] * 3, *[pointer] * 15)
        self._mix_forward = function("mix_forward", size, size, *[pointer] * 4)
        self._mix_backward = function("mix_backward", size, size, *[pointer] * 6)
        self._pool_forward = function("pool_forward", *[size] * 3, *[pointer] * 3)
        self._pool_backward = function("pool_backward", *[size] * 3, *[pointer] * 3)
        self._scale_noise = function("scale_noise", size, *[pointer] * 3)
        self._standard_normals = function("standard_normals", size, seed, pointer)
        self._local_noise = function("local_noise", *[size] * 3, seed, *[pointer] * 5)
        self._local_noise_backward = function("local_noise_backward", *[size] * 3, seed, *[pointer] * 7)
        self._random_flip = function("random_flip", size, seed, flag, pointer, pointer)

    def product(self, a: Tensor, b: Tensor, turn_a: bool = False, turn_b: bool = False, add_to: Tensor | None = None) -> Tensor:
        """a b, either of them transposed first if so asked; `add_to` is added to, in place."""
        rows, n = a.shape[::-1] if turn_a else a.shape
        columns = len(b) if turn_b else b.shape[1]
        out = a.new_empty(rows, columns) if add_to is None else add_to
        scale = 0.0 if add_to is None else 1.0
        self._product(rows, columns, n, a.data_ptr(), turn_a, b.data_ptr(), turn_b, scale, out.data_ptr())
        return out

    def pair_distances(self, values: Tensor, exponentials: bool, weight: float, which: Sequence[int], out: Tensor) -> None:
        """Add squared distances of the rows `which` of `values` [M, ...] (or exponentials) to all rows to `out` [M, M]."""
        experts, n = len(values), values[0].numel()
        rows = (ctypes.c_int64 * len(which))(*which)
        room = values.new_empty((len(which) + 1) * _COLUMNS)
        more = (len(which), rows, room.data_ptr(), out.data_ptr())
        self._pair_distances(experts, n, values.data_ptr(), exponentials, weight, *more)

    def repel(self, push: Tensor, values: Tensor, exponentials: bool, which: Sequence[int]) -> Tensor:
        """The rows `which` of push (values - values[0]); with exponentials of values, times their own: ``[len(which), ...]``.

        In memory that the next call of this kind overwrites.
        """
        experts, n = len(values), values[0].numel()
        rows = (ctypes.c_int64 * len(which))(*which)
        memory = scratch(len(which) * n, "repel exponentials" if exponentials else "repel")
        out = memory[: len(which) * n].view(len(which), *values.shape[1:])
        room = values.new_empty(2 * _COLUMNS)
        more = (len(which), rows, room.data_ptr(), out.data_ptr())
        self._repel(experts, n, push.data_ptr(), values.data_ptr(), exponentials, *more)
        return out

    def dense_forward(self, dense: Dense) -> None:
        """See kernels.c."""
        self._dense_forward(ctypes.byref(dense))

    def dense_backward(self, dense: Dense) -> None:
        """See kernels.c."""
        self._dense_backward(ctypes.byref(dense))

    def conv_forward(self, conv: Conv) -> None:
        """See kernels.c."""
        self._conv_forward(ctypes.byref(conv))

    def conv_backward(self, conv: Conv) -> None:
        """See kernels.c."""
        self._conv_backward(ctypes.byref(conv))

    def variational_update(
        self,
        updates: Sequence[ExpertUpdate],
        mode: int,
        stacked: Sequence[Tensor],
        shared: Sequence[Tensor | None],
        kl: Tensor,
        products: Products | None = None,
    ) -> None:
        """One Adam step of some experts' means and sigmas; their KLs after it go to `kl` [M].

        With `products`, gradients of means and noise are multiplied out here; a g_mean is added to (its memory is written to).
        """
        experts, steps = _experts(updates), _steps(updates)
        gradients = [_pointers([getattr(u, name) for u in updates]) for name in ("g_mean", "g_rho", "g_noise")]
        addresses = [t.data_ptr() for t in stacked]
        size = stacked[0][0].numel()
        more = None if products is None else ctypes.byref(products)
        self._variational_update(
            len(updates), experts, size, steps, mode, *addresses, *gradients, _pointers(shared), more, kl.data_ptr()
        )

    def mean_update(
        self,
        updates: Sequence[ExpertUpdate],
        layout: tuple[int, int, int],
        stacked: Sequence[Tensor],
        kl: Tensor,
        products: Products | None = None,
    ) -> None:
        """One Adam step of some experts' means; the means' parts of the KL after it go to `kl` [M]. `products` as above."""
        gradients = _pointers([u.g_mean for u in updates])
        addresses = [t.data_ptr() for t in stacked]
        more = None if products is None else ctypes.byref(products)
        self._mean_update(len(updates), _experts(updates), *layout, _steps(updates), *addresses, gradients, more, kl.data_ptr())

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


_scratch = threading.local()


def scratch(size: int, purpose: str = "call") -> Tensor:
    """Memory for a short time, at least `size` numbers; every thread has its own for each purpose and keeps it.

    Fresh memory of this size would come from the operating system each time, page by page.
    """
    areas: dict[str, Tensor] = _scratch.__dict__
    if purpose not in areas or len(areas[purpose]) < size:
        areas[purpose] = torch.empty(size, dtype=torch.float32, device="cpu")
    return areas[purpose]


def load_kernels(tensor: Tensor) -> Kernels | None:
    """The compiled functions if they can work on tensors like this one, else None."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        return None
    return _load()


def _find_gemm() -> int | None:
    """Address of the matrix product (single precision, Fortran interface) that torch itself uses, if it is to be found."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        if sys.byteorder == "little" and (folder / name).exists():
            try:
                return ctypes.cast(ctypes.CDLL(str(folder / name)).sgemm_, ctypes.c_void_p).value
            except (OSError, AttributeError):
                return None
    return None


@lru_cache(maxsize=1)
def _load() -> Kernels | None:
    library = load_library(_SOURCE)
    return None if library is None else Kernels(library)


@lru_cache(maxsize=8)
def load_library(source: Path) -> ctypes.CDLL | None:
    """A C file's functions, compiled if need be; None without a compiler, or if HVCL_NO_KERNELS is set in the environment."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None or os.environ.get("HVCL_NO_KERNELS"):
        return None
    try:
        return ctypes.CDLL(str(_library(compiler, source)))
    except (OSError, subprocess.SubprocessError):
        return None


def _library(compiler: str, source: Path) -> Path:
    """The compiled library in the cache folder; compiled now if it is not there."""
    key = hashlib.sha256("\0".join([source.read_text(), *_COMPILE, compiler, _processor()]).encode()).hexdigest()[:16]
    path = _private_folder() / f"{source.stem}-{key}.so"
    if _intact(path):
        return path
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled, library = Path(folder) / "kernels.o", Path(folder) / "kernels.so"
        _call(compiler, *_COMPILE, str(source), "-o", str(compiled))
        for link in _LINKS:
            try:
                _call(compiler, str(compiled), *link, "-o", str(library))
                ctypes.CDLL(str(library))  # a library without its vector functions links but does not load
                break
            except (OSError, subprocess.SubprocessError):
                if link is _LINKS[-1]:
                    raise
        digest = Path(folder) / "digest"
        digest.write_text(hashlib.sha256(library.read_bytes()).hexdigest())
        library.chmod(0o700)
        os.replace(digest, path.with_suffix(".sha256"))
        os.replace(library, path)
    return path


def _private_folder() -> Path:
    """The cache folder for libraries, if nobody else can write there; else one of this process alone.

    A library is code: one that another user put there must not be run.
    """
    folder = Path(pooch.os_cache("hvcl")) / "kernels"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    reason = _open_to_others(folder)
    if reason is None:
        return folder
    warnings.warn(
        f"hvcl: compiled code in {folder} is not used, {reason}: it is compiled anew for this process. "
        "Make the folder yours (chmod go-w), or point XDG_CACHE_HOME elsewhere",
        stacklevel=2,
    )
    own = tempfile.mkdtemp(prefix="hvcl-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)


def _open_to_others(path: Path) -> str | None:
    """Why others could have put something there, or None if they could not."""
    if not hasattr(os, "getuid"):
        return None
    status = path.stat()
    if status.st_uid not in (os.getuid(), 0):
        return f"it belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "other users may write to it"
    return None


def _intact(path: Path) -> bool:
    """Whether a library is there as it was compiled, and by nobody else."""
    try:
        digest = path.with_suffix(".sha256").read_text()
        return _open_to_others(path) is None and hashlib.sha256(path.read_bytes()).hexdigest() == digest
    except (OSError, UnicodeDecodeError):
        return False


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
