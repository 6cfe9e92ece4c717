"""Split and permuted MNIST: the paper's first table, with the rows of its appendix."""

from hvcl.reproduce.accuracies import AccuracyTable
from hvcl.reproduce.paper import MNIST

TABLE = AccuracyTable(
    "table-mnist",
    "Accuracies on split and permuted MNIST",
    "The MNIST tables of the main text and the appendix",
    MNIST,
    ("split-mnist", "permuted-mnist"),
)
