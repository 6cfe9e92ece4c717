"""Rows of a table through two feature maps and the models on them, as one compiled call; see `csrc/rows.c`.

Rows are taken one after another: what a row gives does not depend on those beside it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvcl.ops.border import of_array, structure
from hvcl.ops.library import Library

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Maps:
    """The two maps: that of the model of everything, and the filter's (`hvcl.estimators.plain`)."""

    own: tuple[Floats, ...]
    """Weights ``[inputs, F]``, and offset, shift and scale ``[F]`` of cosines."""
    plain: tuple[Doubles, ...]
    """Weights ``[inputs, P]`` and phase ``[P]`` of the projections, scale and shift ``[D]`` of what they become."""
    numbers: int
    """Columns of numbers."""
    linear: int
    """Features of single columns."""
    counts: tuple[int, ...]
    """Cosines, rules, and rules with a second and a third condition."""


@dataclass(frozen=True)
class Scores:
    """What the model of everything says: scores that are linear in its features, or probabilities of classes by Student's t."""

    weights: Doubles
    """``[F, S]``."""
    at_zero: Doubles
    """Scores of features that are zero ``[S]``."""
    means: Doubles | None = None
    """Of the classes ``[known, S]``; None: the scores are the answer."""
    prior: Doubles | None = None
    """Of the classes ``[known]``."""
    units: tuple[int, ...] = ()
    """Their outputs."""
    power: float = 1.0
    """Of the Student t."""
    freedom: float = 1.0


class Rows:
    """The compiled call for two maps, and the models that are put on them.

    Args:
        library: compiled.
        maps: through which rows go.
    """

    def __init__(self, library: Library, maps: Maps) -> None:
        self.library, self.maps = library, maps
        weights, *others = maps.own
        inputs, width = weights.shape
        cosines, rules, second, third = maps.counts
        projections, features = sum(maps.counts), 1 + maps.linear + cosines + rules
        if not 0 <= third <= second <= rules or not 0 <= maps.numbers <= inputs or maps.linear not in (0, inputs):
            raise IndexError(f"{maps.counts} cosines, rules and further conditions do not fit {inputs} inputs")
        laid = structure("Rows")()
        laid.inputs, laid.numbers, laid.width = inputs, maps.numbers, width
        laid.features, laid.linear = features, maps.linear
        laid.cosines, laid.rules, laid.second, laid.third = maps.counts
        laid.own_weights = of_array(weights, inputs, width, dtype=np.float32)
        for name, array in zip(("own_offset", "own_shift", "own_scale"), others, strict=True):
            setattr(laid, name, of_array(array, width, dtype=np.float32))
        laid.weights = of_array(maps.plain[0], inputs, projections)
        laid.phase = of_array(maps.plain[1], projections)
        laid.scale, laid.shift = of_array(maps.plain[2], features), of_array(maps.plain[3], features)
        self._laid, self._room = laid, projections
        self._kept: tuple[Any, ...] = ()

    def on(self, scores: Scores | None, outputs: int, least: float | None) -> Rows:
        """The call with a model of everything on its map.

        Args:
            scores: what it says; None: it knows nothing.
            outputs: C.
            least: probability that none is below; None: answers are no probabilities.
        """
        made, laid = self._copy()
        laid.members, laid.outputs, laid.classes = 1, outputs, least is not None
        laid.least, laid.unknown = least or 0.0, 0.0 if least is None else 1 / outputs
        if scores is None:
            return made
        read, known = np.ascontiguousarray(scores.weights.T), len(scores.units)
        laid.scores, laid.known, laid.power, laid.freedom, laid.unknown = len(read), known, scores.power, scores.freedom, 0.0
        laid.read, laid.at_zero = of_array(read, len(read), laid.width), of_array(scores.at_zero, len(read))
        made._kept = (read, scores.at_zero)
        if known:
            assert scores.means is not None
            assert scores.prior is not None
            # compiled code knows no infinity, which a class without rows has
            units, prior = np.array(scores.units, dtype=np.int64), np.maximum(scores.prior, -1e30)
            means = np.ascontiguousarray(scores.means)
            if units.min() < 0 or units.max() >= outputs:
                raise IndexError(f"units from {units.min()} to {units.max()} of {outputs} outputs")
            laid.means, laid.prior = of_array(means, known, len(read)), of_array(prior, known)
            laid.units = of_array(units, known, dtype=np.int64)
            made._kept += (means, prior, units)
        elif len(read) > outputs:
            raise IndexError(f"{len(read)} scores are more than {outputs} outputs")
        made._room = max(self._room, len(read) + known)
        return made

    def beside(self, coefficients: Doubles) -> Rows:
        """`on` with the coefficients of the filter's linear models as well, side by side ``[D, (K - 1) C]``."""
        made, laid = self._copy()
        if not laid.outputs or coefficients.shape[1] % laid.outputs:
            raise IndexError(f"coefficients of shape {coefficients.shape} are not of {laid.outputs} outputs")
        laid.members = 1 + coefficients.shape[1] // laid.outputs
        laid.coefficients = of_array(coefficients, laid.features, coefficients.shape[1])
        made._kept = (self._kept, coefficients)
        return made

    def _copy(self) -> tuple[Rows, Any]:
        made = Rows.__new__(Rows)
        made.library, made.maps, made._room = self.library, self.maps, self._room
        made._laid, made._kept = type(self._laid).from_buffer_copy(self._laid), self._kept
        return made, made._laid

    def __deepcopy__(self, memo: dict[int, Any]) -> Rows:
        """Itself: nothing of it changes."""
        return self

    def features(self, x: Floats) -> tuple[Floats, Doubles]:
        """Features of encoded rows ``[n, inputs]`` in the two maps ``[n, F]`` and ``[n, D]``."""
        laid = type(self._laid).from_buffer_copy(self._laid)
        laid.coefficients = None
        return self._run(laid, x)

    def answers(self, x: Floats) -> tuple[Floats, Doubles, Doubles, Doubles]:
        """The same, and the answers of the model of everything ``[n, C]`` and of all members ``[n, K, C]``."""
        laid = type(self._laid).from_buffer_copy(self._laid)
        if not laid.coefficients:
            raise IndexError("there are no answers before `beside`")
        everything = np.empty((len(x), laid.outputs))
        answers = np.empty((len(x), laid.members, laid.outputs))
        laid.everything, laid.answers = of_array(everything, *everything.shape), of_array(answers, *answers.shape)
        return *self._run(laid, x), everything, answers

    def read(self, own: Floats) -> Doubles:
        """Answers of the model of everything ``[n, C]`` to rows whose features ``[n, F]`` are given."""
        laid = type(self._laid).from_buffer_copy(self._laid)
        everything, room = np.empty((len(own), laid.outputs)), np.empty(self._room)
        laid.own, laid.room = of_array(own, len(own), laid.width, dtype=np.float32), of_array(room, self._room)
        laid.everything = of_array(everything, *everything.shape)
        self.library.functions.rows_read(ctypes.byref(laid), len(own))
        return everything

    def _run(self, laid: Any, x: Floats) -> tuple[Floats, Doubles]:
        own = np.empty((len(x), laid.width), dtype=np.float32)
        phi, room = np.empty((len(x), laid.features)), np.empty(self._room)
        laid.x, laid.own = (of_array(each, *each.shape, dtype=np.float32) for each in (self._inputs(x), own))
        laid.phi, laid.room = of_array(phi, *phi.shape), of_array(room, self._room)
        self.library.functions.rows_answer(ctypes.byref(laid), 0, len(x))
        return own, phi

    def _inputs(self, x: Floats) -> Floats:
        if x.ndim != 2 or x.shape[1] != self._laid.inputs:
            raise IndexError(f"encoded rows of {self._laid.inputs} numbers are needed, got shape {x.shape}")
        return x


@dataclass(frozen=True)
class Encoding:
    """How rows are encoded (`hvcl.estimators.scales`)."""

    centre: Doubles
    spread: Doubles
    clip: float
    indicators: int
    categories: int
    slots: int


@dataclass(frozen=True)
class Step:
    """How the weights of a filter's members change from one row to the next (`hvcl.estimators.concepts`)."""

    rate: Doubles
    """Probabilities of a switch between members ``[R]``."""
    slow: float
    """Probability of one between rates."""
    known: float
    """Share of switches that lead to a member by its usual weight; others lead to any."""
    pace: float
    """At which usual weights follow the weights."""


class Block:
    """Room for some rows that come one at a time, with all that is computed of them; rows are numbered from 0.

    Args:
        rows: how many there is room for.
        maps: the call.
        encoding: of rows.
    """

    def __init__(self, rows: int, maps: Rows, encoding: Encoding) -> None:
        laid = maps._laid
        self.values = np.zeros((rows, laid.numbers))
        self.places = np.zeros((rows, encoding.categories), dtype=np.int64)
        self.x = np.zeros((rows, laid.inputs), dtype=np.float32)
        self.own = np.zeros((rows, laid.width), dtype=np.float32)
        self.phi = np.zeros((rows, laid.features))
        self.novelty = np.zeros(rows)
        self.encoding = encoding
        made = laid.numbers + encoding.indicators + encoding.categories * encoding.slots
        if made != laid.inputs or encoding.indicators not in (1, laid.numbers):
            raise IndexError(f"an encoding of {made} numbers does not fit maps of {laid.inputs}")

    def bind(
        self,
        maps: Rows,
        powers: Doubles,
        white: tuple[Doubles, Doubles],
        step: Step,
        weights: Doubles,
        usual: Doubles,
        shares: Doubles,
    ) -> None:
        """Lay out models, and the weights of a filter over them, which `believe` changes.

        Args:
            maps: with models.
            powers: sharpness of each member ``[K]``.
            white: what whitens encoded rows ``[inputs, k]``, and the means of classes that novelty is the distance to ``[., k]``.
            step: how they change.
            weights: of the members for each rate ``[R, K]``.
            usual: their usual weights ``[R, K]``.
            shares: weights of the rates ``[R]``.
        """
        laid = type(maps._laid).from_buffer_copy(maps._laid)
        rows, members, outputs, encoding = len(self.x), laid.members, laid.outputs, self.encoding
        self.everything = np.zeros((rows, outputs))
        self.answers, self.sharpened = np.zeros((rows, members, outputs)), np.zeros((rows, members, outputs))
        self._mixed = np.zeros((1, outputs))
        size, room = white[0].shape[1], np.empty(max(maps._room, white[0].shape[1]))
        laid.indicators, laid.categories, laid.slots = encoding.indicators, encoding.categories, encoding.slots
        laid.clip, laid.slow, laid.known_share, laid.pace = encoding.clip, step.slow, step.known, step.pace
        laid.centre, laid.spread = of_array(encoding.centre, laid.numbers), of_array(encoding.spread, laid.numbers)
        laid.values, laid.places = (
            of_array(self.values, rows, laid.numbers),
            of_array(self.places, *self.places.shape, dtype=np.int64),
        )
        laid.x = of_array(self.x, rows, laid.inputs, dtype=np.float32)
        laid.own = of_array(self.own, rows, laid.width, dtype=np.float32)
        laid.phi, laid.novelty = of_array(self.phi, rows, laid.features), of_array(self.novelty, rows)
        laid.everything = of_array(self.everything, rows, outputs)
        laid.answers = of_array(self.answers, rows, members, outputs)
        laid.sharpened = of_array(self.sharpened, rows, members, outputs)
        laid.powers = of_array(powers, members)
        laid.directions, laid.centres = size, len(white[1])
        laid.white, laid.white_means = of_array(white[0], laid.inputs, size), of_array(white[1], len(white[1]), size)
        rates = len(step.rate)
        laid.rates, laid.rate, laid.shares = rates, of_array(step.rate, rates), of_array(shares, rates)
        laid.weights_of, laid.usual = of_array(weights, rates, members), of_array(usual, rates, members)
        laid.room = of_array(room, len(room))
        self.weights, self.usual, self.shares = weights, usual, shares
        self._laid, self._at = laid, ctypes.byref(laid)
        self._functions = maps.library.functions
        self._into = of_array(self._mixed, 1, outputs)
        self._kept = (maps, powers, white, step, room)

    def answer(self, row: int) -> int:
        """Encode a row from its `values` and `places`, and answer it; returns the first number that is infinite, or -1."""
        self._check(row)
        return int(self._functions.rows_answer(self._at, row, 1))

    def mix(self, row: int) -> Doubles:
        """What follows from the answers to a row ``[1, C]``."""
        self._check(row)
        self._functions.rows_mix(self._at, row, self._into)
        return self._mixed.copy()

    def believe(self, row: int, unit: int) -> None:
        """The label of a row is known now: weigh the members by their answers."""
        self._check(row)
        if not 0 <= unit < self._laid.outputs:
            raise IndexError(f"unit {unit} of {self._laid.outputs} outputs")
        self._functions.rows_believe(self._at, row, unit)

    def _check(self, row: int) -> None:
        if not 0 <= row < len(self.x):
            raise IndexError(f"row {row} of {len(self.x)}")


def members(library: Library, phi: Doubles, coefficients: Doubles, everything: Doubles, least: float | None) -> Doubles:
    """Answers of all members ``[n, K, C]`` from features ``[n, D]``, and from those of the model of everything ``[n, C]``.

    `coefficients` and `least` are those of `Rows.on`.
    """
    phi, everything = np.ascontiguousarray(phi), np.ascontiguousarray(everything)
    (count, outputs), laid = everything.shape, structure("Rows")()
    if outputs < 1 or coefficients.shape[1] % outputs:
        raise IndexError(f"coefficients of shape {coefficients.shape} are not of {outputs} outputs")
    laid.features, laid.outputs, laid.members = phi.shape[1], outputs, 1 + coefficients.shape[1] // outputs
    laid.classes, laid.least = least is not None, least or 0.0
    answers = np.empty((count, laid.members, outputs))
    laid.coefficients = of_array(coefficients, phi.shape[1], coefficients.shape[1])
    laid.phi, laid.everything = of_array(phi, count, phi.shape[1]), of_array(everything, count, outputs)
    laid.answers = of_array(answers, *answers.shape)
    library.functions.rows_members(ctypes.byref(laid), count)
    return answers


def sharpened(library: Library, answers: Doubles, powers: Doubles, least: float) -> Doubles:
    """Probabilities ``[n, K, C]`` to the power of each member ``[K]``, normalised, and none below the least."""
    answers = np.ascontiguousarray(answers)
    count, members, outputs = answers.shape
    out = np.empty_like(answers, order="C")
    at = of_array(answers, *answers.shape), of_array(powers, members), of_array(out, *out.shape)
    library.functions.rows_sharpen(count, members, outputs, least, *at)
    return out


def believe(library: Library, likely: Doubles, step: Step, weights: Doubles, usual: Doubles, shares: Doubles) -> None:
    """Step the weights ``[R, K]`` of members, the usual ones, and ``[R]`` of rates, by likelihoods ``[n, K]`` up to factors."""
    likely = np.ascontiguousarray(likely)
    (count, members), rates = likely.shape, len(step.rate)
    of_members = (of_array(each, rates, members) for each in (weights, usual))
    at = of_array(likely, count, members), *of_members, of_array(shares, rates)
    rate = of_array(step.rate, rates)
    library.functions.rows_believe_all(count, rates, members, rate, step.slow, step.known, step.pace, *at)
