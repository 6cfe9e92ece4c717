"""One estimator, many threads."""

import copy
import sys
import threading

import numpy as np
import pytest
from sklearn.base import clone

import hvcl
from hvcl.estimators import ContinualClassifier, ContinualRegressor
from hvcl.estimators.novelty import Novelty
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


# -- readers beside a writer -------------------------------------------------------------------------------------------

LONG = 120
"""Seconds after which a thread that should go on counts as one that waits for ever."""


def asked_while(write, held, questions, monkeypatch):
    """Answers to questions, each in a thread of its own, while `write` stands in the middle of a method of `Novelty`.

    Half of what it learns is learned then. A reader that waits for the writer fails the test.
    """
    inside, go_on, errors, answers = threading.Event(), threading.Event(), [], {}
    method = getattr(Novelty, held)

    def hold(novelty, *arguments):
        if threading.current_thread() is writer:
            inside.set()
            assert go_on.wait(LONG)
        return method(novelty, *arguments)

    def safely(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(Novelty, held, hold)
    writer = threading.Thread(target=safely, args=(write,), daemon=True)
    works = [lambda n=n, question=question: answers.update({n: question()}) for n, question in enumerate(questions)]
    readers = [threading.Thread(target=safely, args=(work,), daemon=True) for work in works]
    writer.start()
    assert inside.wait(LONG)
    for thread in readers:
        thread.start()
    for thread in readers:
        thread.join(LONG)
    waiting = [thread.is_alive() for thread in (writer, *readers)]
    go_on.set()
    writer.join(LONG)
    monkeypatch.undo()
    assert waiting == [True] + [False] * len(readers)
    assert errors == []
    return [answers[n] for n in range(len(questions))]


def rows_of(kind, count):
    return blobs(count) if kind is ContinualClassifier else waves(count)


def questions(model, x):
    if isinstance(model, ContinualClassifier):
        asked = [lambda: model.predict_proba(x), lambda: model.predict(x, abstain=0.1).astype(str), lambda: model.novelty(x)]
    else:
        asked = [lambda: np.stack(model.predict(x, return_std=True)), lambda: np.stack(model.predict_interval(x))]
    return [*asked, lambda: np.array(list(model.experts_.items())), lambda: np.array([event.row for event in model.drift_])]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other) if one.dtype.kind == "U" else np.allclose(one, other, rtol=0, atol=1e-6)


CHANGES = {
    "partial_fit": (lambda model, x, y: model.partial_fit(x[300:], y[300:]), "add"),
    "first rows": (lambda model, x, y: model.set_params(warmup=10).partial_fit(x[300:], y[300:]), "add"),
    "fit": (lambda model, x, y: model.fit(x[200:, :1], y[200:]), "add"),
    "forget": (lambda model, x, y: model.forget(x[:100], y[:100]), "remove"),
    "forget_group": (lambda model, x, y: model.forget_group("ann"), "subtract"),
}


@pytest.mark.parametrize("asked", [False, True], ids=["not asked before", "asked before"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("settings", [{}, {"answer": "ever"}, {"gate": True}], ids=["now", "ever", "gate"])
@pytest.mark.parametrize("kind", [ContinualClassifier, ContinualRegressor])
def test_answers_are_those_of_before_while_a_call_changes_the_model_and_new_ones_after_it(
    kind, settings, change, asked, monkeypatch
):
    if "gate" in settings and (kind is ContinualRegressor or change.startswith("forget")):
        pytest.skip("regressors have no gate, and models with one no groups")
    given = {"method_settings": {"gate": True}} if "gate" in settings else settings
    x, y = rows_of(kind, 400)
    model = kind(features=20, warmup=1000 if change == "first rows" else 50, **given)
    for part in np.array_split(np.arange(300), 6):
        model.partial_fit(x[part], y[part], group="ann" if change == "forget_group" and part[0] else None)
    twin = copy.deepcopy(model)
    before = [question() for question in questions(twin, x)]
    write, held = CHANGES[change]
    write(twin, x, y)
    after = [question() for question in questions(twin, x[:, : twin.n_features_in_])]
    if asked:
        _ = [question() for question in questions(model, x)]
    assert_same(asked_while(lambda: write(model, x, y), held, questions(model, x), monkeypatch), before)
    assert_same([question() for question in questions(model, x[:, : twin.n_features_in_])], after)
    assert not np.array_equal(before[0], after[0])


@pytest.mark.parametrize("kind", [ContinualClassifier, ContinualRegressor])
def test_a_refused_call_leaves_all_that_was_learned(kind):
    x, y = rows_of(kind, 300)
    model = kind(features=20, warmup=50).partial_fit(x[:200], y[:200])
    twin = copy.deepcopy(model)
    before = [question() for question in questions(model, x)]
    refused = [
        lambda: model.partial_fit(x[:5, :1], y[:5]),
        lambda: model.partial_fit(x[:5] + np.inf, y[:5]),
        lambda: model.partial_fit(x[:5], y[:5], group=2.5),
        lambda: model.fit(x[:5] + np.inf, y[:5]),
        lambda: model.fit(x[:5], y[:4]),
        lambda: model.set_params(warmup=0).fit(x, y),
        lambda: model.forget(x[250:], y[250:]),
        lambda: model.forget_group("ann"),
    ]
    for call in refused:
        with pytest.raises(ValueError):  # noqa: PT011
            call()
        assert_same([question() for question in questions(model, x)], before)
    for made in (model.set_params(warmup=50), twin):
        made.partial_fit(x[200:], y[200:])
    assert_same(*([question() for question in questions(made, x)] for made in (model, twin)))


def test_every_answer_under_load_is_one_between_two_calls():
    """Two writers that take turns, four readers: each answer is that of the model after some number of calls."""
    x, y = blobs(240)
    scales = ContinualClassifier(features=20).fit(x, y).scales_
    for settings in ({}, {"answer": "ever"}):
        model, twin = (ContinualClassifier(features=20, scales=scales, **settings) for _ in range(2))
        parts, allowed, seen = np.array_split(np.arange(240), 40), set(), []
        for part in parts:
            twin.partial_fit(x[part], y[part])
            allowed.add(twin.predict_proba(x[:3])[:, : len(twin.classes_)].tobytes())
        model.partial_fit(x[parts[0]], y[parts[0]])
        left, turn = iter(parts[1:]), threading.Lock()

        def write(model=model, left=left, turn=turn):
            while True:
                with turn:
                    part = next(left, None)
                    if part is None:
                        return
                    model.partial_fit(x[part], y[part])

        read = [lambda model=model, seen=seen: seen.append(model.predict_proba(x[:3]).tobytes())] * 4
        assert together([write, write], read) == []
        assert set(seen) <= allowed
        assert len(set(seen)) > 1
        assert model.predict_proba(x[:3]).tobytes() == twin.predict_proba(x[:3]).tobytes()
        assert float(model._core.novelty.count.sum()) == 240


def test_methods_without_snapshots_answer_after_the_call():
    x, y = blobs(60)
    model = ContinualClassifier("naive", method_settings={"hidden": (8,)}, warmup=50).partial_fit(x, y, classes=[0, 1, 2])
    work = [lambda: model.partial_fit(x[:20], y[:20]) for _ in range(2)]
    assert together(work, [lambda: model.predict_proba(x), lambda: model.novelty(x)]) == []
    assert float(model._core.novelty.count.sum()) == 100
