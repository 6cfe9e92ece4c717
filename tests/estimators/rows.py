"""Small data that several tests learn from."""

import numpy as np


def moons(count=400, seed=0, noise=0.15):
    """Two half circles that no line separates."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, count)
    angle = random.uniform(0, np.pi, count)
    x = np.stack([np.cos(angle) + y, np.sin(angle) * (1 - 2 * y) + 0.5 * y], 1)
    return x + noise * random.normal(size=x.shape), y


def blobs(count=300, classes=3, columns=4, seed=0, distance=4.0):
    """A Gaussian a class, around the corners of a simplex."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, count)
    return random.normal(size=(count, columns)) + distance * np.eye(classes, columns)[y], y


def waves(count=400, seed=0, noise=0.2):
    """A smooth function of two columns, with noise."""
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, (count, 2))
    return x, np.sin(2 * x[:, 0]) + x[:, 1] ** 2 + noise * random.normal(size=count)
