"""The paper's tables of accuracies, row by row in its order.

The same figures as `results/paper.json`, which a test compares, and those of methods that are not here. A figure's scenario is
the one that it is known or stated to be of: the paper's rows mix them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hvcl.report.statistic import Statistic

Section = Literal["baselines", "single-head and task-agnostic", "multi-head and task-aware"]
SEEDS = 10
"""Of the paper's own figures; others are from their original work, with as many as that had."""


@dataclass(frozen=True)
class Quoted:
    """An accuracy in %, with its standard deviation and scenario."""

    accuracy: float
    deviation: float
    scenario: Literal["domain", "class", "task"]

    @property
    def statistic(self) -> Statistic:
        """As our own figures are held."""
        return Statistic(self.accuracy, self.deviation, SEEDS)


@dataclass(frozen=True)
class PaperRow:
    """A row: what the paper calls it, our method of that kind (None: there is none), and its figures by benchmark."""

    label: str
    method: str | None
    section: Section
    figures: Mapping[str, Quoted]


def _row(
    section: Section, label: str, method: str | None, names: tuple[str, str], *figures: tuple[float, float, str] | None
) -> PaperRow:
    found: dict[str, Quoted] = {}
    for name, figure in zip(names, figures, strict=True):
        if figure is not None:
            accuracy, deviation, scenario = figure
            assert scenario in ("domain", "class", "task")
            found[name] = Quoted(accuracy, deviation, scenario)  # type: ignore[arg-type]
    return PaperRow(label, method, section, found)


_MNIST, _CIFAR = ("split-mnist", "permuted-mnist"), ("split-cifar10", "split-cifar100")
_BASE: Section = "baselines"
_SINGLE: Section = "single-head and task-agnostic"
_MULTI: Section = "multi-head and task-aware"

MNIST: tuple[PaperRow, ...] = (
    _row(_BASE, "Dense network", "naive", _MNIST, (86.15, 1.00, "task"), (17.26, 0.19, "class")),
    _row(_BASE, "Offline re-training", "joint", _MNIST, (99.64, 0.03, "task"), (97.59, 0.02, "domain")),
    _row(_SINGLE, "HVCL", "hvcl", _MNIST, (97.50, 0.33, "domain"), (97.07, 0.62, "domain")),
    _row(_SINGLE, "HVCL with replay", "hvcl-replay", _MNIST, (98.60, 0.35, "domain"), (97.47, 0.52, "domain")),
    _row(_SINGLE, "Uncertainty-guided CL", "ucb", _MNIST, (97.70, 0.03, "domain"), (92.50, 0.01, "domain")),
    _row(_SINGLE, "Replay through feedback", "rtf", _MNIST, (99.66, 0.13, "task"), (97.31, 0.04, "task")),
    _row(_SINGLE, "Indian buffet nets", "hibnn", _MNIST, (91.00, 2.20, "domain"), (93.70, 0.60, "domain")),
    _row(_SINGLE, "Balanced CL", "bcl", _MNIST, (98.71, 0.06, "domain"), (97.51, 0.05, "domain")),
    _row(_SINGLE, "Target layer regularis.", "tlr", _MNIST, (80.64, 1.25, "domain"), None),
    _row(_MULTI, "Synaptic intelligence", "si", _MNIST, (99.14, 0.49, "task"), (94.75, 0.49, "task")),
    _row(_MULTI, "DGR + distillation", "dgr-distill", _MNIST, (99.59, 0.40, "task"), (97.51, 0.04, "task")),
    _row(_MULTI, "Variational CL", "vcl", _MNIST, (98.50, 1.78, "task"), (96.60, 1.34, "task")),
    _row(_MULTI, "Elastic weight consol.", "ewc", _MNIST, (85.48, 5.36, "task"), (94.74, 0.22, "task")),
    _row(_MULTI, "Learning w/o forgetting", "lwf", _MNIST, (99.60, 0.13, "task"), (69.84, 2.00, "task")),
    _row(_MULTI, "CURL", "curl", _MNIST, (99.10, 0.06, "task"), None),
    _row(_MULTI, "Self-attention meta-l.", "sam", _MNIST, (97.95, 0.07, "task"), None),
    _row(_MULTI, "Expandable networks", "den", _MNIST, (99.26, 0.01, "task"), None),
)
"""The MNIST table of the appendix, which holds that of the main text."""

CIFAR: tuple[PaperRow, ...] = (
    _row(_BASE, "Convolutional network", "naive", _CIFAR, (66.62, 1.06, "domain"), (19.80, 0.19, "domain")),
    _row(_BASE, "Offline re-training", "joint", _CIFAR, (80.42, 0.95, "task"), (52.30, 0.02, "task")),
    _row(_SINGLE, "HVCL", "hvcl", _CIFAR, (78.41, 1.18, "domain"), (33.10, 0.62, "domain")),
    _row(_SINGLE, "HVCL with replay", "hvcl-replay", _CIFAR, (81.00, 1.15, "domain"), (37.20, 0.52, "domain")),
    _row(_SINGLE, "Dual regularisations", "cldr", _CIFAR, (86.72, 0.30, "domain"), (25.62, 0.22, "domain")),
    _row(_SINGLE, "Natural CL", "ncl", _CIFAR, None, (38.79, 0.24, "domain")),
    _row(_SINGLE, "Target layer regularis.", "tlr", _CIFAR, (74.89, 0.61, "domain"), None),
    _row(_SINGLE, "Memory-aware synapses", "mas", _CIFAR, (73.50, 1.54, "domain"), None),
    _row(_MULTI, "GEM", "gem", _CIFAR, (79.10, 1.60, "task"), (40.60, 1.90, "task")),
    _row(_MULTI, "Meta-consolidation", "merlin", _CIFAR, (82.90, 1.20, "task"), (43.50, 0.60, "task")),
    _row(_MULTI, "Contrastive CL", "ccl-fp", _CIFAR, (86.33, 1.47, "task"), (65.19, 0.65, "task")),
    _row(_MULTI, "Hindsight anchors", "hal", _CIFAR, (75.19, 2.57, "task"), (47.88, 2.76, "task")),
    _row(_MULTI, "Synaptic intelligence", "si", _CIFAR, (63.31, 3.79, "task"), (36.33, 4.23, "task")),
    _row(_MULTI, "A-GEM", "agem", _CIFAR, (74.07, 0.76, "task"), (46.88, 1.81, "task")),
)
"""The CIFAR table of the appendix, which holds that of the main text."""
