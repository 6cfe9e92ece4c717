"""Panels against the whole matrix."""

import pytest
import torch

from hvcl.posteriors import panels


@pytest.mark.parametrize("size", [3, 5, 12])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_panels_are_the_matrix(monkeypatch, size, kind):
    monkeypatch.setattr(panels, "PANEL", 5)
    random = torch.Generator().manual_seed(0)
    rows, fewer = (torch.randn(n, size, generator=random, dtype=kind) for n in (9, 4))
    kept = panels.empty_panels(size, kind)
    panels.add_products(kept, rows)
    panels.add_products(kept, fewer, -1)
    whole = rows.T @ rows - fewer.T @ fewer
    assert sum(panel.numel() for panel in kept) <= size * (size + 5) / 2 + 5 * 5
    torch.testing.assert_close(panels.lower_triangle(kept, torch.zeros(size, size, dtype=kind)).tril(), whole.tril())
    torch.testing.assert_close(panels.diagonal(kept), whole.diagonal().double(), rtol=1e-5, atol=1e-5)
    right = torch.randn(size, 2, generator=random, dtype=torch.float64)
    torch.testing.assert_close(panels.times(kept, right), whole.double() @ right, rtol=1e-5, atol=1e-5)
