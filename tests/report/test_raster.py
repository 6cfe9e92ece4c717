from __future__ import annotations

import io
import itertools
import math
import sys

import pytest
from markupsafe import Markup

from hvcl.core.errors import InputError
from hvcl.report.present import MARGIN, colours
from hvcl.report.raster import SCALE, dashed, png_file

CHART = Markup(
    '<svg class="chart" viewBox="0 0 60 40"><g transform="translate(10 0)">'
    '<rect class="cell" x="10" y="10" width="20" height="20" fill-opacity="1.00"></rect></g>'
    '<text class="heading" x="2" y="8">−1 ± 2</text></svg>'
)


def test_the_picture_has_the_chart_in_its_colours() -> None:
    images = pytest.importorskip("PIL.Image")
    picture = images.open(io.BytesIO(png_file(CHART)))
    assert picture.size == (SCALE * (60 + 2 * MARGIN), SCALE * (40 + 2 * MARGIN))
    inside = picture.getpixel((SCALE * (MARGIN + 30), SCALE * (MARGIN + 20)))
    assert "#{:02x}{:02x}{:02x}".format(*inside) == colours()["heat"]
    assert picture.getpixel((2, 2)) == (255, 255, 255)
    assert any(sum(picture.getpixel((x, SCALE * (MARGIN + 5)))) < 300 for x in range(SCALE * 40)), "there is text"


def test_the_same_chart_gives_the_same_bytes() -> None:
    pytest.importorskip("PIL")
    assert png_file(CHART) == png_file(CHART)


def test_without_pillow_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"hvcl\[pictures\]"):
        png_file(CHART)


def test_dashes_cover_their_share_of_a_line_and_go_round_corners() -> None:
    pieces = list(dashed([(0.0, 0.0), (10.0, 0.0), (10.0, 10.0)], [4.0, 1.0]))
    lengths = [sum(math.dist(a, b) for a, b in itertools.pairwise(piece)) for piece in pieces]
    assert lengths == pytest.approx([4.0, 4.0, 4.0, 4.0])
    assert list(dashed([(0.0, 0.0), (3.0, 0.0)], [4.0, 1.0])) == [[(0.0, 0.0), (3.0, 0.0)]]
