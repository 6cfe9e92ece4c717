import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from hvcl.features import is_picture


def smooth(n=60, channels=3, side=16, seed=0):
    noise = torch.randn(n, channels, side + 4, side + 4, generator=torch.Generator().manual_seed(seed))
    return F.avg_pool2d(noise, 5, stride=1)


def permuted(x, seed=0):
    order = torch.randperm(x[0, 0].numel(), generator=torch.Generator().manual_seed(seed))
    return x.flatten(2)[:, :, order].view_as(x)


def test_smooth_images_are_pictures_until_their_pixels_are_permuted():
    x = smooth()
    for images in (x, 255 * x + 100, x.double(), smooth(channels=1), smooth(seed=3)):
        assert is_picture(images)
        for seed in range(3):
            assert not is_picture(permuted(images, seed))


def test_digits():
    x = torch.from_numpy(load_digits().images).float().unsqueeze(1)[:300]
    assert is_picture(x)
    assert not is_picture(permuted(x))


def test_structure_in_one_direction_is_enough():
    lines = torch.randn(80, 1, 1, 16, generator=torch.Generator().manual_seed(0)).expand(-1, 1, 16, 16)
    assert is_picture(lines)
    assert is_picture(lines.transpose(2, 3))


def test_noise_constants_and_other_shapes_are_no_pictures():
    random = torch.Generator().manual_seed(0)
    assert not is_picture(torch.randn(60, 3, 16, 16, generator=random))
    assert not is_picture(torch.ones(60, 3, 16, 16))
    # everything varies together, but not neighbours more than others
    assert not is_picture(torch.randn(60, 1, 1, 1, generator=random).expand(60, 3, 16, 16))
    assert not is_picture(torch.randn(60, 256, generator=random))
    assert not is_picture(smooth(side=7))
    assert not is_picture(smooth(n=1))
    assert is_picture(smooth(side=8))
