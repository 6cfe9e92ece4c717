"""A generative gate that opens agents as they are needed."""

import numpy as np

from hvcl.rl import create
from hvcl.rl.replay import Transitions


def play(agent, random, episodes, begins, width, length=12):
    """Episodes that begin near `begins` and then go wherever a policy might go; what is unused is zero."""
    one = np.ones((1, 1), np.float32)
    for _ in range(episodes):
        state = np.zeros((1, agent.observations), np.float32)
        state[0, :width] = begins + 0.05 * random.normal(size=width)
        for _ in range(length):
            agent.act(state)
            following = state.copy()
            following[0, :width] += random.normal(size=width)
            agent.observe(Transitions(state, one, np.zeros(1, "f"), following, np.zeros(1, "f"), one))
            state = following
    return state


def agent_for(observations, **settings):
    return create("hvcl-growing", observations, 1, 0, hidden=(4,), **({"updates_per_step": 0.0} | settings))


def test_a_new_agent_for_episodes_that_begin_differently_and_the_old_one_when_they_come_back():
    random = np.random.default_rng(0)
    agent = agent_for(8)
    play(agent, random, 30, 0.5, 4)
    assert len(agent.members) == 1  # wherever the episodes have led
    play(agent, random, 30, -0.7, 4)  # the same places, other numbers
    assert (len(agent.members), agent.current) == (2, 1)
    play(agent, random, 30, 0.5, 6)  # the same numbers, more places
    assert (len(agent.members), agent.current) == (3, 2)
    play(agent, random, 1, -0.7, 4)  # back: known at the first episode
    assert (len(agent.members), agent.current) == (3, 1)
    assert agent.starts.counts.tolist() == [30, 31, 30]
    assert agent.gate.counts.tolist() == [360, 372, 360]


def test_a_policy_that_reaches_new_places_is_no_new_task():
    random = np.random.default_rng(1)
    agent = agent_for(4)
    play(agent, random, 40, 0.5, 4, length=5)
    play(agent, random, 10, 0.5, 4, length=500)  # as far as hundreds of steps lead
    assert len(agent.members) == 1


def test_only_the_agent_at_work_learns_and_the_others_are_as_they_were():
    random = np.random.default_rng(2)
    agent = agent_for(4, batch_size=8, warmup=16, updates_per_step=0.05)
    play(agent, random, 30, 0.5, 2)
    probe = np.ones((1, 4), np.float32)
    first = agent.members[0].predict(probe)
    play(agent, random, 30, -0.7, 4)
    assert len(agent.members) == 2
    assert np.array_equal(first, agent.members[0].predict(probe))
    assert (len(agent.members[0].replay), len(agent.members[1].replay)) == (0, 360)


def test_acting_asks_the_agent_that_has_seen_such_observations():
    random = np.random.default_rng(3)
    agent = agent_for(6)
    ends = [play(agent, random, 30, begins, width) for begins, width in ((0.5, 2), (-0.7, 6), (1.5, 4))]
    observations = np.concatenate(ends)
    assert agent.experts_of(observations).tolist() == [0, 1, 2]
    for row, member in zip(observations, agent.members, strict=True):
        np.testing.assert_allclose(agent.predict(observations), np.concatenate([agent.predict(r[None]) for r in observations]))
        assert np.array_equal(agent.predict(row[None]), member.predict(row[None]))
    np.testing.assert_allclose(agent.usage(observations)["gate"], [1 / 3] * 3, rtol=1e-6)
