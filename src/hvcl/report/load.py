"""From run folders to `Run` values. Nothing here writes, and nothing else in the report reads."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hvcl.core.errors import RunError
from hvcl.report.run import Config, Evaluation, Expert, Generation, Layer, Matrix, Result, Run, Seed, Stretch, Terms, Vector

FORMAT = 1
SEARCH_DEPTH = 3

_SEED_FOLDER = re.compile(r"seed-(\d+)")
_PICTURE = re.compile(r"(\d+)-(originals|reconstructions|samples)\.png")
_PNG = b"\x89PNG\r\n\x1a\n"
_Value = TypeVar("_Value")


def load_run(folder: Path) -> Run:
    """Read one run folder.

    A seed without `result.json` is unfinished, not an error, and neither is a last line of `metrics.jsonl` that was
    cut off when the run was killed. Any other damage raises a `RunError` that names the file.
    """
    folder = Path(folder)
    config = _config(folder / "config.json")
    numbers = sorted({*config.seeds, *_seed_folders(folder)})
    return Run(folder, config, tuple(_seed(folder / f"seed-{number}", number, config) for number in numbers))


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders that `folders` stand for: each one itself, or those at most `SEARCH_DEPTH` levels below it.

    Each run comes once, in the order given and by name below that. A folder that does not exist, or finding no run at
    all, raises a `RunError`.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise RunError(f"{folder} is not a folder: give a run folder or one that contains runs")
        for run in _runs_below(folder, SEARCH_DEPTH):
            found.setdefault(run.resolve(), run)
    if not found:
        named = ", ".join(str(folder) for folder in folders) or "no folder"
        raise RunError(f"no run in {named}: a run folder holds a config.json and a seed-N folder for each seed")
    return list(found.values())


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    # Seeds without a config.json are a damaged run: reading it says so, where passing it over would hide its results.
    if (folder / "config.json").is_file() or _seed_folders(folder):
        yield folder
    elif depth > 0:
        for child in sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith(".")):
            yield from _runs_below(child, depth - 1)


def _seed_folders(folder: Path) -> list[int]:
    matches = (_SEED_FOLDER.fullmatch(child.name) for child in folder.iterdir() if child.is_dir())
    return [int(match[1]) for match in matches if match]


def _config(path: Path) -> Config:
    fields = _read(path)
    if fields.get("format") != FORMAT:
        raise RunError(f"{path} has format {fields.get('format')!r}, but this version of hvcl reads format {FORMAT}")
    names = fields.items("task_names", str)
    if not names:
        raise RunError(f"{path} is damaged: 'task_names' is empty")
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
    tasks = len(config.task_names)
    environment, metrics, result = (folder / name for name in ("environment.json", "metrics.jsonl", "result.json"))
    terms, evaluations = _metrics(metrics, tasks) if metrics.is_file() else ((), ())
    return Seed(
        seed=number,
        environment=_read(environment).values if environment.is_file() else {},
        terms=terms,
        evaluations=evaluations,
        result=_result(_read(result), tasks) if result.is_file() else None,
        pictures=_pictures(folder / "pictures"),
    )


def _pictures(folder: Path) -> dict[tuple[int, str], bytes]:
    found = {}
    for path in sorted(folder.glob("*.png")) if folder.is_dir() else []:
        match = _PICTURE.fullmatch(path.name)
        content = _bytes(path)
        if match and not content.startswith(_PNG):
            raise RunError(f"{path} is damaged: it is not a PNG file")
        if match:
            found[int(match[1]), match[2]] = content
    return found


def _metrics(path: Path, tasks: int) -> tuple[tuple[Terms, ...], tuple[Evaluation, ...]]:
    # By step: where a resumed run wrote a step a second time, the later line counts.
    terms: dict[int, Terms] = {}
    evaluations: dict[int, Evaluation] = {}
    lines = _bytes(path).rstrip().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = _Fields(json.loads(line), f"{path}, line {number},")
        except ValueError:
            if number == len(lines):
                break  # a killed run leaves its last line half written
            raise RunError(f"{path}, line {number}, is damaged: it is not valid JSON") from None
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


def _generation(fields: _Fields) -> Generation | None:
    # Runs from before there were generators do not say, and most learners have none.
    if fields.get("generation") is None:
        return None
    inner = _Fields(fields.mapping("generation"), f"{fields.where}, 'generation',")
    return Generation(
        inception_score=inner.number("inception_score"),
        inception_bound=inner.number("inception_bound"),
        frechet_distance=inner.number("frechet_distance"),
        experts=inner.numbers("experts"),
    )


def _result(fields: _Fields, tasks: int) -> Result:
    return Result(
        accuracy_matrix=fields.matrix("accuracy_matrix", tasks, tasks),
        initial_accuracy=fields.vector("initial_accuracy", tasks),
        average_accuracy=fields.number("average_accuracy"),
        learning_accuracy=fields.number("learning_accuracy"),
        forgetting=fields.number("forgetting"),
        backward_transfer=fields.number("backward_transfer"),
        forward_transfer=fields.number("forward_transfer"),
        nll=fields.number("nll"),
        calibration_error=fields.number("calibration_error"),
        layers={name: _layer(layer, tasks) for name, layer in fields.children("layers").items()},
        parameters=fields.number("parameters"),
        stored_bytes=fields.number("stored_bytes"),
        steps=fields.number("steps"),
        seconds=fields.number("seconds"),
        # Runs from before there were such learners do not say.
        experts=tuple(_expert(expert) for expert in fields.objects("experts")) if "experts" in fields.values else (),
    )


def _layer(fields: _Fields, tasks: int) -> Layer:
    return Layer(
        marginal_entropy=fields.number("marginal_entropy"),
        conditional_entropy=fields.number("conditional_entropy"),
        information=fields.number("information"),
        usage=fields.matrix("usage", tasks),
        routed=fields.matrix("routed", tasks),
    )


def _expert(fields: _Fields) -> Expert:
    return Expert(
        number=fields.count("expert"),
        opened_step=fields.count("opened_step"),
        opened_after=fields.count("opened_after"),
        examples=fields.count("examples"),
        labels=fields.counts_by_name("labels"),
        stretches=fields.stretches("stretches"),
    )


def _read(path: Path) -> _Fields:
    try:
        values = json.loads(_bytes(path))
    except ValueError:
        raise RunError(f"{path} is damaged: it is not valid JSON") from None
    return _Fields(values, str(path))


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RunError(f"{path} is missing: {path.parent} is not a complete run folder") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from None


def _number(value: object) -> float:
    """A JSON number as a float; null, which stands for infinite or not a number, as NaN."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return float(value) if math.isfinite(value) else math.nan


def _row(value: object, length: int | None = None) -> Vector:
    if not isinstance(value, list) or length not in (None, len(value)):
        raise TypeError
    return tuple(_number(entry) for entry in value)


def _count(value: object) -> int:
    number = _instance(value, int)
    if number < 0:
        raise TypeError
    return number


def _stretch(value: object) -> Stretch:
    numbers = [_count(number) for number in _instance(value, list)]
    if len(numbers) != 3 or numbers[0] > numbers[1]:
        raise TypeError
    return Stretch(*numbers)


class _Fields:
    """Typed access to one JSON object; whatever does not fit raises a `RunError` that says where it stands."""

    def __init__(self, values: object, where: str) -> None:
        if not isinstance(values, dict):
            raise RunError(f"{where} is damaged: it is not a JSON object")
        self.values: Mapping[str, object] = values
        self.where = where

    def get(self, name: str) -> object:
        return self.values.get(name)

    def text(self, name: str) -> str:
        return self._read(name, "text", lambda value: _instance(value, str))

    def integer(self, name: str) -> int:
        return self._read(name, "a whole number", lambda value: _instance(value, int))

    def count(self, name: str) -> int:
        return self._read(name, "a whole number of at least 0", _count)

    def number(self, name: str) -> float:
        return self._read(name, "a number", _number)

    def mapping(self, name: str) -> Mapping[str, object]:
        return self._read(name, "an object", lambda value: _instance(value, dict))

    def items(self, name: str, kind: type[_Value]) -> tuple[_Value, ...]:
        expected = f"a list of {kind.__name__}"
        return self._read(name, expected, lambda value: tuple(_instance(item, kind) for item in _instance(value, list)))

    def vector(self, name: str, length: int) -> Vector:
        return self._read(name, f"a list of {length} numbers", lambda value: _row(value, length))

    def numbers(self, name: str) -> Vector:
        return self._read(name, "a list of numbers", _row)

    def matrix(self, name: str, rows: int, columns: int | None = None) -> Matrix:
        def parse(value: object) -> Matrix:
            entries = _instance(value, list)
            if len(entries) != rows:
                raise TypeError
            return tuple(_row(entry, columns) for entry in entries)

        return self._read(name, f"a matrix of {rows} x {columns or 'any'} numbers", parse)

    def numbers_by_name(self, name: str) -> Mapping[str, float]:
        values = self.mapping(name)
        return self._read(name, "numbers by name", lambda _: {key: _number(value) for key, value in values.items()})

    def counts_by_name(self, name: str) -> Mapping[str, int]:
        values = self.mapping(name)
        return self._read(name, "counts by name", lambda _: {key: _count(value) for key, value in values.items()})

    def stretches(self, name: str) -> tuple[Stretch, ...]:
        expected = "a list of [first step, last step, examples]"
        return self._read(name, expected, lambda value: tuple(_stretch(item) for item in _instance(value, list)))

    def objects(self, name: str) -> list[_Fields]:
        return [_Fields(value, f"{self.where}, {name!r},") for value in self.items(name, dict)]

    def children(self, name: str) -> dict[str, _Fields]:
        return {key: _Fields(value, f"{self.where}, {key!r} in {name!r},") for key, value in self.mapping(name).items()}

    def _read(self, name: str, expected: str, parse: Callable[[object], _Value]) -> _Value:
        if name not in self.values:
            raise RunError(f"{self.where} is damaged: {name!r} is missing")
        try:
            return parse(self.values[name])
        except TypeError:
            raise RunError(f"{self.where} is damaged: {name!r} is not {expected}") from None


def _instance(value: object, kind: type[_Value]) -> _Value:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError
    return value
