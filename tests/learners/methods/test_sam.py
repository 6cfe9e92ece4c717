"""The self-attention meta-learner."""

import pytest
import torch
from torch import nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import copied
from hvcl.learners import create
from hvcl.learners.invented import invent
from hvcl.learners.methods.sam import Attention, adapt, episode
from hvcl.runs import run
from hvcl.streams import make_stream

CLASS = Problem((3,), 4, task_examples=(20, 20))
TASKS = Problem((3,), 4, ((0, 1), (2, 3)), task_examples=(20, 20))
QUICK = {"hidden": (6,), "meta_steps": 2}


def batch(label=0, seed=0, shape=(3,)):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(20, *shape, generator=random), torch.arange(20) % 2 + label


def taught(problem=CLASS, **settings):
    """A learner with two tasks, of two labels each."""
    learner = create("sam", problem, seed=1, **(QUICK | settings))
    for number in range(2):
        task = None if problem.task_outputs is None else torch.full((20,), number)
        for step in range(3):
            learner.observe(*batch(2 * number, step), task)
        if number == 0:
            learner.end_task()
    return learner


def test_attention_weights_units_by_hand():
    attention = Attention(2, reduction=2)
    with torch.no_grad():
        attention.squeeze.weight.copy_(torch.tensor([[1.0, -1.0]]))
        attention.excite.weight.copy_(torch.tensor([[2.0], [-1.0]]))
    weights = torch.tensor([[4.0, -2.0], [0.0, 0.0]]).sigmoid()  # relu(3 - 1) = 2, and relu(1 - 3) = 0
    h = torch.tensor([[3.0, 1.0], [1.0, 3.0]])
    torch.testing.assert_close(attention(h), h * weights)
    places = torch.tensor([[-1.0, 1.0], [-0.5, 0.5]])  # of two channels, whose means are those of above
    pictures = h.view(2, 2, 1, 1) + torch.stack([places, 2 * places]).view(1, 2, 2, 2)
    torch.testing.assert_close(attention(pictures), pictures * weights.view(2, 2, 1, 1))


def test_there_are_as_many_units_of_attention_as_the_reduction_says():
    assert Attention(40, 10).squeeze.out_features == 4
    assert Attention(5, 10).squeeze.out_features == 1


def test_adapted_weights_by_hand_and_their_second_derivative():
    """One weight w, loss log(1 + exp(-2 w)) on the support x = 1, y = 0: outputs are (w, -w)."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(0.3))

        def forward(self, x):
            return torch.cat([self.w * x, -self.w * x], 1)

    model = Both()
    weights = dict(model.named_parameters())
    found = adapt(model, weights, (torch.ones(1, 1), torch.zeros(1, dtype=torch.long)), 0.5, 1)["w"]
    s = torch.tensor(-0.6).sigmoid()
    torch.testing.assert_close(found, 0.3 + 0.5 * 2 * s)
    # d/dw (w + 2 a s(-2 w)) = 1 - 4 a s (1 - s); of a first-order method it would be 1
    torch.testing.assert_close(torch.autograd.grad(found, model.w)[0], 1 - 2 * s * (1 - s))


def test_episodes_have_classes_of_their_own_and_no_query_among_the_support():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        classes = torch.arange(7 * 6).view(7, 6, 1).float()
        (x, y), (query, labels) = episode(classes, ways=3, shots=2)
    assert y.tolist() == [0, 0, 1, 1, 2, 2]
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert len({*x.flatten().tolist(), *query.flatten().tolist()}) == 18
    kinds = x.flatten() // 6
    assert kinds.unique().numel() == 3
    assert torch.equal(kinds[::2], kinds[1::2])
    assert torch.equal(query.flatten() // 6, kinds[::2].repeat_interleave(4))


def test_prior_knowledge_learns_new_invented_classes_sooner():
    after = {}
    for steps in (0, 60):
        learner = create("sam", Problem((1, 14, 14), 2), seed=1, hidden=(40, 40), meta_steps=steps)
        with learner.random.active():
            learner.prepare()
        with torch.random.fork_rng():
            torch.manual_seed(7)  # classes that it has not seen
            scores = []
            for support, query in (episode(invent((1, 14, 14), 20, 20), 5, 5) for _ in range(10)):
                head = nn.Linear(40, 5)
                nn.init.zeros_(head.weight)
                model = nn.Sequential(learner.shared, head).requires_grad_()
                adapted = adapt(model, dict(model.named_parameters()), support, 0.4, 3)
                answers = torch.func.functional_call(model, adapted, (query[0],))
                scores.append((answers.argmax(1) == query[1]).float().mean().item())
        after[steps] = sum(scores) / len(scores)
    assert after[60] > after[0] + 0.05


def test_nothing_shared_moves_in_the_stream_and_branches_only_in_their_own_task():
    learner = create("sam", CLASS, seed=1, **QUICK)
    learner.observe(*batch())
    learner.end_task()
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    learner.observe(*batch(2))
    moved = {name for name, value in learner.network.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {"branches.1.head.weight", "branches.1.head.bias"}
    assert learner.labels.tolist() == [[True, True, False, False], [False, False, True, True]]


def test_a_task_learns_its_own_labels_only_and_all_branches_share_one_softmax():
    learner = taught()
    x, _ = batch(seed=9)
    with torch.no_grad():
        selected = learner.shared(x)
        own = [learner.network["branches"][number](selected)[:, 2 * number : 2 * number + 2] for number in range(2)]
        expected = torch.cat(own, 1).softmax(1)
    torch.testing.assert_close(learner.predict(x), expected)


def test_in_domain_il_a_label_has_what_all_its_branches_say():
    learner = create("sam", Problem((3,), 2, task_examples=(20, 20)), seed=1, **QUICK)
    for number in range(2):
        learner.observe(*batch(seed=number))
        learner.end_task()
    x, _ = batch(seed=9)
    with torch.no_grad():
        selected = learner.shared(x)
        both = torch.cat([learner.network["branches"][number](selected) for number in range(2)], 1).softmax(1)
    torch.testing.assert_close(learner.predict(x), both[:, :2] + both[:, 2:])


def test_in_task_il_a_task_keeps_its_answers_to_the_last_bit():
    learner = create("sam", TASKS, seed=1, **QUICK)
    first = torch.zeros(20, dtype=torch.long)
    learner.observe(*batch(), first)
    learner.end_task()
    before = learner.predict(batch(seed=9)[0], first)
    for step in range(3):
        learner.observe(*batch(2, step), first + 1)
    assert torch.equal(learner.predict(batch(seed=9)[0], first), before)


def test_branches_may_have_layers_of_their_own():
    learner = create("sam", CLASS, seed=1, hidden=(6, 5, 4), specific=1, meta_steps=1)
    assert [tuple(layer.weight.shape) for layer in learner.shared if isinstance(layer, nn.Linear)] == [(6, 3), (5, 6)]
    assert learner.network["branches"][0].dense0.weight.shape == (4, 5)


def test_convolutions_are_recalibrated_by_channel():
    problem = Problem((1, 8, 8), 2, task_examples=(20, 20))
    learner = create("sam", problem, seed=1, channels=(3, 5), hidden=(), meta_steps=1)
    kinds = [type(layer).__name__ for layer in learner.shared]
    assert kinds == ["Conv2d", "LeakyReLU", "Attention", "Conv2d", "LeakyReLU", "Attention", "Flatten"]
    assert [layer.excite.out_features for layer in learner.shared if isinstance(layer, Attention)] == [3, 5]
    learner.observe(*batch(shape=(1, 8, 8)))
    other = create("sam", problem, seed=2, channels=(3, 5), hidden=(), meta_steps=1)
    other.load_state_dict(copied(learner.state_dict()))
    x, y = batch(seed=5, shape=(1, 8, 8))
    assert learner.observe(x, y) == other.observe(x, y)  # and does not prepare again
    assert torch.equal(learner.predict(x), other.predict(x))


def test_task_il_forgets_nothing_on_digits():
    stream = make_stream("split-digits", seed=1, scenario="task", epochs=10)
    found = run(stream, create("sam", stream.problem, seed=1, hidden=(64,), meta_steps=10))
    assert found.forgetting == 0.0
    assert found.average_accuracy > 0.93


def test_states_what_it_knows_before_the_stream():
    assert create("sam", CLASS, **QUICK).memory == "none (invented data before the stream)"
    assert create("sam", CLASS, hidden=(6,), meta_steps=0).memory == "none"


BAD = [
    *({name: 0} for name in ("reduction", "inner_steps", "shots", "meta_rate", "inner_rate")),
    *({name: -1} for name in ("weight_decay", "meta_steps", "specific")),
    *({"ways": 1}, {"ways": 201}, {"shots": 20}, {"hidden": (6,), "specific": 1}),
]


@pytest.mark.parametrize("settings", BAD)
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=list(settings)[-1]):
        create("sam", CLASS, **settings)
