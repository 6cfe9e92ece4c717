import io
import json

import pytest

from hvcl.core.errors import DataError, InputError
from hvcl.streams.rows import Reading, open_rows

pandas = pytest.importorskip("pandas")


def write(path, text):
    path.write_text(text)
    return path


def lines(*values):
    return io.BytesIO("".join(json.dumps(value) + "\n" for value in values).encode())


def all_rows(stream):
    parts = list(stream)
    frame = pandas.concat([part.frame for part in parts], ignore_index=True)
    return frame, [label for part in parts for label in part.labels], [time for part in parts for time in part.times]


def test_csv_json_and_parquet_give_the_same_rows(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": [1.5, None, 3.0], "b": ["red", "blue", None], "y": ["u", "v", "u"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    for name in ("t.csv", "t.parquet", "t.jsonl"):
        stream = open_rows(tmp_path / name, Reading("y"), batch=2)
        found, labels, times = all_rows(stream)
        assert stream.kinds == {"a": "number", "b": "category"}
        assert found["a"].isna().tolist() == [False, True, False]
        assert found["a"].tolist()[::2] == [1.5, 3.0]
        assert found["b"].tolist()[:2] == ["red", "blue"]
        assert found["b"].isna().tolist() == [False, False, True]
        assert labels == ["u", "v", "u"]
        assert times == []
        assert stream.share == 1


@pytest.mark.parametrize(
    ("labels", "task", "kind"),
    [
        (["x", "y", "x"], "classification", "str"),
        ([0, 1, 1], "classification", "int"),
        ([True, False, True], "classification", "bool"),
        ([0.5, 1.25, 3.0], "regression", "float"),
        (list(range(30)), "regression", "float"),
    ],
)
def test_labels_say_what_is_to_be_learned(labels, task, kind):
    rows = lines(*({"a": number, "y": label} for number, label in enumerate(labels)))
    stream = open_rows("-", Reading("y"), standard_input=rows)
    assert (stream.task, stream.label_kind) == (task, kind)
    assert all_rows(stream)[1] == labels


def test_rows_of_a_file_are_sorted_by_time_and_the_time_is_no_feature(tmp_path):
    path = write(tmp_path / "t.csv", "when,a,y\n2024-03-01,3,u\n2024-01-01,1,v\n2024-02-01,2,u\n")
    stream = open_rows(path, Reading("y", time="when"), batch=2)
    frame, labels, times = all_rows(stream)
    assert list(frame.columns) == ["a"]
    assert frame["a"].tolist() == [1, 2, 3]
    assert labels == ["v", "u", "u"]
    assert [time.month for time in times] == [1, 2, 3]
    assert "sorted in memory" in stream.notes[0]


@pytest.mark.parametrize(
    ("text", "reading", "words"),
    [
        ("a,y\n1,u\n", Reading("z"), ["no column 'z'", "a, y"]),
        ("a,yes\n1,u\n", Reading("yep"), ["did you mean 'yes'"]),
        ("a,y\n", Reading("y"), ["no rows"]),
        ("a,a,y\n1,2,u\n", Reading("y"), ["two columns named 'a'"]),
        ("a,y\n1,u,7\n", Reading("y"), ["line 2", "3 values"]),
        ("a,y\n2024-01-01,u\n", Reading("y"), ["dates", "--time a"]),
        ("a,y\n31.01.2024,u\n1.2.2024 12:30,v\n", Reading("y"), ["column 'a'", "dates such as '31.01.2024'", "--drop a"]),
        ("a;y\n-3,5;u\n1.204,25;v\n", Reading("y"), ["column 'a'", "commas such as '-3,5'", "--categories a"]),
        ('a,y\n"1,234",u\n"2,234.5",v\n', Reading("y"), ["column 'a'", "commas such as '1,234'", "1234.5"]),
        ("a,y\n1,\n", Reading("y"), ["none of the first 1 rows", "label"]),
        ("a;y\n1;-3,5\n2;4,5\n", Reading("y"), ["label 'y'", "commas such as '-3,5'", "--task classification"]),
        ("t,a,y\nsoon,1,u\n", Reading("y", time="t"), ["line 2", "'soon'"]),
        ("a,y\n1,2024-01-01\n2,2024-01-02\n", Reading("y"), ["label 'y'", "dates"]),
        ("a,y\n1,1\n2,9223372036854775808\n", Reading("y"), ["line 3", "too large", "make it a text"]),
        ("a,y\n1,0.5\n2,-1e200\n", Reading("y"), ["line 3", "'-1e200'", "1e+100"]),
        ("a,y\n1,0.5\n2,NAN\n", Reading("y"), ["line 3", "'NAN'", "leave it empty"]),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, reading, words):
    path = write(tmp_path / "t.csv", text)
    with pytest.raises((DataError, InputError)) as caught:
        list(open_rows(path, reading))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"), [('[{"a": 1, "y": 2}]', "JSON array"), ('"a"', "no JSON object"), ("{a: 1}", "no JSON")]
)
def test_json_that_is_no_object_a_line_is_refused(text, words):
    with pytest.raises(DataError, match=f"line 2 of standard input is .*{words}"):
        list(open_rows("-", Reading("y"), standard_input=io.BytesIO(b'{"a": 1, "y": 2}\n' + text.encode())))


def test_texts_that_are_nearly_all_different_are_categories_with_a_note(tmp_path):
    texts = [f"number {row}" for row in range(30)]
    path = write(
        tmp_path / "t.csv", "a,b,y\n" + "".join(f"{text},{'red' if row % 2 else 'blue'},u\n" for row, text in enumerate(texts))
    )
    stream = open_rows(path, Reading("y"))
    assert stream.kinds == {"a": "category", "b": "category"}
    assert ["column 'a' has 30 different texts in 30 rows" in note for note in stream.notes] == [True]
    path = write(tmp_path / "t.csv", "a,y\n1.2.3,u\n1.10.33,v\n")
    assert open_rows(path, Reading("y")).kinds == {"a": "category"}, "versions are no dates"
    path = write(tmp_path / "t.csv", "a;y\n3,5;u\n2,5;v\n")
    assert open_rows(path, Reading("y", categories=["a"])).kinds == {"a": "category"}


def test_whole_numbers_are_labels_to_their_last_digit(tmp_path):
    large = [9007199254740993, 9007199254740992, -3, 5]
    path = write(tmp_path / "t.csv", "a,y\n" + "".join(f"1,{label}\n" for label in large[:3]) + "1,5.0\n")
    assert all_rows(open_rows(path, Reading("y")))[1] == large
    rows = lines(*({"a": 1, "y": label} for label in large))
    assert all_rows(open_rows("-", Reading("y"), standard_input=rows))[1] == large


@pytest.mark.parametrize("sign", ["NaN", "nan", "", "NULL", "?"])
@pytest.mark.parametrize("labels", [("u", "v"), ("0", "1"), ("0.5", "2.25")])
def test_a_label_that_is_missing_is_missing_whatever_sign_says_so(tmp_path, sign, labels):
    path = write(tmp_path / "t.csv", f"a,y\n1,{labels[0]}\n2,{sign}\n3,{labels[1]}\n")
    found = all_rows(open_rows(path, Reading("y")))[1]
    assert found[1] is None
    assert [str(found[0]), str(found[2])] == list(labels)


def test_nan_is_a_missing_label_in_json_and_parquet_too(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    values = [0.5, float("nan"), None, 2.25]
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2, 3, 4], "y": values}), tmp_path / "t.parquet")
    assert all_rows(open_rows(tmp_path / "t.parquet", Reading("y")))[1] == [0.5, None, None, 2.25]
    rows = lines(*({"a": 1, "y": value} for value in values))
    assert all_rows(open_rows("-", Reading("y"), standard_input=rows))[1] == [0.5, None, None, 2.25]


def test_a_bad_value_names_its_line():
    rows = lines({"a": 1, "y": "u"}, {"a": 2, "y": "v"}, {"a": "much", "y": "u"})
    stream = open_rows("-", Reading("y"), batch=2, standard_input=rows)
    with pytest.raises(DataError, match="line 3 of standard input: 'a' is 'much'"):
        list(stream)


def test_rows_that_were_learned_are_passed_over_if_they_are_the_same(tmp_path):
    path = write(tmp_path / "t.csv", "a,y\n1,u\n2,v\n3,u\n")
    stream = open_rows(path, Reading("y"), batch=2)
    next(iter(stream))
    digest, place = stream.digest, stream.place
    again = open_rows(path, Reading("y"), batch=2)
    again.skip(2, digest)
    assert again.place == place == 3
    assert all_rows(again)[0]["a"].tolist() == [3]
    write(path, "a,y\n1,u\n2,u\n3,u\n")
    with pytest.raises(DataError, match="begins with other rows"):
        open_rows(path, Reading("y")).skip(2, digest)
    with pytest.raises(DataError, match="only 3 rows"):
        open_rows(path, Reading("y")).skip(7, digest)


class Interrupted(io.BytesIO):
    """Standard input on which someone presses Ctrl-C after three lines."""

    def readline(self, *_):
        self.count = getattr(self, "count", 0) + 1
        if self.count > 3:
            raise KeyboardInterrupt
        return super().readline()


def test_rows_that_were_read_before_an_interrupt_are_not_lost():
    stream = open_rows("-", Reading("y"), batch=2, standard_input=Interrupted(lines(*[{"a": 1, "y": "u"}] * 9).getvalue()))
    batches = iter(stream)
    assert len(next(batches)) == 2
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert len(stream.rest()) == 1
    assert stream.rest() is None
