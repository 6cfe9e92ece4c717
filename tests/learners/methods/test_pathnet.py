"""PathNet."""

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError, RunError
from hvcl.core.problem import Problem
from hvcl.core.state import copied
from hvcl.learners import create
from hvcl.learners.methods.pathnet import mutated
from hvcl.runs import run
from hvcl.streams import make_stream

CLASS = Problem((3,), 4, task_examples=(20, 20))
TASKS = Problem((3,), 4, ((0, 1), (2, 3)), task_examples=(20, 20))
SMALL = {"hidden": (5, 4), "modules": 4, "active": 2, "population": 6, "tournament_steps": 2, "learning_rate": 0.01}


def batch(label=0, seed=0, shape=(3,)):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(20, *shape, generator=random), torch.arange(20) % 2 + label


def taught(problem=TASKS, tasks=1, steps=3, **settings):
    """A learner after so many tasks of two labels each, and their boundaries."""
    learner = create("pathnet", problem, seed=1, **(SMALL | settings))
    for number in range(tasks):
        task = None if problem.task_outputs is None else torch.full((20,), number)
        for step in range(steps):
            learner.observe(*batch(2 * number, step, problem.input_shape), task)
        learner.end_task()
    return learner


def weights(learner):
    return {name: value.clone() for name, value in learner.network.state_dict().items()}


def moved(learner, before):
    return {
        name.rsplit(".", 2)[0] for name, value in learner.network.state_dict().items() if not torch.equal(value, before[name])
    }


def test_a_layer_adds_up_the_modules_of_the_path_each_once():
    learner = create("pathnet", CLASS, seed=1, **SMALL)
    x, _ = batch()
    found = learner.answers(torch.tensor([[2, 0], [3, 3]]), 1, x)
    first, second = learner.layers
    with torch.no_grad():
        hidden = F.leaky_relu(first[0][-2](x), 0.01) + F.leaky_relu(first[2][-2](x), 0.01)
        expected = learner.heads[1](F.leaky_relu(second[3][0](hidden), 0.01))
    torch.testing.assert_close(found.detach(), expected)


def test_mutations_move_one_number_on_average_by_at_most_two():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        genotype = torch.tensor([[0, 9, 5], [1, 8, 5]])
        moves = torch.stack([(mutated(genotype, 10) - genotype + 5) % 10 - 5 for _ in range(6000)])
    assert moves.unique().tolist() == [-2, -1, 0, 1, 2]
    # one of six is chosen, and a fifth of the moves goes nowhere
    assert (moves != 0).flatten(1).float().sum(1).mean().item() == pytest.approx(0.8, abs=0.05)
    assert genotype.tolist() == [[0, 9, 5], [1, 8, 5]]


def test_the_winner_of_a_tournament_takes_the_place_of_the_loser():
    learner = create("pathnet", CLASS, seed=1, **SMALL)
    before = learner.population.clone()
    first, second = learner.contestants.tolist()
    learner.right = torch.tensor([3.0, 7.0])
    assert torch.equal(learner.best, before[second])
    with learner.random.active():
        learner.decide()
    assert learner.winner == second
    assert torch.equal(learner.best, before[second])
    others = [number for number in range(6) if number != first]
    assert torch.equal(learner.population[others], before[others])
    difference = (learner.population[first] - before[second] + 2) % 4 - 2
    assert (difference != 0).sum() <= 4
    assert learner.right.tolist() == [0.0, 0.0]


def test_fitness_is_what_each_contestant_got_right_in_the_tournaments_batches():
    learner = create("pathnet", CLASS, seed=1, tournament_steps=3, **{k: v for k, v in SMALL.items() if k != "tournament_steps"})
    expected = torch.zeros(2)
    for step in range(2):
        x, y = batch(seed=step)
        learner.labels[0, y] = True
        with torch.no_grad():
            answers = [learner.answers(path, 0, x) for path in learner.population[learner.contestants]]
        expected += torch.stack([(outputs.argmax(1) == y).float().sum() for outputs in answers])
        learner.observe(x, y)
    assert torch.equal(learner.right, expected)
    learner.observe(*batch(seed=2))
    assert learner.winner is not None
    assert learner.step == 0


def test_only_the_contestants_modules_and_the_head_learn():
    learner = create("pathnet", CLASS, seed=1, **SMALL)
    before, paths = weights(learner), learner.population[learner.contestants]
    learner.observe(*batch())
    chosen = {f"layers.{layer}.{m}" for path in paths for layer, own in enumerate(path.tolist()) for m in own}
    assert moved(learner, before) == {*chosen, "heads"}


def test_the_best_path_is_frozen_and_what_no_task_has_frozen_begins_anew():
    learner = create("pathnet", TASKS, seed=1, **SMALL)
    first = torch.zeros(20, dtype=torch.long)
    for step in range(4):
        learner.observe(*batch(seed=step), first)
    best, before = learner.best.clone(), weights(learner)
    learner.end_task()
    path = {f"layers.{layer}.{m}" for layer, own in enumerate(best.tolist()) for m in own}
    every = {f"layers.{layer}.{m}" for layer in range(2) for m in range(4)}
    assert torch.equal(learner.paths[0], best)
    assert moved(learner, before) == every - path
    before = weights(learner)
    for step in range(8):
        learner.observe(*batch(2, step), first + 1)
    assert not moved(learner, before) & path
    assert moved(learner, before) >= {"heads"}


def test_in_task_il_nothing_is_forgotten_to_the_last_bit():
    learner = create("pathnet", TASKS, seed=1, **SMALL)
    first = torch.zeros(20, dtype=torch.long)
    for step in range(3):
        learner.observe(*batch(seed=step), first)
    learner.end_task()
    x, _ = batch(seed=9)
    before = learner.predict(x, first)
    for step in range(7):
        learner.observe(*batch(2, step), first + 1)
    assert torch.equal(learner.predict(x, first), before)
    both = learner.predict(x, torch.arange(20) % 2)
    assert torch.equal(both[::2].argmax(1) < 2, torch.ones(10, dtype=torch.bool))
    assert torch.equal(both[1::2].argmax(1) < 2, torch.zeros(10, dtype=torch.bool))


def test_a_task_that_comes_again_only_learns_its_head():
    learner = taught(tasks=2)
    before = weights(learner)
    learner.observe(*batch(0), torch.zeros(20, dtype=torch.long))
    assert {name.split(".")[0] for name in moved(learner, before)} == {"heads"}
    assert not torch.equal(learner.heads[0].weight, before["heads.0.weight"])
    assert torch.equal(learner.heads[1].weight, before["heads.1.weight"])


def test_without_boundaries_a_task_ends_in_task_il_when_another_begins():
    learner = create("pathnet", Problem((3,), 4, ((0, 1), (2, 3))), seed=1, **SMALL)
    learner.observe(*batch(0), torch.zeros(20, dtype=torch.long))
    x, y = batch(2)
    task = torch.tensor([0] * 5 + [1] * 15)
    learner.observe(x, torch.where(task == 0, y - 2, y), task)
    assert list(learner.paths) == [0]
    assert learner.current == 1
    assert learner.labels.tolist() == [[True, True, False, False], [False, False, True, True]]


def test_the_surest_path_answers_where_no_task_is_told():
    learner = taught(CLASS, tasks=2)
    # of the first task's path and of the second's, for three examples
    p = [
        torch.tensor([[0.9, 0.1, 0, 0], [0.5, 0.5, 0, 0], [0.7, 0.3, 0, 0]]),
        torch.tensor([[0, 0, 0.4, 0.6], [0, 0, 0.8, 0.2], [0, 0, 0.29, 0.71]]),
    ]
    learner.answers = lambda path, number, x: p[number].log()
    found = learner.predict(torch.zeros(3, 3))
    torch.testing.assert_close(found, torch.stack([p[0][0], p[1][1], p[1][2]]))


def test_a_path_answers_with_labels_of_its_task():
    learner = taught(CLASS, tasks=2)
    assert learner.labels.tolist() == [[True, True, False, False], [False, False, True, True]]
    found = learner.answers(learner.paths[0], 0, batch()[0]).softmax(1)
    assert (found[:, 2:] == 0).all()
    assert (found[:, :2] > 0).all()


def test_convolutions_are_modules_too_and_are_restored():
    problem = Problem((1, 6, 6), 4, task_examples=(20, 20))
    settings = {"channels": (3, 2), "hidden": (5,)}
    learner = taught(problem, tasks=1, **settings)
    learner.observe(*batch(2, shape=(1, 6, 6)))
    assert [type(modules[0][-2 if layer == 0 else 0]).__name__ for layer, modules in enumerate(learner.layers)] == [
        "Conv2d",
        "Conv2d",
        "Linear",
    ]
    other = create("pathnet", problem, seed=2, **(SMALL | settings))
    other.load_state_dict(copied(learner.state_dict()))
    x, y = batch(2, 5, (1, 6, 6))
    assert learner.observe(x, y) == other.observe(x, y)
    assert torch.equal(learner.predict(x), other.predict(x))
    frozen = [[m[0].weight.requires_grad for m in modules] for modules in other.layers]
    assert frozen == [[m[0].weight.requires_grad for m in modules] for modules in learner.layers]
    assert not all(map(all, frozen))


def test_numbers_of_modules_that_there_are_not_are_refused():
    learner = taught()
    state = copied(learner.state_dict())
    for name in ("population", "contestants"):
        broken = copied(state)
        broken[name][0] = 77
        with pytest.raises(RunError, match="are not all between"):
            learner.load_state_dict(broken)


def test_task_il_on_digits():
    stream = make_stream("split-digits", seed=1, scenario="task", epochs=4)
    found = run(stream, create("pathnet", stream.problem, seed=1, learning_rate=0.01, population=8))
    assert found.forgetting == 0.0
    assert found.average_accuracy > 0.9


def test_stores_no_example():
    assert taught().memory == "none"


BAD = [*({name: 0} for name in ("modules", "active", "tournament_steps")), {"population": 1}, {"hidden": ()}]


@pytest.mark.parametrize("settings", BAD)
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("pathnet", CLASS, **settings)
