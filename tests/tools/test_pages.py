"""The pages of docs/ hold what results/ and experiments/ hold."""

import pytest

from hvcl.learners import known_methods
from hvcl.learners.warmup import memory_words
from hvcl.results import load_cells
from tools import exact_page, generative_page, reproduction_page, results_pages
from tools.marks import ROOT, fill


@pytest.fixture(scope="module")
def documents():
    return results_pages.documents()


@pytest.mark.parametrize("document", ["README.md", "docs/results/README.md", "docs/methods/README.md"])
def test_documents_hold_the_committed_results(document, documents):
    assert (ROOT / document).read_text() == documents[ROOT / document]


@pytest.mark.parametrize("method", sorted(known_methods()))
def test_every_method_has_its_page(method, documents):
    path = ROOT / "docs" / "methods" / f"{method}.md"
    assert path.read_text() == documents[path]


def test_the_tables_of_the_exact_learner_are_those_of_its_results():
    for path, text in exact_page.documents().items():
        assert path.read_text() == text


def test_the_generative_page_holds_what_was_found():
    assert generative_page.PAGE.read_text() == generative_page.page()


def test_the_page_of_claims_holds_what_is_committed():
    assert reproduction_page.PAGE.read_text() == reproduction_page.page()


def test_a_claim_without_a_figure_has_no_verdict():
    claim = reproduction_page.Claim("words", "setting", None, "figure-betas", "why")
    (line,) = reproduction_page.markdown([claim]).splitlines()[2:]
    assert "not measured yet" in line
    assert "hvcl reproduce figure-betas --budget standard" in line
    assert "why" not in line.split("|")[5]


def test_every_verdict_has_a_number_and_its_file():
    for make in reproduction_page.sections().values():
        for claim in make():
            if claim.evidence is not None:
                assert any(character.isdigit() for character in claim.evidence.figure)
                assert claim.evidence.files
                assert all(path.is_file() for path in claim.evidence.files)


def test_the_page_of_the_robots_holds_what_was_found():
    pytest.importorskip("gymnasium")
    from tools import rl_page

    assert rl_page.PAGE.read_text() == rl_page.page(rl_page.documents())


def test_all_results_of_the_robots_are_of_the_reduced_protocol_and_equal_budgets():
    pytest.importorskip("gymnasium")
    from tools import rl_page

    found = rl_page.documents().values()
    protocols = [document["protocol"] for document in found]
    assert all(protocol == protocols[0] for protocol in protocols)
    assert protocols[0]["steps"] == 60_000
    assert {document["agent"]["updates_per_step"] for document in found} == {0.5}


def test_generators_are_counted_where_every_task_has_its_own():
    names = ["0/1", "2/3"]
    assert generative_page.generators({"task_names": names, "learner": {"separate": True}}) == 2
    assert generative_page.generators({"task_names": names, "learner": {}}) == 1


def test_a_trial_is_shown_by_what_differs_from_the_first_one():
    first = {"method": "hvcl-replay", "stream": {"epochs": 20}, "learner": {"labels": "soft"}}
    later = {"method": "hvcl-replay", "stream": {"epochs": 10}, "learner": {"labels": "soft", "refresh": True, "balance": "half"}}
    assert generative_page.differences(later, first) == {"epochs": 10, "refresh": True}, "a missing setting had its default"


def test_only_what_stands_between_the_marks_is_replaced():
    text = "a\n<!-- x -->\nold\n<!-- end of x -->\nb <!-- y -->\n<!-- end of y -->"
    assert fill(text, "x", "new") == "a\n<!-- x -->\nnew\n<!-- end of x -->\nb <!-- y -->\n<!-- end of y -->"


def test_committed_cells_of_methods_with_a_warm_up_state_the_examples_that_it_keeps():
    cells = [cell for cell in load_cells(ROOT / "results") if cell.method in ("exact", "hvcl-growing")]
    assert cells
    for cell in cells:
        settings = cell.document["learner"]
        pieces = cell.method == "exact" or settings["features"] != "inputs"
        assert cell.memory == memory_words(settings["warmup"], pieces), cell.name
