"""One estimator, many threads."""

import copy
import sys
import threading

import numpy as np
import pytest
from sklearn.base import clone

import hvcl
from hvcl.estimators import ContinualClassifier, ContinualRegressor
from tests.estimators.rows import blobs, waves

CALLS = 60


@pytest.fixture(autouse=True)
def many_switches():
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(writers, readers):
    """Run writers to their end and readers meanwhile, at least once each; errors of all of them."""
    errors, over = [], threading.Event()

    def safely(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    def again_and_again(work):
        while True:
            work()
            if over.is_set() or errors:
                return

    writing = [threading.Thread(target=safely, args=(work,)) for work in writers]
    reading = [threading.Thread(target=safely, args=(lambda work=work: again_and_again(work),)) for work in readers]
    for thread in (*writing, *reading):
        thread.start()
    for thread in writing:
        thread.join()
    over.set()
    for thread in reading:
        thread.join()
    return errors


def test_no_row_of_many_writers_is_lost_and_readers_see_whole_states(tmp_path):
    x, y = blobs(40, classes=6, columns=6)
    model = ContinualClassifier(features=20, warmup=50)  # the warm-up ends while all are at work
    model.partial_fit(x[y < 2], y[y < 2])
    first = int((y < 2).sum())

    def write(labels):
        mine = np.isin(y, labels)
        for call in range(CALLS):
            row = np.flatnonzero(mine)[call % mine.sum()]
            model.partial_fit(x[row : row + 1], y[row : row + 1], group=f"group {labels[0]}")

    def read():
        p = model.predict_proba(x)
        assert p.shape[0] == len(x)
        assert 2 <= p.shape[1] <= 6
        np.testing.assert_allclose(p.sum(1), 1)
        assert np.isin(model.predict(x[:3]), y).all()
        assert np.isfinite(model.novelty(x)).all()

    def save():
        path = tmp_path / f"{threading.get_ident()}"
        model.save(path)
        for one in (hvcl.load(path), copy.deepcopy(model)):
            p = one.predict_proba(x)
            assert p.shape[1] == len(one.classes_)
            np.testing.assert_allclose(p.sum(1), 1)
        assert not hasattr(clone(model), "classes_")

    writers = [lambda labels=labels: write(labels) for labels in ([0, 1], [2, 3], [4, 5])]
    assert together(writers, [read, read, save]) == []
    learned = first + 3 * CALLS
    assert float(model._core.novelty.count.sum()) == learned
    assert model._core.model.learner.expert_log.seen == learned
    assert model._core.groups.count == 3 * CALLS
    for group in model.groups_:
        model.forget_group(group)
    assert float(model._core.novelty.count.sum()) == first


def test_a_regressor_under_load_learns_what_it_would_have_learned_in_peace():
    x, y = waves(240)
    scales = ContinualRegressor(features=20).fit(x, y).scales_
    model = ContinualRegressor(answer="ever", features=20, scales=scales).partial_fit(x[:1], y[:1])

    def write(part):
        for row in part:
            model.partial_fit(x[row : row + 1], y[row : row + 1])

    def read():
        mean, std = model.predict(x[:5], return_std=True)
        assert np.isfinite([mean, std]).all()

    def move():
        model.partial_fit(x[:2], y[:2], group="for a while").forget_group("for a while")

    parts = np.array_split(np.arange(1, 240), 3)
    assert together([lambda part=part: write(part) for part in parts], [read, read]) == []
    assert model._core.model.regression.count == 240
    quiet = ContinualRegressor(answer="ever", features=20, scales=scales).partial_fit(x, y)
    np.testing.assert_allclose(model.predict(x), quiet.predict(x), atol=2e-3)
    assert together([move], [read, read]) == []
    np.testing.assert_allclose(model.predict(x), quiet.predict(x), atol=2e-3)


def test_two_that_are_merged_with_each_other_at_once_do_not_wait_for_ever():
    x, y = blobs(60)
    a = ContinualClassifier(features=20).fit(x, y)
    b = ContinualClassifier(features=20, scales=a.scales_).fit(x, y)
    works = [lambda: [a.merge(b) for _ in range(5)], lambda: [b.merge(other=a) for _ in range(5)]]
    assert together(works, [lambda: a.predict(x), lambda: b.partial_fit(x[:1], y[:1])]) == []
