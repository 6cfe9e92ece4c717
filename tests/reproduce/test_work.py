"""Running: shared, resumed, left out."""

import dataclasses

import pytest
from markupsafe import Markup

from hvcl.core.errors import HvclError, InputError
from hvcl.reproduce import Column, Finding, Outcome, Planned, Row
from hvcl.reproduce.work import folder_name, reproduce
from hvcl.runs import RunConfig

PICTURE = Markup('<svg class="chart" viewBox="0 0 10 10"></svg>')


class Small:
    """Two short runs."""

    title, paper, seeds, from_results = "small", "", {"quick": 1}, False

    def __init__(self, name, methods=("naive",), broken=False, learner=None):
        self.name, self.methods, self.broken, self.learner = name, methods, broken, {"hidden": (4,)} | (learner or {})

    def plan(self, scale):
        if self.broken:
            raise InputError("something is not installed")
        settings = {"epochs": 1, "batch_size": 256}
        return [Planned(m, RunConfig.make("split-digits", m, scale.seeds, settings, self.learner)) for m in self.methods]

    def read(self, found):
        rows = [
            Row(m, "digits", "Domain-IL", "boundaries", "none", 1, {"a": run.over_seeds("average_accuracy")})
            for m, run in found.items()
        ]
        return Outcome(rows, {"a": Column("a")}, PICTURE, [Finding("claim", "holds", "numbers")])


def test_runs_are_shared_and_not_run_again(tmp_path):
    first = reproduce([Small("one"), Small("two", ("naive", "lwf"))], tmp_path, workers=1)
    assert [written.name for written in first] == ["one", "two"]
    folders = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert len(folders) == 2, "naive once for both"
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/seed-*/result.json")}
    again = reproduce([Small("one")], tmp_path, workers=1)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert again[0].outcome.rows == first[0].outcome.rows
    assert {path.suffix for path in (tmp_path / "one").iterdir()} >= {".html", ".json", ".csv", ".svg"}


def test_more_seeds_go_on_in_the_same_folder(tmp_path):
    reproduce([Small("one")], tmp_path, workers=1)
    (written,) = reproduce([Small("one")], tmp_path, seeds=2, workers=1)
    (folder,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in folder.glob("seed-*")) == ["seed-1", "seed-2"]
    assert written.outcome.rows[0].values["a"].seeds == 2


def test_what_cannot_be_made_is_left_out_of_many_and_raises_alone(tmp_path):
    left_out = []
    done = reproduce([Small("broken", broken=True), Small("one")], tmp_path, workers=1, on_skipped=left_out.append)
    assert [written.name for written in done] == ["one"]
    assert left_out[0].reason == "something is not installed"
    with pytest.raises(InputError, match="not installed"):
        reproduce([Small("broken", broken=True)], tmp_path)


def test_a_run_that_diverges_leaves_out_what_needs_it_and_nothing_else(tmp_path):
    bad = Small("bad", learner={"hidden": (4, 4, 4), "learning_rate": 1e15})
    left_out = []
    done = reproduce([bad, Small("one")], tmp_path, workers=1, on_skipped=left_out.append)
    assert [written.name for written in done] == ["one"]
    assert [one.name for one in left_out] == ["bad"]
    assert "naive seed 1: the learner has diverged" in left_out[0].reason
    with pytest.raises(HvclError, match="diverged"):
        reproduce([bad], tmp_path, workers=1)


def test_a_folder_is_named_by_all_settings_but_the_seeds():
    config = RunConfig.make("split-digits", "naive", (1,), {"epochs": 1})
    assert folder_name(config) == folder_name(dataclasses.replace(config, seeds=(1, 2)))
    assert folder_name(config) != folder_name(RunConfig.make("split-digits", "naive", (1,), {"epochs": 2}))
    assert folder_name(config).startswith("split-digits-naive-")
