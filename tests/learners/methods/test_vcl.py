"""Variational continual learning."""

import copy

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.storage import load_state, save_state
from hvcl.layers import consolidate
from hvcl.layers.module import variational_modules
from hvcl.learners import create
from hvcl.learners.methods.vcl import choose, fingerprints

SMALL = {"seed": 1, "hidden": (4,), "learning_rate": 0.05}


def batch(seed=0, n=10):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, generator=random), torch.arange(n) % 2


def posteriors(learner):
    return [module.posterior for _, module in variational_modules(learner.network)]


def test_every_weight_and_bias_has_a_posterior_that_becomes_the_prior():
    learner = create("vcl", Problem((3,), 2, task_examples=(10, 10)), **SMALL)
    found = posteriors(learner)
    assert sum(p.mean.numel() for p in found) == 3 * 4 + 4 + 4 * 2 + 2
    assert learner.num_parameters == 2 * (3 * 4 + 4 + 4 * 2 + 2)
    for p in found:
        assert (p.prior_mean == 0).all()
        torch.testing.assert_close(p.prior_log_sigma.exp(), torch.ones_like(p.rho))
    for _ in range(5):
        learner.observe(*batch())
    assert all(p.kl().sum() > 0 and (p.prior_mean == 0).all() for p in found)
    learner.end_task()
    for p in found:
        assert torch.equal(p.prior_mean, p.mean)
        assert torch.equal(p.prior_log_sigma, p.log_sigma)


def test_loss_is_the_evidence_lower_bound_per_example():
    learner = create("vcl", Problem((3,), 2, task_examples=(7, 50)), estimator="mean", **SMALL)
    x, y = batch()
    for examples in (7, 50):
        cross_entropy = torch.nn.functional.cross_entropy(learner.logits(x, None), y)
        kl = sum(p.kl().sum() for p in posteriors(learner))
        torch.testing.assert_close(learner.loss(x, y, None)["loss"], cross_entropy + kl / examples)
        learner.end_task()


def test_coreset_is_held_out_from_training_in_every_pass(monkeypatch):
    learner = create("vcl", Problem((3,), 2, task_examples=(10, 10)), coreset=3, **SMALL)
    learned = []
    own = type(learner).loss
    monkeypatch.setattr(type(learner), "loss", lambda self, x, y, task: (learned.append(x.clone()), own(self, x, y, task))[1])
    x, y = batch()
    before = copy.deepcopy(learner.network.state_dict())
    assert learner.observe(x[:6], y[:6]) == {"waiting": 4.0}
    assert all(torch.equal(before[key], value) for key, value in learner.network.state_dict().items())
    assert "loss" in learner.observe(x[6:], y[6:])
    rest = [i for i, row in enumerate(x) if not (learner.coreset.x == row).all(1).any()]
    assert torch.equal(torch.cat(learned), x[rest])
    order = torch.randperm(10, generator=torch.Generator().manual_seed(5))
    learner.observe(x[order[:6]], y[order[:6]])
    learner.observe(x[order[6:]], y[order[6:]])
    assert sum(len(part) for part in learned) == 14
    everything = torch.cat(learned)
    assert not any((everything == row).all(1).any() for row in learner.coreset.x)
    learner.end_task()
    assert len(learner.coreset) == 3
    assert learner.state_dict()["data"]["parts"] == []
    learner.observe(*batch(1))
    assert len(learner.coreset) == 6
    assert learner.memory == "6 examples"


def test_predictions_come_from_a_copy_that_has_learned_the_coreset():
    learner = create(
        "vcl", Problem((3,), 2, task_examples=(10, 10)), coreset=4, coreset_epochs=50, initial_sigma=1.0, samples=0, **SMALL
    )
    x, y = batch()
    learner.observe(x, y)
    learner.end_task()
    before = copy.deepcopy(learner.network.state_dict())
    of_copy = learner.predict(learner.coreset.x)
    assert all(torch.equal(before[key], value) for key, value in learner.network.state_dict().items())
    learner.network.eval()
    of_network = learner.logits(learner.coreset.x, None).softmax(1)
    labels = learner.coreset.y.unsqueeze(1)
    assert of_copy.gather(1, labels).log().mean() > of_network.gather(1, labels).log().mean() + 0.05


def test_resumes_with_a_coreset(tmp_path):
    problem = Problem((3,), 2, task_examples=(10, 10))
    settings = SMALL | {"coreset": 3, "coreset_epochs": 3}
    whole, first = create("vcl", problem, **settings), create("vcl", problem, **settings)
    parts = [(batch(seed)[0][rows], batch(seed)[1][rows]) for seed in (0, 1) for rows in (slice(0, 6), slice(6, 10))]
    for learner, some in ((whole, parts), (first, parts[:3])):
        for i, part in enumerate(some):
            learner.observe(*part)
            if i == 1:
                learner.end_task()
    save_state(tmp_path / "state.json", first.state_dict())
    second = create("vcl", problem, **(settings | {"seed": 9}))
    second.load_state_dict(load_state(tmp_path / "state.json"))
    second.observe(*parts[3])
    assert torch.equal(second.predict(batch()[0]), whole.predict(batch()[0]))


def test_k_centres_are_far_from_each_other():
    x = torch.tensor([[0.0], [0.1], [4.6], [5.1], [9.0], [9.2]])
    assert choose(x, 3, "k-center").tolist() == [0, 5, 2]
    assert choose(x, 2, "k-center").tolist() == [0, 5]


def test_fingerprints_do_not_depend_on_the_batch():
    x = torch.randn(50, 784, generator=torch.Generator().manual_seed(0))
    assert torch.equal(fingerprints(x)[7:9], fingerprints(x[7:9]))
    assert len(fingerprints(x).unique()) == 50
    permuted = x[:1, torch.randperm(784, generator=torch.Generator().manual_seed(0))]
    assert fingerprints(permuted) != fingerprints(x[:1])


def test_no_coreset_without_boundaries():
    learner = create("vcl", Problem((3,), 2), coreset=3, **SMALL)
    assert "loss" in learner.observe(*batch())
    assert learner.coreset is None
    assert learner.memory == "none"


def test_a_strong_prior_holds_the_posterior():
    learner = create("vcl", Problem((3,), 2, task_examples=(10, 10)), **SMALL)
    for p in posteriors(learner):
        with torch.no_grad():
            p.rho.fill_(-12.0)  # sure of itself: a tiny sigma
    consolidate(learner.network)
    anchor = [p.mean.detach().clone() for p in posteriors(learner)]
    for seed in range(30):
        learner.observe(*batch(seed))
    free = create("vcl", Problem((3,), 2, task_examples=(10, 10)), **SMALL)
    for seed in range(30):
        free.observe(*batch(seed))
    moved = sum((p.mean - a).norm().item() for p, a in zip(posteriors(learner), anchor, strict=True))
    moved_free = sum((p.mean - a).norm().item() for p, a in zip(posteriors(free), anchor, strict=True))
    assert moved < 0.2 * moved_free


@pytest.mark.parametrize("settings", [{"coreset": 10}, {"coreset": -1}, {"samples": -1}, {"coreset_epochs": 0}, {"num_data": 0}])
def test_bad_settings_are_named(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        create("vcl", Problem((3,), 2, task_examples=(10, 10)), **settings)
