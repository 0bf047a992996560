"""Real CSV files from other projects: cells equal those of an independent reader."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shardmill.schemas import RejectedError
from shardmill.transforms.sources.csv.dialect import Dialect
from tests.conftest import SHARED
from tests.support.csv_tools import python_rows, read_csv

TABLES = SHARED / "csv"
NOT_CSV = {".names", ".tsv", ".json"}
JUDGES = {"clean", "json", "parameters"}  # folders


@dataclass(frozen=True)
class Case:
    """Expected result of a file; the default is what Python's csv module reads."""

    dialect: dict = field(default_factory=dict)
    rejected: str = ""  # the reason, and words of the message
    rejects: dict = field(default_factory=dict)
    extra: int = 0  # rows that the clean version lacks: second headers, rows of empty cells
    lost: int = 0  # rows of the clean version that the file does not contain in this form


ENCODING, QUOTE, RAGGED = "encoding", "quote", "ragged"
ONE_QUOTE = Case(rejects={QUOTE: 1}, lost=1)
ONE_RAGGED = Case(rejects={RAGGED: 1}, lost=1)
NONE = {"header": "none"}
CASES = {
    "arrow_csv_fuzz/fuzzing/clusterfuzz-testcase-minimized-arrow-csv-fuzz-5003506164760576": Case(
        rejects={ENCODING: 1}
    ),
    "arrow_csv_fuzz/fuzzing/clusterfuzz-testcase-minimized-arrow-csv-fuzz-5600990083743744": Case(
        rejected="encoding its first row has the byte 0xff"
    ),
    "messytables_horror/horror/characters.csv": Case({"encoding": "big5"}),
    "messytables_horror/horror/complex.csv": Case(rejects={RAGGED: 1}),
    "messytables_horror/horror/null.csv": Case(NONE),
    "messytables_horror/horror/simple.psv": Case({"delimiter": "|"}),
    "messytables_horror/horror/simple.ssv": Case({"delimiter": ";"}),
    "messytables_horror/horror/skip_initials.csv": Case({"skip_lines": 1}),
    "messytables_horror/horror/spanish_chars.csv": Case({"encoding": "latin-1"}),
    "messytables_horror/horror/sparse_with_column_errors.csv": Case({"encoding": "cp1252"}),
    "miller/test/input/het.csv": Case(rejects={RAGGED: 4}),
    "miller/test/input/pr-1787.csv": Case(rejects={RAGGED: 1}),
    "miller/test/input/ragged-long.csv": Case(rejects={RAGGED: 1}),
    "pollock_polluted/csv/file_multitable_less.csv": Case(rejects={RAGGED: 82, QUOTE: 1}),
    **{
        f"pollock_polluted/csv/row_extra_quote{name}.csv": ONE_QUOTE
        for name in ("17_col1", "35_col6", "36_col1")
    },
    # Well-formed with nine cells: a comma inside quotes became a delimiter.
    "pollock_polluted/csv/row_less_sep_row38_col5.csv": Case(extra=1, lost=1),
    **{
        f"pollock_polluted/csv/row_{name}.csv": ONE_RAGGED
        for name in (
            "less_sep_row30_col7",
            "less_sep_row45_col3",
            "less_sep_row51_col3",
            "less_sep_row54_col4",
            "less_sep_row59_col5",
            "less_sep_row63_col5",
            "less_sep_row64_col6",
            "more_sep_row29_col2",
            "more_sep_row43_col5",
            "more_sep_row68_col7",
            "more_sep_row78_col3",
        )
    },
    # In three rows the file has U+009C where the clean version has œ.
    "pollock_survey/csv/Copy_of_2016-17_Q3_Final_V2.csv": Case(extra=3, lost=3),
    "pollock_survey/csv/Feb-2016.csv": Case(extra=2),
    "pollock_survey/csv/Note_4_Staff_costs_-_Average_number_of_persons_employed_13-14.csv": Case(
        extra=5
    ),
    **{
        f"pollock_survey/csv/Results{name}.csv": Case(
            rejects={RAGGED: ragged}, lost=ragged
        )  # row names
        for name, ragged in (
            ("OR30x100-0.50_1.dat__m21", 23),
            ("OR30x100-0.50_3.dat", 32),
            ("OR30x100-0.50_5.dat__m23", 25),
            ("OR30x100-0.75_10.dat__m13", 15),
            ("OR30x250-0.50_4.dat", 32),
            ("OR30x500-0.75_3.dat", 32),
        )
    },
    **{
        f"pollock_survey/csv/Results{name}.datInfos.csv": ONE_RAGGED  # a line behind the table
        for name in ("OR30x250-0.75_4", "OR30x250-0.75_9", "gk06")
    },
    "pollock_survey/csv/Sun2014-Rs.csv": Case(extra=1),
    "pollock_survey/csv/Sustainability_-_Water_consumption_P_56.csv": Case(
        rejected="header its first row is 'Water consumption', '', '', but with --skip_lines=1 the"
    ),
    "pollock_survey/csv/Takakai2008-ch4.csv": Case(extra=1),
    "pollock_survey/csv/business_expenses_apr_jun_14_peter_lewis.csv": Case(extra=2),
    "rust_csv/smallpop-colon.csv": Case({"delimiter": ":"}),
    "rust_csv/smallpop-no-headers.csv": Case(NONE),
    # Quotes are escaped with backslashes, which is not CSV.
    "rust_csv/strange.csv": Case(
        {"delimiter": ";"}, rejected="header line 1: a cell has text between its closing quote"
    ),
    **{
        f"tables/{name}.csv": Case(NONE)
        for name in (
            "adult_test_noheader",
            "horse_colic_noheader_qmarks",
            "iris_noheader",
            "winequality_red_noheader",
        )
    },
    "tabulator/special/skip-blank-at-the-end.csv": Case(rejects={RAGGED: 1}),
    "tabulator/special/skip-rows-before-headers.csv": Case({"skip_lines": 1}),
}


def files() -> list[str]:
    return sorted(
        str(path.relative_to(TABLES))
        for path in TABLES.glob("*/**/*")
        if path.is_file() and path.suffix not in NOT_CSV and not JUDGES & set(path.parts)
    )


def dialect_of(name: str) -> Dialect:
    """Return the dialect given by the file's parameters or by the case."""
    path = TABLES / name
    parameters = path.parent.parent / "parameters" / f"{path.name}_parameters.json"
    case = CASES.get(name, Case())
    if not parameters.exists():
        return Dialect(**case.dialect)
    values = json.loads(parameters.read_text())
    if not values["delimiter"]:
        return Dialect()
    return Dialect(
        delimiter=values["delimiter"],
        quote=values["quotechar"],
        header="first" if int(values["header_lines"]) else "none",
        skip_lines=int(values["preamble_lines"]),
    )


def expected_rows(name: str, dialect: Dialect) -> list[list[str]]:
    """Return the rows from the file's JSON, its clean version or Python's csv module."""
    path = TABLES / name
    expected = path.parent.parent / "json" / path.with_suffix(".json").name
    if expected.exists():
        return [list(map(str, row.values())) for row in json.loads(expected.read_text("utf-8"))]
    clean = path.parent.parent / "clean" / path.name
    if clean.exists():
        return python_rows(clean.read_bytes().decode())[1:]
    text = path.read_bytes().decode(dialect.encoding, "replace").removeprefix("\ufeff")
    lines = re.split("(?<=\n)", text)[dialect.skip_lines :]
    rows = python_rows("".join(lines), delimiter=dialect.delimiter_text)
    first = 1 if dialect.header_mode == "first" else 0
    return [
        row for row in rows[first:] if len(row) == len(rows[0]) and "\ufffd" not in "".join(row)
    ]


def test_cases_name_existing_files(shared_data: Path) -> None:
    assert CASES.keys() <= set(files())
    assert len(files()) > 120


@pytest.mark.sweep
@pytest.mark.parametrize("name", files())
def test_cells_equal_the_expected_rows(name: str) -> None:
    case, dialect = CASES.get(name, Case()), dialect_of(name)
    path = TABLES / name
    if case.rejected:
        reason, _, words = case.rejected.partition(" ")
        with pytest.raises(RejectedError) as caught:
            read_csv(path, dialect)
        assert caught.value.error == reason
        assert words in caught.value.message
        return
    reading = read_csv(path, dialect)
    assert reading.reasons() == case.rejects
    expected, rows = expected_rows(name, dialect), reading.rows
    if not case.extra and not case.lost:
        assert rows == expected
    else:
        ours, theirs = Counter(map(tuple, rows)), Counter(map(tuple, expected))
        assert (ours - theirs).total() == case.extra
        assert (theirs - ours).total() == case.lost
        kept = theirs & ours
        assert [row for row in rows if tuple(row) in kept] == [
            row for row in expected if tuple(row) in kept
        ]
        assert kept.total() or len(expected) == case.lost
    assert rows or not expected or case.lost
