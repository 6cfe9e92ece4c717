"""PNG files, read back by hand."""

import base64
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import torch

from hvcl.core.errors import InputError
from hvcl.core.pictures import SIGNATURE, are_pictures, data_uri, encode, png, strip


def read(content):
    """Width, height, colour kind, rows of bytes; checks signature and checksums."""
    assert content[:8] == SIGNATURE == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(content):
        size, kind = struct.unpack(">I4s", content[place : place + 8])
        body = content[place + 8 : place + 8 + size]
        assert struct.unpack(">I", content[place + 8 + size : place + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + size
    width, height, depth, colour, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert depth == 8
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    lines = zlib.decompress(chunks[b"IDAT"])
    step = len(lines) // height
    assert all(lines[row * step] == 0 for row in range(height))
    return width, height, colour, [list(lines[row * step + 1 : (row + 1) * step]) for row in range(height)]


def test_grey_picture():
    assert read(png(torch.tensor([[[0.0, 0.5, 1.0], [2.0, -1.0, 0.2]]]))) == (3, 2, 0, [[0, 128, 255], [255, 0, 51]])


def test_coloured_picture_has_red_green_blue_in_turn():
    picture = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.2, 0.4]]])
    assert read(png(picture)) == (2, 1, 2, [[255, 0, 51, 0, 255, 102]])


def test_levels_are_written_as_they_are():
    levels = np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)
    assert read(encode(levels)) == (2, 1, 2, [[1, 2, 3, 4, 5, 6]])
    assert read(encode(levels.transpose(1, 0, 2))) == (1, 2, 2, [[1, 2, 3], [4, 5, 6]]), "whatever the strides"


def test_an_address_holds_the_whole_file():
    content = png(torch.zeros(1, 2, 2))
    kind, _, encoded = data_uri(content).partition(",")
    assert kind == "data:image/png;base64"
    assert base64.b64decode(encoded) == content


def test_the_report_can_use_it_without_torch():
    check = "import sys, hvcl.core.pictures; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_strip_has_white_between_pictures():
    row = strip(torch.zeros(2, 1, 2, 3))
    assert row.shape == (1, 2, 8)
    assert row[0, 0].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]


def test_what_is_no_picture():
    assert are_pictures((1, 8, 8))
    assert are_pictures((3, 32, 32))
    assert not any(are_pictures(shape) for shape in ((784,), (2, 8, 8), (1, 1, 8), (3, 4)))
    with pytest.raises(InputError, match="pictures must have shape"):
        strip(torch.zeros(2, 2, 4, 4))
    with pytest.raises(InputError, match="a picture must have shape"):
        png(torch.zeros(4, 4))
