r"""The fixed scales of a stream, taken from its first rows, and the encoding of rows by them.

Every column of numbers becomes :math:`z = (x - m) / s` with the median m and the spread s of the first rows,

.. math:: s = \max\left(\frac{q_{75} - q_{25}}{1.349},\ \frac{q_{95} - q_{5}}{3.290},\ \frac{q_{98}(|x - m|)}{5}\right),

which is the standard deviation of a Gaussian column, and is not moved by outliers as long as they are less than two in a hundred;
the last term is for columns that are mostly one value. Then z is clipped at :math:`\pm 30`. A column of which all three are zero
has its range for s, and a constant one the size of its value (1 at least). The scales never
change again: an exact recursion needs a fixed map.

A missing number becomes the median (z = 0), and a column of its own says that it was missing. A category becomes one of
`max_categories` columns, in the order of first appearance, in mid-stream too; categories beyond these share one more column, and
missing ones another.
"""

from __future__ import annotations

import copy
import sys
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvcl.core.errors import InputError, RunError
from hvcl.core.state import State
from hvcl.estimators.tables import MISSING, Kind, Table

CLIP = 30.0
"""Standardised numbers are clipped to plus and minus this."""

FAR = 10.0
"""A standardised number beyond this has left the scales."""

MANY = 0.1
"""Share of the rows of a block in which a column must have left the scales before there is a warning."""

SOME = 20
"""Number of such rows before there is a warning."""

BLOCK = 1000
"""Rows that are counted together."""

MAX_COLUMNS = 16_384
"""Most columns that are understood."""

HUGE = 1e300
"""Differences of numbers beyond this may be too large for a number."""

MAX_CORRELATED = 1024
"""Up to so many columns of numbers their correlations are part of the scales."""

MAX_INDICATORS = 512
"""Up to so many columns of numbers each has an indicator of its missing values; of more there is one for all."""


class ScaleWarning(UserWarning):
    """The stream has left the scales of its first rows by far."""


@dataclass(frozen=True)
class Scales:
    """All that two sites must agree on, beside the seed, to learn models that can be merged. It holds no row.

    What it does tell of the first rows: median and spread of every column of numbers, their correlations, the names of columns
    and categories; of pictures the filters, which are made from patches of the first ones.
    """

    kinds: tuple[Kind, ...]
    """Of the columns; empty for pictures."""
    names: tuple[str, ...] | None
    """Of the columns, where the first X had any."""
    max_categories: int
    """Columns of the encoding that a column of categories has, at most."""
    centre: Tensor
    """Median of every column of numbers, float64."""
    spread: Tensor
    """s of every column of numbers, float64."""
    correlation: Tensor | None = None
    """Second moments of the standardised numbers, float64, if there are at most `MAX_CORRELATED`."""
    categories: tuple[tuple[str, ...], ...] = ()
    """The known categories of every column of categories, in the order of their columns."""
    shape: tuple[int, ...] | None = None
    """Of a picture."""
    filters: dict[str, Tensor] = field(default_factory=dict)
    """The fitted feature map of pictures; else empty."""
    targets: Tensor | None = None
    """Regression: median and spread of the targets ``[2, C]``, float64."""

    def __repr__(self) -> str:
        what = f"pictures {self.shape}" if self.shape else f"{len(self.kinds)} columns"
        return f"Scales({what})"

    @classmethod
    def measure(
        cls,
        table: Table,
        names: tuple[str, ...] | None,
        max_categories: int,
        targets: Tensor | None = None,
        coarse: bool = False,
    ) -> Scales:
        """The scales of the first rows; of their targets ``[n, C]`` as well, if they are numbers.

        `coarse` rounds them, so that none is a value of a row: spreads to powers of the fourth root of two, medians to eighths of
        the spread.
        """
        of_targets = None if targets is None else _of_targets(targets)
        if of_targets is not None and coarse:
            of_targets = torch.stack(_rounded(*of_targets))
        check_width(table)
        if table.pictures is not None:
            pixels = table.pictures.double()
            centre, spread = pixels.mean().reshape(1), pixels.std(correction=0).clamp_min(1e-12).reshape(1)
            if coarse:
                centre, spread = _rounded(centre, spread)
            return cls((), None, max_categories, centre, spread, shape=table.shape, targets=of_targets)
        numbers = table.numbers
        middle, size = np.zeros(numbers.shape[1]), np.ones(numbers.shape[1])
        for column, values in enumerate(numbers.T):
            known = values[~np.isnan(values)]
            if len(known):
                middle[column], size[column] = _robust(known)
        if coarse:
            middle, size = (values.numpy() for values in _rounded(torch.from_numpy(middle), torch.from_numpy(size)))
        with np.errstate(over="ignore"):
            z = np.clip(np.nan_to_num((numbers - middle) / size), -5, 5)
        correlation = torch.from_numpy(z.T @ z / len(z)) if 0 < z.shape[1] <= MAX_CORRELATED else None
        known_categories = tuple(tuple(_new(column, (), max_categories)) for column in table.categories)
        return cls(
            table.kinds,
            names,
            max_categories,
            torch.from_numpy(middle),
            torch.from_numpy(size),
            correlation,
            known_categories,
            targets=of_targets,
        )

    # -- the encoding -----------------------------------------------------------------------------------------------------

    @property
    def indicators(self) -> int:
        """Columns of the encoding that say what was missing."""
        return len(self.centre) if len(self.centre) <= MAX_INDICATORS else 1

    @property
    def number_names(self) -> tuple[str, ...] | None:
        """Names of the columns of numbers, where columns have names."""
        if self.names is None:
            return None
        return tuple(name for name, kind in zip(self.names, self.kinds, strict=True) if kind == "number")

    @property
    def slots(self) -> int:
        """Columns of the encoding that stand for categories."""
        return len(self.categories) * (self.max_categories + 2)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an encoded row."""
        return self.shape or (len(self.centre) + self.indicators + self.slots,)

    def grown(self, table: Table) -> Scales:
        """With the categories of more rows, as far as there is room for them."""
        if not self.categories:
            return self
        found = zip(self.categories, table.categories, strict=True)
        return replace(self, categories=tuple((*known, *_new(column, known, self.max_categories)) for known, column in found))

    def encode(self, table: Table) -> tuple[Tensor, NDArray[np.float64]]:
        """Encoded rows, float32, and their standardised numbers without sign, before they were clipped ``[n, columns]``."""
        if table.kinds != self.kinds or table.shape != self.shape:
            raise InputError("these rows do not have the columns of the scales: were the scales made from other data?")
        if table.pictures is not None:
            x = ((table.pictures.double() - self.centre) / self.spread).float()
            return x, x.flatten(1).abs().double().numpy()
        encoded = np.zeros((len(table), *self.input_shape), dtype=np.float32)
        sizes = self.write_numbers(table.numbers, encoded)
        every, width, first = np.arange(len(table)), self.max_categories + 2, sizes.shape[1] + self.indicators
        for known, column in zip(self.categories, table.categories, strict=True):
            place = {category: slot for slot, category in enumerate(known)} | {MISSING: width - 1}
            encoded[every, [first + place.get(category, width - 2) for category in column]] = 1
            first += width
        return torch.from_numpy(encoded), sizes

    def write_numbers(self, values: NDArray[np.float64], encoded: NDArray[np.float32]) -> NDArray[np.float64]:
        """Write the columns of the encoding that numbers have into zeros; returns sizes as `encode` does."""
        with np.errstate(over="ignore"):
            z = (values - self.centre.numpy()) / self.spread.numpy()
        missing, numbers, indicators = np.isnan(z), z.shape[1], self.indicators
        if missing.any():
            z[missing] = 0
            encoded[:, numbers : numbers + indicators] = missing if indicators == numbers else missing.mean(1, keepdims=True)
        encoded[:, :numbers] = np.minimum(np.maximum(z, -CLIP), CLIP)
        return np.asarray(np.abs(z, out=z))

    # -- agreement and files ----------------------------------------------------------------------------------------------

    def same_map(self, other: Scales) -> bool:
        """Whether the other scales encode what both know alike: all but the categories are equal, and these do not contradict."""
        mine, theirs = self.state_dict(), other.state_dict()
        alike = all(_equal(mine[name], theirs[name]) for name in mine if name != "categories")
        return alike and all(_prefix(a, b) for a, b in zip(self.categories, other.categories, strict=True))

    def joined(self, other: Scales) -> Scales:
        """The scales with the categories of both."""
        longer = tuple(max(a, b, key=len) for a, b in zip(self.categories, other.categories, strict=True))
        return replace(self, categories=longer)

    def state_dict(self) -> State:
        """As plain values and tensors."""
        return {
            "kinds": list(self.kinds),
            "names": None if self.names is None else list(self.names),
            "max_categories": self.max_categories,
            "centre": self.centre,
            "spread": self.spread,
            "correlation": self.correlation,
            "categories": [list(known) for known in self.categories],
            "shape": None if self.shape is None else list(self.shape),
            "filters": dict(self.filters),
            "targets": self.targets,
        }

    @classmethod
    def from_state(cls, state: State) -> Scales:
        """From what `state_dict` returned; `RunError` if it cannot be that."""
        try:
            names, shape = state["names"], state["shape"]
            scales = cls(
                tuple(state["kinds"]),
                None if names is None else tuple(map(str, names)),
                int(state["max_categories"]),
                state["centre"],
                state["spread"],
                state["correlation"],
                tuple(tuple(map(str, known)) for known in state["categories"]),
                None if shape is None else tuple(map(int, shape)),
                dict(state["filters"]),
                state["targets"],
            )
            numbers = 1 if shape is not None else scales.kinds.count("number")
            fits = scales.centre.shape == scales.spread.shape == (numbers,) and bool((scales.spread > 0).all())
            fits = fits and (scales.correlation is None or scales.correlation.shape == (numbers, numbers))
            fits = fits and len(scales.categories) == scales.kinds.count("category") and scales.max_categories >= 1
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"the saved scales are damaged ({error})") from None
        if not fits:
            raise RunError("the saved scales are damaged: their parts do not fit each other")
        return scales


def check_width(table: Table) -> None:
    """`InputError` for more columns than are understood."""
    if len(table.kinds) > MAX_COLUMNS:
        raise InputError(
            f"X has {len(table.kinds)} columns, at most {MAX_COLUMNS} are understood: reduce them, e.g. TruncatedSVD"
        )


class Drift:
    """Counts numbers that have left the scales, and gives one warning when they are many.

    That is when in a block of `BLOCK` rows (or what there is of it so far) at least `SOME` rows, and a share `MANY` of them, have
    one and the same column more than `FAR` spreads from its median.

    Args:
        columns: of numbers.
    """

    def __init__(self, columns: int) -> None:
        self.rows = 0
        self.outside = torch.zeros(columns, dtype=torch.int64)
        """Rows of the present block that are far out, for each column."""
        self.warned = False

    def note(self, sizes: NDArray[np.float64], names: tuple[str, ...] | None) -> str | None:
        """Count rows by their standardised numbers without sign ``[n, columns]``; returns the warning if it is due, once."""
        if self.warned or not sizes.shape[1]:
            return None
        words = None
        far, rows, outside = sizes > FAR, self.rows + len(sizes), self.outside
        anew = bool(far.any())
        if anew:
            outside = outside + torch.from_numpy(far.sum(0))
        worst = int(outside.argmax()) if anew else 0
        if anew and int(outside[worst]) >= max(SOME, MANY * rows):
            words = (
                f"in {int(outside[worst])} of {rows} rows column {names[worst] if names else worst} lies more than {FAR:.0f} "
                f"spreads from its median in the first rows (just now up to {float(sizes[:, worst].max()):.3g}; from {CLIP:.0f} "
                "on values are clipped): the scales are fixed, so start a new estimator with rows of today or with `scales` of a "
                "wider sample, or transform the column (logarithm, difference) before"
            )
            self.warned = True
        over = rows >= BLOCK
        self.rows, self.outside = 0 if over else rows, torch.zeros_like(outside) if over else outside
        return words

    def state_dict(self) -> State:
        """The counts."""
        return {"rows": self.rows, "outside": self.outside.clone(), "warned": self.warned}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` returned; `RunError` if it is of other columns."""
        if state["outside"].shape != self.outside.shape or state["outside"].dtype != torch.int64:
            raise RunError(
                f"the saved drift does not fit: it is of {len(state['outside'])} columns, expected {len(self.outside)}"
            )
        self.rows, self.outside, self.warned = int(state["rows"]), state["outside"].clone(), bool(state["warned"])


def warn_user(words: str, category: type[Warning]) -> None:
    """Warn of what the user's own line has brought, however deep in this package it is noticed."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "hvcl":
        level, frame = level + 1, frame.f_back
    warnings.warn(words, category, stacklevel=level)


def published(scales: Any) -> Scales | None:
    """A parameter `scales` as it may be used; `InputError` if it is none."""
    if scales is not None and not isinstance(scales, Scales):
        raise InputError(f"scales must be another estimator's scales_, got {type(scales).__name__}")
    return copy.copy(scales)


def _robust(values: NDArray[np.float64]) -> tuple[float, float]:
    if np.abs(values).max() > HUGE:
        centre, spread = _robust(values / 16)
        return 16 * centre, min(16 * spread, sys.float_info.max)
    low, first, centre, third, high = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
    spread = max((third - first) / 1.349, (high - low) / 3.290, np.quantile(np.abs(values - centre), 0.98) / 5)
    if not spread > 1e-9 * abs(centre):
        spread = float(values.max() - values.min())
    if not spread > 1e-9 * abs(centre):
        spread = max(abs(centre), 1.0)
    return float(centre), float(spread)


def _rounded(centre: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Centres and spreads to about three bits."""
    spread = 2 ** ((4 * spread.log2()).round() / 4)
    return (8 * centre / spread).round() * spread / 8, spread


def _of_targets(targets: Tensor) -> Tensor:
    return torch.tensor([_robust(column) for column in targets.numpy().T], dtype=torch.float64).T.contiguous()


def _new(column: NDArray[np.object_], known: tuple[str, ...], room: int) -> list[str]:
    """Categories that are new, in the order of appearance, as many as there is room for."""
    fresh = dict.fromkeys(value for value in column.tolist() if value is not MISSING and value not in known)
    return list(fresh)[: max(room - len(known), 0)]


def _prefix(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    common = min(len(a), len(b))
    return a[:common] == b[:common]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(value, b[name]) for name, value in a.items())
    return bool(a == b)
