"""Compiled operators: the only place where an address appears.

`csrc/` has the C sources, one file a topic, and one header, which Python reads its structures and prototypes from. Every operator
has a counterpart in plain torch operations, its reference in the tests and what serves where it steps aside (`usable`).
"""

from hvcl.ops.border import MOST_EXPERTS, NOISES, usable
from hvcl.ops.gradients import Contribution, Dense, Sink
from hvcl.ops.library import Library, facts, load

__all__ = ["MOST_EXPERTS", "NOISES", "Contribution", "Dense", "Library", "Sink", "facts", "load", "usable"]
