"""A user's own rows as a stream: a few at a time, features as a data frame, labels and times beside them.

What a column is (numbers or categories), and what the labels are (classes or numbers), is decided by the first rows and then
fixed. The time is never a feature.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from hvcl.core.errors import DataError, InputError
from hvcl.streams.records import Record, Records, open_records

LOOK = 1000
"""First rows of a file that columns and labels are looked at in; of standard input only the first batch is."""

FEW = 20
"""Whole numbers are labels of classes if the first rows have at most so many different ones."""

MISSING = frozenset(["", "?", "N/A", "NA", "NULL", "NaN", "None", "nan", "null"])
"""Texts that stand for a missing value in CSV."""

LARGEST = 1e100
"""Labels of a regression are at most this: squares of their errors are numbers still."""

ODD = {
    r"[+-]?[\d.,]*\d,\d+(\.\d+)?": "numbers with commas such as {value}: write them like 1234.5",
    r"(\d{1,2}[./-]\d{1,2}[./-]\d{4}|\d{4}[./]\d{1,2}[./]\d{1,2})(\s.*)?": "dates such as {value}: write them like 2024-01-31",
}
"""Forms of texts that are no categories, and what they are."""

MIXED = "numbers in some rows and dates in others"

Kind = Literal["number", "category"]
TaskKind = Literal["classification", "regression"]
LabelKind = Literal["int", "float", "bool", "str"]


@dataclass(frozen=True)
class Rows:
    """Consecutive rows."""

    frame: Any
    """The features: a data frame of pandas."""
    labels: list[Any]
    """None where a label is not known."""
    times: list[Any]
    """Numbers or moments (`datetime`); empty without a column of times."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labelled(self) -> np.ndarray[Any, Any]:
        """Positions of the rows whose label is known."""
        return np.array([place for place, label in enumerate(self.labels) if label is not None], dtype=np.int64)


@dataclass
class Reading:
    """What is asked for, and what is known already."""

    label: str
    """Column of the labels."""
    time: str | None = None
    """Column of the times."""
    task: TaskKind | None = None
    """What labels are; None: decided by the first rows."""
    drop: Sequence[str] = ()
    """Columns that are no features."""
    categories: Sequence[str] = ()
    """Columns that are categories although they look like numbers."""
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """Columns whose kind is known, of a model that goes on."""
    columns: Sequence[str] | None = None
    """All features, of a model that goes on."""
    label_kind: LabelKind | None = None
    """Type of the labels of classes, of a model that goes on."""


def open_rows(path: str | Path, reading: Reading, batch: int = 100, standard_input: IO[bytes] | None = None) -> RowStream:
    """The rows of a CSV, Parquet or JSON-lines file, or of standard input ("-", JSON lines), in batches.

    With a column of times, the rows of a file are sorted by it if they are not in order; those of standard input are taken as
    they come.

    Raises:
        DataError: the file cannot be read, or a value is not what it should be; says where.
        InputError: columns that are not there, or pandas is not installed.
    """
    if batch < 1:
        raise InputError(f"batch must be at least 1, got {batch}")
    return RowStream(open_records(path, standard_input), reading, batch)


class RowStream:
    """Batches of rows, in order; goes through them once."""

    def __init__(self, records: Records, reading: Reading, batch: int) -> None:
        _pandas()
        self.reading, self.batch, self._records = reading, batch, records
        self.name, self.notes = records.name, records.notes
        self._left_out: set[str] = set()
        self._pulled = self._taken = 0  # rows that are read, and those of them that have left in batches
        named = {"the label": reading.label, "the time": reading.time}
        if reading.time == reading.label:
            raise InputError(f"{reading.label!r} cannot be both the label and the time")
        source = iter(records)
        if reading.time is not None and records.again:
            self._check_column("the time", reading.time, records.columns)
            source = self._in_order(records, reading.time)
        source = self._counted(source)
        first = list(itertools.islice(source, LOOK if records.again else batch))
        if not first:
            raise DataError(f"{self.name} has no rows")
        found = records.columns if records.columns is not None else _keys(first)
        for role, name in named.items():
            if name is not None:
                self._check_column(role, name, found)
        for option, names in (("drop", reading.drop), ("categories", reading.categories)):
            for name in names:
                self._check_column(option, name, found)
        aside = {reading.label, reading.time, *reading.drop}
        self.columns = list(reading.columns) if reading.columns is not None else [name for name in found if name not in aside]
        """The features."""
        if not self.columns:
            raise InputError(f"{self.name} has no column beside the label to predict it from")
        for name in self.columns:
            if name not in found and records.columns is not None:
                raise InputError(f"{self.name} has no column {name!r}, which the model has learned from")
        self._known = {*self.columns, *(name for name in aside if name is not None)}
        self._find_left_out(found)
        self.kinds: dict[str, Kind] = {name: self._kind(name, first) for name in self.columns}
        self.task, self.label_kind, self.why = self._labels(first)
        """What the labels are, their type, and a sentence that says so."""
        labels = dict.fromkeys(self._label(record) for record in first) if self.task == "classification" else {}
        self.first_labels = [label for label in labels if label is not None]
        """Classes among the first rows."""
        self._rows, self._read, self._digest = itertools.chain(first, source), list[Record](), hashlib.sha256()
        self.place = 0
        """Line or row of the file that the last batch ended with."""

    # -- progress ---------------------------------------------------------------------------------------------------------

    @property
    def share(self) -> float | None:
        """How much of the file is done, from 0 to 1; None: not known."""
        if not self._records.total:
            return None
        return min(1.0, self._records.done / self._records.total * self._taken / max(self._pulled, 1))

    @property
    def again(self) -> bool:
        """Whether the rows can be read again: they come from a file."""
        return self._records.again

    @property
    def unit(self) -> str:
        """What `place` counts: lines or rows."""
        return self._records.unit

    # -- what the first rows say ------------------------------------------------------------------------------------------

    def _check_column(self, role: str, name: str, columns: Sequence[str] | None) -> None:
        if columns is not None and name not in columns:
            near = difflib.get_close_matches(name, columns, n=1, cutoff=0.4)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            listed = ", ".join(map(str, columns[:12])) + (", ..." if len(columns) > 12 else "")
            raise InputError(f"{self.name} has no column {name!r} for {role}{hint}: it has {listed}")

    def _kind(self, name: str, first: Sequence[Record]) -> Kind:
        if name in self.reading.kinds:
            return self.reading.kinds[name]
        if name in self.reading.categories:
            return "category"
        values = [value for record in first if not self._missing(value := record.values.get(name))]
        if values and all(_is_moment(value) for value in values):
            raise InputError(
                f"column {name!r} of {self.name} holds dates, which have no fixed scale: say --time {name} or --drop {name}"
            )
        if all(self._number(value) is not None for value in values):
            return "number"
        odd = _odd(values)
        if odd is not None:
            raise InputError(
                f"column {name!r} of {self.name} holds {odd}. --time {name} for dates, --drop {name} if it is no feature, "
                f"--categories {name} if these are categories"
            )
        different = len({str(value) for value in values})
        if different > max(FEW, len(values) / 2):
            self.notes.append(
                f"column {name!r} has {different:,} different texts in {len(values):,} rows, and all but a few count as one "
                f"category: --drop {name} if it says nothing"
            )
        return "category"

    def _missing(self, value: Any) -> bool:
        if isinstance(value, str):
            return self._records.texts and value.strip() in MISSING
        return value is None or (isinstance(value, float) and math.isnan(value))

    def _number(self, value: Any) -> float | None:
        """A value as a number; None if it is none. Texts are texts where a file has numbers as well."""
        return None if isinstance(value, str) and not self._records.texts else _number(value)

    def _labels(self, first: Sequence[Record]) -> tuple[TaskKind, LabelKind, str]:
        label, reading = self.reading.label, self.reading
        values = [value for record in first if (value := self._label_value(record)) is not None]
        if reading.label_kind is not None:
            return "classification", reading.label_kind, f"{label}: classes, as learned before"
        numbers = [self._number(value) for value in values]
        if reading.task == "regression":
            return "regression", "float", f"{label}: numbers, as asked for"
        if not values:
            raise DataError(f"none of the first {len(first)} rows of {self.name} has a label: put labelled rows first")
        if reading.task is None and all(_is_moment(value) for value in values):
            raise InputError(
                f"the label {label!r} of {self.name} holds dates, which are neither classes nor numbers: "
                "is another column meant? (--task classification: each date is a class)"
            )
        odd = None if reading.task == "classification" else _odd(values)
        if odd is not None:
            raise InputError(f"the label {label!r} of {self.name} holds {odd} (--task classification: they are classes)")
        if any(number is None for number in numbers):
            return "classification", "str", f"{label}: texts, so classes"
        if all(isinstance(value, bool) for value in values):
            return "classification", "bool", f"{label}: truth values, so classes"
        whole = all(number is not None and number.is_integer() for number in numbers)
        different = len(set(numbers))
        if reading.task == "classification":
            return "classification", "int" if whole else "float", f"{label}: classes, as asked for"
        if whole and different <= FEW:
            words = f"{different} different whole number{'s' if different > 1 else ''}"
            return "classification", "int", f"{label}: {words}, so classes (--task regression: numbers)"
        found = "many different whole numbers" if whole else "numbers"
        return "regression", "float", f"{label}: {found}, so regression (--task classification: classes)"

    def _find_left_out(self, names: Sequence[str]) -> None:
        """Columns that appear after the first rows, or that a model which goes on does not know, are left out."""
        for name in names:
            if name not in self._known and name not in self._left_out:
                self._left_out.add(name)
                if len(self._left_out) <= 3:
                    why = "appeared after the first rows" if self.reading.columns is None else "was not learned from before"
                    self.notes.append(f"column {name!r} {why} and is left out")

    # -- order ------------------------------------------------------------------------------------------------------------

    def _in_order(self, records: Records, column: str) -> Iterator[Record]:
        """The records sorted by time: as they are if they are in order, else sorted in memory."""
        last, key = None, self._moment
        for record in records:
            moment = key(record)
            if last is not None and _later(last, moment, self._place(record)):
                self.notes.append(f"the rows of {self.name} are not in the order of {column!r}: they are sorted in memory")
                try:
                    return iter(sorted(records, key=key))
                except TypeError:
                    raise DataError(f"the times of {self.name} are {MIXED}") from None
            last = moment
        return iter(records)

    def _moment(self, record: Record) -> Any:
        assert self.reading.time is not None
        value = record.values.get(self.reading.time)
        if self._missing(value):
            raise DataError(f"{self._place(record)} has no time ({self.reading.time!r})")
        moment = _moment(value)
        if moment is None:
            what = f"{self.reading.time!r} is {_shown(value)}"
            raise DataError(f"{self._place(record)}: {what}, neither a number nor a date such as 2024-01-31 12:00")
        return moment

    # -- the rows ---------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Rows]:
        while (rows := self._next(self.batch)) is not None:
            yield rows

    def rest(self) -> Rows | None:
        """The rows of a batch whose reading was interrupted, if there are any."""
        return self._next(len(self._read))

    def skip(self, rows: int, digest: str) -> None:
        """Pass over the first rows, which were learned before; `digest` was theirs.

        Raises:
            DataError: these are not the same rows, or there are fewer.
        """
        found = 0
        for record in itertools.islice(self._rows, rows):
            self._note(record)
            found += 1
        if found < rows:
            raise DataError(
                f"{self.name} has only {found} rows, and {rows} were learned from it: to learn all of it, say --again"
            )
        if self.digest != digest:
            raise DataError(
                f"{self.name} begins with other rows than the {rows} that were learned from it: to learn all of it, say --again"
            )

    @property
    def digest(self) -> str:
        """Checksum of all rows so far."""
        return self._digest.hexdigest()

    def _counted(self, source: Iterator[Record]) -> Iterator[Record]:
        for record in source:
            self._pulled += 1
            yield record

    def _note(self, record: Record) -> None:
        self._taken += 1
        self._digest.update(repr(record.values).encode("utf-8", "surrogatepass"))
        self.place = record.place

    def _next(self, most: int) -> Rows | None:
        while len(self._read) < most and (record := next(self._rows, None)) is not None:
            self._read.append(record)
        records = self._read
        if not records:
            return None
        times = [] if self.reading.time is None else [self._moment(record) for record in records]
        if not self.again:
            self._watch_order(records, times)
        rows = Rows(self._frame(records), [self._label(record) for record in records], times)
        for record in records:
            self._note(record)
        self._read = []
        return rows

    def _watch_order(self, records: Sequence[Record], times: Sequence[Any]) -> None:
        for record, moment in zip(records, times, strict=False):
            if self._last is not None and _later(self._last, moment, self._place(record)) and not self._backwards:
                self._backwards = True
                self.notes.append(f"{self._place(record)}: the times go backwards; rows are taken as they come")
            self._last = moment

    _last: Any = None
    _backwards = False

    def _frame(self, records: Sequence[Record]) -> Any:
        if self._records.columns is None:
            self._find_left_out(_keys(records))
        columns = {}
        for name in self.columns:
            convert: Callable[[Record, str], Any] = self._as_number if self.kinds[name] == "number" else self._as_text
            kind: Any = np.float64 if self.kinds[name] == "number" else object
            column = np.empty(len(records), dtype=kind)
            column[:] = [convert(record, name) for record in records]
            columns[name] = column
        return _pandas().DataFrame(columns)

    def _as_number(self, record: Record, name: str) -> float:
        value = record.values.get(name)
        if self._missing(value):
            return math.nan
        number = self._number(value)
        if number is None:
            raise DataError(
                f"{self._place(record)}: {name!r} is {_shown(value)}, and was a number in the first rows "
                f"(--categories {name}: read it as text; --drop {name}: leave it out)"
            )
        if math.isinf(number):
            raise DataError(f"{self._place(record)}: {name!r} is infinite: leave it empty if it is missing")
        return number

    def _as_text(self, record: Record, name: str) -> str | None:
        value = record.values.get(name)
        if self._missing(value):
            return None
        if isinstance(value, bool | int | float | str | Decimal):
            return value.strip() if isinstance(value, str) else str(value)
        raise DataError(
            f"{self._place(record)}: {name!r} is {_shown(value)}: only numbers, texts and truth values are understood"
        )

    def _label_value(self, record: Record) -> Any:
        """The label as it stands there; None where it is not known."""
        value = record.values.get(self.reading.label)
        if isinstance(value, str):
            value = value.strip()
        return None if self._missing(value) else value

    def _label(self, record: Record) -> Any:
        value = self._label_value(record)
        if value is None or self.label_kind == "str":
            if isinstance(value, list | dict | bytes):
                raise DataError(f"{self._place(record)}: the label is {_shown(value)}: give a text or a number")
            return None if value is None else str(value)
        number = self._number(value)
        if number is not None and math.isnan(number):  # of a text that is none of the signs for what is missing
            raise DataError(f"{self._place(record)}: the label is {_shown(value)}: leave it empty if it is not known")
        wanted = {"int": "a whole number", "float": "a number", "bool": "true or false"}[self.label_kind]
        if number is None or math.isinf(number) or (self.label_kind == "int" and not number.is_integer()):
            raise DataError(f"{self._place(record)}: the label is {_shown(value)}, where {wanted} was expected")
        if self.label_kind == "bool":
            if not isinstance(value, bool):
                raise DataError(f"{self._place(record)}: the label is {_shown(value)}, where {wanted} was expected")
            return value
        if self.label_kind == "float":
            if abs(number) > LARGEST:
                raise DataError(f"{self._place(record)}: the label is {_shown(value)}: up to {LARGEST:.0e} is understood")
            return number
        whole = _whole(value, number)
        if abs(whole) >= 2**63:
            raise DataError(
                f"{self._place(record)}: the label is {_shown(value)}, too large for a whole number of 64 bits: quote it, "
                "with a letter before it, to make it a text"
            )
        return whole

    def _place(self, record: Record) -> str:
        return f"{self._records.unit} {record.place} of {self.name}"


def _keys(records: Sequence[Record]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for record in records for name in record.values))


def _number(value: Any) -> float | None:
    """A value as a number; None if it is none."""
    if isinstance(value, bool | int | float | Decimal):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str) and "_" not in value:  # Python reads 1_000 as a number, no one else does
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _odd(values: Sequence[Any]) -> str | None:
    """What texts are that have one of the forms in `ODD`, all of them."""
    for form, words in ODD.items():
        if values and all(isinstance(value, str) and re.fullmatch(form, value.strip()) for value in values):
            return words.format(value=_shown(values[0]))
    return None


def _whole(value: Any, number: float) -> int:
    """A whole number, to its last digit."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:  # 1e3, 5.0
            return int(number)
    return int(value)


def _moment(value: Any) -> float | datetime | None:
    """A value as a time: a finite number, or a date; None if it is neither."""
    if isinstance(value, datetime):
        moment: datetime = value
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day)
    else:
        number = None if isinstance(value, bool) else _number(value)
        if number is not None:
            return number if math.isfinite(number) else None
        try:
            moment = datetime.fromisoformat(value.strip())
        except (AttributeError, ValueError):
            return None
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _is_moment(value: Any) -> bool:
    return _number(value) is None and _moment(value) is not None


def _later(last: Any, moment: Any, place: str) -> bool:
    """Whether the time before was later."""
    try:
        return bool(moment < last)
    except TypeError:
        raise DataError(f"{place}: the times are {MIXED}") from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        raise InputError("rows of one's own need pandas: pip install 'hvcl[files]'") from None
    return pandas
