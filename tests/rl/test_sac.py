import copy
import math

import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError, RunError
from hvcl.core.state import copied
from hvcl.rl import SAC, SACConfig, Transitions
from hvcl.rl.squashed import sample
from hvcl.rl.temperature import Temperature
from hvcl.testing import same


def agent(**settings):
    return SAC(3, 2, SACConfig(**({"hidden": (8, 8), "batch_size": 16, "capacity": 100, "warmup": 0} | settings)), 0)


def some(count=40, mask=(1.0, 1.0), seed=0):
    random = np.random.default_rng(seed)
    masks = np.tile(np.array(mask, np.float32), (count, 1))
    return Transitions(
        random.normal(size=(count, 3)).astype("f"),
        random.uniform(-1, 1, (count, 2)).astype("f") * masks,
        random.normal(size=count).astype("f"),
        random.normal(size=(count, 3)).astype("f"),
        (random.random(count) < 0.3).astype("f"),
        masks,
    )


def test_every_term_is_the_papers():
    """The update's losses, temperature, targets and priorities, computed again by hand from the same draws."""
    sac = agent()
    sac.replay.add(some(mask=(1.0, 0.0)))
    sac.temperature.log_alpha = math.log(0.3)
    before = copy.deepcopy(sac)
    terms = sac.update()

    batch = before.replay.sample(16, 0.4 + 0.6 * before.progress)
    with before.random.active(), torch.no_grad():
        action, log_pi = sample(before.actor.network(batch.next_observation), batch.mask)
        q = before.target(torch.cat([batch.next_observation, action], 1))
        goal = batch.reward + 0.99 * (1 - batch.terminal) * (torch.minimum(q[:, 0], q[:, 1]) - 0.3 * log_pi)
        found = before.critic.network(batch.pair)
        critic_loss = sum(0.5 * (batch.weight * (found[:, i] - goal) ** 2).mean() for i in range(2))
        action, log_pi = sample(before.actor.network(batch.observation), batch.mask)
        q = sac.critic.network(torch.cat([batch.observation, action], 1))  # the actor's step comes after the critics'
        actor_loss = (0.3 * log_pi - torch.minimum(q[:, 0], q[:, 1])).mean()
    assert terms["critic"] == pytest.approx(critic_loss.item(), rel=1e-5)
    assert terms["actor"] == pytest.approx(actor_loss.item(), rel=1e-5)
    assert terms["alpha"] == pytest.approx(0.3)
    assert terms["surprise"] == pytest.approx(log_pi.mean().item() - 1, rel=1e-4)  # one action is read: the target is -1
    for target, old, new in zip(
        sac.target.parameters(), before.target.parameters(), sac.critic.network.parameters(), strict=True
    ):
        torch.testing.assert_close(target, 0.995 * old + 0.005 * new)
    priorities = ((found - goal.unsqueeze(1)).abs().mean(1) + 1e-3) ** 0.6
    last = {int(place): float(p) for place, p in zip(batch.places, priorities, strict=True)}
    np.testing.assert_allclose(sac.replay._tree.get(np.array(list(last))), list(last.values()), rtol=1e-4)


def test_the_critics_learn_a_fixed_goal():
    sac = agent(discount=0.0, learning_rate=0.01)
    sac.replay.add(some())
    loss = []
    for _ in range(60):
        loss.append(sac.update()["critic"])
    assert np.mean(loss[-10:]) < 0.6 * np.mean(loss[:10])


def test_padded_actions_change_nothing():
    """What the outputs for an action that no task reads say has no part in the losses."""
    sac = agent()
    sac.replay.add(some(mask=(1.0, 0.0)))
    other = copy.deepcopy(sac)
    with torch.no_grad():
        for output in (1, 3):  # mean and log sigma of the second action
            other.actor.network.bias2[..., output] += 1.0
    a, b = sac.update(), other.update()
    assert a["critic"] == pytest.approx(b["critic"], rel=1e-6)
    assert a["actor"] == pytest.approx(b["actor"], rel=1e-6)
    assert a["surprise"] == pytest.approx(b["surprise"], rel=1e-6)


def test_the_temperature_is_adams_and_follows_the_entropy():
    ours, theirs = Temperature(0.01), torch.nn.Parameter(torch.zeros((), dtype=torch.double))
    adam = torch.optim.Adam([theirs], 0.01)
    for surprise in (1.0, -0.3, 0.2, 2.0):
        adam.zero_grad()
        (-theirs * surprise).backward()
        adam.step()
        ours.step(surprise)
        assert ours.log_alpha == pytest.approx(theirs.item(), rel=1e-9)
    assert ours.alpha > 1  # too little entropy on the whole: it is worth more


def test_updates_per_step_is_kept_on_average(monkeypatch):
    sac = agent(updates_per_step=0.3, warmup=10)
    made = []
    monkeypatch.setattr(sac, "update", lambda: made.append(1) or {})
    for _ in range(110):
        sac.observe(some(1))
    assert len(made) == pytest.approx(0.3 * 101, abs=1)


def test_acting_tries_out_and_predicting_does_not():
    sac = agent()
    observation = some(5).observation
    assert np.array_equal(sac.predict(observation), sac.predict(observation))
    assert not np.array_equal(sac.act(observation), sac.act(observation))
    assert np.abs(sac.act(observation)).max() <= 1


def test_the_replay_is_emptied_at_the_end_of_a_task_unless_it_is_to_be_kept():
    for keep in (False, True):
        sac = agent(keep_replay=keep)
        sac.replay.add(some())
        sac.on_task_end()
        assert len(sac.replay) == (40 if keep else 0)


def test_a_state_of_other_settings_is_refused_and_changes_nothing():
    one, other = agent(), SAC(3, 2, SACConfig(hidden=(9,)), 0)
    before = copied(other.state_dict())
    with pytest.raises(RunError, match="other settings"):
        other.load_state_dict(one.state_dict())
    assert same(before, other.state_dict())


def test_only_registered_agents_are_saved(tmp_path):
    with pytest.raises(InputError, match="not registered"):
        SAC(3, 2, SACConfig(hidden=(9,)), 0).save(tmp_path / "agent.safetensors")


def test_leaves_the_global_random_state_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    sac = agent()
    sac.replay.add(some())
    sac.update()
    sac.act(some(2).observation)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("settings", [{"hidden": ()}, {"tau": 0.0}, {"discount": 1.5}, {"batch_size": 0}, {"capacity": 0}])
def test_bad_settings(settings):
    with pytest.raises(InputError):
        agent(**settings)


def test_bad_observations():
    with pytest.raises(InputError, match="shape"):
        agent().act(np.zeros((2, 4), np.float32))
    with pytest.raises(InputError, match="finite"):
        agent().predict(np.full((1, 3), np.nan, np.float32))
