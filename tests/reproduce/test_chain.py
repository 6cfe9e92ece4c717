"""The figures of reinforcement learning, on results that were not run."""

import sys

import pytest

from hvcl.core.errors import InputError
from hvcl.reproduce import REPRODUCTIONS, Scale, chain
from hvcl.reproduce.figure_betas import GRIDS


def test_measures_are_those_of_a_case_done_by_hand(agents, seeds):
    measured = chain.measures(agents({"a": seeds(1)})["a"])
    assert measured["reward"].mean == 1.5  # 4/8 + 50/50
    assert measured["above_random"] is None
    assert measured["performance"].mean == pytest.approx(0.45)
    assert measured["when_learned"].mean == pytest.approx(0.65)
    assert measured["forgetting"].mean == pytest.approx(0.2)


def test_curves_follow_the_log(agents, seeds):
    run = agents({"a": seeds(1)})["a"]
    assert chain.rewards(run)[0] == {0.5: 0.25, 1.0: 1.0, 1.5: 6 / 8 + 20 / 50, 2.0: 1.5}
    assert chain.returns(run, 1)[0] == {1.5: 20.0, 2.0: 50.0}


def test_a_line_is_drawn_where_all_seeds_have_a_value():
    drawn = chain.over_time({"a": [{0.5: 1.0, 1.0: 2.0}, {1.0: 4.0}]}, 2, (300, 200), "lines")
    assert "polyline" in drawn
    assert str(drawn).count("<circle") == 1, "one place, where both are"


def test_crl_says_who_is_better(agents, seeds):
    figure = REPRODUCTIONS["figure-crl"]
    good, bad = seeds(ended=(8.0, 50.0)), seeds()
    found = agents({"naive": bad, "ewc": bad, "ucl": bad, "hvcl": good, "hvcl-growing": good})
    outcome = figure.read(found)
    verdicts = {finding.claim: finding.verdict for finding in outcome.findings}
    assert verdicts["HVCL ends with more than EWC (average performance)"] == "holds"
    assert verdicts["HVCL forgets less than UCL"] == "holds"
    assert verdicts["EWC learns single tasks better than HVCL"] == "undecided"
    assert {row.label: row.supervision for row in outcome.rows}["HVCL, generative gate"] == "task-free"


def test_experts_and_betas(agents, seeds):
    experts = REPRODUCTIONS["figure-experts"].read(
        agents({"1 expert": seeds(), "2 experts": seeds(), "4 experts": seeds(ended=(8.0, 50.0))})
    )
    assert [finding.verdict for finding in experts.findings] == ["holds", "holds"]
    gates, weights = GRIDS["quick"]
    runs = {f"beta1 {g:g}, beta2 {w:g}": seeds(ended=(8.0, 50.0) if w >= 0.1 else (0.0, 50.0)) for g in gates for w in weights}
    betas = REPRODUCTIONS["figure-betas"].read(agents(runs))
    assert [finding.verdict for finding in betas.findings] == ["holds", "undecided"]
    assert str(betas.picture).count('class="cell"') == 2 * len(runs)


def test_without_gymnasium_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "hvcl.runs.reinforcement", None)
    with pytest.raises(InputError, match=r"hvcl\[rl\]"):
        chain.agent(Scale("quick", (1,)), "hvcl", "hvcl")
