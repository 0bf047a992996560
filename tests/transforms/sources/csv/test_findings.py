"""What was inferred is said, with flags: tests/golden/transcripts/table_warnings.txt has most cases."""

import shlex
from pathlib import Path

import pytest

from shardmill.pipelines import RowsConfig
from shardmill.pipelines.rows import resolve
from shardmill.transforms.sources.csv.text_parser import NUMERIC_NULLS
from tests.conftest import SHARED


def find(folder: Path, **options):
    return resolve(RowsConfig(str(folder / "t.csv"), str(folder / "ds"), **options))


@pytest.mark.parametrize("marker", sorted(NUMERIC_NULLS - {""}))
def test_the_hint_for_texts_that_mean_missing_has_them(marker, tmp_path) -> None:
    """A shell reads the flag, and followed it leaves no warning."""
    (tmp_path / "t.csv").write_text(f"a,b\n{marker},1\nred,2\nblue,3\n")
    (warning,) = find(tmp_path).sink.warnings
    (flag,) = (word for word in shlex.split(warning) if word.startswith("--null_values="))
    given = flag.partition("=")[2]
    assert given == f",{marker}"
    assert find(tmp_path, null_values=given).sink.warnings == ()


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
