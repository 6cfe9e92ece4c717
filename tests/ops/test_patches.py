"""The compiled passes of patch features against torch."""

import pytest
import torch
from torch.nn import functional as F

from hvcl.ops import patches


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize(("shape", "size"), [((1, 5, 5), 2), ((3, 9, 7), 4), ((2, 4, 11), 4)])
def test_patches_and_their_scales(library, shape, size, step):
    image = torch.randn(shape, generator=torch.Generator().manual_seed(0)) + 2
    places = ((shape[1] - size) // step + 1) * ((shape[2] - size) // step + 1)
    rows, scale = torch.full((places, shape[0] * size**2), torch.nan), torch.full((places,), torch.nan)
    patches.patches_of(library, image, size, step, 0.3, rows, scale)
    expected = F.unfold(image.unsqueeze(0), size, stride=step)[0].T
    assert torch.equal(rows, expected)
    torch.testing.assert_close(scale, (expected.var(1, correction=0) + 0.3).rsqrt())


@pytest.mark.parametrize("filters", [1, 5, 40])
def test_threshold_and_pool(library, filters):
    random = torch.Generator().manual_seed(0)
    responses, scale = torch.randn(30, filters, generator=random), torch.rand(30, generator=random) + 0.5
    offset, cell = torch.randn(filters, generator=random), torch.randint(0, 4, (30,), generator=random, dtype=torch.int32)
    # sums go into columns 2... of wider arrays, on top of what is there
    up, down = torch.ones(4, filters + 3), torch.full((4, filters + 3), 2.0)
    patches.threshold_and_pool(library, responses, None, scale, offset, cell, None, 0.25, up[:, 2:-1], down[:, 2:-1])
    v = responses * scale.unsqueeze(1) + offset
    expected_up, expected_down = torch.ones(4, filters + 3), torch.full((4, filters + 3), 2.0)
    expected_up[:, 2:-1].index_add_(0, cell, (v - 0.25).clamp_min(0))
    expected_down[:, 2:-1].index_add_(0, cell, (-v - 0.25).clamp_min(0))
    torch.testing.assert_close(up, expected_up)
    torch.testing.assert_close(down, expected_down)
    assert (up[:, 2:-1] > 1).any()
    assert (down[:, 2:-1] > 2).any()


@pytest.mark.parametrize("filters", [1, 5, 40])
def test_threshold_and_pool_both_sides(library, filters):
    """Even and odd responses, by the sum of what each side gives alone."""
    random = torch.Generator().manual_seed(0)
    even, odd, scale = torch.randn(30, filters, generator=random), torch.randn(30, filters, generator=random), torch.ones(30)
    offset = torch.randn(filters, generator=random)
    cell, mirrored = (torch.randint(0, 4, (30,), generator=random, dtype=torch.int32) for _ in range(2))
    both, apart = ([torch.zeros(4, filters) for _ in range(2)] for _ in range(2))
    patches.threshold_and_pool(library, even, odd, scale, offset, cell, mirrored, 0.25, *both)
    patches.threshold_and_pool(library, even + odd, None, scale, offset, cell, None, 0.25, *apart)
    patches.threshold_and_pool(library, even - odd, None, scale, offset, mirrored, None, 0.25, *apart)
    torch.testing.assert_close(both, apart)


def test_odd_responses_need_the_cells_of_the_mirror_image(library):
    with pytest.raises(IndexError, match="come together"):
        patches.threshold_and_pool(
            library, torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2), torch.zeros(3), torch.zeros(2).int(), None, 0.1,
            torch.zeros(1, 3), torch.zeros(1, 3),
        )  # fmt: skip


@pytest.mark.parametrize(
    "cell", [torch.tensor([0, 4], dtype=torch.int32), torch.tensor([-1], dtype=torch.int32), torch.tensor([0])]
)
def test_cells_that_are_not_there_are_refused(cell):
    with pytest.raises(IndexError, match="from 0 to 3"):
        patches.check_cells(cell, 4)


def test_images_smaller_than_a_patch_are_refused(library):
    with pytest.raises(IndexError, match="no patches"):
        patches.patches_of(library, torch.zeros(1, 2, 5), 3, 1, 0.1, torch.zeros(0, 9), torch.zeros(0))
