import pytest

from hvcl import learners, rl, streams
from hvcl.core.errors import InputError, UnknownNameError
from hvcl.core.registry import Registry, first_line
from hvcl.rl import methods


def test_a_name_is_given_away_once():
    registry = Registry("animal")
    registry["cat"] = 1
    with pytest.raises(InputError, match="the animal name 'cat' is taken by 1"):
        registry["cat"] = 2
    assert registry == {"cat": 1}


def test_an_unknown_name_says_what_it_would_be_the_name_of():
    registry = Registry("animal")
    registry["cat"] = 1
    with pytest.raises(UnknownNameError, match="unknown animal 'cta': did you mean 'cat'"):
        registry["cta"]


@pytest.mark.parametrize(
    ("find", "kind"),
    [
        (learners.method, "method"),
        (methods.method, "method of reinforcement learning"),
        (streams.benchmark, "benchmark"),
        (rl.sequence, "sequence"),
    ],
)
def test_everything_that_has_a_name_is_registered_alike(find, kind):
    with pytest.raises(UnknownNameError, match=f"unknown {kind} 'nothing': .*known are"):
        find("nothing")


def test_first_line_of_a_docstring():
    def documented():
        """One.

        Two.
        """

    assert first_line(documented, "x") == "One."
