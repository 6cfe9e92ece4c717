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
    that hold both, the best readout lies in the mirror-symmetric features. Whitening is then that of patches and their mirror
    images, whose principal directions are even or odd: a filter's response to a mirrored patch is its even part minus its odd
    part, and costs no product of its own.

    Everything linear (normalisation but for the patch's deviation, whitening, filter) is two matrices: patches in principal
    directions, as many as have a share `kept` of the variance of z; and filters. They are applied to one image's patches at a
    time: the responses never leave the cache before they are pooled.

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
        kept: share of the variance of whitened patches whose principal directions are kept.
        mirror: pool over the image and its mirror image.
        root: take the square root after pooling.
        seed: of the choice of patches.
    """

    keeps_pieces = True

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
        kept: float = 0.98,
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
        if not 0 < kept <= 1:
            raise InputError(f"the share of variance that is kept must be positive and at most 1, got {kept}")
        super().__init__(input_shape, 2 * grid**2 * filters)
        self.filters, self.sizes, self.grid, self.stride = filters, tuple(sizes), grid, stride
        self.threshold, self.whitening, self.kept = threshold, whitening, kept
        self.mirror, self.root, self.seed = mirror, root, seed

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
            # with more filters than patches, patches come twice
            pick = torch.randperm(len(patches), generator=random).repeat(-(-count // len(patches)))[:count]
            mean = patches.mean(0).double()
            covariance = torch.cov(patches.double().T, correction=0)
            basis, spread, even = self._principal(covariance, size)
            # the mean of patches and their mirror images has no odd part
            centre = mean @ basis
            centre[even:] = 0 if self.mirror else centre[even:]
            directions = F.normalize((patches[pick].double() @ basis - centre) * spread, dim=1)
            weights = (directions * spread).T
            # normalising subtracts the patch's mean: the same as directions that sum to zero
            self.state[f"basis{size}"] = (basis - basis.mean(0)).float().contiguous()
            self.state[f"even{size}"] = torch.tensor(even)
            self.state[f"weights{size}"] = weights.float().contiguous()
            self.state[f"offset{size}"] = -(centre @ weights).float()
            self.state[f"constant{size}"] = constant

    def _principal(self, covariance: Tensor, size: int) -> tuple[Tensor, Tensor, int]:
        """Principal directions of patches that are kept ``[numbers, r]``, what whitening multiplies them with ``[r]``, and how
        many of them, the first, are even; without `mirror`, all count as even."""
        eye = torch.eye(len(covariance), dtype=torch.float64)
        parts = [eye]
        if self.mirror:
            flipped = eye.view(*self.input_shape[:1], size, size, -1).flip(2).view_as(eye)
            parts = [_span(eye + flipped), _span(eye - flipped)]
        values, vectors = [], []
        for part in parts:
            variance, direction = torch.linalg.eigh(part.T @ covariance @ part)
            values.append(variance.clamp_min(0))
            vectors.append(part @ direction)
        every = torch.cat(values)
        regular = every + self.whitening * every.mean().clamp_min(1e-12)
        whitened = every / regular
        order = whitened.argsort(descending=True, stable=True)
        # sums in float64 end within rounding of the whole
        number = int((whitened[order].cumsum(0) < self.kept * whitened.sum() * (1 - 1e-12)).sum()) + 1
        chosen = order[:number].sort().values
        even = int((chosen < len(values[0])).sum())
        return torch.cat(vectors, 1)[:, chosen], regular.rsqrt()[chosen], even

    def filters_of(self, size: int) -> Tensor:
        """The filters of a size as they are applied to patches, ``[numbers, filters]``."""
        return self.state[f"basis{size}"] @ self.state[f"weights{size}"]

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

    def is_rowwise(self, x: Tensor) -> bool:
        """The compiled code takes one image after another."""
        return usable(x) is not None

    def _places(self, size: int) -> tuple[int, int]:
        """Patches down and across."""
        down, across = ((length - size) // self.stride + 1 for length in self.input_shape[1:])
        return down, across

    def _cells(self, size: int) -> Tensor:
        """The cell that every patch belongs to, int32 ``[places]``."""
        down, across = self._places(size)
        rows, columns = torch.arange(down) * self.grid // down, torch.arange(across) * self.grid // across
        return (rows.unsqueeze(1) * self.grid + columns).flatten().int()

    def _mirrored(self, size: int, cells: Tensor) -> Tensor | None:
        """The cells that patches have in the mirror image; None where nothing is mirrored."""
        return cells.view(self._places(size)).flip(1).reshape(-1) if self.mirror else None

    def _pool_compiled(self, library: Library, x: Tensor, size: int, cells: Tensor, pooled: Tensor) -> None:
        basis, weights, offset = (self.state[f"{name}{size}"] for name in ("basis", "weights", "offset"))
        constant, even, mirrored = (
            float(self.state[f"constant{size}"]),
            int(self.state[f"even{size}"]),
            self._mirrored(size, cells),
        )
        blocks = []
        for k in range(0, len(offset), BLOCK):
            part = weights[:, k : k + BLOCK]
            blocks.append((part[:even].contiguous(), part[even:].contiguous(), offset[k : k + BLOCK].contiguous(), k))
        rows, scale = x.new_empty(len(cells), len(basis)), x.new_empty(len(cells))
        evens, odds = x.new_empty(len(cells), even), x.new_empty(len(cells), len(weights) - even)
        even_basis, odd_basis = basis[:, :even].contiguous(), basis[:, even:].contiguous()
        widths = {len(part) for _, _, part, _ in blocks}
        responses = {width: (x.new_empty(len(cells), width), x.new_empty(len(cells), width)) for width in widths}
        for places in (cells, mirrored):
            if places is not None:
                check_cells(places, self.grid**2)
        for image, sums in zip(x, pooled, strict=True):
            patches_of(library, image, size, self.stride, constant, rows, scale)
            torch.mm(rows, even_basis, out=evens)
            if mirrored is not None:
                torch.mm(rows, odd_basis, out=odds)
            up, down = sums
            for even_part, odd_part, shift, k in blocks:
                seen, other = responses[len(shift)]
                torch.mm(evens, even_part, out=seen)
                if mirrored is not None:
                    torch.mm(odds, odd_part, out=other)
                columns = slice(k, k + len(shift))
                both = (seen, None if mirrored is None else other)
                to = up[:, columns], down[:, columns]
                threshold_and_pool(library, *both, scale, shift, cells, mirrored, self.threshold, *to)

    def _pool_plain(self, x: Tensor, size: int, cells: Tensor, pooled: Tensor) -> None:
        basis, weights, offset = (self.state[f"{name}{size}"] for name in ("basis", "weights", "offset"))
        even, mirrored = int(self.state[f"even{size}"]), self._mirrored(size, cells)
        for image, sums in zip(x.split(8), pooled.split(8), strict=True):
            rows = F.unfold(image, size, stride=self.stride).transpose(1, 2)
            scale = (rows.var(2, correction=0, keepdim=True) + self.state[f"constant{size}"]).rsqrt()
            seen, other = ((rows @ basis[:, part]) @ weights[part] for part in (slice(even), slice(even, None)))
            sides = [(seen + other, cells)] + ([(seen - other, mirrored)] if mirrored is not None else [])
            for responses, places in sides:
                v = responses * scale + offset
                sums[:, 0].index_add_(1, places.to(x.device), (v - self.threshold).clamp_min_(0))
                sums[:, 1].index_add_(1, places.to(x.device), (-v - self.threshold).clamp_min_(0))


def _span(vectors: Tensor) -> Tensor:
    """An orthonormal basis of what vectors like e_i + e_j or e_i - e_j, as columns, span."""
    kept = vectors[:, vectors.any(0)]
    # every pair comes twice, and e_i - e_j with either sign: the one whose first number is positive is taken
    first = kept[kept.abs().argmax(0), torch.arange(kept.shape[1])]
    signed = kept * first.sign()
    return F.normalize(signed.T.unique(dim=0), dim=1).T


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
