"""Gates p(m|x): which expert answers for an input."""

from hvcl.gates.generative import GenerativeGate
from hvcl.gates.path import PathGate
from hvcl.gates.softmax import SoftmaxGate

__all__ = ["GenerativeGate", "PathGate", "SoftmaxGate"]
