"""Brain-inspired replay: components and gates of classes, replayed features, soft targets."""

import copy
import math

import pytest
import torch
from torch.nn import functional as F

from hvcl.core.errors import InputError, UnknownNameError
from hvcl.core.problem import Problem
from hvcl.core.state import copied
from hvcl.evaluation import evaluate_generation
from hvcl.learners import create
from hvcl.learners.generative import Replayed
from hvcl.runs import RunConfig, run
from hvcl.runs import pretraining as module
from hvcl.streams import Dataset, StreamConfig, from_arrays, make_stream

SMALL = {"hidden": (10, 8), "learning_rate": 0.01, "latent": 4, "likelihood": "gaussian"}
PICTURES = SMALL | {"channels": (3, 5)}


def problem(shape=(3,), outputs=2, tasks=2):
    return Problem(shape, outputs, None, (40,) * tasks, (5,) * tasks)


def batch(seed=0, n=8, shape=(3,), label=0):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, *shape, generator=random), torch.arange(n) % 2 + label


def replayed(learner, targets, condition):
    return Replayed(torch.zeros(len(targets), 3), torch.tensor(targets), None, torch.tensor(condition))


def test_classes_of_domain_il_are_those_of_the_task_that_was_replayed():
    learner = create("bir", problem(tasks=3), seed=1, **SMALL)
    for task in range(2):
        learner.observe(*batch(task))
        learner.end_task()
    found = learner.classes(replayed(learner, [[0.25, 0.75], [0.5, 0.5]], [1, 2]))
    assert found.tolist() == [[0.25, 0.75, 0, 0, 0, 0], [0, 0, 0.5, 0.5, 0, 0]]


def test_classes_of_class_il_are_labels_wherever_they_were_learned():
    learner = create("bir", problem(outputs=4, tasks=3), seed=1, **SMALL)
    for task in range(2):
        learner.observe(*batch(task, label=2 * task))
        learner.end_task()
    found = learner.classes(replayed(learner, [[0.1, 0.2, 0.3, 0.4]], [1]))
    # labels 0 and 1 are the first task's, 2 and 3 the second's: conditions 0, 1 and 4 + 2, 4 + 3
    torch.testing.assert_close(found, torch.tensor([[0.1, 0.2, 0, 0, 0, 0, 0.3, 0.4, 0, 0, 0, 0]]))


def test_the_loss_of_replayed_examples_against_a_computation_by_hand():
    """With a posterior so narrow that a draw is its mean: distillation, gates and the mixture, for two soft targets."""
    learner = create("bir", problem(), seed=1, **SMALL, gated=0.5)
    learner.observe(*batch())
    learner.end_task()
    vae, network = learner.network.vae, learner.network
    with torch.no_grad():
        vae.log_variance.weight.zero_()
        vae.log_variance.bias.fill_(-30.0)
    x, y = batch(3, n=2)
    old = Replayed(torch.randn(2, 3), torch.tensor([[0.25, 0.75], [0.6, 0.4]]), None, torch.tensor([0, 1]))
    learner.replayed = old
    terms = {name: value.item() for name, value in learner.loss(x, y, None).items()}

    def elbo(inputs, weights):
        z = vae.mean(vae.features(inputs))
        h = F.leaky_relu(vae.decoder.dense0(z)) * (weights @ vae.gates.open0)
        h = F.leaky_relu(vae.decoder.dense1(h)) * (weights @ vae.gates.open1)
        outputs, s = vae.decoder.head(h), vae.likelihood.log_scale.exp()
        reconstruction = torch.distributions.Normal(outputs, s).log_prob(inputs).sum(1)
        spread = (0.5 * vae.prior.log_variance).exp()
        components = torch.distributions.Normal(vae.prior.mean, spread).log_prob(z.unsqueeze(1)).sum(2)
        # log q at a draw is that of the noise, with a variance of exp(-30)
        log_p = torch.log((weights * components.exp()).sum(1))
        return reconstruction, log_p

    tasks = F.one_hot(y + 2, 4).float(), torch.cat([old.targets, torch.zeros(2, 2)], 1)
    (first, prior_first), (second, prior_second) = elbo(x, tasks[0]), elbo(old.x, tasks[1])
    logits = network.answers(old.x) / 2
    distilled = -4 * (old.targets * logits.log_softmax(1)).sum(1).mean()
    cost = 0.5 * F.cross_entropy(network(x), y) + 0.5 * distilled
    assert terms["cross_entropy"] == pytest.approx(cost.item(), rel=1e-4)
    assert terms["elbo"] + terms["latent_kl"] == pytest.approx((0.5 * first.mean() + 0.5 * second.mean()).item(), rel=1e-4)
    entropy = 4 * (0.5 * math.log(2 * math.pi) - 15) + 2  # of q; log q at a draw has a deviation of sqrt(2) for each example
    expected = -entropy - (0.5 * prior_first.mean() + 0.5 * prior_second.mean()).item()
    assert terms["latent_kl"] == pytest.approx(expected, abs=2.0)
    assert terms["loss"] == pytest.approx(terms["cross_entropy"] - terms["elbo"] / 3, rel=1e-4)


@pytest.mark.parametrize(("context", "apart"), [("class", [0, 1, 2, 3]), ("task", [0, 0, 1, 1])])
def test_gates_are_those_of_classes_or_of_tasks(context, apart):
    learner = create("bir", problem(), seed=1, **SMALL, gated=0.5, context=context)
    gates = learner.network.vae.gates
    assert gates.open0.sum(1).tolist() == [4.0] * 4, "half of the decoder's first layer, which has eight units"
    assert gates.open1.sum(1).tolist() == [5.0] * 4
    both = torch.cat([gates.open0, gates.open1], 1)
    for one in range(4):
        for other in range(4):
            assert torch.equal(both[one], both[other]) == (apart[one] == apart[other])


def test_a_gated_unit_learns_nothing():
    learner = create("bir", problem(), seed=1, **SMALL, gated=0.5)
    off = learner.network.vae.gates.open0[0] == 0
    before = learner.network.vae.decoder.dense0.weight.detach().clone()
    x, y = batch()
    for _ in range(3):
        learner.observe(x, 0 * y)
    moved = (learner.network.vae.decoder.dense0.weight != before).any(1)
    assert not moved[off].any()
    assert moved[~off].all()


def test_features_are_replayed_behind_convolutions_that_are_frozen_after_the_first_task():
    learner = create("bir", problem((1, 8, 8)), seed=1, **PICTURES)
    assert [type(layer).__name__ for layer in learner.network.front] == ["Conv2d", "LeakyReLU", "Conv2d", "Flatten"]
    assert learner.network.vae.input_shape == (20,)
    fronts = []
    for task in range(2):
        for step in range(3):
            learner.observe(*batch(3 * task + step, shape=(1, 8, 8)))
            fronts.append(copy.deepcopy(learner.network.front.state_dict()))
        learner.end_task()
    weights = [front["conv0.weight"] for front in fronts]
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(weights[2], weights[5])
    torch.manual_seed(0)
    drawn = learner.draw(6)
    assert drawn.x.shape == (6, 20)
    expected = (learner.teacher.head(learner.teacher.vae.features(drawn.x)) / 2).softmax(1)
    torch.testing.assert_close(drawn.targets, expected, msg="labelled without the convolutions")
    x, _ = batch(9, shape=(1, 8, 8))
    assert learner.features(x).shape == (8, 8)
    assert learner.reconstruct(x).shape == (8, 20)


def test_a_generator_of_features_is_scored_on_features():
    random = torch.Generator().manual_seed(0)
    y = torch.arange(80) % 4
    x = torch.rand(80, 1, 8, 8, generator=random)
    stream = from_arrays(x, y, x, y, classes_per_task=2, config=StreamConfig(batch_size=20))
    learner = create("bir", stream.problem, seed=1, **PICTURES)
    for number, event in enumerate(stream.batches()):
        learner.observe(event[0], event[1]) if number < 2 else None
    found = evaluate_generation(learner, stream.tests, 1)
    assert found.pictures == {}
    assert math.isfinite(found.frechet_distance)
    assert 0 <= found.inception_score <= found.inception_bound <= 1


def learner_to_pretrain(**settings):
    return create("bir", problem((1, 8, 8)), seed=1, **PICTURES, pretraining="mnist", pretraining_epochs=3, **settings)


def test_pretrained_convolutions_do_not_learn_on_and_are_stated():
    learner = learner_to_pretrain()
    assert learner.memory == "none (pretrained on mnist)"
    assert create("bir", problem((1, 8, 8)), **PICTURES).memory == "none"
    with pytest.raises(InputError, match="pretrained on mnist first"):
        learner.observe(*batch(shape=(1, 8, 8)))
    before = copy.deepcopy(learner.network.state_dict())
    x = torch.randint(0, 256, (30, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    learner.pretrain(x, torch.arange(30) % 3, 255.0)
    after = copy.deepcopy(learner.network.state_dict())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.startswith("front.")}
    learner.observe(*batch(shape=(1, 8, 8)))
    assert all(torch.equal(after[name], value) for name, value in learner.network.state_dict().items() if name in changed)
    resumed = learner_to_pretrain()
    resumed.load_state_dict(copied(learner.state_dict()))
    assert resumed.pretraining is None
    assert resumed.observe(*batch(1, shape=(1, 8, 8))) == learner.observe(*batch(1, shape=(1, 8, 8)))
    with pytest.raises(InputError, match="pictures of shape"):
        learner_to_pretrain().pretrain(x[:, :, 1:], torch.arange(30), 255.0)


def test_a_run_shows_the_data_that_a_learner_asks_for_and_never_the_streams_own(monkeypatch):
    asked = []

    def load(name):
        asked.append(name)
        x = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
        return Dataset(name, x, torch.arange(4) % 2, x, torch.arange(4) % 2, 255.0)

    monkeypatch.setattr(module, "load", load)
    stream = make_stream("split-digits", seed=1, epochs=1, batch_size=256)
    learner = create("bir", stream.problem, seed=1, **PICTURES, pretraining="mnist")
    run(stream, learner)
    assert asked == ["mnist"]
    assert learner.fixed
    settings = {"channels": (3, 5), "likelihood": "gaussian"}
    with pytest.raises(InputError, match="own examples"):
        RunConfig.make("split-digits", "bir", learner=settings | {"pretraining": "digits"})
    with pytest.raises(UnknownNameError, match="cifar10"):
        RunConfig.make("split-digits", "bir", learner=settings | {"pretraining": "cifar"})


def test_class_il_keeps_what_naive_training_loses():
    """Ten digits, two at a time. Measured when this was written; the bound leaves room."""
    stream = make_stream("split-digits", seed=1, scenario="class", epochs=20)
    learner = create("bir", stream.problem, seed=1, hidden=(64, 64), learning_rate=2e-3, latent=16)
    found = run(stream, learner)
    assert found.average_accuracy > 0.7  # naive training ends at about 0.2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gated": 1.0}, "gated must lie"),
        ({"conditional": False}, "gated=0"),
        ({"channels": (3,)}, "likelihood='gaussian'"),
        ({"pretraining": "cifar10"}, "channels"),
        ({"pretraining_epochs": 0}, "pretraining_epochs"),
        ({"dropout": 0.5}, "no dropout"),
    ],
)
def test_bad_settings_are_named(settings, words):
    with pytest.raises(InputError, match=words):
        create("bir", problem(), **settings)
