"""Reading the folder of a run of reinforcement learning."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from hvcl.core.errors import RunError
from hvcl.report.fields import Fields, Vector, instance, row
from hvcl.report.folders import seed_folders
from hvcl.report.reinforcement.run import SCORES, Evaluation, ReinforcementRun, Result, Seed
from hvcl.report.seed_files import SeedFiles
from hvcl.rl.scores import Point, Reference

FORMAT = "rl-1"
"""Kind and version of the layout of such a folder."""


def load(folder: Path, fields: Fields) -> ReinforcementRun:
    """Read the folder of a run of reinforcement learning; `fields` is its config.json.

    A seed without `result.json` is unfinished, not an error. Any damage raises a `RunError` that names the file.
    """
    if fields.get("format") != FORMAT:
        raise RunError(f"{fields.where} has format {fields.get('format')!r}, but this version of hvcl reads format {FORMAT}")
    names = fields.items("task_names", str)
    if not names:
        raise RunError(f"{fields.where} is damaged: 'task_names' is empty")
    numbers = sorted({*fields.items("seeds", int), *seed_folders(folder)})
    seeds = tuple(_seed(folder / f"seed-{number}", number, len(names)) for number in numbers)
    references = next((seed.result.references for seed in seeds if seed.result), None)
    if references is None and "references" in fields.values:
        references = _references(fields, len(names))
    return ReinforcementRun(
        folder=folder,
        method=fields.text("method"),
        sequence=fields.text("sequence"),
        task_names=names,
        references=references,
        settings={**fields.mapping("protocol"), **fields.mapping("agent")},
        seeds=seeds,
    )


def _seed(folder: Path, number: int, tasks: int) -> Seed:
    files = SeedFiles(folder)
    result = files.result()
    # By time: where a resumed run wrote an evaluation a second time, the later line counts.
    by_time: dict[float, Evaluation] = {}
    for fields in files.log():
        if fields.text("kind") == "evaluation":
            evaluation = _evaluation(fields, tasks)
            by_time[evaluation.returns.time] = evaluation
    evaluations = tuple(by_time[time] for time in sorted(by_time))
    return Seed(number, evaluations, None if result is None else _result(result, tasks))


def _evaluation(fields: Fields, tasks: int) -> Evaluation:
    def returns(value: object) -> tuple[float | None, ...]:
        episodes = [None if of_task is None else row(of_task) for of_task in _of_tasks(value, tasks)]
        if () in episodes:
            raise TypeError
        return tuple(math.fsum(values) / len(values) if values else None for values in episodes)

    def usage(value: object) -> tuple[Mapping[str, Vector], ...]:
        layers = [instance(of_task, dict) for of_task in _of_tasks(value, tasks)]
        return tuple({str(name): row(shares) for name, shares in of_task.items()} for of_task in layers)

    time = fields.number("time")
    found = fields.parsed("returns", f"the returns of {tasks} tasks, a list or null each", returns)
    return Evaluation(Point(time, found), fields.parsed("usage", f"shares by layer of {tasks} tasks", usage))


def _result(fields: Fields, tasks: int) -> Result:
    def curve(value: object) -> tuple[Point, ...]:
        points = [row(entry, tasks + 1) for entry in instance(value, list)]
        return tuple(Point(time, tuple(map(_known, returns))) for time, *returns in points)

    areas = fields.get("learning_areas")
    return Result(
        scores={name: fields.number(name) for name in SCORES},
        references=_references(fields, tasks),
        returns_when_learned=tuple(map(_known, fields.vector("returns_when_learned", tasks))),
        returns_at_the_end=fields.vector("returns_at_the_end", tasks),
        learning_areas=None if areas is None else fields.vector("learning_areas", tasks),
        curve=fields.parsed("curve", f"a list of times with {tasks} returns each", curve),
    )


def _references(fields: Fields, tasks: int) -> tuple[Reference, ...]:
    def pairs(value: object) -> tuple[Reference, ...]:
        found = [row(pair, 2) for pair in _of_tasks(value, tasks)]
        if not all(high > low for low, high in found):  # performances divide by the difference
            raise TypeError
        return tuple(Reference(low, high) for low, high in found)

    return fields.parsed("references", f"the returns of random actions and of a good agent in {tasks} tasks", pairs)


def _of_tasks(value: object, tasks: int) -> list[object]:
    found = instance(value, list)
    if len(found) != tasks:
        raise TypeError
    return found


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
