"""Split CIFAR-10 and CIFAR-100: the paper's second table, with the rows of its appendix."""

from hvcl.reproduce.accuracies import AccuracyTable
from hvcl.reproduce.paper import CIFAR

TABLE = AccuracyTable(
    "table-cifar",
    "Accuracies on split CIFAR-10 and CIFAR-100",
    "The CIFAR tables of the main text and the appendix",
    CIFAR,
    ("split-cifar10", "split-cifar100"),
)
