import math

import pytest

from hvcl.core.errors import InputError
from hvcl.objective import Constant, Cyclic, TargetInformation


def test_constant_ignores_progress():
    assert [Constant(0.3).value(p) for p in (0.0, 0.5, 1.0)] == [0.3, 0.3, 0.3]


def test_cyclic_rises_over_the_first_half_of_each_cycle_and_holds():
    schedule = Cyclic(2.0, cycles=4)
    quarter = 1 / 4
    for cycle in range(4):
        start = cycle * quarter
        assert schedule.value(start) == pytest.approx(0.0)
        assert schedule.value(start + quarter / 4) == pytest.approx(1.0)
        assert schedule.value(start + quarter / 2) == pytest.approx(2.0)
        assert schedule.value(start + 0.99 * quarter) == pytest.approx(2.0)


def test_cyclic_stays_at_the_top_after_the_task_is_over():
    assert Cyclic(2.0).value(1.0) == 2.0
    assert Cyclic(2.0).value(1.7) == 2.0


@pytest.mark.parametrize("slope", [0.5, 3.0])
def test_target_information_finds_the_beta_that_meets_the_target(slope):
    # a system whose KL falls with beta: KL in bits = slope / beta; the target of 2 bits is met at beta = slope / 2
    schedule = TargetInformation(target_bits=2.0, initial_beta=1.0, rate=0.05)
    for _ in range(2000):
        schedule.observe(slope / schedule.value(0.0) * math.log(2))
    assert schedule.value(0.0) == pytest.approx(slope / 2, rel=0.02)


def test_target_information_that_cannot_be_met_stays_finite_and_passes_over_nan():
    schedule = TargetInformation(target_bits=0.5, rate=0.5)
    for _ in range(10_000):
        schedule.observe(1e9)
    assert schedule.value(0.0) == pytest.approx(1e6)
    schedule.observe(math.nan)
    assert schedule.value(0.0) == pytest.approx(1e6)


def test_target_information_goes_on_from_its_state():
    first = TargetInformation(1.0)
    for nats in (3.0, 0.1, 2.0):
        first.observe(nats)
    second = TargetInformation(1.0)
    second.load_state_dict(first.state_dict())
    assert second.value(0.0) == first.value(0.0) != 1.0


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Constant(-1.0), "beta"),
        (lambda: Cyclic(float("nan")), "beta"),
        (lambda: Cyclic(1.0, cycles=0), "cycles"),
        (lambda: Cyclic(1.0, ramp=0.0), "ramp"),
        (lambda: TargetInformation(0.0), "target_bits"),
    ],
)
def test_bad_arguments_are_named(make, word):
    with pytest.raises(InputError, match=word):
        make()
