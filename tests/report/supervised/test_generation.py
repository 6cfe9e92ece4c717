"""Generators in the report: rows of pictures and their measures."""

import base64
import json

import pytest
import torch

from hvcl.core.errors import RunError
from hvcl.core.pictures import png
from hvcl.report.load import load_run
from hvcl.report.page import render
from hvcl.report.supervised.generation import generation_figures
from hvcl.report.supervised.groups import group_runs

MATRIX = [[0.9, 0.5], [0.8, 0.9]]


def generator_run(write_run, outcome, seeds=(1, 2), experts=lambda seed: [1.0]):
    """Two tasks; the score of seed s after task t is s + t / 10."""
    folder = write_run("run", {seed: outcome(MATRIX) for seed in seeds}, method="hvcl-replay")
    for seed in seeds:
        place = folder / f"seed-{seed}"
        lines = []
        for after in range(3):
            scores = {"inception_score": seed + after / 10, "inception_bound": 4.0, "frechet_distance": 7.25}
            scores["experts"] = experts(seed)
            lines.append({"kind": "evaluation", "step": after, "after": after, "accuracy": [[0.5, 0.5], *MATRIX][after]})
            lines[-1]["generation"] = scores if after else None
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (place / "pictures").mkdir()
        for after in (1, 2):
            for shade, name in enumerate(("originals", "reconstructions", "samples")):
                (place / "pictures" / f"{after}-{name}.png").write_bytes(png(torch.full((1, 2, 2), (10 * after + shade) / 255)))
    return folder


def test_rows_are_originals_and_reconstructions_of_the_end_and_then_one_a_task(write_run, outcome):
    (group,) = group_runs([load_run(generator_run(write_run, outcome))])
    (figure,) = generation_figures(group)
    assert [seed for seed, _ in figure.seeds] == [1, 2]
    rows = figure.seeds[0][1]
    assert [row.label for row in rows] == ["originals", "reconstructions", "after task 1", "after task 2"]
    shades = [20, 21, 12, 22]
    expected = [png(torch.full((1, 2, 2), shade / 255)) for shade in shades]
    prefix = "data:image/png;base64,"
    assert [base64.b64decode(row.address.removeprefix(prefix)) for row in rows] == expected


def test_measures_are_means_over_seeds(write_run, outcome):
    (group,) = group_runs([load_run(generator_run(write_run, outcome))])
    (figure,) = generation_figures(group)
    assert figure.finished == (1, 2)
    texts = {name: values for name, _, _, values in figure.measures}
    assert texts["Inception score"] == ("1.60 ± 0.71", "1.70 ± 0.71")
    assert texts["at most H(p(y))"] == ("4.00 ± 0.00", "4.00 ± 0.00")
    assert texts["Fréchet distance"] == ("7.25 ± 0.00", "7.25 ± 0.00")


def test_the_share_of_each_latent_expert_is_told_where_there_are_several(write_run, outcome):
    """Seed 1 has used the first of its experts only, and an old run did not say that there was a second."""
    folder = generator_run(write_run, outcome, experts=lambda seed: [1.0] if seed == 1 else [0.25, 0.75])
    (figure,) = generation_figures(group_runs([load_run(folder)])[0])
    told = {name: (unit, values) for name, unit, _, values in figure.measures if "expert" in name}
    assert told == {
        "Made by expert 1": ("%", ("62.50 ± 53.03",) * 2),
        "Made by expert 2": ("%", ("37.50 ± 53.03",) * 2),
    }
    page = render([load_run(folder)])
    assert "Made by expert 2" in page


def test_one_latent_expert_is_not_worth_a_row(write_run, outcome):
    assert "Made by expert" not in render([load_run(generator_run(write_run, outcome))])


def test_the_page_shows_the_pictures_and_pages_of_others_do_not(write_run, outcome):
    page = render([load_run(generator_run(write_run, outcome))])
    assert page.count('<img src="data:image/png;base64,') == 8
    assert "What the generators make" in page
    plain = render([load_run(write_run("plain", {1: outcome(MATRIX)}))])
    assert "What the generators make" not in plain


def test_damage_is_named(write_run, outcome):
    folder = generator_run(write_run, outcome)
    picture = folder / "seed-1" / "pictures" / "1-samples.png"
    picture.write_bytes(b"<svg>")
    with pytest.raises(RunError, match=r"1-samples.png is damaged: it is not a PNG"):
        load_run(folder)
    picture.unlink()
    metrics = folder / "seed-1" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"inception_bound": 4.0', '"inception_bound": "four"'))
    with pytest.raises(RunError, match="'inception_bound' is not a number"):
        load_run(folder)
