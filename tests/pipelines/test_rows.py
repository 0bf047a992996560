"""The rows pipeline end to end: the shards contain every cell of a table."""

from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.support.csv_tools import python_rows
from tests.support.rows_tools import (
    Read,
    build_rows,
    check_dataset,
    counted,
    expected,
    make_table,
    number,
    published,
    run_here,
    text,
)


def yes(cell: str) -> int:
    """Return 1 for yes and 0 for no."""
    return {"yes": 1, "no": 0}[cell.lower()]


def whole(cell: str) -> int:
    """Return an integer that is written like 17031081500.0."""
    digits, _, zeros = cell.partition(".")
    assert not zeros.strip("0")
    return int(digits)


def columns(spec: str) -> dict[str, Read]:
    """Return converters by column: ``i age t name`` are an integer and a text."""
    kinds: dict[str, Read] = {"i": int, "f": number, "t": text, "b": yes, "w": whole}
    words = spec.split()
    return {name: kinds[kind] for kind, name in zip(words[::2], words[1::2], strict=True)}


@dataclass(frozen=True)
class Table:
    """A real table with its columns and label counts, determined by hand."""

    file: str
    rows: int
    reads: dict[str, Read]
    label: str = ""
    label_counts: dict[str, int] = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    judge: dict = field(default_factory=dict)  # options of Python's csv module


ADULT = columns(
    "i age t workclass i fnlwgt t education i education_num t marital_status t occupation "
    "t relationship t race t sex i capital_gain i capital_loss i hours t country t income"
)
IRIS = columns("f sepal_length f sepal_width f petal_length f petal_width t species")
TABLES = [
    Table(
        "titanic_train.csv",
        891,
        columns(
            "i PassengerId i Survived i Pclass t Name t Sex f Age i SibSp i Parch t Ticket "
            "f Fare t Cabin t Embarked"
        ),
        "Survived",
        {"0": 549, "1": 342},
    ),
    Table(
        "adult_test_noheader.csv",
        16_281,
        ADULT,
        "income",
        {"<=50K.": 12_435, ">50K.": 3_846},
        {"columns": ",".join(ADULT), "delimiter": ", "},
        {"skipinitialspace": True},
    ),
    Table(
        "chicago_taxi_5000.csv",
        5_000,
        columns(
            "i pickup_community_area f fare i trip_start_month i trip_start_hour "
            "i trip_start_day i trip_start_timestamp f pickup_latitude f pickup_longitude "
            "f dropoff_latitude f dropoff_longitude f trip_miles i pickup_census_tract "
            "w dropoff_census_tract t payment_type t company w trip_seconds "
            "w dropoff_community_area f tips"
        ),
    ),
    Table(
        "penguins_missing.csv",
        344,
        columns(
            "t species t island f bill_length_mm f bill_depth_mm i flipper_length_mm "
            "i body_mass_g t sex"
        ),
        "species",
        {"Adelie": 152, "Chinstrap": 68, "Gentoo": 124},
    ),
    Table(
        "tips.csv",
        244,
        columns("f total_bill f tip t sex b smoker t day t time i size"),
        "day",
        {"Fri": 19, "Sat": 87, "Sun": 76, "Thur": 62},
    ),
    Table(
        "iris_noheader.csv",
        150,
        IRIS,
        "species",
        {"Iris-setosa": 50, "Iris-versicolor": 50, "Iris-virginica": 50},
        {"columns": ",".join(IRIS)},
    ),
    Table(
        "winequality_red_noheader.csv",
        1_599,
        columns(" ".join(f"f column_{n}" for n in range(1, 12)) + " i column_12"),
        "column_12",
        {"3": 10, "4": 53, "5": 681, "6": 638, "7": 199, "8": 18},
        {"header": "none"},
    ),
    Table(
        "horse_colic_noheader_qmarks.csv",
        300,
        columns(
            " ".join(
                f"{kind} column_{n}"
                for n, kind in enumerate("iiifiiiiiiiiiiifiiffifiitttti"[:24], 1)
            )
            + " t column_25 t column_26 t column_27 i column_28"
        ),
        options={"header": "none"},
    ),
    Table("monthly_sunspots_crlf.csv", 2_820, columns("t Month f Sunspots")),
    Table(
        "raccoon_train_labels.csv",
        173,
        columns("t filename i width i height t class i xmin i ymin i xmax i ymax"),
        "class",
        {"raccoon": 173},
    ),
    Table(
        "tfx_penguins_processed.csv",
        334,
        columns("i species f culmen_length_mm f culmen_depth_mm f flipper_length_mm f body_mass_g"),
        "species",
        {"0": 146, "1": 68, "2": 120},
    ),
    Table("tfx_multi_line_string.csv", 3, columns("i A t B i C i D")),
    Table(
        "tfrecorder_samples_data.csv",
        6,
        columns("t image_uri t label"),
        "label",
        {"cat": 3, "goat": 3},
        {"split_by": "split"},
    ),
]


QUICK = ("titanic_train.csv", "horse_colic_noheader_qmarks.csv", "tfx_multi_line_string.csv")
PARAMETERS = [
    pytest.param(table, id=table.file, marks=[pytest.mark.heavy] * (table.file not in QUICK))
    for table in TABLES
]


@pytest.mark.sweep
@pytest.mark.parametrize("table", PARAMETERS)
def test_shards_contain_every_cell_of_a_real_table(table, shared_data, tmp_path, capsys) -> None:
    path = shared_data / "csv" / "tables" / table.file
    _, manifest = build_rows(input=path, output=tmp_path / "ds", label=table.label, **table.options)
    examples = check_dataset(tmp_path / "ds", manifest, table.label)
    rows = python_rows(path.read_bytes(), **table.judge)
    headless = table.options.get("header") == "none" or "columns" in table.options
    names = list(table.reads) if headless else rows.pop(0)
    assert len(rows) == table.rows == manifest.inputs.matched == manifest.written
    assert counted(examples) == expected(names, rows, table.reads)
    counts = (Counter(split.label_counts) for split in manifest.splits.values())
    assert sum(counts, Counter()) == table.label_counts
    texts = sorted(table.label_counts) if table.reads.get(table.label) is text else []
    assert list(manifest.labels) == texts
    assert manifest.inputs.rejected == 0
    code, out, err = run_here(capsys, "verify", tmp_path / "ds")
    assert (code, err) == (0, ""), out


# Every kind of column.
MIXED = columns("i id t name f weight i count t zip t date b member t wide t note f ratio")
MIXED_ROWS = [
    ["1", "Ann", "1.5", "3", "01234", "2024-01-31", "yes", "9223372036854775808", 'a "q"', "1e-3"],
    ["2", "Bob, Jr.", "", "-4", "99999", "2024-02-01", "No", "1", "two\nlines", ".5"],
    ["3", "Zoë", "NA", "0", "00501", "", "yes", "-5", "two\r\nlines", "-2E+2"],
    ["4", "名前", "-0.25", "9223372036854775807", "10001", "31/12/1999", "no", "0", "", "7"],
    ["5", " pad ", "1e10", "-9223372036854775808", "20002", "x", "YES", "12", "NA", "0.1"],
]


def test_shards_contain_every_kind_of_column(tmp_path) -> None:
    path = make_table(tmp_path / "in.csv", list(MIXED), MIXED_ROWS)
    examples, manifest = published(input=path, output=tmp_path / "ds", splits="train:1")
    assert counted(examples) == expected(list(MIXED), MIXED_ROWS, MIXED)
    assert [(f["name"], f["type"]) for f in manifest.features] == sorted(
        (name, {text: "bytes", number: "float"}.get(read, "int64")) for name, read in MIXED.items()
    )


@pytest.mark.xdist_group("tensorflow")  # the command imports it
def test_dry_run_with_preprocessing_writes_nothing(tmp_path, capsys) -> None:
    make_table(tmp_path / "in.csv", ["a"], [[1], [2]])
    (tmp_path / "pp.py").write_text("def preprocessing_fn(inputs):\n    return inputs\n")
    before = sorted(tmp_path.rglob("*"))
    flags = [f"--input={tmp_path}/in.csv", f"--output={tmp_path}/ds", "--dry_run"]
    code, out, err = run_here(capsys, "rows", *flags, f"--preprocessing={tmp_path}/pp.py")
    assert (code, err) == (0, "")
    assert "nothing was written" in out
    assert sorted(tmp_path.rglob("*")) == before
