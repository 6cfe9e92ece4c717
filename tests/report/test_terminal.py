import io
import json

import pytest
from rich.console import Console

from hvcl.commands.main import main
from hvcl.report.terminal import print_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "joint"
    words = ["--method", "joint", "--seeds", "1,2", "--epochs", "1", "--hidden", "8", "--workers", "1", "--out", str(path)]
    assert main(["run", "split-digits", *words]) == 0
    return path


@pytest.mark.parametrize("width", [80, 100, 160])
def test_figures_stand_whole_on_one_line_with_everything_that_must_stand_beside_them(folder, width):
    out = io.StringIO()
    print_table([folder], Console(file=out, width=width))
    values = [json.loads((folder / f"seed-{s}/result.json").read_text())["average_accuracy"] for s in (1, 2)]
    mean, sd = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
    lines = out.getvalue().splitlines()
    assert "split-digits, Domain-IL, boundaries" in lines[0]
    row = next(line for line in lines if line.startswith("joint (upper)"))
    assert f"{100 * mean:.2f} ± {100 * sd:.2f}" in row
    assert "all examples" in row
    assert row.split()[-1] == "2"
    assert ("ECE" in lines[1]) == (width >= 100)
