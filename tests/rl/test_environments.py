import gymnasium
import numpy as np
import pytest

from hvcl.core.errors import InputError, UnknownNameError
from hvcl.rl import TaskSequence, bullet, sequence, sequences


class Probe(gymnasium.Env):
    """Shows which action it got."""

    def __init__(self, observation, action):
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(self.observation_space.shape, np.float32), {}

    def step(self, action):
        self.got = action
        return np.full(self.observation_space.shape, 7.0), 1.0, False, False, {}


def box(*shape, low=-1.0, high=1.0):
    return gymnasium.spaces.Box(low, high, shape, np.float32)


def small():
    return Probe(box(2), box(1, low=0.0, high=4.0))


def large():
    return Probe(box(5), box(3))


def test_spaces_are_padded_to_the_largest():
    both = TaskSequence.of([small, large])
    assert (both.observations, both.actions) == (5, 3)
    assert [mask.tolist() for mask in both.masks] == [[1, 0, 0], [1, 1, 1]]
    environment = both.environment(0)
    observation, _ = environment.reset(seed=1)
    assert observation.shape == (5,)
    assert (observation[2:] == 0).all()
    assert (observation[:2] != 0).all()
    assert environment.step(np.zeros(3, np.float32))[0].tolist() == [7, 7, 0, 0, 0]


@pytest.mark.parametrize(("action", "expected"), [(-1.0, 0.0), (0.0, 2.0), (0.5, 3.0), (1.0, 4.0), (9.0, 4.0), (-9.0, 0.0)])
def test_actions_are_clipped_and_scaled_to_the_environments_range(action, expected):
    environment = TaskSequence.of([small, large]).environment(0)
    environment.reset(seed=0)
    environment.step(np.array([action, 0.3, -0.9], np.float32))
    np.testing.assert_allclose(environment.unwrapped.got, [expected])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Probe(box(8, 8, 3), box(1)), "images"),
        (lambda: Probe(box(2), gymnasium.spaces.Discrete(3)), "Discrete"),
        (lambda: Probe(gymnasium.spaces.Discrete(3), box(1)), "Discrete"),
        (lambda: Probe(box(2), box(1, low=-np.inf, high=np.inf)), "unbounded"),
    ],
)
def test_spaces_that_are_not_known_are_refused_with_a_reason(make, message):
    with pytest.raises(InputError, match=message):
        TaskSequence.of([make])


class Broken(Probe):
    """Shows, pays or does what is no number in its second step."""

    def __init__(self, what):
        super().__init__(box(2), box(1))
        self.what, self.steps = what, 0

    def step(self, action):
        self.steps += 1
        bad = np.nan if self.steps == 2 else 0.0
        return np.full(2, bad if self.what == "observation" else 0.0), bad if self.what == "reward" else 0.0, False, False, {}


@pytest.mark.parametrize("what", ["observation", "reward", "action"])
def test_what_is_no_number_is_refused_before_anything_learns_from_it(what):
    environment = TaskSequence.of([lambda: Broken(what)]).environment(0)
    environment.reset(seed=0)
    environment.step(np.zeros(1, np.float32))
    with pytest.raises(InputError, match=f"Broken.*{what}|{what}.*Broken"):
        environment.step(np.full(1, np.nan if what == "action" else 0.0, np.float32))


def test_what_is_no_environment_is_refused_with_a_reason():
    with pytest.raises(InputError, match="a function that makes one, got 3"):
        TaskSequence.of([3])
    with pytest.raises(InputError, match="it made 3"):
        TaskSequence.of([lambda: 3])
    with pytest.raises(InputError, match="nosuchmodule"):
        TaskSequence.of(["nosuchmodule:Own-v0"])


def test_names_that_nobody_knows():
    with pytest.raises(InputError, match="Pendulum-v77"):
        TaskSequence.of(["Pendulum-v77"])
    with pytest.raises(UnknownNameError, match="classic"):
        sequence("clasic")
    with pytest.raises(InputError, match="at least one"):
        TaskSequence("empty", ())


@pytest.mark.parametrize(("name", "module"), [("bullet", bullet), ("mujoco", sequences)])
def test_a_missing_extra_is_named(name, module, monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda found: None)
    with pytest.raises(InputError, match=rf"hvcl\[{name}\]"):
        sequence(name)


def test_classic_needs_gymnasium_alone_and_repeats_itself():
    classic = sequence("classic")
    assert (classic.observations, classic.actions) == (4, 2)
    for task in range(len(classic.tasks)):
        one, other = classic.environment(task), classic.environment(task)
        other.reset(seed=8)
        other.step(np.ones(2, np.float32))  # what was before a reset leaves no trace
        trails = []
        for environment in (one, other):
            trail = [environment.reset(seed=3)[0]]
            trail += [environment.step(np.full(2, force, np.float32))[0] for force in (0.1, -0.4, 1.0)]
            trails.append(np.stack(trail))
        np.testing.assert_array_equal(*trails)


def test_the_force_on_the_cart_is_continuous():
    classic = sequence("classic")
    speeds = []
    for force in (-1.0, -0.5, 0.0, 0.5, 1.0):
        environment = classic.environment(2)
        environment.reset(seed=0)
        speeds.append(float(environment.step(np.array([force, 0.0], np.float32))[0][1]))
    np.testing.assert_allclose(np.diff(speeds), np.diff(speeds)[0], rtol=1e-4)  # the change of speed is linear in the force
    assert speeds[-1] > speeds[0]
