"""One file: whole or not there, and whatever is wrong with it is said in one sentence."""

import json
import os

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from hvcl.core.errors import RunError
from hvcl.core.saved import read_saved, write_saved

STATE = {"weights": {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(True)}, "step": 3, "names": ["x", None, 1.5]}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    write_saved(path, "learner", {"method": "mine"}, STATE)
    return path


def test_round_trip(file):
    described, state = read_saved(file, "learner")
    assert described["method"] == "mine"
    assert torch.equal(state["weights"]["a"], STATE["weights"]["a"])
    assert state["weights"]["b"].dtype == torch.bool
    assert state["names"] == STATE["names"]
    assert os.listdir(file.parent) == [file.name]


def test_it_is_a_safetensors_file_that_others_can_read(file):
    with safe_open(file, "pt") as opened:
        assert torch.equal(opened.get_tensor("/weights/a"), STATE["weights"]["a"])
        assert json.loads(opened.metadata()["hvcl"])["kind"] == "learner"


def test_a_state_without_tensors(tmp_path):
    write_saved(tmp_path / "m", "agent", {}, {"step": 1})
    assert read_saved(tmp_path / "m", "agent")[1] == {"step": 1}


def test_every_truncation_and_every_changed_byte_is_noticed(file):
    content = file.read_bytes()
    for size in range(0, len(content), 7):
        file.write_bytes(content[:size])
        with pytest.raises(RunError, match=r"model.safetensors is (no learner|damaged)"):
            read_saved(file, "learner")
    for place in range(0, len(content), 3):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(RunError, match=r"model.safetensors (is|was|holds)"):
            read_saved(file, "learner")


def test_foreign_files_are_refused(tmp_path, file):
    path = tmp_path / "other"
    for content in (b"", b"hello world, this is a text", b"\xff" * 64, b"PK\x03\x04" + bytes(100)):
        path.write_bytes(content)
        with pytest.raises(RunError, match="is no learner that hvcl has saved"):
            read_saved(path, "learner")
    save_file({"w": torch.zeros(2)}, path)
    with pytest.raises(RunError, match="is no learner that hvcl has saved"):
        read_saved(path, "learner")
    with pytest.raises(RunError, match="holds a saved learner, where a saved agent was expected"):
        read_saved(file, "agent")
    with pytest.raises(RunError, match="is missing"):
        read_saved(tmp_path / "nothing", "learner")
    with pytest.raises(RunError, match="cannot be read"):
        read_saved(tmp_path, "learner")


def test_a_newer_version_asks_for_an_upgrade(file):
    content = file.read_bytes()
    file.write_bytes(content.replace(rb"{\"format\": 1,", rb"{\"format\": 2,"))
    with pytest.raises(RunError, match="newer version of hvcl"):
        read_saved(file, "learner")


def test_what_was_there_stays_when_writing_fails(file, monkeypatch):
    before = file.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot be written .No space left"):
        write_saved(file, "learner", {}, {"step": 9})
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_what_cannot_be_written_is_said(tmp_path):
    with pytest.raises(RunError, match="cannot be written"):
        write_saved(tmp_path / "no" / "folder", "learner", {}, {})
    with pytest.raises(RunError, match="diverged"):
        write_saved(tmp_path / "m", "learner", {}, {"loss": float("nan")})
    assert not os.listdir(tmp_path)
