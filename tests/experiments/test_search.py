"""What the packaged settings say is what the committed search found."""

from pathlib import Path

import pytest

from hvcl.learners import known_methods
from hvcl.runs import RunConfig
from hvcl.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def search(load):
    return load("search")


def test_tuned_settings_are_the_best_of_the_search(search):
    best = search.best(search.done())
    for (benchmark, method), record in best.items():
        assert load_settings(method)[benchmark]["searched"] == record["settings"]
        made = RunConfig.make(benchmark, method).learner
        for name, value in record["settings"].items():
            assert getattr(made, name) == value
        if benchmark == "split-cifar10":
            assert load_settings(method)["split-cifar100"]["searched"] == record["settings"]


def test_every_method_of_a_benchmark_was_searched_with_the_same_budget(search):
    records = search.done()
    for benchmark in search.BENCHMARKS:
        counts = {}
        for record in records:
            if record["benchmark"] == benchmark:
                counts[record["method"]] = counts.get(record["method"], 0) + 1
        listed = {method for _, method, _ in search.jobs([benchmark])}
        assert set(counts) == listed
        for method, count in counts.items():
            assert count >= len(search.settings(benchmark, method))
            if method not in ("naive", "joint"):
                assert count >= search.TRIALS[benchmark]


def test_the_first_of_equal_scores_counts(search):
    records = [
        {"benchmark": "b", "method": "m", "accuracy": a, "settings": {"strength": s}} for a, s in ((0.5, 1), (0.7, 2), (0.7, 3))
    ]
    assert search.best(records)["b", "m"]["settings"] == {"strength": 2}


@pytest.fixture(scope="module")
def documents(load):
    return load("tables").documents()


@pytest.mark.parametrize("document", ["README.md", "docs/results/README.md", "docs/methods/README.md"])
def test_documents_hold_the_committed_results(document, documents):
    assert (ROOT / document).read_text() == documents[ROOT / document]


@pytest.mark.parametrize("method", sorted(known_methods()))
def test_every_method_has_its_page(method, documents):
    path = ROOT / "docs" / "methods" / f"{method}.md"
    assert path.read_text() == documents[path]
