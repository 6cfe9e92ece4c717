"""Whitened random patches with two-sided thresholding and pooling."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.features.base import FeatureMap
from hvcl.ops import Library, usable
from hvcl.ops.patches import check_cells, patches_of, threshold_and_pool

BLOCK = 384
"""Filters that are applied at once: their responses to one image should stay in the processor's cache."""

SAMPLE = 100_000
"""Patches of the first examples that whitening is estimated from."""


class PatchFeatures(FeatureMap):
    r"""Responses of filters that are patches of the first images, pooled over the cells of a grid.

    A patch p is normalised, :math:`\hat p = (p - \bar p) / \sqrt{var(p) + c}`, with :math:`\sqrt c` three tenths of the typical
    patch deviation, and whitened, :math:`z(p) = (C + \epsilon\, tr(C)/d\, I)^{-1/2} (\hat p - \mu)`. Filter k is a random patch's
    :math:`z_k / |z_k|`. With :math:`v_k(p) = z(p) \cdot z_k / |z_k|` the features of a cell are, for every filter,

    .. math:: \sqrt{mean_{p \in cell} \max(v_k(p) - t, 0)} \quad and \quad \sqrt{mean_{p \in cell} \max(-v_k(p) - t, 0)} .

    With `mirror`, means run over the image and its mirror image, so that features do not change when the image is mirrored. This
    is what learning from mirrored copies as well would come to in a linear readout, at no growth of the statistics: for data
    that hold both, the best readout lies in the mirror-symmetric features.

    Everything linear (normalisation but for the patch's deviation, whitening, filter) is one matrix, applied to one image's
    patches at a time: the responses never leave the cache before they are pooled.

    Args:
        input_shape: (channels, height, width).
        filters: number of filters; there are ``2 * grid ** 2 * filters`` features.
        sizes: sizes of the patches; the filters are dealt out equally.
        grid: cells across and down.
        stride: step from one patch to the next; with 2 a picture has a quarter of the patches and takes a quarter of the time,
            for which four times the filters can be had. (With `mirror` features are then the same for a mirrored picture only if
            the step divides the way that patches have.)
        threshold: t.
        whitening: epsilon, relative to the mean variance of a normalised patch's number.
        mirror: pool over the image and its mirror image.
        root: take the square root after pooling.
        seed: of the choice of patches.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        filters: int = 400,
        *,
        sizes: tuple[int, ...] = (5, 8),
        grid: int = 2,
        stride: int = 1,
        threshold: float = 0.25,
        whitening: float = 0.1,
        mirror: bool = True,
        root: bool = True,
        seed: int = 0,
    ) -> None:
        if len(input_shape) != 3:
            raise InputError(f"patches need inputs of shape (channels, height, width), got {tuple(input_shape)}")
        if isinstance(stride, bool) or not isinstance(stride, int) or stride < 1:
            raise InputError(f"stride must be a whole number, at least 1, got {stride}")
        if not sizes or min(sizes) < 2 or max(sizes) + (grid - 1) * stride > min(input_shape[1:]):
            raise InputError(f"patches of sizes {sizes} on a grid of {grid} x {grid} do not fit images of {input_shape[1:]}")
        if len(set(sizes)) != len(sizes):
            raise InputError(f"the sizes of patches must differ, got {sizes}")
        if filters < len(sizes) or grid < 1 or threshold < 0 or whitening <= 0:
            raise InputError("filters must be at least one a size, grid at least 1, threshold at least 0, whitening positive")
        super().__init__(input_shape, 2 * grid**2 * filters)
        self.filters, self.sizes, self.grid, self.stride = filters, tuple(sizes), grid, stride
        self.threshold, self.whitening, self.mirror, self.root, self.seed = threshold, whitening, mirror, root, seed

    def _banks(self) -> list[tuple[int, int, int]]:
        """(size, first filter, number of filters) of every patch size."""
        bounds = [self.filters * i // len(self.sizes) for i in range(len(self.sizes) + 1)]
        return [(size, first, end - first) for size, first, end in zip(self.sizes, bounds, bounds[1:], strict=False)]

    def _prepare(self, x: Tensor) -> None:
        random = torch.Generator().manual_seed(self.seed)
        for size, _, count in self._banks():
            patches = _sample(x.float(), size, random)
            variance = patches.var(1, correction=0)
            constant = 0.09 * variance.mean().clamp_min(1e-12)
            patches = (patches - patches.mean(1, keepdim=True)) / (variance + constant).sqrt().unsqueeze(1)
            mean = patches.mean(0)
            # with more filters than patches, patches come twice
            pick = torch.randperm(len(patches), generator=random).repeat(-(-count // len(patches)))[:count]
            covariance = torch.cov(patches.double().T, correction=0)
            values, vectors = torch.linalg.eigh(covariance)
            spread = (values.clamp_min(0) + self.whitening * values.mean().clamp_min(1e-12)).rsqrt()
            whiten = (vectors * spread) @ vectors.T
            directions = F.normalize((patches[pick] - mean).double() @ whiten, dim=1)
            weights = whiten @ directions.T
            offset = -(mean.double() @ weights)
            # normalising subtracts the patch's mean: the same as filters that sum to zero
            weights = weights - weights.mean(0)
            self.state[f"weights{size}"] = weights.float().contiguous()
            self.state[f"offset{size}"] = offset.float()
            self.state[f"constant{size}"] = constant

    def _compute(self, x: Tensor) -> Tensor:
        x = x.float().contiguous()
        pooled = x.new_zeros(len(x), 2, self.grid**2, self.filters)
        library = usable(x)
        for size, first, count in self._banks():
            cells = self._cells(size)
            share = 1 / torch.bincount(cells.long(), minlength=self.grid**2)
            part = pooled[..., first : first + count]
            if library is None:
                self._pool_plain(x, size, cells, part)
            else:
                self._pool_compiled(library, x, size, cells, part)
            part *= (share / 2 if self.mirror else share).unsqueeze(1)
        if self.root:
            pooled.sqrt_()
        return pooled.flatten(1)

    def _places(self, size: int) -> tuple[int, int]:
        """Patches down and across."""
        down, across = ((length - size) // self.stride + 1 for length in self.input_shape[1:])
        return down, across

    def _cells(self, size: int) -> Tensor:
        """The cell that every patch belongs to, int32 ``[places]``."""
        down, across = self._places(size)
        rows, columns = torch.arange(down) * self.grid // down, torch.arange(across) * self.grid // across
        return (rows.unsqueeze(1) * self.grid + columns).flatten().int()

    def _mirrored(self, size: int, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Filters that see a patch as the filters themselves see its mirror image, and the cells it has in the mirror image."""
        channels = self.input_shape[0]
        weights = self.state[f"weights{size}"]
        weights = weights.view(channels, size, size, -1).flip(2).reshape(weights.shape)
        return weights, cells.view(self._places(size)).flip(1).reshape(-1)

    def _pool_compiled(self, library: Library, x: Tensor, size: int, cells: Tensor, pooled: Tensor) -> None:
        weights, offset = self.state[f"weights{size}"], self.state[f"offset{size}"]
        sides = [(weights, cells)] + ([self._mirrored(size, cells)] if self.mirror else [])
        blocks = [
            (side[:, k : k + BLOCK].contiguous(), offset[k : k + BLOCK].contiguous(), places, k)
            for side, places in sides
            for k in range(0, len(offset), BLOCK)
        ]
        constant = float(self.state[f"constant{size}"])
        rows, scale = x.new_empty(len(cells), len(weights)), x.new_empty(len(cells))
        responses = {width: x.new_empty(len(cells), width) for width in {len(part) for _, part, _, _ in blocks}}
        for _, _, places, _ in blocks:
            check_cells(places, self.grid**2)
        for image, sums in zip(x, pooled, strict=True):
            patches_of(library, image, size, self.stride, constant, rows, scale)
            up, down = sums
            for side, part, places, k in blocks:
                out = responses[len(part)]
                torch.mm(rows, side, out=out)
                columns = slice(k, k + len(part))
                threshold_and_pool(library, out, scale, part, places, self.threshold, up[:, columns], down[:, columns])

    def _pool_plain(self, x: Tensor, size: int, cells: Tensor, pooled: Tensor) -> None:
        weights, offset = self.state[f"weights{size}"], self.state[f"offset{size}"]
        sides = [(weights, cells)] + ([self._mirrored(size, cells)] if self.mirror else [])
        for image, sums in zip(x.split(8), pooled.split(8), strict=True):
            rows = F.unfold(image, size, stride=self.stride).transpose(1, 2)
            scale = (rows.var(2, correction=0, keepdim=True) + self.state[f"constant{size}"]).rsqrt()
            for side, places in sides:
                v = (rows @ side) * scale + offset
                sums[:, 0].index_add_(1, places.to(x.device), (v - self.threshold).clamp_min_(0))
                sums[:, 1].index_add_(1, places.to(x.device), (-v - self.threshold).clamp_min_(0))


def _sample(x: Tensor, size: int, random: torch.Generator) -> Tensor:
    """Random patches of the images, as rows."""
    down, across = (length - size + 1 for length in x.shape[2:])
    count = min(SAMPLE, len(x) * down * across)
    which = torch.randint(len(x), (count,), generator=random)
    top, left = (torch.randint(n, (count,), generator=random) for n in (down, across))
    step = torch.arange(size)
    patches = x[
        which.view(-1, 1, 1, 1),
        torch.arange(x.shape[1]).view(1, -1, 1, 1),
        (top.unsqueeze(1) + step).view(count, 1, size, 1),
        (left.unsqueeze(1) + step).view(count, 1, 1, size),
    ]
    return patches.flatten(1)
