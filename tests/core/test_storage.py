import json

import pytest
import torch

from hvcl.core.errors import RunError
from hvcl.core.files import write_json
from hvcl.core.storage import load_state, save_state, tensor_bytes

STATE = {
    "weights": {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(3, dtype=torch.int64), "empty": torch.zeros(0)},
    "list": [torch.ones(2, dtype=torch.bool), {"x": 0.1 + 0.2, "y": None, "z": True, "s": "text"}],
    "number": 12345678901234567890,
}


def test_round_trip_is_exact(tmp_path):
    save_state(tmp_path / "c.json", STATE)
    back = load_state(tmp_path / "c.json")
    assert torch.equal(back["weights"]["a"], STATE["weights"]["a"])
    assert back["weights"]["b"].dtype == torch.int64
    assert back["weights"]["empty"].shape == (0,)
    assert back["list"][0].dtype == torch.bool
    assert back["list"][1] == STATE["list"][1]
    assert back["number"] == STATE["number"]


def test_shared_and_strided_tensors_are_saved_whole(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    save_state(tmp_path / "c.json", {"a": base.T, "b": base[:, 1], "c": base})
    back = load_state(tmp_path / "c.json")
    assert torch.equal(back["a"], base.T)
    assert torch.equal(back["b"], base[:, 1])


def test_only_the_last_checkpoint_is_kept(tmp_path):
    for i in range(3):
        save_state(tmp_path / "c.json", {"t": torch.tensor(i)})
    assert len(list(tmp_path.glob("c-*.safetensors"))) == 1
    assert load_state(tmp_path / "c.json")["t"].item() == 2
    assert not list(tmp_path.glob(".*"))


def test_a_crash_between_tensors_and_json_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    save_state(tmp_path / "c.json", {"t": torch.tensor(1)})
    with monkeypatch.context() as patch:
        patch.setattr("hvcl.core.storage.write_json", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save_state(tmp_path / "c.json", {"t": torch.tensor(2)})
    assert load_state(tmp_path / "c.json")["t"].item() == 1


@pytest.mark.parametrize("how", ["truncate", "flip", "delete"])
def test_damaged_tensors_are_noticed_and_named(tmp_path, how):
    save_state(tmp_path / "c.json", STATE)
    file = next(tmp_path.glob("c-*.safetensors"))
    content = bytearray(file.read_bytes())
    if how == "truncate":
        file.write_bytes(content[:-4])
    elif how == "flip":
        content[-1] ^= 1
        file.write_bytes(content)
    else:
        file.unlink()
    with pytest.raises(RunError, match=file.name):
        load_state(tmp_path / "c.json")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"state": 1}', "null"])
def test_damaged_json_is_noticed_and_named(tmp_path, content):
    (tmp_path / "c.json").write_text(content)
    with pytest.raises(RunError, match=r"c\.json"):
        load_state(tmp_path / "c.json")


def test_what_cannot_be_saved_without_pickling_is_refused(tmp_path):
    with pytest.raises(TypeError, match="/a/0"):
        save_state(tmp_path / "c.json", {"a": [object()]})
    assert list(tmp_path.iterdir()) == []


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []
    write_json(tmp_path / "x.json", {"a": 0.1})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 0.1}


def test_tensor_bytes_counts_what_is_stored():
    assert tensor_bytes({"a": torch.zeros(3, dtype=torch.float64), "b": [torch.zeros(5, dtype=torch.uint8)], "c": "x"}) == 29
