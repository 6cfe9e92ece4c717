"""What is special about gradient episodic memory; the contract is tested with all the others'."""

import itertools

import pytest
import torch

from hvcl.core.errors import InputError, RunError
from hvcl.core.problem import Problem
from hvcl.learners import create
from hvcl.learners.memory.episodes import Episodes
from hvcl.learners.memory.examples import Stored
from hvcl.learners.methods.gem import project
from hvcl.learners.projection import gradient_of, held_gradient

CPU = torch.device("cpu")


def brute_force(target, rows):
    """The closest vector with no negative product with any row: the best of those that hold some rows at zero."""
    best, distance = None, torch.inf
    for size in range(len(rows) + 1):
        for active in itertools.combinations(range(len(rows)), size):
            held = rows[list(active)]
            candidate = target - torch.linalg.pinv(held) @ (held @ target)
            if (rows @ candidate >= -1e-9).all() and (candidate - target).norm() < distance:
                best, distance = candidate, (candidate - target).norm()
    return best


@pytest.mark.parametrize("margin", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(10))
def test_the_projection_is_the_closest_vector_that_satisfies_all_constraints(seed, margin):
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(4, 6, dtype=torch.float64, generator=random)
    gradient = -rows.sum(0) + 0.5 * torch.randn(6, dtype=torch.float64, generator=random)
    projected = project(gradient, rows, margin)
    assert (rows @ projected >= -1e-9).all()
    torch.testing.assert_close(projected, brute_force(gradient + margin * rows.sum(0), rows), atol=1e-9, rtol=0)


def test_by_hand():
    # against (1, 0) and (0, 1): both parts of (-1, -2) go; only the first of (-1, 2)
    rows = torch.eye(2)
    assert project(torch.tensor([-1.0, -2.0]), rows).abs().max() < 1e-6
    torch.testing.assert_close(project(torch.tensor([-1.0, 2.0]), rows), torch.tensor([0.0, 2.0]))
    # with a margin of 1/2, (-1, 2) + 1/2 (1, 1) = (-1/2, 5/2) is projected
    torch.testing.assert_close(project(torch.tensor([-1.0, 2.0]), rows, 0.5), torch.tensor([0.0, 2.5]))


def test_a_gradient_that_agrees_is_left_alone_whatever_the_margin():
    gradient = torch.tensor([1.0, 2.0])
    assert project(gradient, torch.eye(2), margin=0.5) is gradient


def test_equal_and_vanishing_constraints_do_no_harm():
    rows = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(project(torch.tensor([-1.0, 2.0, 3.0]), rows), torch.tensor([0.0, 2.0, 3.0]))


def test_as_many_constraints_as_weights_in_float32():
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(12, 5, generator=random)
    projected = project(torch.randn(5, generator=random), rows)
    assert (rows @ projected >= -1e-5).all()


def test_no_step_against_any_earlier_task():
    learner = create("gem", Problem((2,), 2), seed=1, hidden=(8,), memory=12, margin=0.0)
    random = torch.Generator().manual_seed(0)
    tasks = [(torch.randn(6, 2, generator=random), y) for y in (torch.zeros(6, dtype=torch.long), torch.arange(6) % 2)]
    for x, y in tasks:
        learner.observe(x, y)
        learner.end_task()
    shares = [Stored(x[-4:], y[-4:]) for x, y in tasks]  # three tasks have begun: twelve places make four each
    assert [episode.y.tolist() for episode in learner.episodes.finished] == [share.y.tolist() for share in shares]
    x, y = shares[0].x, 1 - shares[0].y  # the opposite of what the first task says
    losses = [torch.nn.functional.cross_entropy(learner.network(share.x), share.y) for share in shares]
    earlier = torch.stack([gradient_of(loss, learner.network) for loss in losses])
    own = gradient_of(torch.nn.functional.cross_entropy(learner.network(x), y), learner.network)
    assert (earlier @ own < 0).any()
    learner.observe(x, y)
    assert (earlier @ held_gradient(learner.network) > -1e-6).all()


def test_the_memory_is_shared_by_the_tasks_so_far():
    episodes = Episodes(Problem((1,), 9), 6, 0, CPU)

    def see(*labels):
        episodes.add(Stored(torch.zeros(len(labels), 1), torch.tensor(labels)))

    see(0, 1, 2, 3)
    see(4, 5, 6, 7)
    assert episodes.current.y.tolist() == [2, 3, 4, 5, 6, 7]
    episodes.begin()
    assert [episode.y.tolist() for episode in episodes.finished] == [[5, 6, 7]]
    assert len(episodes.current) == 0
    episodes.begin()  # a task of which nothing came is none
    assert len(episodes.finished) == 1
    see(8, 8, 0, 1)
    assert episodes.current.y.tolist() == [8, 0, 1]
    episodes.begin()
    assert [episode.y.tolist() for episode in episodes.finished] == [[6, 7], [0, 1]]
    assert sorted(episodes.draw(99).y.tolist()) == [0, 1, 6, 7]
    assert len(episodes.draw(3)) == 3
    for label in range(9):
        see(label)
        episodes.begin()
    assert [episode.y.tolist() for episode in episodes.finished] == [[4], [5], [6], [7], [8]]
    with pytest.raises(RunError, match="same size"):
        Episodes(Problem((1,), 9), 3, 0, CPU).load_state(episodes.state())


def test_on_a_task_free_stream_segments_take_the_place_of_tasks(taught):
    (told, _), (free, _) = taught("gem"), taught("gem", task_free=True, segment_steps=40)
    assert len(told.episodes.finished) == len(free.episodes.finished) == 2
    weights = free.network.state_dict()
    assert all(torch.equal(w, weights[name]) for name, w in told.network.state_dict().items())
    longer, _ = taught("gem", task_free=True)
    assert len(longer.episodes.finished) == 0


@pytest.mark.parametrize("scenario", ["domain", "class"])
def test_forgets_less_than_naive_training(forgotten, scenario):
    assert forgotten("gem", scenario, memory=100) < forgotten("naive", scenario) - 0.4


def test_without_memory_it_is_naive_training(is_naive):
    assert is_naive("gem", memory=0)


@pytest.mark.parametrize("settings", [{"margin": -0.1}, {"segment_steps": 0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("gem", Problem((2,), 2), **settings)
