"""Which changes of a stream the generative gate finds, and which streams without a change it leaves alone."""

import math

import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.gates import GenerativeGate

DIM = 10


def random(seed):
    return torch.Generator().manual_seed(seed)


def examples(n, seed, *, labels=2, task=0, minority=None, noise="normal"):
    """Correlated examples of a task: the means of labels are drawn anew for each task, with a standard deviation of 1."""
    fixed, draw = random(1000), random(100 * seed + task)
    mixing = torch.randn(DIM, DIM, generator=fixed, dtype=torch.float64) / math.sqrt(DIM) + torch.eye(DIM, dtype=torch.float64)
    means = torch.randn(8, labels, DIM, generator=fixed, dtype=torch.float64)[task]
    y = torch.randint(0, labels, (n,), generator=draw)
    if minority is not None:
        y = (torch.rand(n, generator=draw) < minority).long()
    e = torch.randn(n, DIM, generator=draw, dtype=torch.float64)
    if noise == "t":
        e = e / torch.randn(n, 1, 3, generator=draw, dtype=torch.float64).square().mean(2).sqrt()
    return means[y] + e @ mixing, y


def feed(gate, z, y, batch):
    labels = [None] * math.ceil(len(z) / batch) if y is None else y.split(batch)
    return torch.cat([gate.observe(*part) for part in zip(z.split(batch), labels, strict=True)])


# -- changes that are found ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0.7, 1.0, 3.0, 30.0, 1000.0])
@pytest.mark.parametrize("batch", [16, 256])
@pytest.mark.parametrize("labelled", [True, False])
def test_an_abrupt_shift_of_the_mean_opens_one_expert(size, batch, labelled):
    """All columns move by `size` deviations; the new expert has all examples but the first 144 at the latest."""
    z, y = examples(1024, 1)
    gate = GenerativeGate(DIM)
    assert (feed(gate, z[:768], y[:768] if labelled else None, batch) == 0).all()
    after = feed(gate, z[768:] + size, y[768:] if labelled else None, batch)
    assert (after[144 if batch < 256 else 0 :] == 1).all()
    assert gate.experts == 2


def test_a_shift_of_one_column_among_ten_is_found():
    z, y = examples(1536, 2)
    gate = GenerativeGate(DIM)
    feed(gate, z[:1024], y[:1024], 256)
    z[1024:, 3] += 2.5
    assert (feed(gate, z[1024:], y[1024:], 256) == 1).all()


@pytest.mark.parametrize("batch", [16, 256])
def test_labels_that_mean_something_else_open_an_expert(batch):
    """Domain-IL: the same inputs with exchanged labels, a change of the means given the label and of nothing else."""
    z, y = examples(1280, 3)
    gate = GenerativeGate(DIM)
    assert (feed(gate, z[:768], y[:768], batch) == 0).all()
    assert (feed(gate, z[768:], 1 - y[768:], batch)[144:] == 1).all()
    assert gate.experts == 2


@pytest.mark.parametrize("batch", [16, 256])
def test_new_labels_open_an_expert(batch):
    z, y = examples(1280, 4)
    gate = GenerativeGate(DIM)
    assert (feed(gate, z[:768], y[:768], batch) == 0).all()
    assert (feed(gate, z[768:], 2 + y[768:], batch)[144:] == 1).all()
    assert gate.experts == 2


@pytest.mark.parametrize(("labels", "batch"), [(2, 256), (2, 20), (20, 256), (50, 256), (50, 20)])
def test_tasks_that_come_back_find_their_experts(labels, batch):
    """With fifty labels in batches of 20 there are two examples a label in a window, and a shift may take two windows to find."""
    gate = GenerativeGate(DIM)
    order = [0, 1, 2, 0, 2, 1]
    for visit, task in enumerate(order):
        experts = feed(gate, *examples(512, 10 + visit, labels=labels, task=task), batch)
        assert (experts[0 if batch == 256 else 144 if labels < 50 else 256 :] == task).all()
    assert gate.experts == 3


def test_a_mixture_of_known_tasks_opens_nothing():
    gate = GenerativeGate(DIM)
    for task in (0, 1):
        feed(gate, *examples(768, 20 + task, task=task), 256)
    z, y = (torch.cat(pair) for pair in zip(examples(512, 30), examples(512, 31, task=1), strict=True))
    truth = torch.arange(1024) // 512
    order = torch.randperm(1024, generator=random(0))
    experts = feed(gate, z[order], y[order], 256)
    assert gate.experts == 2
    assert (experts == truth[order]).double().mean() > 0.85  # one in ten examples lies between the two


@pytest.mark.parametrize("noise", ["normal", "t"])
def test_a_shift_of_an_imbalanced_stream_is_found(noise):
    z, y = examples(2048, 5, minority=0.05, noise=noise)
    gate = GenerativeGate(DIM)
    assert (feed(gate, z[:1536], y[:1536], 256) == 0).all()
    assert (feed(gate, z[1536:] + 1.5, y[1536:], 256) == 1).all()


def test_columns_of_zeros_and_ones_that_change_their_shares_are_found_in_the_second_batch_at_the_latest():
    draw = random(6)
    before, after = (torch.rand(n, DIM, generator=draw) for n in (1024, 512))
    gate = GenerativeGate(DIM)
    assert (feed(gate, (before < 0.3).double(), None, 256) == 0).all()
    assert (feed(gate, (after < 0.6).double(), None, 256)[256:] == 1).all()


# -- streams without a change --------------------------------------------------------------------------------------------------

STATIONARY = {
    "a class of 2 %, three times as spread": ({"minority": 0.02, "spread": 3.0}, 256),
    "a class of 2 %, three times as spread, small batches": ({"minority": 0.02, "spread": 3.0}, 32),
    "a class of 0.5 % with heavy tails": ({"minority": 0.005, "noise": "t"}, 256),
    "offset 1,000": ({"offset": 1e3}, 32),
    "offset 1e6, large units, imbalanced": ({"offset": 1e6, "scale": 1e6, "minority": 0.02}, 256),
    "small units": ({"scale": 1e-6}, 256),
    "each row twice": ({"repeat": 2}, 32),
    "each row five times": ({"repeat": 5}, 256),
    "each row sixteen times": ({"repeat": 16}, 256),
    "heavy tails": ({"noise": "t"}, 256),
    "heavy tails, fifty labels": ({"noise": "t", "labels": 50}, 256),
    "fifty labels, small batches": ({"labels": 50}, 32),
    "heavy tails, fifty labels, small batches": ({"noise": "t", "labels": 50}, 32),
    "single examples, each twice": ({"repeat": 2, "minority": 0.02, "spread": 3.0}, 1),
}


@pytest.mark.parametrize("name", STATIONARY)
def test_a_stationary_stream_opens_no_second_expert(name):
    """One stream of 10,000 examples each (2,500 in batches of 32, 400 single ones)."""
    settings, batch = STATIONARY[name]
    spread, offset, scale, repeat = (settings.get(k, v) for k, v in (("spread", 1), ("offset", 0), ("scale", 1), ("repeat", 1)))
    n = {256: 10_000, 32: 2_500, 1: 400}[batch]
    z, y = examples(n // repeat, 7, **{k: v for k, v in settings.items() if k in ("minority", "noise", "labels")})
    z = torch.where(y[:, None] == 1, spread * z, z)
    z, y = (offset * scale + scale * z).repeat_interleave(repeat, 0), y.repeat_interleave(repeat)
    gate = GenerativeGate(DIM, covariance="diagonal")
    feed(gate, z, y, batch)
    assert gate.experts == 1
    assert gate.outlying < 0.01 * z.numel()


@pytest.mark.parametrize(("first", "batch"), [(False, 256), (True, 256), (False, 16)])
def test_an_outlier_of_any_size_does_no_harm(first, batch):
    """Also among the first examples; shifts are found and experts recognised as without it."""
    z, y = examples(1536, 8)
    shifted = z[1024:] + 3
    z[0 if first else 300] = 1e10
    z[700, 2] = -1e99
    gate = GenerativeGate(DIM)
    assert (feed(gate, z[:1024], y[:1024], batch) == 0).all()
    assert gate.outlying >= DIM + 1
    assert (feed(gate, shifted, y[1024:], batch)[144:] == 1).all()
    assert (gate.probabilities(shifted).argmax(1) == 1).double().mean() > 0.9
    assert gate.probabilities(torch.full((2, DIM), 1e99, dtype=torch.float64)).isfinite().all()
    with pytest.raises(InputError, match="exceed"):
        gate.observe(torch.full((256, DIM), 1e101, dtype=torch.float64))
