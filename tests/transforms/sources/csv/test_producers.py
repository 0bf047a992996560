"""Tables of other programs are read right, or not in silence: Excel, pandas, R, reports, csvkit.

Each table is written with the habit of a producer and without it. Python's csv module reads the plain
one, and is the judge of what the flags that a message names give.
"""

import csv
import io
import itertools
import random
import re
import shlex
from pathlib import Path

import pandas as pd
import pytest

from shardmill.pipelines import RowsConfig
from shardmill.pipelines.rows import resolve
from shardmill.schemas import RejectedError
from shardmill.transforms.sources.csv.dialect import Dialect
from shardmill.transforms.sources.csv.head import read_head
from tests.conftest import examples
from tests.support.csv_tools import read_csv

BREAKS = ("\n", "\r\n", "\r")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16")
NOTES = (
    "Report of 2024",
    "Sales, all regions",
    "made by X;2024",
    "# a comment",
    "",
    "Größe,,",
    "a|b",
    "x",
)


def rows_of(rng: random.Random) -> list[list[str]]:
    """Draw a table with a header; texts may hold delimiters."""
    words = ["a", "b c", "café", "x;y", "x, y", "1|2", "no"]
    names = rng.sample(["id", "name", "Größe", "size in cm", "tag"], rng.randint(3, 5))
    rows = [
        [str(number), *(rng.choice(words) for _ in names[1:])]
        for number in range(rng.randint(3, 9))
    ]
    return [names, *rows]


def write(rows: list[list[str]], delimiter: str, quoting: int = csv.QUOTE_MINIMAL) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows(rows)
    return text.getvalue()


def habit_excel(text: str, delimiter: str, rng: random.Random) -> str:
    return rng.choice([f"sep={delimiter}\n", f'"sep={delimiter}"\n', f"SEP={delimiter}\n"]) + text


def habit_notes(text: str, delimiter: str, rng: random.Random) -> str:
    columns = len(next(csv.reader(io.StringIO(text), delimiter=delimiter)))
    notes = [note for note in NOTES if note.count(delimiter) < columns - 1]
    return "".join(f"{note}\n" for note in rng.sample(notes, rng.randint(1, 3))) + text


def habit_comments(text: str, delimiter: str, rng: random.Random) -> str:
    """Lines of comments, of which any may hold the delimiter."""
    lines = [rng.choice(["# by x", f"# units: m{delimiter}s"]) for _ in range(rng.randint(2, 4))]
    return "\n".join([*lines, text])


def habit_padded(text: str, delimiter: str, rng: random.Random) -> str:
    columns = len(next(csv.reader(io.StringIO(text), delimiter=delimiter)))
    return "Report" + delimiter * (columns - 1) + "\n" + text


def habit_spaces(text: str, delimiter: str, rng: random.Random) -> str:
    del rng
    rows = csv.reader(io.StringIO(text), delimiter=delimiter)
    quoted = ([f'"{cell}"' for cell in row] for row in rows)
    return "".join(f"{delimiter} ".join(row) + "\n" for row in quoted)


def habit_plain_header(text: str, delimiter: str, rng: random.Random) -> str:
    """A header without the quotes and spaces of the rows."""
    header, _, rows = habit_spaces(text, delimiter, rng).partition("\n")
    names = next(csv.reader([header], delimiter=delimiter, skipinitialspace=True))
    return f"{delimiter.join(names)}\n{rows}"


HABITS = {
    "excel": habit_excel,
    "notes": habit_notes,
    "comments": habit_comments,
    "padded": habit_padded,
    "spaces": habit_spaces,
    "plain header": habit_plain_header,
}
_FLAG = re.compile(r"--(delimiter|skip_lines|columns)=('.*?'|\w+(?:,\w+)*)")


def options_of(message: str) -> dict:
    """Return the flags that a message says to set."""
    *_, remedy = re.split("set |but with ", message.replace("set that", ""))
    found = dict(_FLAG.findall(remedy))
    options = {name: shlex.split(value)[0] for name, value in found.items()}
    columns = tuple(options["columns"].split(",")) if "columns" in options else ()
    return {**options, "columns": columns, "skip_lines": int(options.get("skip_lines", 0))}


@pytest.mark.sweep
@pytest.mark.parametrize("habit", HABITS)
def test_habits_of_producers_are_proposed(tmp_path: Path, habit: str) -> None:
    """Each table with the habit is read right by the given flags, or names flags that do."""
    rng, path, proposed, cases = random.Random(habit), tmp_path / "t.csv", 0, 0
    for _ in range(examples(9)):
        rows = rows_of(rng)
        for delimiter, line_break, encoding in itertools.product(",;\t", BREAKS, ENCODINGS):
            text = HABITS[habit](write(rows, delimiter), delimiter, rng)
            path.write_bytes(text.replace("\n", line_break).encode(encoding))
            cases += 1
            dialect = Dialect(delimiter=delimiter)
            message = ""
            try:
                read_head(str(path), dialect, 1 << 16)
            except RejectedError as error:
                message = error.message
            options = {"delimiter": delimiter, **options_of(message)} if message else {}
            reading = read_csv(path, Dialect(**options) if options else dialect)
            proposed += bool(message)
            assert [list(reading.columns), *reading.rows] == rows, (text, reading)
    assert proposed >= 0.9 * cases > 0


# Texts of which a message may not propose flags that read them wrong, such as after counting cells.
SPACED = [
    'id,a,t\n1,"x, y", "hi"\n2,"z, w", "yo"\n',
    'id,a,t\n1,"x, y", "hi"\n2,"z", "yo"\n',
    '"id", "name"\n "1", "a"\n "2", "b"\n',
    'a,b,c\n1, "x", 5\n2,  "y",  6\n',
    'a, b\n1,  "x"\n2,  "y"\n',
    'a,b\n1,"x"\n2,  "y"\n3, "z"\n4, "u"\n',
    'name,desc,n\na,,1\nb, "y",2\nc, "q",3\nd, "z",4\n',
    'id,v,v\n1, "x", "p"\n2, "z", "q"\n',
    ',a,b\n0, "x", "p"\n1, "z", "q"\n',
    '"id","a, b","v"\n1, "x, y", "p"\n2, "z", "q"\n',
    'id, "name"\n1, "Smith"\n2, "Lee"\n',
    'id,name\n1, "Smith"\n2, "Lee"\n',
    'report of 2024\nid, "name"\n1, "x, y"\n2, "z"\n',
    'a,b,c\n1, "a",2\n',
    '"a","b", "c"\n"1",5,  "a b"\n',
    '"a","b", "c"\n' + '"1", "a", "c"\n' * 200,
]


def message_of(path: Path, dialect: Dialect) -> str:
    try:
        read_head(str(path), dialect, 1 << 16)
    except RejectedError as error:
        return error.message
    return ""


def judge(text: str, delimiter: str) -> list[list[str]]:
    return [*csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)]


@pytest.mark.sweep
@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("given", ["it", "default"])
@pytest.mark.parametrize("delimiter", ",;\t|")
@pytest.mark.parametrize("text", SPACED)
def test_advice_for_spaces_before_quotes_is_right(tmp_path, text, delimiter, given, strip) -> None:
    """Flags that are proposed read the file as Python does; else it is rejected without flags."""
    if text.startswith("report"):  # nothing finds another delimiter below notes and in quotes
        given = "it"
    path = tmp_path / "t.csv"
    text = text.replace(",", delimiter)
    path.write_text(text)
    first = Dialect(delimiter=delimiter if given == "it" else ",", strip=strip)
    message, options = message_of(path, first), {}
    assert message
    for _ in range(3):  # what follows from one advice may need another
        found = options_of(message)
        if not found.keys() & {"delimiter"} and not found["skip_lines"]:
            break
        options |= found
        message = message_of(path, Dialect(strip=strip, **options))
    if message:
        assert "write the file without these spaces" in message or "closing quote" in message
        assert not message_of(path, Dialect(delimiter=delimiter, quote=""))
    else:
        reading = read_csv(path, Dialect(strip=strip, **options))
        names, *rows = judge(text, delimiter)[options["skip_lines"] - bool(options["columns"]) :]
        assert reading.rows == rows
        assert [*reading.columns] == names or len({*names, ""}) <= len(names)


INCHES = {
    'id;size\n1;5"\n2;7"\n': {"delimiter": ";"},
    '"id";"size"\n1;5"\n2;7"\n': {"delimiter": ";"},
    'Report of 2024\nid,size\n1,5"\n2,7"\n': {"skip_lines": 1},
}


@pytest.mark.parametrize("text", INCHES)
def test_a_cell_may_end_in_a_quote(tmp_path, text) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    found = options_of(message_of(path, Dialect()))
    assert found == {"columns": (), "skip_lines": 0} | INCHES[text]
    assert read_csv(path, Dialect(**found)).rows == [["1", '5"'], ["2", '7"']]


TITLES = {
    "two": "Sales report,,\nACME Ltd,,\n",
    "blank": "Sales report,,\n,,\n",
    "three": "Sales report,,\nACME Ltd,,\n,,\n",
    "lone": ",,\n",
    "date": "Report,2024-01-01,\n,,\n",
}


@pytest.mark.parametrize("delimiter", ",;\t")
@pytest.mark.parametrize("title", TITLES)
def test_rows_above_a_header_that_are_filled_up_are_named(tmp_path, title, delimiter) -> None:
    table = "id,name,amount\n1,x,2\n2,y,3\n3,z,4\n"
    path = tmp_path / "t.csv"
    path.write_text((TITLES[title] + table).replace(",", delimiter))
    with pytest.raises(RejectedError) as error:
        read_head(str(path), Dialect(delimiter=delimiter), 1 << 16)
    options = {"delimiter": delimiter, **options_of(error.value.message)}
    assert options["skip_lines"] == TITLES[title].count("\n")
    reading = read_csv(path, Dialect(**options))
    assert [list(reading.columns), *reading.rows] == [*csv.reader(io.StringIO(table))]


VALID = [
    "name,comment,\nann,good,\nbob,bad,x\ncid,ok,y\n",
    "id,name,\na,x,u\nb,y,v\n",
    "id,\na,x\nb,y\n",
    'id,t\n1,"""x"""\n2," ""y"""\n',
    "name,city\n,\nx,y\n",
    'a,b\n1,"x, ""y"""\n',
    "tags\na;b\nc;d\n",
    "a\n1;2\n3;4\n",
    "id,note\n1,x\n2,y\n",
    ",a\nx,foo\ny,bar\n",
    ",,a\nx,u,foo\ny,v,bar\n",
    'id,t\n1," ""x"""\n2," ""y"""\n',
    'id,t\n1,"a, ""b"""\n',
    "sepal,x\n1,2\n",
    "sep=,x\n1,2\n",
    "a,b,c\nm,kg,s\n1,2,3\n",
    "x,,\n1,2,3\n",
    "a,b\n1,2\n1,2,3\n4,5\n",
    'id,he said\n1,he "quoted"\n',
]


@pytest.mark.parametrize("text", VALID)
def test_tables_that_look_alike_are_read_as_before(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    names, *rows = csv.reader(io.StringIO(text))
    head = read_head(str(path), Dialect(), 1 << 16)
    assert list(head.header) == names
    assert len(head.cells.offsets) == sum(len(row) == len(names) for row in rows)


def warnings_of(path: Path, **options) -> str:
    job = resolve(RowsConfig(input=(str(path),), output=str(path.parent / "ds"), **options))
    return "\n".join(job.sink.warnings)


@pytest.mark.parametrize("kind", ["pandas", "shuffled", "read again", "R", "parquet"])
def test_an_index_is_named(tmp_path: Path, kind: str) -> None:
    """An index becomes a feature that knows the order of rows: a warning has the flags."""
    frame = pd.DataFrame({"a": [0.5, 1.5, 2.5], "b": ["x", "y", "x"]})
    path, name = tmp_path / "t.csv", "column_1"
    if kind == "shuffled":
        frame = frame.sample(frac=1, random_state=1)[:2]
    if kind == "R":
        path.write_text('"","a","b"\n"1",0.5,"x"\n"2",1.5,"y"\n')
    elif kind == "parquet":
        path, name = tmp_path / "t.parquet", "__index_level_0__"
        frame.set_index(pd.Index([7, 5, 6])).to_parquet(path)
    else:
        frame.to_csv(path)
    if kind == "read again":
        pd.read_csv(path).to_csv(path, index=False)
        name = "Unnamed: 0"
    assert f"the column {name!r} has no name in the file" in warnings_of(path)
    for options in ({"drop": (name,)}, {"rename": (f"{name}:n",)}, {"label": name}, {"key": name}):
        if kind != "read again" or "rename" not in options:
            assert "has no name" not in warnings_of(path, **options)
    frame.to_csv(path.with_suffix(".csv"), index=False)
    assert "has no name" not in warnings_of(path.with_suffix(".csv"))
