"""The page in a real browser: nothing complains, and the figures show the numbers of the run."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import zlib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hvcl.report import write_report
from hvcl.report.stream import write_stream_report
from tests.report.test_stream import record

pytestmark = pytest.mark.browser

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--hide-scrollbars",
)


class Tables(HTMLParser):
    """The tables of a document: attributes, and rows of cell texts."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tables: list[tuple[dict[str, str | None], list[list[str]]]] = []
        self._inside = False
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append((dict(attrs), []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][1][-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "th"}:
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.tables[-1][1][-1][-1] += data

    def of_class(self, name: str) -> list[tuple[dict[str, str | None], list[list[str]]]]:
        return [
            (attributes, [[" ".join(cell.split()) for cell in row] for row in rows])
            for attributes, rows in self.tables
            if name in (attributes.get("class") or "").split()
        ]


@pytest.fixture(scope="module")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        path = shutil.which(name)
        if path:
            return path
    pytest.skip("Chromium is missing, so the report is not rendered: install it with `apt-get install chromium`")


def browse(chromium: str, page: Path, folder: Path, *options: str) -> tuple[str, list[str]]:
    """Open a page; the document after its scripts have run, and what was said on the console."""
    command = [chromium, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def rendered(chromium: str, realistic_runs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str], Path]:
    folder = tmp_path_factory.mktemp("browser")
    page = write_report([realistic_runs], folder / "report.html")
    picture = folder / "report.png"
    document, console = browse(chromium, page, folder, f"--screenshot={picture}", "--window-size=1000,1400")
    return document, console, picture


def results(runs: Path, method: str) -> list[dict[str, Any]]:
    return [json.loads((runs / method / f"seed-{seed}" / "result.json").read_text()) for seed in (1, 2, 3)]


def test_the_console_is_silent(rendered: tuple[str, list[str], Path]) -> None:
    document, console, _ = rendered

    assert "</html>" in document
    assert console == []


def test_the_page_of_a_stream_is_silent_and_whole(chromium: str, tmp_path: Path) -> None:
    document, console = browse(chromium, write_stream_report(record(), tmp_path / "stream.html"), tmp_path)

    assert console == []
    ((_, rows),) = Tables(document).of_class("events")
    assert rows[1] == ["1", "300", "2024-03-01", "the stream has shifted: expert 2 is opened"]
    assert document.count('class="bar"') == 3


def test_a_complaint_would_be_noticed(chromium: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><script>undefinedFunction()</script>")

    assert any("undefinedFunction" in line for line in browse(chromium, page, tmp_path)[1])


def test_the_table_shows_the_results(rendered: tuple[str, list[str], Path], realistic_runs: Path) -> None:
    ((_, rows),) = Tables(rendered[0]).of_class("results")
    by_method = {row[0].split()[0]: row for row in rows[1:]}

    assert list(by_method) == ["joint", "hvcl", "naive"]
    for method, row in by_method.items():
        values = [100 * result["average_accuracy"] for result in results(realistic_runs, method)]
        mean = sum(values) / 3
        deviation = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
        assert row[2] == f"{mean:.2f} ± {deviation:.2f}"
        assert row[-1] == "3"


def test_the_heat_maps_show_the_accuracy_matrices(rendered: tuple[str, list[str], Path], realistic_runs: Path) -> None:
    maps = {
        attributes["data-method"]: rows
        for attributes, rows in Tables(rendered[0]).of_class("heatmap")
        if "data-method" in attributes
    }

    assert set(maps) == {"joint", "hvcl", "naive"}
    for method, rows in maps.items():
        matrices = [result["accuracy_matrix"] for result in results(realistic_runs, method)]
        assert rows[0] == ["after", "0/1", "2/3", "4/5", "6/7", "8/9"]
        for after in range(5):
            means = [100 * sum(matrix[after][task] for matrix in matrices) / 3 for task in range(5)]
            assert rows[after + 1][0] == str(after + 1)
            assert [float(text) for text in rows[after + 1][1:]] == pytest.approx(means, abs=0.0501)


def test_the_expert_rows_show_the_gates(rendered: tuple[str, list[str], Path], realistic_runs: Path) -> None:
    maps = [rows for attributes, rows in Tables(rendered[0]).of_class("heatmap") if "data-method" not in attributes]
    layers = [layer for result in results(realistic_runs, "hvcl") for layer in result["layers"].values()]

    assert len(maps) == len(layers) == 9
    for rows, layer in zip(maps, layers, strict=True):
        for row, usage, routed in zip(rows[2:], layer["usage"], layer["routed"], strict=True):
            assert row[1:3] == [f"{100 * share:.0f}" for share in usage]
            assert row[4:6] == [f"{100 * share:.0f}" for share in routed]
        assert f"{layer['information']:.2f}" in rendered[0]


def test_the_script_offers_the_seeds(rendered: tuple[str, list[str], Path]) -> None:
    buttons = re.findall(r'<button type="button" aria-pressed="(\w+)">(.*?)</button>', rendered[0])
    options = re.findall(r'<div class="option" data-option="(\d)"( hidden="")?>', rendered[0])

    assert buttons == [("true", "Seed 1"), ("false", "Seed 2"), ("false", "Seed 3")]
    assert options == [("1", ""), ("2", ' hidden=""'), ("3", ' hidden=""')]


def test_the_picture_is_not_blank(rendered: tuple[str, list[str], Path]) -> None:
    data = rendered[2].read_bytes()
    assert data.startswith(b"\x89PNG")
    pixels = b""
    place = 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            pixels += data[place + 8 : place + 8 + length]
        place += length + 12
    lines = zlib.decompress(pixels)
    width = len(lines) // 1400

    # Of a page of one colour all lines of pixels are the same, whatever filter they were written with.
    assert len({lines[start : start + width] for start in range(0, len(lines), width)}) > 200


def test_the_drift_section_is_silent_and_as_long_as_the_stream(
    chromium: str, tmp_path: Path, write_run: Callable[..., Path], outcome: Callable[..., dict[str, Any]]
) -> None:
    experts = [
        {"expert": m, "opened_step": 50 * m, "opened_after": 500 * m, "examples": 500, "labels": {"0": 500}}
        | {"stretches": [[50 * m, 50 * m + 49, 500]]}
        for m in range(2)
    ]
    run = write_run("run", {1: outcome([[0.9, 0.5], [0.7, 0.8]], experts=experts, steps=100)}, supervision="task-free")
    page = write_report([run], tmp_path / "report.html")
    # In the browser's own words: where the bars lie within their lanes, in percent, and what is told when they are pointed at.
    measure = """<script>
      const told = [...document.querySelectorAll(".timeline .bar")].map((bar) => {
        const [inner, outer] = [bar.getBoundingClientRect(), bar.ownerSVGElement.getBoundingClientRect()];
        bar.dispatchEvent(new PointerEvent("pointerenter"));
        const share = (place) => Math.round(100 * (place - outer.left) / outer.width);
        return share(inner.left) + "-" + share(inner.right) + " " + document.querySelector(".bubble").textContent;
      });
      document.body.dataset.told = told.join("; ");
    </script></body>"""
    page.write_text(page.read_text().replace("</body>", measure))
    for width in (1000, 700):
        document, console = browse(chromium, page, tmp_path, f"--window-size={width},1400")
        assert console == []
        assert 'data-told="0-50 steps 0 to 49: 500 examples, 100 % of all; 50-100 steps 50 to 99: 500' in document
