"""Folders of pictures as benchmarks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hvcl.core.errors import DataError, InputError
from hvcl.streams import make_stream
from hvcl.streams.benchmarks import benchmark
from hvcl.streams.folders import read_folder

Image = pytest.importorskip("PIL.Image")


def write(folder, count=5, size=(6, 4), level=0, mode="RGB", ending="png"):
    """`count` pictures of one class, each of one level of grey."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.new("RGB", size, (level + number,) * 3).convert(mode).save(folder / f"{number}.{ending}")


@pytest.fixture
def split(tmp_path):
    """Four classes with a test folder."""
    for place, name in enumerate(["bee", "ape", "dog", "cat"]):
        write(tmp_path / "train" / name, 5, level=50 * place)
        write(tmp_path / "test" / name, 2, level=50 * place + 20)
    return tmp_path


def test_classes_are_sorted_names_and_pictures_are_theirs(split):
    (split / "train" / "ape" / "notes.txt").write_text("no picture")
    (split / "train" / ".cache").mkdir()
    found = read_folder(split)
    assert found.classes == ("ape", "bee", "cat", "dog")
    assert found.data.train_x.shape == (20, 3, 4, 6)
    assert found.data.train_x.dtype == torch.uint8
    levels = {"ape": 50, "bee": 0, "cat": 150, "dog": 100}
    for name, x, y in (("train", found.data.train_x, found.data.train_y), ("test", found.data.test_x, found.data.test_y)):
        for picture, label in zip(x, y.tolist(), strict=True):
            offset = int(picture[0, 0, 0]) - levels[found.classes[label]]
            assert offset in (range(5) if name == "train" else range(20, 22))


def test_without_a_test_folder_a_fifth_is_drawn_once_and_for_all(tmp_path):
    for place, name in enumerate(["a", "b"]):
        write(tmp_path / name, 10, level=100 * place, mode="L", ending="jpg")
    first, again = read_folder(tmp_path), read_folder(tmp_path)
    assert torch.equal(first.data.test_x, again.data.test_x)
    assert first.data.test_y.tolist() == [0, 0, 1, 1]
    assert len(first.data.train_y) == 16
    assert first.data.train_x.shape[1] == 1  # all of them are grey
    levels = sorted(int(picture[0, 0, 0]) // 100 for picture in torch.cat([first.data.train_x, first.data.test_x]))
    assert levels == [0] * 10 + [1] * 10


def test_train_alone_is_split_and_val_is_a_test_folder(tmp_path):
    write(tmp_path / "train" / "a", 5)
    write(tmp_path / "train" / "b", 5)
    assert len(read_folder(tmp_path).data.test_y) == 2
    write(tmp_path / "val" / "b", 3, level=90)
    found = read_folder(tmp_path).data
    assert found.test_y.tolist() == [1, 1, 1]
    assert len(found.train_y) == 10


def test_pictures_of_different_sizes_are_resized_on_request(split):
    left, right = np.zeros((8, 30, 3), dtype=np.uint8), np.zeros((8, 30, 3), dtype=np.uint8)
    left[:, :15], right[:, 15:] = 200, 200
    Image.fromarray(left).save(split / "train" / "ape" / "left.png")
    Image.fromarray(right).save(split / "train" / "ape" / "right.png")
    with pytest.raises(InputError, match=r"different sizes .*0\.png has 6 x 4 pixels.*left\.png 30 x 8.*--size"):
        read_folder(split)
    found = read_folder(split, size=10).data
    assert found.train_x.shape[1:] == (3, 10, 10)
    wide = [picture for picture in found.train_x if int(picture.max()) == 200]
    assert sorted((int(p[0, 5, 1]), int(p[0, 5, 8])) for p in wide) == [(0, 200), (200, 0)]
    with pytest.raises(InputError, match="size must lie between"):
        read_folder(split, size=0)


def test_the_orientation_in_the_file_is_obeyed(tmp_path):
    levels = np.zeros((4, 8), dtype=np.uint8)
    levels[0] = 250
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            image = Image.fromarray(levels)
            exif = image.getexif()
            exif[0x0112] = 6  # to be turned by a quarter
            image.save(tmp_path / name / f"{number}.png", exif=exif)
    assert read_folder(tmp_path).data.train_x.shape == (2, 1, 8, 4)


@pytest.mark.parametrize("content", [b"", b"no picture at all", "cut"], ids=["empty", "garbage", "truncated"])
def test_a_broken_file_is_named(split, content):
    bad = split / "train" / "cat" / "bad.png"
    if content == "cut":
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(bad)
        read_folder(split, size=8)  # whole, it can be read
        content = bad.read_bytes()[:2000]
    bad.write_bytes(content)
    with pytest.raises(DataError, match=r"cat/bad\.png cannot be read: \w+"):
        read_folder(split, size=8)


def test_folders_that_are_none_are_refused(tmp_path, split):
    with pytest.raises(DataError, match="nowhere is missing"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="is a file"):
        read_folder(split / "train" / "ape" / "0.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no folders in it"):
        read_folder(tmp_path / "empty")
    (tmp_path / "empty" / "class").mkdir()
    with pytest.raises(DataError, match=r"class holds no pictures \(\.bmp"):
        read_folder(tmp_path / "empty")
    write(split / "test" / "emu", 1)
    with pytest.raises(DataError, match=r"test/emu is a class that .*train does not have"):
        read_folder(split)


def test_a_folder_is_a_benchmark(split):
    stream = make_stream(f"folder:{split}", seed=1, classes_per_task=2, scenario="class", epochs=1)
    assert [task.name for task in stream.tasks] == ["ape/bee", "cat/dog"]
    assert stream.problem.input_shape == (3, 4, 6)
    assert stream.problem.outputs == 4
    assert float(next(stream.batches())[0].max()) == pytest.approx(54 / 255)
    shuffled = make_stream(f"folder:{split}", seed=1, classes_per_task=2, class_order="3,1,2,0")
    assert [task.name for task in shuffled.tasks] == ["dog/bee", "cat/ape"]


def test_what_a_folder_as_a_benchmark_needs(split):
    with pytest.raises(InputError, match="--classes-per-task 2"):
        make_stream(f"folder:{split}")
    with pytest.raises(InputError, match="4 classes cannot be dealt in groups of 3"):
        make_stream(f"folder:{split}", classes_per_task=3)
    with pytest.raises(InputError, match="leave tasks out"):
        make_stream(f"folder:{split}", classes_per_task=2, tasks=2)
    with pytest.raises(InputError, match="which folder"):
        benchmark("folder:")
    with pytest.raises(InputError, match="are for folder:DIR"):
        make_stream("split-digits", size=32)
