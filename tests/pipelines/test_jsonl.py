"""JSON Lines end to end: every value, as Python's json module reads it, is in the records."""

import bz2
import gzip
import json
from itertools import count

import pandas as pd
import pyarrow as pa
import pytest

from shardmill.pipelines.rows import resolve
from shardmill.pipelines.rows_config import RowsConfig
from shardmill.schemas.errors import InputError
from tests.support.rows_tools import build_rows, published, rejects_of, run_here
from tests.support.typed_tools import counted, write_lines

ROWS = [
    {"i": 1, "f": 0.5, "t": "Zürich", "b": True, "l": [1, 2], "s": {"x": 1, "y": {"z": "a"}}},
    {"i": None, "f": 3, "t": "", "b": None, "l": [], "s": None},
    {"f": 1e10, "t": "2020-01-01 00:00:00", "b": False, "s": {"y": {}}},
    {"i": -(2**63), "f": -0.1, "t": '\u2028\0"\\', "l": [3], "s": {"x": 5}},
]


def flat(row: dict, prefix: str = "") -> dict:
    """Return a row with the fields of objects as columns."""
    found = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            # ``f`` has a number with a point, so that all its values are float32.
            found[prefix + name] = float(value) if name == "f" else value
    return found


def judged(rows: list[dict]):
    return counted(map(flat, rows))


COMPRESSIONS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda data: pa.compress(data, "zstd", asbytes=True),
}


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_each_value_is_in_the_records(tmp_path, suffix) -> None:
    data = write_lines(tmp_path / "plain", ROWS * 50).read_bytes()
    path = tmp_path / f"t.jsonl{suffix}"
    path.write_bytes(COMPRESSIONS[suffix](data))
    examples, manifest = published(input=path, output=tmp_path / "ds")
    assert counted(examples) == judged(ROWS * 50)
    assert manifest.inputs.rejected == 0


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


@pytest.mark.heavy
def test_ranges_give_the_rows_of_the_whole(tmp_path, monkeypatch) -> None:
    rows = [{"a": n, "t": "x" * (n % 50)} for n in range(200_000)]
    path = write_lines(tmp_path / "t.jsonl", rows)
    examples, _ = published(input=path, output=tmp_path / "ds")
    assert counted(examples) == counted(rows)
    assert path.stat().st_size > 8 << 20


DOCUMENTS = {
    b'[{"a": 1},\n {"a": 2}]': "JSON document",
    b'{\n  "a": 1\n}': "JSON document",
}


@pytest.mark.parametrize("data", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_other_json_is_one_sentence(tmp_path, capsys, data) -> None:
    (tmp_path / "t.json").write_bytes(data)
    code, _, err = run_here(
        capsys, "rows", f"--input={tmp_path / 't.json'}", f"--output={tmp_path / 'ds'}"
    )
    assert code == 1
    assert DOCUMENTS[data] in err
    assert err.count("\n") == 1


def test_kinds_are_not_mixed(tmp_path, capsys) -> None:
    for first, second in (("a.csv", "b.jsonl"), ("b.csv", "a.jsonl")):
        folder = tmp_path / first
        folder.mkdir()
        (folder / min(first, second)).write_text("x,y\n1,2\n" if first == "a.csv" else '{"x": 1}\n')
        (folder / max(first, second)).write_text("x,y\n1,2\n" if first != "a.csv" else '{"x": 1}\n')
        outputs = f"--output={tmp_path / 'ds'}"
        code, _, err = run_here(capsys, "rows", f"--input={folder}", outputs)
        assert code == 1, err
        assert "it is not a" in err
        assert err.count("\n") == 1


def test_a_type_that_changes_after_the_sample_fails_with_the_column(tmp_path) -> None:
    rows = [{"a": n} for n in range(2000)] + [{"a": "x"}] * 50
    path = write_lines(tmp_path / "t.jsonl", rows)
    outcome, _ = build_rows(input=path, output=tmp_path / "ds", sample_bytes=64)
    assert outcome.status == "failed"
    assert "50 rows do not fit the type of column 'a'" in outcome.message


def test_special_numbers_follow_their_rule(tmp_path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"a": 1.5, "big": 1}\n{"a": NaN}\n{"a": -Infinity, "big": 12345678901234567890}\n'
    )
    examples, manifest = published(input=path, output=tmp_path / "ds")
    infinite = {"a": float("-inf"), "big": 12345678901234567890.0}
    assert counted(examples) == counted([{"a": 1.5, "big": 1.0}, {}, infinite])
    assert any("float32 rounds values of 'big'" in each for each in manifest.warnings)


def test_texts_that_mean_missing_make_a_column_optional(tmp_path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [{"a": "NA", "n": -9}, {"a": "x", "n": 1}])
    examples, manifest = published(input=path, output=tmp_path / "ds", null_values=("NA", "-9"))
    assert counted(examples) == counted([{"n": -9}, {"a": "x", "n": 1}])
    assert manifest.inputs.rejected == 0


def test_a_column_without_a_name_is_never_left_out_silently(tmp_path, capsys) -> None:
    path = write_lines(tmp_path / "t.jsonl", [{"": 1, "b": 2}])
    code, _, err = run_here(capsys, "rows", str(path), str(tmp_path / "ds"))
    assert code == 2, err
    assert "A column has no name" in err
    examples, _ = published(input=path, output=tmp_path / "ds", select=("b",))
    assert counted(examples) == counted([{"b": 2}])


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
