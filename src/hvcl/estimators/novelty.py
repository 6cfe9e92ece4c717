r"""How unlike the learned rows a row is: Gaussians of the classes with one covariance, from sums over the stream.

With :math:`z = P x`, at most `DIMENSIONS` numbers (a fixed random projection of the encoded row where it is longer), class means
:math:`m_c` and the pooled covariance S within classes, with a floor of `FLOOR` on its diagonal, the novelty of a row is

.. math:: \nu(x) = \min_c (z - m_c)^T S^{-1} (z - m_c) / k ,

about 1 for ordinary rows whatever the number of dimensions k, and without bound for others. How large ordinary values are is
counted in a histogram of the novelties that rows have when they have just been learned, each as if it had not been: without the
row the mean of its class's n rows moves away from it by the factor :math:`c = n / (n - 1)`, and the sums of squares are less, so
that with N rows in all

.. math:: \nu' = \nu\, \frac{c^2 (N - 1) / N}{1 - c\, k \nu / N} .

Else rows that were learned would seem more ordinary than new ones, the more so the more dimensions there are.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dtrtri
from torch import Tensor
from torch.nn import functional as F

from hvcl.core.blas import threads_of_torch
from hvcl.core.errors import InputError, RunError
from hvcl.core.state import State
from hvcl.posteriors.matrix_normal import NOTHING

DIMENSIONS = 32
"""Numbers that a row is reduced to."""

FLOOR = 0.05
"""Least variance within classes: columns that hardly varied are not blown up."""

PRIOR = 5.0
"""Weight, in rows, of a prior covariance of one."""

FINE = 16
"""Bins of the histogram for each factor of two."""

BINS = 24 * FINE
"""Of the histogram: bin i begins at the novelty 2^(i / FINE - 8)."""

ORDINARY = 0.99
"""Share of the learned rows that counts as ordinary."""

FEW = 2**16
"""Differences of rows and classes up to which they are computed all at once."""

FAR = 4.0
"""Rows are outliers from so many times the largest ordinary novelty on: twice as far from the centre."""


class Novelty:
    """Class means, pooled covariance and histogram.

    Args:
        inputs: numbers in an encoded row.
        seed: of the projection.
        turned: rows that are short enough are not taken as they are either, but turned at random, which changes no novelty: the
            sum over a class of a single row is that row.
    """

    def __init__(self, inputs: int, seed: int, turned: bool = False) -> None:
        self.size = min(inputs, DIMENSIONS)
        random = torch.Generator().manual_seed(seed)
        self.projection = torch.randn(inputs, self.size, generator=random) / math.sqrt(inputs) if inputs > DIMENSIONS else None
        if turned and inputs <= DIMENSIONS:
            self.projection = torch.linalg.qr(torch.randn(inputs, inputs, generator=random).double())[0].float()
        self.count = torch.zeros(0, dtype=torch.float64)
        self.total = torch.zeros(0, self.size, dtype=torch.float64)
        self.square = torch.zeros(self.size, self.size, dtype=torch.float64)
        self.histogram = torch.zeros(BINS, dtype=torch.float64)
        # of sums, which are replaced and never changed
        self._white: tuple[Tensor, Tensor, NDArray[np.float64], NDArray[np.float64]] | None = None

    def reduce(self, x: Tensor) -> Tensor:
        """z ``[n, k]``, float64, of encoded rows."""
        flat = x.flatten(1)
        return (flat if self.projection is None else flat @ self.projection).double()

    def grow(self, classes: int) -> None:
        """Room for so many classes."""
        more = classes - len(self.count)
        if more > 0:
            self.count, self.total = F.pad(self.count, (0, more)), F.pad(self.total, (0, 0, 0, more))

    def add(self, x: Tensor, classes: Tensor, weights: Tensor | None = None) -> None:
        """Learn from encoded rows of classes ``[n]`` that count as often as weights ``[n]``, float64, say; None: once each."""
        z, times = self._weighed(x, weights)
        self.grow(int(classes.numpy().max()) + 1)
        self._sum(z, classes, times)
        self._count_novelties(z, times)

    def remove(self, x: Tensor, classes: Tensor, weights: Tensor | None = None) -> None:
        """Unlearn rows; `InputError`, and nothing has changed, if of some class there are more than were learned."""
        self.check_removal(classes, weights)
        z, times = self._weighed(x, weights)
        self._count_novelties(z, -times)
        self._sum(z, classes, -times)

    def check_removal(self, classes: Tensor, weights: Tensor | None) -> None:
        """`InputError` if there are more rows of some class than were learned."""
        gone = torch.bincount(classes, weights=weights, minlength=len(self.count)).double()
        if len(gone) > len(self.count) or bool((gone > self.count * (1 + NOTHING)).any()):
            raise InputError("cannot forget these rows: of some class there are more than were learned")

    def blank(self, classes: Tensor) -> None:
        """Classes (a mask) without rows, as the model knows them: what forgotten rows left in their sums is rounding."""
        classes = F.pad(classes, (0, len(self.count)))[: len(self.count)]
        self.count = torch.where(classes, 0, self.count)
        self.total = torch.where(classes.unsqueeze(1), 0, self.total)
        if not bool(self.count.any()):
            self.square, self.histogram = torch.zeros_like(self.square), torch.zeros_like(self.histogram)

    def _weighed(self, x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.reduce(x), torch.ones(len(x), dtype=torch.float64) if weights is None else weights

    def _sum(self, z: Tensor, classes: Tensor, times: Tensor) -> None:
        rows, weight = z.numpy(), times.numpy()
        weighed = weight[:, None] * rows
        counts = np.bincount(classes.numpy(), weight, minlength=len(self.count))
        self.count = torch.from_numpy(self.count.numpy() + counts)
        self.total = self.total.index_add(0, classes, torch.from_numpy(weighed))
        self.square = torch.from_numpy(self.square.numpy() + weighed.T @ rows)

    def _count_novelties(self, z: Tensor, times: Tensor) -> None:
        if float(self.count.sum()) > 0:
            novelty, nearest = self._nearest(z)
            more = np.bincount(_bins(self._as_new(novelty, nearest, np.abs(times.numpy()))), times.numpy(), minlength=BINS)
            self.histogram = torch.from_numpy(np.maximum(self.histogram.numpy() + more, 0))

    def _as_new(
        self, novelty: NDArray[np.float64], nearest: NDArray[np.int64], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """What the novelty of learned rows would be if they were not learned: they have drawn mean and scatter to themselves."""
        count = self.count.numpy()
        rows, whole = count[count > 0][nearest], PRIOR + count.sum()
        draw = rows / np.maximum(rows - times, 0.5 * times)
        rest = np.maximum(1 - draw * times * novelty * self.size / whole, 0.1)
        return np.asarray(novelty * draw**2 * (whole - times) / whole / rest)

    def subtract(self, count: Tensor, total: Tensor, square: Tensor) -> None:
        """Take out the sums of some rows. How novel they were stays in the histogram, scaled to the rows that are left."""
        before = float(self.count.sum())
        self.count, self.square = self.count - count, self.square - square
        self.total = torch.where(self.count.unsqueeze(1) > 0, self.total - total, 0)  # what is left of no row is rounding
        self.histogram = self.histogram * (float(self.count.sum()) / before)

    def merge(self, other: Novelty, classes: list[int]) -> None:
        """Add what another model has learned; `classes` are the numbers of its classes here."""
        self.grow(max(classes, default=-1) + 1)
        columns = torch.tensor(classes, dtype=torch.long)
        self.count = self.count.index_add(0, columns, other.count)
        self.total = self.total.index_add(0, columns, other.total)
        self.square, self.histogram = self.square + other.square, self.histogram + other.histogram

    def _nearest(self, z: Tensor) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Novelties ``[n]``, and the nearest class of those that have rows ``[n]``."""
        whiten, means = self.whitened()
        white = z.numpy() @ whiten
        if white.size * len(means) <= FEW:
            away = white[:, None] - means
            squares = np.add.reduce(np.square(away, out=away), 2)
        else:
            rows, centres = torch.from_numpy(white), torch.from_numpy(means)
            squares = np.square(torch.cdist(rows, centres, compute_mode="donot_use_mm_for_euclid_dist").numpy())
        nearest = squares.argmin(1)
        return squares[np.arange(len(squares)), nearest] / self.size, nearest

    def whitened(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What whitens rows, and the whitened means of the classes; computed once for the sums as they are."""
        if self._white is None or self._white[0] is not self.square or self._white[1] is not self.count:
            count, total = self.count.numpy(), self.total.numpy()
            seen = count > 0
            count, total = count[seen, None], total[seen]
            means = total / count
            covariance = self.square.numpy() - total.T @ means
            places = np.arange(self.size)
            covariance[places, places] += PRIOR
            covariance /= PRIOR + count.sum()
            covariance[places, places] += FLOOR
            whiten = _whitening(covariance)
            self._white = (self.square, self.count, whiten, means @ whiten)
        return self._white[2:]

    def of_inputs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """`whitened` for encoded rows as they are ``[inputs, k]``, ``[classes, k]``."""
        whiten, means = self.whitened()
        if self.projection is not None:
            whiten = self.projection.numpy().astype(np.float64) @ whiten
        return np.ascontiguousarray(whiten), np.ascontiguousarray(means)

    def __call__(self, x: Tensor) -> NDArray[np.float64]:
        """The novelty of encoded rows; zero before anything is learned."""
        return self._nearest(self.reduce(x))[0] if float(self.count.sum()) > 0 else np.zeros(len(x))

    def share_beyond(self, novelty: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of the learned rows that were at least as novel, with the row itself counted among them."""
        counts = self.histogram.numpy()
        logs = np.log(1 + np.append(np.cumsum(counts[::-1])[::-1], 0.0)) - np.log(1 + counts.sum())
        # within a bin as if the share fell by the same factor everywhere
        return np.asarray(np.exp(np.interp(_places(novelty), np.arange(BINS + 1), logs)))

    def trust(self, novelty: NDArray[np.float64]) -> NDArray[np.float64]:
        """1 for rows that are no outliers, falling to 0 with the novelty: `FAR` times the largest ordinary one over the row's."""
        return np.asarray(np.minimum(1.0, self.far / np.maximum(novelty, 1e-12)))

    @property
    def far(self) -> float:
        """The novelty from which on rows are outliers."""
        return FAR * self.ordinary

    @property
    def ordinary(self) -> float:
        """The largest ordinary novelty."""
        above = self.histogram.numpy().cumsum()
        last = min(int((above < ORDINARY * max(above[-1], 1.0)).sum()), BINS - 1)
        return float(max(2.0 ** ((4 * last // FINE - 31) / 4), 1.0))  # the next quarter of a factor of two

    def state_dict(self) -> State:
        """All sums."""
        return {name: getattr(self, name).clone() for name in ("count", "total", "square", "histogram")}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; `RunError` if it is of other sizes."""
        classes = len(state["count"])
        shapes = {"count": (classes,), "total": (classes, self.size), "square": (self.size, self.size), "histogram": (BINS,)}
        for name, shape in shapes.items():
            if tuple(state[name].shape) != shape or state[name].dtype != torch.float64:
                raise RunError(f"the saved novelty does not fit: {name} has shape {tuple(state[name].shape)}, expected {shape}")
            setattr(self, name, state[name].clone())


def _whitening(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """W with W W^T the inverse of a covariance, which has a floor up to rounding."""
    with threads_of_torch(len(covariance) ** 3 / 6):
        lower, failed = dpotrf(covariance, lower=True)
        if not failed:
            return np.asarray(dtrtri(lower, lower=True)[0].T)
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray(vectors / np.sqrt(np.maximum(values, FLOOR / 2)))


def _bins(novelty: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.asarray(np.minimum(np.maximum(np.floor(_places(novelty)), 0), BINS - 1).astype(np.int64))


def _places(novelty: NDArray[np.float64]) -> NDArray[np.float64]:
    """Where on the scale of the bins a novelty lies."""
    return np.asarray(FINE * (8 + np.log2(np.maximum(novelty, 2.0**-8))))
