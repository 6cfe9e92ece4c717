"""The experiment that shares one pass over the features gives the numbers of separate runs."""

from experiments.exact import figures as script
from hvcl.evaluation import evaluate
from hvcl.results import load_cells
from hvcl.runs import RunConfig, run


def make(benchmark, method, seeds, stream):
    """Small enough for a test; the first batch holds the whole warm-up."""
    learner = {"warmup": 64, "random_features": 150}
    return RunConfig.make(benchmark, method, seeds, stream | {"batch_size": 64}, learner)


def test_the_shared_pass_gives_exactly_the_numbers_of_separate_runs(monkeypatch, capsys):
    class Small:
        pass

    Small.make = staticmethod(make)
    monkeypatch.setattr(script, "RunConfig", Small)
    shared = script.one_seed("split-digits", 1)
    assert list(shared) == list(script.SETTINGS)
    for (scenario, task_free), together in shared.items():
        config = make("split-digits", "exact", (1,), {"scenario": scenario, "task_free": task_free})
        stream = config.make_stream(1)
        learner = config.make_learner(stream, 1)
        matrix = run(stream, learner)
        scores = evaluate(learner, stream.tests, seen=len(stream.tests)).scores
        found = script.result(together, 1)
        assert found["accuracy_matrix"] == matrix.rows
        assert found["average_accuracy"] == matrix.average_accuracy > 0.8
        assert found["nll"] == sum(s.nll for s in scores) / len(scores)
        assert found["calibration_error"] == sum(s.calibration_error for s in scores) / len(scores)
        assert found["ridges"] == [learner.experts.head.model.posterior().ridge]
        assert found["opened_after"] == [r.opened_after for r in learner.expert_log.records]
        assert found["features"] == 150
        assert found["parameters"] == learner.num_parameters
        assert together.learner.expert_log.state_dict() == learner.expert_log.state_dict()
        assert found["seconds"] > 0
    assert "after task 5" in capsys.readouterr().out


def test_a_seed_is_added_to_the_file_of_its_setting(monkeypatch, tmp_path, capsys):
    class Small:
        pass

    Small.make = staticmethod(make)
    monkeypatch.setattr(script, "RunConfig", Small)
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    for seed in (2, 1):
        for setting, together in script.one_seed("split-digits", seed).items():
            script.save("split-digits", setting, together, seed)
    cells = {cell.name: cell for cell in load_cells(tmp_path)}
    assert sorted(cells) == [
        f"split-digits-{name}-exact" for name in ("class", "class-task-free", "domain", "domain-task-free", "task")
    ]
    assert all(cell.seeds == cell.document["seeds"] == [1, 2] for cell in cells.values())
    assert cells["split-digits-domain-task-free-exact"].supervision == "task-free"
    assert cells["split-digits-class-exact"].document["results"][0]["features"] == 150
