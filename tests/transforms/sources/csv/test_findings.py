"""What was inferred is said: nearly numeric columns, headers and delimiters, with evidence and flags."""

import io
import re
from pathlib import Path

import pandas as pd
import pytest

from shardmill.pipelines import RowsConfig
from shardmill.pipelines.rows import resolve
from shardmill.schemas import ShardmillError
from tests.conftest import SHARED

ROWS = 204
DELIMITERS = [",", ";", "\t", "|", "whitespace"]
# Cells of a column by number of the row; the words of the warning, and the flags that it names.
FORMS = {
    "plain": (str, "", {}),
    "oops": (
        lambda n: "oops" if n % 51 == 50 else str(n),
        (
            "'v' is text because 4 of 204 cells are not numbers, first 'oops' in t.csv, line {line}: "
            "--null_values=,oops makes 'oops' missing, and --types=v:float rejects rows"
        ),
        {"null_values": ",oops"},
    ),
    "decimal": (
        lambda n: f"{n},{n % 10}",
        (
            "'v' is text because 204 of 204 cells are not numbers, first '0,0' in t.csv, line {first}: "
            "--decimal=, reads them as numbers"
        ),
        {"decimal": ","},
    ),
    "thousands": (
        lambda n: f"{n * 1000:,}.50" if n else "7.50",
        "'v' is text because 203 of 204 cells are not numbers, first '1,000.50' in t.csv",
        {"thousands": ","},
    ),
    "european": (
        lambda n: f"{n + 1}.234,5",
        (
            "'v' is text because 204 of 204 cells are not numbers, first '1.234,5' in t.csv, line "
            "{first}: --decimal=, --thousands=. reads them as numbers"
        ),
        {"decimal": ",", "thousands": "."},
    ),
    "missing": (lambda n: "?" if n % 9 == 8 else str(n), "", {}),
}


def make(folder: Path, form: str, delimiter: str, header: bool) -> str:
    """Write a table with the columns k, v and w; return its text."""
    separator = "  " if delimiter == "whitespace" else delimiter
    cell = FORMS[form][0]
    rows = [["k", "v", "w"]] if header else []
    rows += [[f"k{n}", cell(n), str(n % 7)] for n in range(ROWS)]
    quoted = [[f'"{each}"' if separator in each else each for each in row] for row in rows]
    text = "".join(separator.join(row) + "\n" for row in quoted)
    (folder / "t.csv").write_text(text)
    return text


def find(folder: Path, **options):
    return resolve(RowsConfig(str(folder / "t.csv"), str(folder / "ds"), **options))


@pytest.mark.parametrize(
    ("form", "delimiter", "header"),
    [
        (form, delimiter, (number + shift) % 2 == 0)
        for number, form in enumerate(FORMS)
        for shift, delimiter in enumerate(DELIMITERS)
    ],
)
def test_each_table_says_what_to_change(form, delimiter, header, tmp_path) -> None:
    text = make(tmp_path, form, delimiter, header)
    _, words, flags = FORMS[form]
    options = {}
    if delimiter != "," and "," not in text:  # with other commas, rows may fit by chance
        with pytest.raises(ShardmillError) as caught:
            find(tmp_path)
        shown = repr(delimiter)
        assert f"but with --delimiter={shown} it has 3: set that" in str(caught.value)
    options["delimiter"] = delimiter
    if not header:
        # The first row is k0, 0, 0: a numeric name over numbers.
        warnings = " ".join(find(tmp_path, **options).sink.warnings)
        assert "columns have numbers as names, such as '0'" in warnings
        assert "over numbers such as '1': set --header=none" in warnings
        options["columns"] = "k,v,w"
    job = find(tmp_path, **options)
    warnings = [each for each in job.sink.warnings if "is text because" in each]
    first = 1 + header
    assert len(warnings) == bool(words)
    assert all(words.format(line=50 + first, first=first) in each for each in warnings)
    found = find(tmp_path, **options, **flags)
    assert not any("is text because" in each for each in found.sink.warnings)
    judge = pd.read_csv(
        io.StringIO(text),
        sep=r"\s+" if delimiter == "whitespace" else delimiter,
        header=0 if header else None,
        names=["k", "v", "w"],
        na_values=["oops", "?"],
        decimal=flags.get("decimal", "."),
        thousands=flags.get("thousands"),
    )
    kinds = {"f": "float32", "i": "int64", "O": "bytes"}
    column = {each.name: each for each in found.spec.table.columns}["v"]
    gaps = bool(judge["v"].isna().any())
    whole = (judge["v"].dropna() % 1 == 0).all()
    assert column.kind == ("int64" if whole and gaps else kinds[judge["v"].dtype.kind])
    assert column.required == (not gaps)
    low, high = judge["v"].min(), judge["v"].max()
    assert f"{low:,.9g} to {high:,.9g}, such as: " in found.columns["v"]


def test_the_table_of_a_dry_run_has_range_distinct_values_and_gaps(tmp_path, capsys) -> None:
    make(tmp_path, "missing", ",", header=True)
    job = find(tmp_path, dry_run=True)
    assert job.columns == {
        "k": "bytes, 204 distinct, not a number: 'k0'",
        "v": "int64, 0 to 203, such as: '0'; 22 missing",
        "w": "int64, 0 to 6, such as: '0'",
    }
    sampled = find(tmp_path, sample_bytes=1).columns["k"]
    assert re.fullmatch(r"bytes, \d+ distinct.*, not a number: 'k0'", sampled)


def test_texts_that_mean_missing_in_numbers_and_empty_columns(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("a,b,c\n?,,x\nred,,NA\nblue,,y\n")
    warnings = find(tmp_path).sink.warnings
    assert warnings == (
        "no cell of 'b' has a value: --drop (of a listing, --features) leaves such columns out",
        (
            "2 cells of 'a', 'c' are texts such as ? and NA, which are missing in columns of numbers "
            "only: --null_values=,?,NA makes them missing everywhere"
        ),
    )
    assert find(tmp_path, null_values=",?,NA", drop="b").sink.warnings == ()


@pytest.mark.parametrize("cells", [["01", "02,5"], ["1", "99999999999999999999"], ["x", "1,2 b"]])
def test_other_texts_are_not_nearly_numeric(cells, tmp_path) -> None:
    lines = "".join(f'"{each}",1\n' for each in cells)
    (tmp_path / "t.csv").write_text(f"a,b\n{lines}")
    assert find(tmp_path).sink.warnings == ()


@pytest.mark.parametrize(
    "text", ["full name\nAnn\nBob Lee\n", "a b c\n1 2\n3 4 5 6\n", "words\nx\n"]
)
def test_one_column_with_spaces_is_no_table_of_white_space(text, tmp_path) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert len(find(tmp_path).columns) == 1


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("low,2,small\nhigh,5more,big\nlow,2,small\n", "'low'"),  # as car.data
        ("p,p,p\ne,x,b\np,p,p\n", "'p'"),  # as agaricus-lepiota.data, with names made unique
        ("a,yes\nb,no\nc,yes\n", "'yes'"),
        ("2024-01-31,x\n2024-01-31,y\n", "'2024-01-31'"),
        ("sex,n\nm,1\nf,2\n", ""),
    ],
)
def test_names_that_are_cells_are_evidence_of_no_header(text, first, tmp_path) -> None:
    """Tables of texts without a header lost their first row in silence."""
    (tmp_path / "t.csv").write_text(text)
    said = [each for each in find(tmp_path).sink.warnings if "--header=none if the first" in each]
    assert len(said) == bool(first)
    assert first in "".join(said)


HEADERLESS = [
    "tables/adult_test_noheader.csv",
    "tables/iris_noheader.csv",
    "tables/horse_colic_noheader_qmarks.csv",
    "tables/winequality_red_noheader.csv",
    "rust_csv/smallpop-no-headers.csv",
    "messytables_horror/horror/null.csv",
    "pollock_survey/csv/0Al-Sn.CSV",
    "pollock_survey/csv/300mAThree.CSV",
]


@pytest.mark.parametrize("name", HEADERLESS)
def test_real_tables_without_a_header_say_so(name, shared_data, tmp_path) -> None:
    job = resolve(RowsConfig(str(SHARED / "csv" / name), str(tmp_path / "ds")))
    assert any("set --header=none if the first row is data" in each for each in job.sink.warnings)


@pytest.mark.parametrize("delimiter", [",", ";", "tab"])
@pytest.mark.parametrize("above", ["", "one,note,here\n", "one,note,here\ntwo,notes,here\n"])
@pytest.mark.parametrize("units", ["", "#,text,kg\n", "[-],[-],[kg]\n"])
def test_a_line_of_text_above_numbers_is_a_header_or_units(delimiter, above, units, tmp_path):
    """What the warning proposes gives the columns and types of the plain table."""
    rows = "".join(f"{n},n{n},{n / 2}\n" for n in range(120))
    text = f"{above}id,name,x\n{units}{rows}"
    character = "\t" if delimiter == "tab" else delimiter
    (tmp_path / "t.csv").write_text(text.replace(",", character))
    options = {"delimiter": delimiter}
    warnings = find(tmp_path, **options).sink.warnings
    lines = text[: text.index("0,n0")].count("\n")
    if lines == 2:
        proposed = [each for each in warnings if "is text because 1 of 121 cells" in each]
        assert len(proposed) == 2
        for warning in proposed:
            assert f"line 2: if the line is a header too, --skip_lines={lines - 1} makes" in warning
            assert f"--skip_lines={lines} --header=none --columns=... leaves it out" in warning
    options["skip_lines"] = lines if units else lines - 1
    options |= {"header": "none", "columns": "id,name,x"} if units else {}
    job = find(tmp_path, **options)
    assert not job.sink.warnings
    kinds = {column.name: column.kind for column in job.spec.table.columns}
    assert kinds == {"id": "int64", "name": "bytes", "x": "float32"}
