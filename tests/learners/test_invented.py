"""Classes that are invented: what tells them apart, and what does not."""

import pytest
import torch

from hvcl.learners.invented import draw, invent


@pytest.fixture(autouse=True)
def _own_numbers():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


def nearest_mean(classes):
    """How often the mean of the first half of a class is the nearest to examples of its second half."""
    examples = classes.flatten(2)
    means, others = examples[:, ::2].mean(1), examples[:, 1::2]
    found = torch.cdist(others, means).argmin(2)
    return (found == torch.arange(len(classes)).unsqueeze(1)).float().mean().item()


# a guess has 0.1; in colour, examples differ in their paper more than classes do in their ink
@pytest.mark.parametrize(("shape", "share"), [((1, 28, 28), 0.5), ((3, 16, 12), 0.2), ((7,), 0.5), ((64,), 0.5)])
def test_classes_have_the_shape_that_is_asked_for_and_can_be_told_apart(shape, share):
    classes = invent(shape, 10, 20)
    assert classes.shape == (10, 20, *shape)
    assert nearest_mean(classes) > share
    assert (classes[:, 0] != classes[:, 1]).flatten(1).any(1).all()  # no two examples are the same


def test_pictures_lie_between_0_and_1_and_white_is_rare_in_grey_ones():
    for shape in ((1, 28, 28), (3, 28, 28)):
        found = invent(shape, 20, 5)
        assert found.min() >= 0.0
        assert found.max() <= 1.0
    assert 0.05 < invent((1, 28, 28), 20, 5).mean() < 0.35


def test_colour_of_ink_belongs_to_the_class_and_of_paper_to_the_example():
    colours = invent((3, 20, 20), 30, 40)
    corners = colours[..., 0, 0]  # no stroke reaches here as a rule: paper
    within = corners.std(1).mean()
    assert within > 0.8 * corners.flatten(0, 1).std(0).mean()


def test_ink_is_where_the_strokes_are():
    level = torch.tensor([[[0.1, 0.25], [0.5, 0.25], [0.9, 0.25]]])  # x from left to right, y a quarter down
    ink = draw(level, 20, 40)
    assert ink.shape == (20, 40)
    assert ink[5, 10:30].min() > 0.5
    assert ink[10:].max() < 0.01


def test_the_same_state_invents_the_same():
    found = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        found.append(invent((1, 8, 8), 3, 2))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
