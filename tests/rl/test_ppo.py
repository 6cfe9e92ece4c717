import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.rl import PPO, PPOConfig, Transitions
from hvcl.rl.ppo import log_density


def agent(**settings):
    return PPO(2, 2, PPOConfig(**({"hidden": (8,), "rollout": 1_000, "heads": 3} | settings)), 0)


def play(ppo, observations, following, reward, terminal):
    for o, f, r, t in zip(observations, following, reward, terminal, strict=True):
        o, f = o[None].astype("f"), f[None].astype("f")
        ppo.observe(Transitions(o, ppo.act(o), np.array([r], "f"), f, np.array([t], "f"), np.ones((1, 2), "f")))


def test_advantages_against_brute_force():
    """Three stretches: one that ends, one that is broken off, one that goes on beyond the rollout."""
    ppo, random = agent(discount=0.9, trace=0.8), np.random.default_rng(0)
    states = random.normal(size=(12, 2))
    observations, following = states[:-1].copy(), states[1:].copy()
    terminal = np.zeros(11)
    terminal[3] = 1.0
    following[7] = [5.0, 5.0]  # broken off: the next step begins elsewhere
    reward = random.normal(size=11)
    play(ppo, observations, following, reward, terminal)
    value = ppo.value(torch.tensor(observations, dtype=torch.float)).detach().numpy()
    after = ppo.value(torch.tensor(following, dtype=torch.float)).detach().numpy()
    delta = reward + 0.9 * (1 - terminal) * after - value
    expected = [
        sum((0.9 * 0.8) ** (k - t) * delta[k] for k in range(t, end + 1))
        for t in range(11)
        for end in [3 if t <= 3 else 7 if t <= 7 else 10]
    ]
    _, _, _, advantage, goal, _ = ppo.advantages()
    np.testing.assert_allclose(advantage, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(goal, expected + value, rtol=1e-4, atol=1e-5)


def test_the_density_counts_only_actions_that_are_read():
    outputs, action = torch.randn(5, 4), torch.randn(5, 2)
    mask = torch.tensor([[1.0, 0.0]]).expand(5, 2)
    expected = torch.distributions.Normal(outputs[:, 0], outputs[:, 2].exp()).log_prob(action[:, 0])
    torch.testing.assert_close(log_density(outputs, action, mask), expected)


def test_a_task_changes_the_trunk_and_its_own_head_only():
    ppo = agent(rollout=16, batch_size=8, learning_rate=0.05)
    random = np.random.default_rng(0)
    for task in (0, 1):
        before = {name: p.detach().clone() for name, p in ppo.actor.network.named_parameters()}
        ppo.on_task_start(task, 32)
        states = random.normal(size=(17, 2))
        play(ppo, states[:-1], states[1:], random.normal(size=16), np.zeros(16))
        after = dict(ppo.actor.network.named_parameters())
        assert not torch.equal(before["weight0"], after["weight0"])
        heads = (before["weight1"] != after["weight1"]).unflatten(2, (3, 4)).any(3).any(1)[0]
        assert heads.tolist() == [task == head for head in range(3)]


def test_a_head_must_exist_and_acting_comes_first():
    with pytest.raises(InputError, match="heads for 3 tasks"):
        agent().predict(np.zeros((1, 2), np.float32), 3)
    zeros = np.zeros((1, 2), np.float32)
    with pytest.raises(InputError, match="act"):
        agent().observe(Transitions(zeros, zeros, np.zeros(1, "f"), zeros, np.zeros(1, "f"), zeros))
    with pytest.raises(InputError, match="clip"):
        agent(clip=0.0)
