"""Labels and units."""

import numpy as np
import pytest

from hvcl.core.errors import InputError, RunError
from hvcl.estimators.labels import Labels


def test_units_are_in_the_order_of_appearance_and_classes_are_sorted():
    labels = Labels()
    labels.add(np.array(["m", "z", "m"]))
    labels.add(np.array(["a", "z"], dtype=object))
    assert labels.values == ["m", "z", "a"]
    assert labels.classes.tolist() == ["a", "m", "z"]
    assert labels.order.tolist() == [2, 0, 1]
    assert labels.units(np.array(["z", "a"])).tolist() == [1, 2]
    with pytest.raises(InputError, match=r"\['q'\] were never learned"):
        labels.units(np.array(["q"]))


@pytest.mark.parametrize("values", [["a", "b"], [3, -1], [0.5, 2.0], [True, False]])
def test_labels_come_back_from_a_file_as_they_were(values):
    labels = Labels()
    labels.add(np.array(values))
    found = Labels.from_state(labels.state_dict())
    assert found.values == labels.values
    assert [type(value) for value in found.values] == [type(value) for value in labels.values]


def test_mixtures_and_damaged_states_are_refused():
    with pytest.raises(InputError, match="int, str"):
        Labels().add(np.array(["a", 1], dtype=object))
    with pytest.raises(RunError, match="damaged"):
        Labels.from_state({"kind": "int", "values": ["a"]})
