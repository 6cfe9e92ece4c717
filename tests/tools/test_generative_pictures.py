"""The script that makes the picture of what the VAE makes of photographs."""

import struct

from tools import generative_pictures as script


def test_originals_and_two_rows_for_each_vae_the_same_every_time(tmp_path, monkeypatch):
    pictures = []
    for name in ("first.png", "again.png"):
        arguments = ["--benchmark", "split-digits", "--epochs", "1", "--output", str(tmp_path / name)]
        monkeypatch.setattr("sys.argv", ["pictures", *arguments])
        script.main()
        pictures.append((tmp_path / name).read_bytes())
    width, height = struct.unpack(">II", pictures[0][16:24])
    assert (width, height) == (16 * (8 + 2) - 2, (1 + 2 * len(script.VARIANTS)) * 8 + len(script.VARIANTS) * script.GAP)
    assert pictures[0] == pictures[1]
