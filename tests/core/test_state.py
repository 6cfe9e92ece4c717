"""States are taken over whole or not at all."""

import pytest
import torch

from hvcl.core.errors import RunError
from hvcl.core.state import copied, difference, join_tensors, replace_state, split_tensors, tensors_like


class Pair:
    """Two numbers that must not be far apart, the second of which is checked late."""

    def __init__(self):
        self.first, self.second = torch.zeros(2), 0

    def state_dict(self):
        return {"first": self.first, "second": self.second}

    def restore(self, state):
        self.first.copy_(state["first"])
        if state["second"] == "interrupt":
            raise KeyboardInterrupt
        self.second = int(state["second"])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"first": torch.ones(2)}, "'second' is missing"),
        ({"first": torch.ones(2), "second": 1, "third": 1}, "unknown 'third'"),
        ({"first": torch.ones(1), "second": 1}, r"first is float32 of shape \(1,\), expected float32 of shape \(2,\)"),
        ({"first": torch.ones(2).double(), "second": 1}, "first is float64"),
        ({"first": torch.ones(3), "second": 1}, "size"),
        ({"first": torch.ones(2), "second": "x"}, "invalid literal"),
        ({"first": torch.ones(2), "second": 1.5}, "second is 1.5, expected 1"),
        ("nonsense", "indices"),
    ],
)
def test_what_does_not_fit_is_rolled_back_and_named(state, words):
    pair = Pair()
    with pytest.raises(RunError, match=words):
        replace_state(pair, state, "pair")
    assert pair.first.tolist() == [0, 0]
    assert pair.second == 0


def test_an_interruption_is_rolled_back_and_passed_on():
    pair = Pair()
    with pytest.raises(KeyboardInterrupt):
        replace_state(pair, {"first": torch.ones(2), "second": "interrupt"}, "pair")
    assert pair.first.tolist() == [0, 0]


def test_states_that_json_has_changed_are_the_same():
    assert difference({"a": [1, 2], "1": {"x": float("nan")}}, {"a": (1, 2), 1: {"x": float("nan")}}) is None
    assert difference({"a": True}, {"a": 1}) is not None
    assert difference({"a": [1]}, {"a": [1, 2]}) == "a is a list of 1, expected a list of 2"


def test_a_copy_shares_nothing_and_tensors_go_out_and_in():
    state = {"a": [torch.ones(2), {"b": torch.zeros(1), "c": None}], "d": "text"}
    copy = copied(state)
    plain, tensors = split_tensors(state)
    state["a"][0].add_(1)
    assert copy["a"][0].tolist() == [1, 1]
    assert set(tensors) == {"/a/0", "/a/1/b"}
    back = join_tensors(plain, tensors)
    assert difference(back, copy) is None
    assert back["a"][0].tolist() == [1, 1]


def test_tensors_like_others():
    like = {"w": torch.zeros(2)}
    saved = {"w": torch.ones(2)}
    found = tensors_like(saved, like)
    saved["w"].add_(1)
    assert found["w"].tolist() == [1, 1]
    for bad in ({}, {"w": torch.ones(3)}, {"w": torch.ones(2).double()}, {"w": None}, {"w": torch.ones(2), "v": torch.ones(2)}):
        with pytest.raises(ValueError, match="expected"):
            tensors_like(bad, like)
