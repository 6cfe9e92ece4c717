"""Pictures as PNG files, with nothing but the standard library: neither torch nor numpy is imported here."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING

from hvcl.core.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

SIGNATURE = b"\x89PNG\r\n\x1a\n"
"""The first bytes of every PNG file."""

GAP = 2
"""White pixels between pictures."""


def are_pictures(shape: tuple[int, ...]) -> bool:
    """Whether inputs of this shape can be shown: (1 or 3, height, width)."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


def strip(pictures: Tensor) -> Tensor:
    """Pictures ``[N, C, H, W]`` beside each other in one row ``[C, H, N * (W + gap) - gap]``, white between them."""
    if pictures.dim() != 4 or not are_pictures(tuple(pictures.shape[1:])) or len(pictures) == 0:
        raise InputError(f"pictures must have shape (N, 1 or 3, height, width), got {tuple(pictures.shape)}")
    count, channels, height, width = pictures.shape
    row = pictures.new_ones(channels, height, count * (width + GAP) - GAP)
    for number, picture in enumerate(pictures):
        row[:, :, number * (width + GAP) : number * (width + GAP) + width] = picture
    return row


def png(picture: Tensor) -> bytes:
    """A picture ``[1 or 3, H, W]`` with values in [0, 1] (others are clipped) as the bytes of a PNG file."""
    if picture.dim() != 3 or picture.shape[0] not in (1, 3):
        raise InputError(f"a picture must have shape (1 or 3, height, width), got {tuple(picture.shape)}")
    return encode((picture.detach().cpu().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())


def encode(levels: NDArray[np.uint8]) -> bytes:
    """Levels of grey or of red, green and blue, ``[H, W, 1 or 3]``, as the bytes of a PNG file."""
    height, width, channels = levels.shape
    lines = b"".join(b"\0" + row.tobytes() for row in levels)  # every line begins with the number of its filter: 0, none
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    return SIGNATURE + b"".join(_chunk(kind, content) for kind, content in chunks)


def data_uri(content: bytes) -> str:
    """The bytes of a PNG file as an address that an HTML page can show without any other file."""
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
