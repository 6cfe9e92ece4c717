import json

import pytest

from hvcl.commands.main import main
from hvcl.core.errors import InterruptedRun
from hvcl.reproduce import REPRODUCTIONS


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HVCL_DATA", str(tmp_path / "no-data"))


def test_the_list_names_every_table_and_figure(capsys):
    assert main(["reproduce", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in REPRODUCTIONS)
    assert main(["reproduce", "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "table-mnist" in found["of the paper"]
    assert "figure-forget" in found["beyond it"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which table or figure"),
        (["figure-diversty"], "did you mean 'figure-diversity'"),
        (["table-mnist", "--budget", "long"], "--budget must be one of quick, standard, paper"),
        (["table-mnist", "--seeds", "0"], "at least 1"),
        (["table-mnist", "--results", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys):
    assert main(["reproduce", *words]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("hvcl: ")
    assert message in error
    assert "\n" not in error


def test_an_interrupt_says_how_to_go_on(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise InterruptedRun

    monkeypatch.setattr("hvcl.commands.reproduce.reproduce", interrupted)
    assert main(["reproduce", "figure-forget"]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_a_figure_from_the_command(capsys, tmp_path):
    assert main(["reproduce", "figure-forget", "--seeds", "1", "--workers", "1", "--out", "out"]) == 0
    captured = capsys.readouterr()
    assert "page: out/figure-forget/figure-forget.html" in captured.out
    assert "1 of 1 runs" in captured.err
    names = {path.name for path in (tmp_path / "out" / "figure-forget").iterdir()}
    assert names >= {f"figure-forget.{kind}" for kind in ("html", "svg", "json", "csv")}
