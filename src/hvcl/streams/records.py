"""Records from CSV, Parquet and JSON lines, one after another: values by column, with their place for error messages."""

from __future__ import annotations

import csv
import io
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from hvcl.core.errors import DataError, InputError

STANDARD_INPUT = "-"
"""What stands for standard input in place of a file's name."""

DELIMITERS = ",;\t|"
"""Of CSV: the one that is most frequent in the header."""

PARQUET_ROWS = 4096
"""Rows that are decoded at a time."""

_PARQUET, _JSON = (".parquet", ".pq"), (".jsonl", ".ndjson", ".json")


class Record(NamedTuple):
    """One row of a file."""

    place: int
    """Number of the line (CSV, JSON) or of the row (Parquet), from 1."""
    values: dict[str, Any]
    """By column. CSV has texts only; JSON may leave columns out."""


class Records(ABC):
    """The records of one file or stream."""

    columns: tuple[str, ...] | None = None
    """All columns, where they are known beforehand."""
    texts: bool = False
    """Whether all values are texts."""
    again: bool = True
    """Whether the records can be gone through several times."""
    unit: str = "line"
    """What `Record.place` counts."""
    total: int | None = None
    """Size, in the unit of `done`; None: not known."""
    done: int = 0
    """How far the last iteration is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.notes: list[str] = []
        """What a user should know, in sentences."""

    @abstractmethod
    def __iter__(self) -> Iterator[Record]:
        """From the beginning; `DataError` where the file cannot be read."""


def open_records(path: str | Path, standard_input: IO[bytes] | None = None) -> Records:
    """The records of a file, by its ending or its first bytes; of "-" those of standard input, as JSON lines.

    Raises:
        DataError: the file is missing, empty, a folder, or not what it seems to be.
    """
    if str(path) == STANDARD_INPUT:
        return JsonRecords("standard input", standard_input or sys.stdin.buffer)
    path = Path(path)
    try:
        if path.is_dir():
            raise DataError(f"{path} is a folder: give a file of rows (CSV, Parquet, JSON lines), or - for standard input")
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise DataError(f"{path} is missing" if missing else f"{path} cannot be read ({error.strerror})") from None
    if not start:
        raise DataError(f"{path} is empty")
    if path.suffix.lower() in _PARQUET or start == b"PAR1":
        return ParquetRecords(path)
    if path.suffix.lower() in _JSON:
        return JsonRecords(str(path), path)
    return CsvRecords(path)


class CsvRecords(Records):
    """Texts with a header. Columns without a name are left out: most are numbers of rows."""

    texts = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path, self.total = path, path.stat().st_size
        with self._open() as file:
            header = self._readable(file.readline)
            self._delimiter = max(DELIMITERS, key=header.count)
            file.seek(0)
            names = [name.strip() for name in self._readable(lambda: next(self._reader(file), []))]
        nameless = [number for number, name in enumerate(names, 1) if not name]
        if len(nameless) == len(names):
            raise DataError(f"{path} has no header: its first line must name the columns")
        if nameless:
            self.notes.append(f"column {nameless[0]} of {path} has no name and is left out")
        twice = sorted({name for name in names if name and names.count(name) > 1})
        if twice:
            raise DataError(f"{path} has two columns named {twice[0]!r}")
        self._names = names
        self.columns = tuple(name for name in names if name)

    def _open(self) -> IO[str]:
        self._raw = self.path.open("rb")
        return io.TextIOWrapper(self._raw, encoding="utf-8-sig", newline="")

    def _reader(self, file: IO[str]) -> Any:
        return csv.reader(file, delimiter=self._delimiter, strict=True)

    def _readable(self, read: Any, line: int = 0) -> Any:
        after = f" after line {line}" if line else ""
        try:
            return read()
        except UnicodeDecodeError:
            raise DataError(f"{self.path} is no text in UTF-8{after}: is it a CSV file?") from None
        except csv.Error as error:
            raise DataError(f"{self.path} is no CSV file, or it is damaged{after} ({error})") from None
        except OSError as error:
            raise DataError(f"{self.path} cannot be read{after} ({error.strerror})") from None

    def __iter__(self) -> Iterator[Record]:
        with self._open() as file:
            reader = self._reader(file)
            self._readable(lambda: next(reader))
            names, named = self._names, len(self._names) == len(self.columns or ())
            while True:
                row = self._readable(lambda: next(reader, None), reader.line_num)
                if row is None:
                    return
                if not row:  # an empty line
                    continue
                if len(row) != len(names):
                    raise DataError(
                        f"line {reader.line_num} of {self.path} has {len(row)} values, and the header names {len(names)} columns"
                    )
                self.done = self._raw.tell()
                values = dict(zip(names, row, strict=True))
                if not named:
                    values.pop("")
                yield Record(reader.line_num, values)


class ParquetRecords(Records):
    """Typed columns; they need pyarrow."""

    unit = "row"

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        try:
            from pyarrow import ArrowException
            from pyarrow.parquet import ParquetFile
        except ModuleNotFoundError:
            raise InputError("reading Parquet needs pyarrow: pip install 'hvcl[files]'") from None
        self.path, self._open = path, ParquetFile
        self._damaged = (ArrowException, OSError, ValueError)
        with self._file() as file:
            self.columns, self.total = tuple(file.schema_arrow.names), file.metadata.num_rows
        if len(set(self.columns)) < len(self.columns):
            raise DataError(f"{path} has two columns of one name")

    def _file(self) -> Any:
        try:
            return self._open(self.path)
        except self._damaged as error:
            raise DataError(f"{self.path} is no Parquet file, or it is damaged ({_short(error)})") from None

    def __iter__(self) -> Iterator[Record]:
        place = 0
        with self._file() as file:
            batches = file.iter_batches(batch_size=PARQUET_ROWS)
            while True:
                try:
                    batch = next(batches, None)
                    rows = [] if batch is None else batch.to_pylist()
                except self._damaged as error:
                    raise DataError(f"{self.path} is damaged after row {place} ({_short(error)})") from None
                if batch is None:
                    return
                for values in rows:
                    place += 1
                    self.done = place
                    yield Record(place, values)


class JsonRecords(Records):
    """One JSON object a line, from a file or as they come on a stream."""

    def __init__(self, name: str, source: Path | IO[bytes]) -> None:
        super().__init__(name)
        self._source = source
        self.again = isinstance(source, Path)
        self.total = source.stat().st_size if isinstance(source, Path) else None

    def __iter__(self) -> Iterator[Record]:
        if isinstance(self._source, Path):
            with self._source.open("rb") as file:
                yield from self._lines(file)
        else:
            yield from self._lines(self._source)

    def _lines(self, file: IO[bytes]) -> Iterator[Record]:
        self.done = 0
        for number, line in enumerate(iter(file.readline, b""), 1):
            self.done += len(line)
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except ValueError as error:  # of decoding, too
                raise DataError(f"line {number} of {self.name} is no JSON ({_short(error)})") from None
            except RecursionError:
                raise DataError(f"line {number} of {self.name} is no JSON object of plain values") from None
            if isinstance(values, list):
                raise DataError(f"line {number} of {self.name} is a JSON array: give one object a line (jq -c '.[]' makes them)")
            if not isinstance(values, dict):
                raise DataError(f"line {number} of {self.name} is no JSON object such as {{'a': 1, 'b': 'red'}}")
            yield Record(number, values)


def _short(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0].rstrip(":. ")[:200] if text else type(error).__name__
