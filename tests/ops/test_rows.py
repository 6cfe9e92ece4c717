"""Rows of a table through compiled code, against plain operations; sizes that do not fit are refused."""

from dataclasses import replace

import numpy as np
import pytest

from hvcl.core.errors import InputError
from hvcl.ops import rows
from hvcl.ops.rows import Block, Encoding, Maps, Rows, Scores, Step

INPUTS, NUMBERS, WIDTH, OUTPUTS, MEMBERS = 5, 3, 7, 3, 4
COUNTS = (6, 4, 3, 2)  # cosines, rules, second and third conditions
FEATURES = 1 + INPUTS + COUNTS[0] + COUNTS[1]


def draw(*shape, dtype=np.float64, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def maps(**changes):
    projections = sum(COUNTS)
    own = (draw(INPUTS, WIDTH, dtype=np.float32), *(draw(WIDTH, dtype=np.float32, seed=i) for i in (1, 2, 3)))
    plain = (draw(INPUTS, projections), draw(projections), draw(FEATURES), draw(FEATURES, seed=1))
    return replace(Maps(own, plain, NUMBERS, INPUTS, COUNTS), **changes)


def scores(**changes):
    made = Scores(draw(WIDTH, 2), draw(2), draw(2, 2), draw(2, seed=5), (2, 0), 2.5, 5.0)
    return replace(made, **changes)


def coefficients():
    return draw(FEATURES, (MEMBERS - 1) * OUTPUTS) / 5


def made(library):
    return Rows(library, maps()).on(scores(), OUTPUTS, 0.02).beside(coefficients())


def own_features(x):
    weights, offset, shift, scale = maps().own
    return (np.cos(x @ weights + offset) - shift) * scale


def plain_features(x):
    weights, phase, scale, shift = maps().plain
    cosines, rules, second, third = COUNTS
    p = x.astype(np.float64) @ weights + phase
    e = 1 + np.exp(p[:, cosines:])
    rule = e[:, :rules].copy()
    rule[:, :second] *= e[:, rules : rules + second]
    rule[:, :third] *= e[:, rules + second :]
    linear = np.concatenate([np.tanh(x[:, :NUMBERS].astype(np.float64) / 3), x[:, NUMBERS:]], 1)
    return np.concatenate([np.ones((len(x), 1)), linear, np.cos(p[:, :cosines]), 1 / rule], 1) * scale + shift


def everything(own):
    head = scores()
    away = (own.astype(np.float64) @ head.weights + head.at_zero)[:, None] - head.means
    p = np.exp(head.prior - head.power * np.log1p((away**2).sum(2) / head.freedom))
    answers = np.zeros((len(own), OUTPUTS))
    answers[:, list(head.units)] = p / p.sum(1, keepdims=True)
    return answers


def bounded(p):
    p = np.clip(p, 0.02, 1)
    return p / p.sum(2, keepdims=True)


def test_features_and_answers(library):
    x = draw(9, INPUTS, dtype=np.float32)
    own, phi, whole, answers = made(library).answers(x)
    np.testing.assert_allclose(own, own_features(x), atol=1e-5)
    np.testing.assert_allclose(phi, plain_features(x), atol=1e-10)
    np.testing.assert_allclose(whole, everything(own), atol=1e-10)
    others = (phi @ coefficients()).reshape(9, MEMBERS - 1, OUTPUTS)
    np.testing.assert_allclose(answers, bounded(np.concatenate([whole[:, None], others], 1)), atol=1e-10)
    np.testing.assert_array_equal(made(library).features(x)[0], own)
    np.testing.assert_array_equal(made(library).read(own), whole)
    np.testing.assert_allclose(rows.members(library, phi, coefficients(), whole, 0.02), answers, atol=1e-12)
    powers = np.array([1.0, 2.0, 3.0, 0.5])
    powered = answers ** powers[:, None]
    expected = bounded(powered / powered.sum(2, keepdims=True))
    np.testing.assert_allclose(rows.sharpened(library, answers, powers, 0.02), expected, atol=1e-10)


def test_a_row_gives_the_same_to_the_last_bit_whatever_stands_beside_it(library):
    x = draw(9, INPUTS, dtype=np.float32)
    for together, alone in zip(made(library).answers(x), made(library).answers(x[4:5]), strict=True):
        np.testing.assert_array_equal(together[4:5], alone)


STEP = Step(np.array([0.03, 0.003]), 1e-3, 0.9, 1e-3)


def test_steps_of_the_filter(library):
    likely = np.random.default_rng(0).uniform(0.02, 1, (50, MEMBERS))
    w, u, v = np.full((2, MEMBERS), 1 / MEMBERS), np.full((2, MEMBERS), 1 / MEMBERS), np.full(2, 0.5)
    weights, usual, shares = w.copy(), u.copy(), v.copy()
    rows.believe(library, likely, STEP, weights, usual, shares)
    for row in likely:
        w = w * row
        total = w.sum(1, keepdims=True)
        w = w / total
        u = u + STEP.pace * (w - u)
        w = (1 - STEP.rate[:, None]) * w + STEP.rate[:, None] * (0.9 * u + 0.1 / MEMBERS)
        v = v * total[:, 0]
        v = (1 - STEP.slow) * v / v.sum() + STEP.slow / 2
    for found, expected in ((weights, w), (usual, u), (shares, v)):
        np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(weights.sum(1), 1)


def block(library, encoding=None, places=1):
    encoding = encoding or Encoding(np.zeros(NUMBERS), np.ones(NUMBERS), 30.0, 1, places, 1)
    return Block(4, made(library), encoding)


def bound(library, **changes):
    parts = {
        "powers": np.ones(MEMBERS),
        "white": (draw(INPUTS, 2), draw(3, 2)),
        "step": STEP,
        "weights": np.full((2, MEMBERS), 1 / MEMBERS),
        "usual": np.full((2, MEMBERS), 1 / MEMBERS),
        "shares": np.full(2, 0.5),
    }
    found = block(library)
    found.bind(made(library), **parts | changes)
    return found


def test_rows_of_a_block(library):
    """Encoded, with a share of missing numbers and a category in its place; far ones are clipped, infinite ones are named."""
    found = bound(library)
    found.values[1], found.places[1] = [2.0, np.nan, -100.0], [0]
    assert found.answer(1) == -1
    expected = np.array([[2.0, 0.0, -30.0, 1 / 3, 1.0]], dtype=np.float32)
    np.testing.assert_allclose(found.x[1:2], expected)
    np.testing.assert_allclose(found.answers[1:2], made(library).answers(expected)[3], atol=1e-12)
    white, means = draw(INPUTS, 2), draw(3, 2)
    assert found.novelty[1] == pytest.approx((((expected @ white) - means) ** 2).sum(1).min() / 2)
    np.testing.assert_allclose(found.mix(1), found.weights[0] @ found.sharpened[1:2], atol=1e-12)
    found.values[2] = [0.0, np.inf, 0.0]
    assert found.answer(2) == 1
    likely, expected = found.sharpened[1][:, 2][None].copy(), [found.weights.copy(), found.usual.copy(), found.shares.copy()]
    found.believe(1, 2)
    rows.believe(library, likely, STEP, *expected)
    np.testing.assert_allclose(found.weights, expected[0], atol=1e-15)


@pytest.mark.parametrize("place", [-1, 1, 2**40])
def test_a_category_without_a_place_is_nowhere(library, place):
    found = bound(library)
    found.places[0] = place
    assert found.answer(0) == -1
    assert found.x[0, NUMBERS + 1] == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda of: Rows(of, maps(numbers=INPUTS + 1)),
        lambda of: Rows(of, maps(linear=INPUTS - 1)),
        lambda of: Rows(of, maps(counts=(6, 4, 2, 3))),
        lambda of: Rows(of, maps(counts=(6, 4, 3, 3))),
        lambda of: Rows(of, maps(own=(*maps().own[:3], np.zeros(WIDTH - 1, dtype=np.float32)))),
        lambda of: Rows(of, maps(plain=(maps().plain[0].T, *maps().plain[1:]))),
        lambda of: Rows(of, maps()).on(scores(units=(0, OUTPUTS)), OUTPUTS, 0.02),
        lambda of: Rows(of, maps()).on(scores(units=(-1, 0)), OUTPUTS, 0.02),
        lambda of: Rows(of, maps()).on(scores(weights=draw(WIDTH + 1, 2)), OUTPUTS, 0.02),
        lambda of: Rows(of, maps()).on(scores(means=draw(3, 2)), OUTPUTS, 0.02),
        lambda of: Rows(of, maps()).on(scores(prior=draw(1)), OUTPUTS, 0.02),
        lambda of: Rows(of, maps()).on(Scores(draw(WIDTH, 2), draw(2)), 1, None),
        lambda of: Rows(of, maps()).beside(coefficients()),
        lambda of: Rows(of, maps()).on(scores(), OUTPUTS, 0.02).answers(draw(2, INPUTS, dtype=np.float32)),
        lambda of: Rows(of, maps()).on(scores(), OUTPUTS, 0.02).beside(coefficients()[:, :-1]),
        lambda of: Rows(of, maps()).on(scores(), OUTPUTS, 0.02).beside(coefficients()[:-1]),
        lambda of: made(of).features(draw(2, INPUTS + 1, dtype=np.float32)),
        lambda of: made(of).features(draw(2, INPUTS)),
        lambda of: made(of).read(draw(2, WIDTH - 1, dtype=np.float32)),
        lambda of: block(of, places=2),
        lambda of: block(of, Encoding(np.zeros(NUMBERS), np.ones(NUMBERS), 30.0, 2, 0, 1)),
        lambda of: bound(of, powers=np.ones(MEMBERS - 1)),
        lambda of: bound(of, white=(draw(INPUTS + 1, 2), draw(3, 2))),
        lambda of: bound(of, white=(draw(INPUTS, 2), draw(3, 3))),
        lambda of: bound(of, weights=np.ones((2, MEMBERS - 1))),
        lambda of: bound(of, usual=np.ones((1, MEMBERS))),
        lambda of: bound(of, shares=np.ones(3)),
        lambda of: bound(of).answer(4),
        lambda of: bound(of).mix(-1),
        lambda of: bound(of).believe(0, OUTPUTS),
        lambda of: rows.members(of, draw(2, FEATURES - 1), coefficients(), draw(2, OUTPUTS), 0.02),
        lambda of: rows.members(of, draw(3, FEATURES), coefficients(), draw(2, OUTPUTS), 0.02),
        lambda of: rows.sharpened(of, np.ones((2, 3, 2)), np.ones(2), 0.02),
        lambda of: rows.believe(of, np.ones((2, 3)), STEP, np.ones((2, 3)), np.ones((2, 4)), np.ones(2)),
        lambda of: rows.believe(of, np.ones((2, 3)), STEP, np.ones((2, 3), dtype=np.float32), np.ones((2, 3)), np.ones(2)),
    ],
)
def test_sizes_that_do_not_fit_are_refused(library, call):
    with pytest.raises((IndexError, InputError)):
        call(library)
