"""What was inferred is said: nearly numeric columns, headers and delimiters, with evidence and flags."""

import csv
import io
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from shardmill.pipelines import RowsConfig
from shardmill.pipelines.rows import resolve
from shardmill.schemas import ShardmillError
from shardmill.transforms.sources.csv.text_parser import NUMERIC_NULLS
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
            "only: '--null_values=,?,NA' makes them missing everywhere"
        ),
    )
    assert find(tmp_path, null_values=",?,NA", drop="b").sink.warnings == ()


@pytest.mark.parametrize("marker", sorted(NUMERIC_NULLS - {""}))
def test_the_hint_for_texts_that_mean_missing_has_them(marker, tmp_path) -> None:
    """A shell reads the flag, and followed it leaves no warning."""
    (tmp_path / "t.csv").write_text(f"a,b\n{marker},1\nred,2\nblue,3\n")
    (warning,) = find(tmp_path).sink.warnings
    (flag,) = (word for word in shlex.split(warning) if word.startswith("--null_values="))
    given = flag.partition("=")[2]
    assert given == f",{marker}"
    assert find(tmp_path, null_values=given).sink.warnings == ()


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


NO_OPTION = "its cells are numbers with a unit, a currency or separators, such as"
# Cells by number of the row, and the flag that reads them, if one does.
MARKED = {
    "dollars": (lambda n: f"${n * 40:,}", ""),
    "after": (lambda n: f"{n}.50 €", ""),
    "before": (lambda n: f"€\u00a0{n},50", ""),
    "code": (lambda n: f"USD {n * 40:,}.00", ""),
    "negative": (lambda n: f"(${n}.00)" if n % 3 else f"${n}.00", ""),
    "minus": (lambda n: f"\u2212{n}.5", ""),
    "trailing": (lambda n: f"{n}.50-", ""),
    "percent": (lambda n: f"{n}%", ""),
    "spaced percent": (lambda n: f"{n} %", ""),
    "unit": (lambda n: f"{n / 4} kg", ""),
    "any unit": (lambda n: f"{n}foo", ""),
    "several units": (lambda n: f"{n}{'kM'[n % 2]}", ""),
    "years": (lambda n: f"{n} {'year' if n == 1 else 'years'}", ""),
    "more than": (lambda n: f"{n * 1000:,}+", ""),
    "below": (lambda n: f"<{n}.1" if n % 4 == 0 else f"{n}.1", ""),
    "accounts": (lambda n: f" $ {n * 400:,}.00 " if n % 5 else " $ -   ", ""),
    "lakhs": (lambda n: f"1,{n % 90 + 10},000.00", ""),
    "spaces": (lambda n: f"{n % 9 + 1} {n + 100}", "--thousands=' '"),
    "french": (lambda n: f"{n % 9 + 1} {n + 100},5", "--decimal=, --thousands=' '"),
    "no-break": (lambda n: f"{n % 9 + 1}\u00a0{n + 100}", r"--thousands=$'\u00a0'"),
    "narrow": (
        lambda n: f"{n % 9 + 1}\u202f{n + 100},5",
        r"--decimal=, --thousands=$'\u202f'",
    ),
    "swiss": (lambda n: f"{n % 9 + 1}'{n + 100}.05", '--thousands="\'"'),
    "german": (lambda n: f"{n % 9 + 1}.{n + 100}.000", "--decimal=, --thousands=."),
}
NOT_MARKED = {
    "ids": lambda n: f"k{n}",
    "seats": lambda n: f"{n // 6 + 1}{'ABCDEF'[n % 6]}",
    "dates": lambda n: f"{n % 28 + 1}.05.2024",
    "iso": lambda n: f"2024-01-{n % 28 + 1:02}",
    "times": lambda n: f"{n % 24}:30",
    "addresses": lambda n: f"10.0.{n}.7",
    "versions": lambda n: f"1.{n}.3",
    "telephones": lambda n: f"{n + 600} {n + 123} 456",
    "postal": lambda n: f"{n + 110} 00",
    "ranges": lambda n: f"{n}-{n + 9}",
    "files": lambda n: f"{n}.jpg",
    "hashes": lambda n: f"{n * 7919:06x}"[-6:] + "fz"[n % 2],
    "words": lambda n: f"word {n}",
    "ordinals": lambda n: f"{n} {('Main', 'Oak', 'Elm')[n % 3]}",
    "prices in texts": lambda n: f"costs ${n}",
}


def write_forms(folder: Path, encoding: str) -> dict[str, list[str]]:
    """Write a table with a column of each form that the encoding has; return the cells."""
    forms = {name: cell for name, (cell, _) in MARKED.items()} | NOT_MARKED
    columns = {name: [cell(n) for n in range(1, 101)] for name, cell in forms.items()}
    if encoding == "cp1252":
        columns = {name: cells for name, cells in columns.items() if can_encode(cells)}
    rows = [[*columns], *zip(*columns.values(), strict=True)]
    text = "".join(";".join(row) + "\n" for row in rows)
    (folder / "t.csv").write_bytes(text.encode(encoding))
    return columns


def can_encode(cells: list[str]) -> bool:
    """Return whether the code page of Windows has all characters."""
    return all(cell.encode("cp1252", "ignore").decode("cp1252") == cell for cell in cells)


def read_flag(flag: str) -> dict[str, str]:
    """Return the options of flags, as a shell reads their texts."""
    for quoted, mark in (
        ("' '", " "),
        ('"\'"', "'"),
        (r"$'\u00a0'", "\u00a0"),
        (r"$'\u202f'", "\u202f"),
    ):
        flag = flag.replace(quoted, mark)
    return dict(pair.split("=", 1) for pair in flag.removeprefix("--").split(" --"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_columns_of_numbers_with_marks_are_named_with_their_fix(encoding, tmp_path) -> None:
    columns = write_forms(tmp_path, encoding)
    options = {"delimiter": ";", "encoding": encoding.removesuffix("-sig")}
    warnings = find(tmp_path, **options).sink.warnings
    marked = [name for name in columns if name in MARKED]
    assert len(marked) >= 18
    assert [re.match("the column '(.*?)' is text", text)[1] for text in warnings] == marked
    for name, warning in zip(marked, warnings, strict=True):
        flag = MARKED[name][1]
        first = next(n for n, cell in enumerate(columns[name]) if re.search(r"[^\d.]|\..*\.", cell))
        assert f"line {first + 2}: " in warning
        assert ascii(columns[name][first])[1:-1] in ascii(warning).replace("\\\\", "\\").replace(
            "\\'", "'"
        )
        assert warning.endswith(f": {flag} reads them as numbers") == bool(flag)
        assert (NO_OPTION in warning) == (not flag)
    without_fix = ",".join(f"{name}:bytes" for name in marked if not MARKED[name][1])
    for flag in {flag for name, (_, flag) in MARKED.items() if flag and name in columns}:
        given = read_flag(flag)
        repaired = find(tmp_path, **options, types=without_fix, **given)
        for name in (name for name in marked if MARKED[name][1] == flag):
            cells = [cell.replace(given["thousands"], "") for cell in columns[name]]
            numbers = [float(cell.replace(given.get("decimal", "."), ".")) for cell in cells]
            assert f"{min(numbers):,.9g} to {max(numbers):,.9g}" in repaired.columns[name]
        assert not any(NO_OPTION in warning for warning in repaired.sink.warnings)


@pytest.mark.parametrize("header", ["id,unit price", "id,a'b"])
def test_a_fix_quotes_names_for_shells(header, tmp_path) -> None:
    (tmp_path / "t.csv").write_text(header + "\n1,5%\n2,6%\n")
    [warning] = find(tmp_path).sink.warnings
    [words] = re.findall("or set (.*) to keep texts", warning)
    [flag] = shlex.split(words)
    name, value = flag.removeprefix("--").split("=", 1)
    assert not find(tmp_path, **{name: value}).sink.warnings


FORMULAS = {
    "sums": (sum, True),
    "rounded": (lambda values: round(sum(values), 4), True),
    "means": (lambda values: sum(values) / len(values), False),
    "counts": (len, False),
    "largest": (max, False),
    "other": (lambda values: sum(values) + 1, False),
}


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize(("name", "decimal"), [("", "."), ("", ","), ("SUMME ", "."), ("n5", ".")])
def test_a_last_row_of_totals_is_named(formula, name, decimal, tmp_path) -> None:
    """Where only that row has no name, or is called a total; a judge computes the sums."""
    calculate, are_sums = FORMULAS[formula]
    for rows, gaps in ((3, 0), (40, 7)):
        table = [[f"n{n}", n * 3 % 17 - 4, (n * 7 % 23) / 8, ""] for n in range(1, rows + 1)]
        for row in table[:gaps]:
            row[1] = ""
        numbers = [[row[place] for row in table if row[place] != ""] for place in (1, 2)]
        table.append([name, *map(calculate, numbers), ""])
        lines = [";".join(str(cell).replace(".", decimal) for cell in row) for row in table]
        (tmp_path / "t.csv").write_text("\n".join(["name;a;b;note", *lines, "", ""]))
        options = {"delimiter": ";", "decimal": decimal}
        warnings = [text for text in find(tmp_path, **options).sink.warnings if "sums" in text]
        is_totals = are_sums and name != "n5"
        assert len(warnings) == is_totals, (rows, gaps)
        if warnings:
            assert f"the last row, t.csv, line {rows + 2}, has the sums" in warnings[0]
        (tmp_path / "t.csv").write_text("\n".join(["name;a;b;note", *lines[:-1]]))
        assert not any("sums" in text for text in find(tmp_path, **options).sink.warnings)


@pytest.mark.parametrize(
    "marker", ["\\N", ".", "-", "--", ".a", "..", ":", "nil", "#DIV/0!", "missing", "x y"]
)
@pytest.mark.parametrize("every", [2, 3, 7])
def test_one_text_among_numbers_is_named_with_its_flag(marker, every, tmp_path) -> None:
    """As MySQL, SAS, Stata and spreadsheets write missing numbers; pandas judges the rest."""
    cells = [marker if n % every == 0 else str(n / 4) for n in range(1, 101)]
    (tmp_path / "t.csv").write_text(
        "k,v\n" + "".join(f"k{n},{cell}\n" for n, cell in enumerate(cells))
    )
    [warning] = find(tmp_path).sink.warnings
    assert f"'v' is text because {100 // every} of 100 cells are not numbers" in warning
    assert f"--null_values=,{marker} makes " in warning
    job = find(tmp_path, null_values=f",{marker}")
    assert not job.sink.warnings
    judge = pd.read_csv(tmp_path / "t.csv", na_values=[marker])["v"]
    assert f"{judge.min():,.9g} to {judge.max():,.9g}, such as: " in job.columns["v"]


@pytest.mark.parametrize("texts", [("adult", "child"), ("x",)])
def test_several_texts_or_a_single_one_among_numbers_are_not_markers(texts, tmp_path) -> None:
    cells = [texts[n % 2] if n % 3 == 0 and len(texts) == 2 else str(n) for n in range(100)]
    cells = cells if len(texts) == 2 else ["1", "2", "x"]
    (tmp_path / "t.csv").write_text(
        "k,v\n" + "".join(f"k{n},{cell}\n" for n, cell in enumerate(cells))
    )
    assert not find(tmp_path).sink.warnings


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_quoted_names_with_another_delimiter_say_which(delimiter, tmp_path) -> None:
    """As write.csv2 of R writes them."""
    frame = pd.DataFrame({"id": range(9), "name": [f"n{n}" for n in range(9)], "x": [0.5] * 9})
    frame.to_csv(tmp_path / "t.csv", sep=delimiter, decimal=",", quoting=csv.QUOTE_NONNUMERIC)
    with pytest.raises(ShardmillError) as caught:
        find(tmp_path)
    assert f"but with --delimiter={delimiter!r} it has 4 columns: set that" in str(caught.value)
    kinds = [
        each.kind for each in find(tmp_path, delimiter=delimiter, decimal=",").spec.table.columns
    ]
    assert kinds == ["int64", "int64", "bytes", "float32"]


def test_names_in_single_quotes_name_the_flag(tmp_path) -> None:
    frame = pd.DataFrame({"id": range(9), "x": [0.5] * 9})
    frame.to_csv(tmp_path / "t.csv", index=False, quoting=csv.QUOTE_ALL, quotechar="'")
    with pytest.raises(ShardmillError, match="its names are in single quotes"):
        find(tmp_path)
    assert [each.kind for each in find(tmp_path, quote="'").spec.table.columns] == [
        "int64",
        "float32",
    ]
