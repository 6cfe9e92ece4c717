"""The figures of the robots: settings are those of the search, the page is what results/ holds."""

import json
from pathlib import Path

import pytest

pytest.importorskip("gymnasium")
ROOT = Path(__file__).resolve().parents[2]


def test_settings_on_the_chain_are_the_best_looks(load):
    looks = [json.loads(line) for line in (ROOT / "experiments" / "rl_search.jsonl").read_text().splitlines()]
    ours = load("rl")
    for method in {look["method"] for look in looks}:
        best = max((look for look in looks if look["method"] == method), key=lambda look: look["performance"])
        document = json.loads((ROOT / "results" / "rl" / f"bullet-{method}.json").read_text())
        assert best["settings"].items() <= document["agent"].items()
        assert ours.FOUND.get(method, {}).items() <= document["agent"].items()


def test_the_page_holds_what_was_found(load):
    pages = load("rl_page")
    assert pages.PAGE.read_text() == pages.page(pages.documents())


def test_all_results_are_of_the_reduced_protocol_and_equal_budgets(load):
    found = load("rl_page").documents().values()
    protocols = [document["protocol"] for document in found]
    assert all(protocol == protocols[0] for protocol in protocols)
    assert protocols[0]["steps"] == 60_000
    assert {document["agent"]["updates_per_step"] for document in found} == {0.5}
