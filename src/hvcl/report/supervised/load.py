"""Reading the folder of a supervised run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from hvcl.core.errors import RunError
from hvcl.core.manifest import REMEDY
from hvcl.core.pictures import SIGNATURE
from hvcl.report.fields import Fields, Vector, count, instance
from hvcl.report.folders import seed_folders
from hvcl.report.seed_files import SeedFiles
from hvcl.report.supervised.run import (
    QUANTITIES,
    Config,
    Evaluation,
    Expert,
    Generation,
    Layer,
    Result,
    Seed,
    Stretch,
    SupervisedRun,
    Terms,
)

FORMAT = 1
"""Version of the layout of a supervised run's folder."""
ROUNDING = 1e-9
"""How far two sums of the same accuracies may lie apart."""
_PICTURE = re.compile(r"(\d+)-(originals|reconstructions|samples)\.png")


def load(folder: Path, fields: Fields) -> SupervisedRun:
    """Read the folder of a supervised run; `fields` is its config.json.

    A seed without `result.json` is unfinished, not an error, and neither is a last line of `metrics.jsonl` that was
    cut off when the run was killed. Any other damage raises a `RunError` that names the file.
    """
    config = _config(fields)
    numbers = sorted({*config.seeds, *seed_folders(folder)})
    seeds = tuple(_seed(folder / f"seed-{number}", number, config) for number in numbers)
    return SupervisedRun(folder, config, seeds)


def _config(fields: Fields) -> Config:
    if fields.get("format") != FORMAT:
        raise RunError(f"{fields.where} has format {fields.get('format')!r}, but this version of hvcl reads format {FORMAT}")
    names = fields.items("task_names", str)
    if not names:
        raise RunError(f"{fields.where} is damaged: 'task_names' is empty")
    return Config(
        benchmark=fields.text("benchmark"),
        scenario=fields.text("scenario"),
        supervision=fields.text("supervision"),
        memory=fields.text("memory"),
        method=fields.text("method"),
        seeds=fields.items("seeds", int),
        task_names=names,
        evaluated_on=fields.text("evaluated_on"),
        stream=fields.mapping("stream"),
        learner=fields.mapping("learner"),
    )


def _seed(folder: Path, number: int, config: Config) -> Seed:
    files, tasks = SeedFiles(folder), len(config.task_names)
    environment, found = files.environment(), files.result()
    terms, evaluations = _metrics(files.log(), tasks)
    result = None if found is None else _result(found, tasks)
    if result is not None:
        _check_agreement(folder, result, evaluations)
    return Seed(
        seed=number,
        environment={} if environment is None else environment.values,
        terms=terms,
        evaluations=evaluations,
        result=result,
        pictures=_pictures(files),
    )


def _check_agreement(folder: Path, result: Result, evaluations: tuple[Evaluation, ...]) -> None:
    """Raise a `RunError` if the summary is not that of the log, or its figures are not those of its own matrix."""
    last = result.accuracy_matrix[-1]
    if abs(result.quantities["average_accuracy"] - math.fsum(last) / len(last)) > ROUNDING:
        raise RunError(f"{folder / 'result.json'} is damaged: its average is not that of its accuracy matrix. {REMEDY}")
    rows = (result.initial_accuracy, *result.accuracy_matrix)
    for evaluation in evaluations:
        if evaluation.after < len(rows) and not _equal(evaluation.accuracy, rows[evaluation.after]):
            raise RunError(
                f"{folder} is damaged: after {evaluation.after} tasks result.json and metrics.jsonl do not agree. {REMEDY}"
            )


def _equal(one: Vector, other: Vector) -> bool:
    return len(one) == len(other) and all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(one, other, strict=True))


def _pictures(files: SeedFiles) -> dict[tuple[int, str], bytes]:
    found = {}
    for path, content in files.pictures():
        match = _PICTURE.fullmatch(path.name)
        if match and not content.startswith(SIGNATURE):
            raise RunError(f"{path} is damaged: it is not a PNG file")
        if match:
            found[int(match[1]), match[2]] = content
    return found


def _metrics(log: Iterator[Fields], tasks: int) -> tuple[tuple[Terms, ...], tuple[Evaluation, ...]]:
    # By step: where a resumed run wrote a step a second time, the later line counts.
    terms: dict[int, Terms] = {}
    evaluations: dict[int, Evaluation] = {}
    for fields in log:
        kind = fields.text("kind")
        if kind == "terms":
            step = fields.integer("step")
            terms[step] = Terms(step, fields.integer("task"), fields.numbers_by_name("terms"))
        elif kind == "evaluation":
            after = fields.integer("after")
            evaluations[after] = Evaluation(fields.integer("step"), after, fields.vector("accuracy", tasks), _generation(fields))
    return (
        tuple(terms[step] for step in sorted(terms)),
        tuple(evaluations[after] for after in sorted(evaluations)),
    )


def _generation(fields: Fields) -> Generation | None:
    # Runs from before there were generators do not say, and most learners have none.
    if fields.get("generation") is None:
        return None
    inner = Fields(fields.mapping("generation"), f"{fields.where}, 'generation',")
    return Generation(
        inception_score=inner.number("inception_score"),
        inception_bound=inner.number("inception_bound"),
        frechet_distance=inner.number("frechet_distance"),
        experts=inner.numbers("experts"),
    )


def _result(fields: Fields, tasks: int) -> Result:
    return Result(
        accuracy_matrix=fields.matrix("accuracy_matrix", tasks, tasks),
        initial_accuracy=fields.vector("initial_accuracy", tasks),
        quantities={name: fields.number(name) for name in QUANTITIES},
        layers={name: _layer(layer, tasks) for name, layer in fields.children("layers").items()},
        steps=fields.number("steps"),
        # Runs from before there were such learners do not say.
        experts=tuple(_expert(expert) for expert in fields.objects("experts")) if "experts" in fields.values else (),
    )


def _layer(fields: Fields, tasks: int) -> Layer:
    return Layer(
        marginal_entropy=fields.number("marginal_entropy"),
        conditional_entropy=fields.number("conditional_entropy"),
        information=fields.number("information"),
        usage=fields.matrix("usage", tasks),
        routed=fields.matrix("routed", tasks),
    )


def _expert(fields: Fields) -> Expert:
    return Expert(
        number=fields.count("expert"),
        opened_step=fields.count("opened_step"),
        opened_after=fields.count("opened_after"),
        examples=fields.count("examples"),
        labels=fields.counts_by_name("labels"),
        stretches=fields.parsed("stretches", "a list of [first step, last step, examples]", _stretches),
    )


def _stretches(value: object) -> tuple[Stretch, ...]:
    return tuple(_stretch(item) for item in instance(value, list))


def _stretch(value: object) -> Stretch:
    numbers = [count(number) for number in instance(value, list)]
    if len(numbers) != 3 or numbers[0] > numbers[1]:
        raise TypeError
    return Stretch(*numbers)
