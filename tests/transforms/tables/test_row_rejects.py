"""Very many bad rows: the first are listed, all are counted, and no valid row is lost."""

import pytest

from shardmill.schemas.schema_pbtxt.columns import Column, format_schema
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.head import read_head
from shardmill.transforms.tables import table_source
from tests.support.rows_tools import check_dataset, make_table, published, rejects_of
from tests.transforms.verify.test_verify import findings_of

LISTED = 5


@pytest.fixture(autouse=True)
def list_few_rejects(monkeypatch) -> None:
    monkeypatch.setattr(table_source, "MAX_LISTED", LISTED)


@pytest.mark.parametrize("quoted", [False, True])
def test_counts_ragged_rows(quoted: bool, tmp_path) -> None:
    good = '"g",1' if quoted else "g,1"
    rows = [
        good if number % 3 else ["one", "a,b,c", "x,y,z,"][number // 3 % 3] for number in range(90)
    ]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,b", *rows, ""]))
    found = read_head(str(path), Dialect(), 1 << 20).cells
    assert found.columns["a"].to_pylist() == [b"g"] * 60
    assert found.columns["b"].to_pylist() == [b"1"] * 60
    assert found.lines.tolist() == [number + 2 for number in range(90) if number % 3]
    assert sum(reject.rows for reject in found.rejects) == 30
    assert found.rows == 90
    assert {reject.error for reject in found.rejects} == {"ragged"}
    listed = [reject for reject in found.rejects if reject.rows == 1]
    assert [reject.line for reject in listed] == [2, 5, 8, 11, 14]
    assert listed[0].message == "the row has 1 cell, not 2: 'one'"
    assert listed[1].message == "the row has 3 cells, not 2: 'a,b,c'"
    (rest,) = (reject for reject in found.rejects if reject.rows > 1)
    assert (rest.line, rest.rows) == (17, 25)
    more = "24 more rows up to line 89 are rejected for the same reason"
    assert rest.message == f"the row has 4 cells, not 2: 'x,y,z,'; {more}"


def test_counts_bad_quotes_and_encodings(tmp_path) -> None:
    path = tmp_path / "t.csv"
    lines = [b'x,"y"z' if number % 2 else b"x,\xff" for number in range(40)]
    path.write_bytes(b"\n".join([b"a,b", b"g,1", *lines, b"g,2", b""]))
    found = read_head(str(path), Dialect(), 1 << 20).cells
    assert found.columns["b"].to_pylist() == [b"1", b"2"]
    counts = {"quote": 0, "encoding": 0}
    for reject in found.rejects:
        counts[reject.error] += reject.rows
    assert counts == {"quote": 20, "encoding": 20}
    assert len(found.rejects) == 2 * (LISTED + 1)


def test_manifest_counts_rejects_with_line_and_column(tmp_path) -> None:
    columns = (Column("n", "int64"), Column("x", "float32"))
    (tmp_path / "schema.pbtxt").write_text(format_schema(columns))
    rows = [(number, number / 2) for number in range(300)]
    bad = [("oops", 1)] * 40 + [(1, "1e99")] * 30 + [(10**30, 1)] * 20
    table = [*rows[:100], *bad, *rows[100:], (1,)]
    path = make_table(tmp_path / "t.csv", ["n", "x"], table)
    examples, manifest = published(
        input=path,
        output=tmp_path / "ds",
        schema=tmp_path / "schema.pbtxt",
        max_reject_fraction=0.5,
    )
    assert sorted(example["n"][0] for example in examples) == list(range(300))
    assert manifest.inputs.rejected_by_reason == {"cast": 40, "ragged": 1, "range": 50}
    rejects = rejects_of(tmp_path / "ds")
    assert [reject["key"] for reject in rejects[:LISTED]] == [f"t.csv:{n}" for n in range(102, 107)]
    assert [reject.get("inputs", 1) for reject in rejects] == [1] * LISTED + [35, 30, 20, 1]
    assert [reject["line"] for reject in rejects] == [*range(102, 108), 142, 172, 392]
    columns_of_rejects = [reject.get("column") for reject in rejects]
    assert columns_of_rejects == ["n"] * 6 + ["x", "n", None]
    assert rejects[LISTED]["message"].startswith("'oops' is not an int64: ")
    counted = "; 34 more rows up to line 141 are rejected for the same reason"
    assert rejects[LISTED]["message"].endswith(counted)
    assert findings_of(tmp_path / "ds") == []
    check_dataset(tmp_path / "ds", manifest)
