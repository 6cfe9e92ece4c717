"""Every table and figure of the paper, and some beyond it, from one command each."""

from hvcl.reproduce import (
    figure_betas,
    figure_crl,
    figure_diversity,
    figure_experts,
    figure_features,
    figure_forget,
    figure_forgetting,
    figure_generator,
    figure_paths,
    figure_stream,
    table_cifar,
    table_mnist,
)
from hvcl.reproduce.base import BUDGETS, SEEDS, Budget, Finished, Found, Planned, Reproduction, Scale
from hvcl.reproduce.outcome import Column, Finding, Outcome, Row
from hvcl.reproduce.registry import REPRODUCTIONS, add
from hvcl.reproduce.work import Skipped, reproduce
from hvcl.reproduce.write import Written

add(
    table_mnist.TABLE,
    table_cifar.TABLE,
    figure_crl.FIGURE,
    figure_diversity.FIGURE,
    figure_generator.FIGURE,
    figure_experts.FIGURE,
    figure_betas.FIGURE,
    figure_forgetting.FIGURE,
    figure_paths.FIGURE,
    figure_stream.FIGURE,
    figure_features.FIGURE,
    figure_forget.FIGURE,
)

__all__ = [
    "BUDGETS",
    "REPRODUCTIONS",
    "SEEDS",
    "Budget",
    "Column",
    "Finding",
    "Finished",
    "Found",
    "Outcome",
    "Planned",
    "Reproduction",
    "Row",
    "Scale",
    "Skipped",
    "Written",
    "reproduce",
]
