"""Meta-consolidation."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import copied
from hvcl.learners import create
from hvcl.learners.memory.examples import Stored
from hvcl.learners.methods.merlin import Ensemble, MERLINConfig, Meta
from hvcl.networks import build_network
from hvcl.runs import run
from hvcl.streams import make_stream

DOMAIN = Problem((3,), 2, task_examples=(20, 20), task_steps=(5, 5))
TASKS = Problem((3,), 4, ((0, 1), (2, 3)), task_examples=(20, 20), task_steps=(5, 5))
QUICK = {
    "hidden": (4,),
    "models": 3,
    "drawn": 2,
    "pseudo_models": 2,
    "chunk": 8,
    "vae_steps": 3,
    "tuning_epochs": 1,
    "memory": 12,
}


def batch(seed=0, label=0, shape=(3,)):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(20, *shape, generator=random), torch.arange(20) % 2 + label


def taught(problem=DOMAIN, tasks=2, **settings):
    """A learner after the boundary of some tasks."""
    learner = create("merlin", problem, seed=1, **(QUICK | settings))
    aware = problem.task_outputs is not None
    for number in range(tasks):
        for step in range(3):
            task = torch.full((20,), number) if aware else None
            learner.observe(*batch(step, 2 * number if aware else 0, problem.input_shape), task)
        learner.end_task()
    return learner


@pytest.fixture(autouse=True)
def _own_numbers():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


def test_bound_of_a_model_by_hand():
    meta = Meta(5, MERLINConfig(chunk=3, latent=2, vae_units=4))
    with torch.no_grad():
        meta.set_priors(torch.tensor([[9.0, 9.0], [0.5, -1.0]]), torch.tensor([[0.0, 0.0], [0.0, math.log(4.0)]]))
        for layer, bias in ((meta.mean, [1.0, 1.0]), (meta.log_variance, [-2.0, 0.0]), (meta.decoder[-1], [0.0, 1.0, 2.0])):
            layer.weight.zero_()
            layer.bias.copy_(torch.tensor(bias))
    found = meta.loss(torch.tensor([[[1.0, 1.0, 1.0], [0.0, 1.0, 5.0]]]), torch.tensor([1]))
    divergence = 0.5 * (2 + math.exp(-2) + 0.25 - 1) + 0.5 * (math.log(4) + 1 / 4 + 4 / 4 - 1)
    error = 0.5 * (1 + 0 + 1 + 0 + 0 + 9) + 3 * math.log(2 * math.pi)
    assert found.item() == pytest.approx(divergence + error, rel=1e-5)


def test_all_chunks_of_a_model_share_a_z():
    meta = Meta(5, MERLINConfig(chunk=3, latent=2, vae_units=4))
    seen = []
    meta.mean.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    meta.set_priors(torch.zeros(1, 2), torch.zeros(1, 2))
    chunks = torch.randn(3, 2, 3)
    meta.loss(chunks, torch.zeros(3, dtype=torch.long))
    each = [meta.encoder(torch.cat([chunks[:, c], meta.embedding[c].expand(3, -1)], 1)) for c in range(2)]
    torch.testing.assert_close(seen[0], (each[0] + each[1]) / 2)


def test_models_are_drawn_with_one_z_for_all_chunks_from_the_average_of_priors():
    meta = Meta(5, MERLINConfig(chunk=3, latent=2, vae_units=4))
    meta.set_priors(
        torch.tensor([[0.0, 1.0], [2.0, 5.0], [7.0, 7.0]]), torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0], [9.0, 9.0]])
    )
    asked = []

    class Decoder(nn.Module):
        def forward(self, both):
            asked.append(both)
            return torch.arange(6.0).view(2, 3).expand(len(both), -1, -1)

    meta.decoder = Decoder()
    meta.scale.fill_(10.0)
    noise = torch.tensor([[1.0, 0.0], [0.0, -1.0], [0.0, 0.0]])
    moved = meta.draw([0, 1], noise)
    z = torch.tensor([1.0, 3.0]) + torch.tensor([math.sqrt(2.0), 1.0]) * noise
    torch.testing.assert_close(asked[0][:, :, :2], z.unsqueeze(1).expand(-1, 2, -1))
    torch.testing.assert_close(asked[0][:, :, 2:], meta.embedding.expand(3, -1, -1))
    assert moved.tolist() == [[0.0, 10.0, 20.0, 30.0, 40.0]] * 3


def test_weights_are_cut_into_chunks_and_zeros_fill_up_the_last():
    meta = Meta(5, MERLINConfig(chunk=3))
    meta.scale.fill_(2.0)
    assert meta.cut(torch.arange(10.0).view(2, 5)).tolist() == [[[0, 0.5, 1], [1.5, 2, 0]], [[2.5, 3, 3.5], [4, 4.5, 0]]]


def test_an_ensemble_answers_as_its_networks_do():
    network = build_network((1, 6, 6), 2, channels=(3,), hidden=(4,))
    models = Ensemble(network, 2)
    x = torch.randn(2, 5, 1, 6, 6)
    torch.testing.assert_close(models.outputs(models.weights, x[0]), network(x[0]).expand(2, -1, -1))
    with torch.no_grad():
        models.weights += 0.1 * torch.randn_like(models.weights)
        found = models.outputs(models.weights, x, own=True)
        for weights, inputs, outputs in zip(models.weights, x, found, strict=True):
            nn.utils.vector_to_parameters(weights, network.parameters())
            torch.testing.assert_close(network(inputs), outputs)


def test_each_model_learns_from_rows_of_its_own():
    learner = create("merlin", DOMAIN, seed=1, **QUICK)
    x, y = batch()
    weights = learner.models.weights.detach() + 0.3 * torch.randn_like(learner.models.weights)
    rows = torch.tensor([[0, 0, 5], [1, 2, 3], [19, 4, 4]])
    found = learner.errors(weights, Stored(x, y), rows)
    outputs = learner.models.outputs(weights, x)
    expected = [F.cross_entropy(outputs[model][own], y[own]) for model, own in enumerate(rows)]
    torch.testing.assert_close(found, torch.stack(expected).mean())
    before = learner.models.weights.detach().clone()
    assert torch.equal(before[0], before[1])
    learner.observe(x, y)
    assert not torch.equal(*learner.models.weights.detach()[:2])  # bootstrap samples differ


def test_a_boundary_keeps_a_prior_and_forgets_the_models():
    learner = taught(tasks=1)
    assert learner.tasks == [None]
    assert learner.meta.prior_mean.shape == (1, 2)
    assert torch.equal(learner.models.weights, learner.models.start.expand(3, -1))
    assert not learner.optimizer.state_dict()["state"]
    learner.end_task()  # nothing was learned since
    assert learner.tasks == [None]


def test_weights_are_learned_in_units_of_the_first_tasks():
    learner = create("merlin", DOMAIN, seed=1, **QUICK)
    learner.observe(*batch())
    moved = (learner.models.weights - learner.models.start).detach()
    learner.end_task()
    torch.testing.assert_close(learner.meta.scale, moved.std())
    for _ in range(2):
        learner.observe(*batch(1))
    learner.end_task()
    torch.testing.assert_close(learner.meta.scale, moved.std())


def test_models_drawn_for_the_first_task_still_solve_it_after_the_second():
    settings = {"hidden": (8,), "learning_rate": 0.03, "vae_steps": 300, "tuning_epochs": 0}
    learner = create("merlin", TASKS, seed=1, **(QUICK | settings))
    x = torch.randn(100, 3)
    for number in range(2):
        task, labels = torch.full((100,), number), (x[:, number] > 0).long() + 2 * number
        for _ in range(40):
            learner.observe(x, labels, task)
        learner.end_task()
    for number in range(2):
        right = learner.predict(x, torch.full((100,), number)).argmax(1) == (x[:, number] > 0).long() + 2 * number
        assert right.float().mean() > 0.7  # by chance, and of a VAE that has forgotten, 0.5


def test_the_task_is_told_in_task_il_and_all_are_asked_elsewhere():
    tuned = []

    def noted(learner):
        learner.tune = lambda weights, exemplars: tuned.append(exemplars) or weights
        return learner

    aware = noted(taught(TASKS))
    assert aware.tasks == [0, 1]
    aware.predict(batch()[0], torch.ones(20, dtype=torch.long))
    assert [set(exemplars.task.tolist()) for exemplars in tuned] == [{1}]
    assert len(tuned[0]) == 4  # the memory's 12 are for the next task as well
    expected = aware.models.start + aware.meta.draw([1], aware.noise)
    torch.testing.assert_close(aware.recall(1), expected)
    told_nothing = noted(taught(DOMAIN))
    told_nothing.predict(batch()[0])
    assert len(tuned[1]) == 8
    torch.testing.assert_close(
        told_nothing.recall(None), told_nothing.models.start + told_nothing.meta.draw([0, 1], told_nothing.noise)
    )


def test_models_vote_and_those_of_the_present_task_while_it_lasts():
    learner = taught()
    x, y = batch(9)
    drawn = torch.randn(2, learner.models.start.numel())
    learner._recalled = {None: drawn}
    expected = learner.models.outputs(drawn, x).softmax(2)
    torch.testing.assert_close(learner.predict(x), expected.mean(0))
    learner.observe(x, y)
    present = learner.models.outputs(learner.models.weights.detach(), x).softmax(2)
    torch.testing.assert_close(learner.predict(x), torch.cat([expected, present]).mean(0))


def test_tuning_learns_the_exemplars_and_gives_the_same_twice():
    learner = taught(tuning_epochs=60, tuning_rate=0.03)
    x, _ = batch(2)
    weights = learner.models.start.expand(2, -1)
    exemplars = Stored(x, (x[:, 0] > 0).long())
    found = learner.tune(weights, exemplars)
    assert torch.equal(found, learner.tune(weights, exemplars))
    right = (learner.models.outputs(found, x).argmax(2) == exemplars.y).float().mean()
    assert right > 0.95


def test_without_exemplars_models_predict_as_they_are_drawn():
    learner = taught(memory=0)
    assert learner.memory == "none"
    torch.testing.assert_close(learner.recall(None), learner.models.start + learner.meta.draw([0, 1], learner.noise))
    assert taught().memory == "12 examples"


def test_a_task_free_stream_is_cut_into_segments():
    learner = create("merlin", Problem((3,), 2), seed=1, segment_steps=4, **QUICK)
    for step in range(9):
        learner.observe(*batch(step))
    assert learner.tasks == [None, None]
    assert learner.learned == 1


def test_convolutions_are_chunked_and_restored():
    problem = Problem((1, 6, 6), 2, task_examples=(20, 20))
    learner = taught(problem, channels=(3,))
    other = create("merlin", problem, seed=2, **(QUICK | {"channels": (3,)}))
    other.load_state_dict(copied(learner.state_dict()))
    x, y = batch(7, shape=(1, 6, 6))
    assert torch.equal(learner.predict(x), other.predict(x))
    assert learner.observe(x, y) == other.observe(x, y)


def test_class_il_on_digits_is_far_above_naive_training():
    stream = make_stream("split-digits", seed=1, scenario="class", epochs=2)
    settings = {"hidden": (32,), "learning_rate": 3e-3, "models": 3, "drawn": 3, "memory": 100, "vae_steps": 100}
    settings["tuning_rate"] = 3e-3
    assert run(stream, create("merlin", stream.problem, seed=1, **settings)).average_accuracy > 0.5  # naive: 0.2


BAD = [
    *({name: 0} for name in ("models", "drawn", "pseudo_models", "latent", "embedding", "chunk", "vae_units", "vae_steps")),
    *({name: 0.0} for name in ("vae_rate", "tuning_rate")),
    {"tuning_epochs": -1},
]


@pytest.mark.parametrize("settings", BAD)
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("merlin", DOMAIN, **settings)
