"""A chart as a PNG file, drawn by Pillow: the few SVG elements that our charts consist of, and no others.

Everything is drawn several times as large as it is shown and then scaled down, which smooths it.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from hvcl.core.errors import InputError
from hvcl.core.pictures import encode
from hvcl.report.present import presented

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

SCALE = 2
"""Pixels of the file for one of the chart."""
_FINER = 3
_MISSING_GLYPHS = str.maketrans({"−": "-", "–": "-", "→": ">", "’": "'", "“": '"', "”": '"', "β": "b"})
"""Characters that Pillow's own font lacks, with what is drawn for them."""

Place = tuple[float, float]


def png_file(chart: Markup) -> bytes:
    """The chart as the bytes of a PNG file; raises `InputError` where Pillow is not installed."""
    try:
        import numpy as np
        from PIL import Image, ImageDraw
    except ModuleNotFoundError:
        raise InputError("a PNG file needs Pillow: pip install 'hvcl[pictures]'") from None
    root = presented(chart)
    width, height = math.ceil(float(root.attrib["width"])), math.ceil(float(root.attrib["height"]))
    factor = SCALE * _FINER
    image = Image.new("RGB", (width * factor, height * factor), "white")
    _Drawing(image, ImageDraw.Draw(image, "RGBA"), factor).draw(root, (0.0, 0.0))
    smooth = image.resize((width * SCALE, height * SCALE), Image.Resampling.LANCZOS)
    return encode(np.asarray(smooth, dtype=np.uint8))


class _Drawing:
    def __init__(self, image: Any, pen: ImageDraw, factor: int) -> None:
        self.image, self.pen, self.factor = image, pen, factor

    def draw(self, element: ElementTree.Element, shift: Place) -> None:
        """One element and all inside it, moved by `shift`."""
        moved = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", element.attrib.get("transform", ""))
        if moved:
            shift = shift[0] + float(moved[1]), shift[1] + float(moved[2])
        drawers = {"line": self._line, "polyline": self._polyline, "polygon": self._polygon, "rect": self._rect}
        drawers |= {"circle": self._circle, "text": self._text, "image": self._image}
        if element.tag in drawers:
            drawers[element.tag](element, shift)
        for child in element:
            self.draw(child, shift)

    def _at(self, x: float, y: float, shift: Place) -> Place:
        return (x + shift[0]) * self.factor, (y + shift[1]) * self.factor

    def _number(self, element: ElementTree.Element, name: str, default: float = 0.0) -> float:
        return float(element.attrib.get(name, default))

    def _paint(self, element: ElementTree.Element, name: str) -> tuple[int, int, int, int] | None:
        colour = element.attrib.get(name, "none")
        if colour == "none":
            return None
        share = self._number(element, "opacity", 1.0) * self._number(element, f"{name}-opacity", 1.0)
        return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16), round(255 * share)

    def _strokes(self, element: ElementTree.Element, places: Sequence[Place]) -> None:
        colour = self._paint(element, "stroke")
        if colour is None or len(places) < 2:
            return
        width = max(1, round(self._number(element, "stroke-width", 1.0) * self.factor))
        dashes = [float(word) * self.factor for word in element.attrib.get("stroke-dasharray", "").split()]
        for part in dashed(places, dashes) if dashes else [list(places)]:
            self.pen.line(part, fill=colour, width=width, joint="curve")

    def _line(self, element: ElementTree.Element, shift: Place) -> None:
        ends = [(self._number(element, f"x{end}"), self._number(element, f"y{end}")) for end in (1, 2)]
        self._strokes(element, [self._at(x, y, shift) for x, y in ends])

    def _places(self, element: ElementTree.Element, shift: Place) -> list[Place]:
        pairs = (pair.split(",") for pair in element.attrib["points"].split())
        return [self._at(float(x), float(y), shift) for x, y in pairs]

    def _polyline(self, element: ElementTree.Element, shift: Place) -> None:
        self._strokes(element, self._places(element, shift))

    def _polygon(self, element: ElementTree.Element, shift: Place) -> None:
        self.pen.polygon(self._places(element, shift), fill=self._paint(element, "fill"))

    def _rect(self, element: ElementTree.Element, shift: Place) -> None:
        x, y = self._number(element, "x"), self._number(element, "y")
        far = x + self._number(element, "width"), y + self._number(element, "height")
        self.pen.rectangle([*self._at(x, y, shift), *self._at(*far, shift)], fill=self._paint(element, "fill"))

    def _circle(self, element: ElementTree.Element, shift: Place) -> None:
        (x, y), radius = self._at(self._number(element, "cx"), self._number(element, "cy"), shift), self._number(element, "r")
        edge = self._paint(element, "stroke")
        width = round(self._number(element, "stroke-width") * self.factor) if edge else 0
        reach = radius * self.factor + width / 2
        box = (x - reach, y - reach, x + reach, y + reach)
        self.pen.ellipse(box, fill=self._paint(element, "fill"), outline=edge, width=width)

    def _text(self, element: ElementTree.Element, shift: Place) -> None:
        from PIL import ImageFont

        size = self._number(element, "font-size", 11.0) * self.factor
        anchor = {"middle": "ms", "end": "rs"}.get(element.attrib.get("text-anchor", ""), "ls")
        bold = round(size / 40) if element.attrib.get("font-weight") == "600" else 0
        words = (element.text or "").translate(_MISSING_GLYPHS)
        place = self._at(self._number(element, "x"), self._number(element, "y"), shift)
        font = ImageFont.load_default(size)
        self.pen.text(place, words, fill=self._paint(element, "fill"), font=font, anchor=anchor, stroke_width=bold)

    def _image(self, element: ElementTree.Element, shift: Place) -> None:
        from PIL import Image

        content = base64.b64decode(element.attrib["href"].partition("base64,")[2])
        x, y = self._at(self._number(element, "x"), self._number(element, "y"), shift)
        size = round(self._number(element, "width") * self.factor), round(self._number(element, "height") * self.factor)
        shown = Image.open(io.BytesIO(content)).convert("RGB").resize(size, Image.Resampling.NEAREST)
        self.image.paste(shown, (round(x), round(y)))


def dashed(places: Sequence[Place], dashes: Sequence[float]) -> Iterator[list[Place]]:
    """The drawn pieces of a line through `places`, by the lengths of its dashes and of the gaps between them, in turn."""
    lengths = itertools.cycle(dashes)
    left, drawn = next(lengths), True
    piece = [places[0]]
    for (x0, y0), (x1, y1) in itertools.pairwise(places):
        whole = math.hypot(x1 - x0, y1 - y0)
        done = 0.0
        while whole - done > left:
            done += left
            place = x0 + (x1 - x0) * done / whole, y0 + (y1 - y0) * done / whole
            if drawn:
                yield [*piece, place]
            piece, drawn, left = [place], not drawn, next(lengths)
        left -= whole - done
        piece.append((x1, y1))
    if drawn and len(piece) > 1:
        yield piece
