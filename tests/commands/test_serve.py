import socket

import pytest

from hvcl.commands.main import main

pytest.importorskip("fastapi")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.safetensors", "--port", "0"], "missing.safetensors is missing"),
        (["text", "--port", "0"], "text is nothing that hvcl has saved"),
        (["text", "--port", "70000"], "0 to 65535"),
        (["text", "--port", "x"], "--port"),
        (["text", "--port", "0", "--host", "256.1.1.1"], "cannot listen"),
        ([], "MODEL"),
    ],
)
def test_mistakes_are_one_line(capsys, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no model")
    assert main(["serve", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("hvcl: ")
    assert said in line
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_port_that_is_taken_is_said(capsys, tmp_path):
    (tmp_path / "text").write_text("no model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", str(tmp_path / "text"), "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err
