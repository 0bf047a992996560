"""JSON Lines end to end: every value, as Python's json module reads it, is in the records."""

import json
from itertools import count

import pandas as pd
import pytest

from shardmill.pipelines.rows import resolve
from shardmill.pipelines.rows_config import RowsConfig
from shardmill.schemas.errors import InputError
from tests.support.rows_tools import published, rejects_of
from tests.support.typed_tools import counted, write_lines


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["t.csv", "t.txt.csv", "t.json", "t"])
def test_content_decides_not_the_name(tmp_path, name) -> None:
    path = write_lines(tmp_path / name, [{"a": n, "b": "x"} for n in range(59)])
    examples, _ = published(input=path, output=tmp_path / "ds")
    assert counted(examples) == counted({"a": n, "b": "x"} for n in range(59))


BAD = {
    b"{": "json",
    b"[1]": "json",
    b"1": "json",
    b'{"a": 1, "a": 2}': "json",
    b'{"a": NaN}': "cast",
    b'{"a": Infinity}': "cast",
    b'{"a": 1}{"a": 2}': "json",
    b'{"a": 1},': "json",
    b'{"a": 1, "new": 2}': "json",
    b'{"a": "1"}': "cast",
    b'{"a": 1.5}': "cast",
    b'{"a": true}': "cast",
    b'{"a": 9223372036854775808}': "cast",
    b'{"t": 1}': "cast",
    b'{"t": "\xff"}': "encoding",
    b'{"t": "\\ud800"}': "json",
    b'{"t": "a\tb"}': "json",
    b'{"l": [1, null]}': "missing",
    b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}": "json",
}


# Alone, lines that Arrow accepts, or rejects together with their neighbours, take another way.
ALONE = [b'{"a": 1}{"a": 2}', b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": 1},']


@pytest.mark.sweep
@pytest.mark.parametrize("bad", [*([each] for each in ALONE), [*BAD]], ids=len)
def test_each_bad_line_is_one_reject_with_its_number(tmp_path, bad) -> None:
    good = [{"a": n, "t": f"w{n}", "l": [n]} for n in range(3000)]
    lines = [json.dumps(row).encode() for row in good]
    for number, line in enumerate(bad):
        lines.insert(2900 + 2 * number, line)  # after the sample of 64 KiB, between others
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n".join(lines))
    examples, manifest = published(input=path, output=tmp_path / "ds", sample_bytes=64)
    rejects = rejects_of(tmp_path / "ds")
    wanted = [
        (f"t.jsonl:{at}", at, BAD[line]) for at, line in zip(count(2901, 2), bad, strict=False)
    ]
    assert [(each["key"], each["line"], each["error"]) for each in rejects] == wanted
    assert all(len(each["message"]) < 400 for each in rejects)
    assert counted(examples) == counted(good)
    assert manifest.inputs.matched == 3000 + len(bad)


def test_a_damaged_first_line_is_one_reject(tmp_path) -> None:
    """Content decides the format: the other lines are objects, and no table of ragged rows."""
    lines = ["{bad", *(f'{{"n": {n}, "t": "x"}}' for n in range(30))]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    examples, manifest = published(input=tmp_path / "in.jsonl", output=tmp_path / "ds")
    assert sorted(each["n"] for each in examples) == [[n] for n in range(30)]
    assert manifest.inputs.rejected_by_reason == {"json": 1}


def test_blank_lines_line_breaks_and_marks_are_no_rows(tmp_path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n\t{"a": 2}  \n{"a":3}')
    examples, manifest = published(input=path, output=tmp_path / "ds")
    assert counted(examples) == counted({"a": n} for n in (1, 2, 3))
    assert manifest.inputs.matched == 3


@pytest.mark.nightly
def test_ranges_give_the_rows_of_the_whole(tmp_path, monkeypatch) -> None:
    rows = [{"a": n, "t": "x" * (n % 50)} for n in range(200_000)]
    path = write_lines(tmp_path / "t.jsonl", rows)
    examples, _ = published(input=path, output=tmp_path / "ds")
    assert counted(examples) == counted(rows)
    assert path.stat().st_size > 8 << 20


def test_special_numbers_follow_their_rule(tmp_path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"a": 1.5, "big": 1}\n{"a": NaN}\n{"a": -Infinity, "big": 12345678901234567890}\n'
    )
    examples, manifest = published(input=path, output=tmp_path / "ds")
    infinite = {"a": float("-inf"), "big": 12345678901234567890.0}
    assert counted(examples) == counted([{"a": 1.5, "big": 1.0}, {}, infinite])
    assert any("float32 rounds values of 'big'" in each for each in manifest.warnings)


@pytest.mark.parametrize("orient", ["columns", "index", "table"])
@pytest.mark.parametrize("rows", [1, 2, 30])
def test_a_whole_table_of_pandas_is_one_sentence(tmp_path, orient, rows):
    """One object of columns was a table of one row with a feature for each cell."""
    frame = pd.DataFrame({"id": range(rows), "name": [f"n{n}" for n in range(rows)]})
    frame.to_json(tmp_path / "t.json", orient=orient)
    with pytest.raises(InputError, match="one object with a whole table, as pandas writes it"):
        resolve(RowsConfig(str(tmp_path / "t.json"), str(tmp_path / "ds")))
    frame.to_json(tmp_path / "t.json", orient="records", lines=True)
    job = resolve(RowsConfig(str(tmp_path / "t.json"), str(tmp_path / "ds")))
    assert [*job.columns] == ["id", "name"]


@pytest.mark.parametrize(
    "line", ['{"a": {"x": 1}, "b": {"y": 2}}', '{"a": {"x": 1}}', '{"a": 1}', '{"1": 5, "2": 6}']
)
def test_one_object_of_fields_is_a_row(tmp_path, line):
    (tmp_path / "t.jsonl").write_text(line)
    assert resolve(RowsConfig(str(tmp_path / "t.jsonl"), str(tmp_path / "ds"))).columns
