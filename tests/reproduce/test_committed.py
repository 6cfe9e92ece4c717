"""Committed results take the place of runs of the same settings, and of no others."""

from pathlib import Path

import pytest

from hvcl.reproduce import Scale
from hvcl.reproduce.committed import Committed
from hvcl.reproduce.settings import supervised

RESULTS = Path(__file__).resolve().parents[2] / "results"
SCALE = Scale("standard", (1, 2, 3))


@pytest.fixture(scope="module")
def committed():
    return Committed(RESULTS)


def test_the_same_settings_are_found(committed):
    found = committed.get(supervised(SCALE, "key", "split-mnist", "ewc"), "standard")
    assert found.source == "committed"
    assert found.facts["memory"] == "none"
    assert 70 < found.over_seeds("average_accuracy", 100.0).mean < 80
    with pytest.raises(Exception, match="no run folder"):
        _ = found.folder


def test_a_method_with_epochs_of_its_own_is_found(committed):
    assert committed.get(supervised(SCALE, "key", "split-mnist", "hvcl-replay"), "standard") is not None


def test_other_settings_are_not(committed):
    assert committed.get(supervised(SCALE, "key", "split-mnist", "ewc", learner={"strength": 3.0}), "standard") is None
    assert committed.get(supervised(SCALE, "key", "split-mnist", "ewc", {"task_free": True}), "standard") is None
    assert committed.get(supervised(Scale("paper", (1,)), "key", "split-mnist", "ewc"), "paper") is None


def test_robots_are_found_too(committed):
    pytest.importorskip("gymnasium")
    from hvcl.reproduce import chain

    found = committed.get(chain.agent(SCALE, "naive", "naive"), "standard")
    assert found is not None
    assert chain.tasks_of(found)[0] == "Walker2D"
    assert chain.measures(found)["forgetting"].seeds == 2
    assert committed.get(chain.agent(SCALE, "hvcl", "hvcl", {"experts": 2}), "standard") is None
