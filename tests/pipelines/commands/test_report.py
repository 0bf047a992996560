"""``shardmill report``: the command, other storages, and the statistics of ``show``."""

import json

import pandas as pd
import pytest

from shardmill.pipelines.report.show_data import describe
from tests.conftest import build_dataset, shardmill
from tests.support.gcs_builds import upload
from tests.support.page_tools import check_page
from tests.support.rows_tools import run_here

pytest_plugins = ["tests.support.gcs_server"]


def test_writes_a_page_and_prints_its_path(dataset, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_here(capsys, "report", "ds") == (0, "Wrote ds-report.html\n", "")
    page = check_page("ds-report.html")
    (reject,) = page.table("Reason")
    assert reject[:2] == ["not_an_image", "1"]
    assert "cat/broken.jpg" in reject[2]
    assert page.pairs()["Rejected"] == "1"
    assert page.pairs()["Matched"] == "23"
    manifest = json.loads((dataset / "manifest.json").read_text())
    assert manifest["build"]["finished"][:10] in page.pairs()["Built"]
    for name, version in manifest["build"]["versions"].items():
        assert f"{name} {version}" in page.pairs()["Versions"]
    assert page.pairs()["image_size"] == "32"
    done = run_here(capsys, "report", "ds", "--output=other/x.html", "--json")
    assert done == (0, '{"status": "written", "report": "other/x.html"}\n', "")
    assert (tmp_path / "other/x.html").read_bytes() == (tmp_path / "ds-report.html").read_bytes()


@pytest.mark.heavy
def test_reads_and_writes_buckets(strict_bucket, dataset, tmp_path, capsys) -> None:
    upload(dataset, f"{strict_bucket}/ds")
    here, there = tmp_path / "x.html", f"{strict_bucket}/pages/x.html"
    assert run_here(capsys, "report", f"{strict_bucket}/ds", f"--output={here}")[0] == 0
    page = check_page(here)
    assert len(page.find("img")) == 12
    assert page.pairs()["Examples"] == "21"
    for _ in range(2):  # the second one replaces the first
        assert run_here(capsys, "report", f"{strict_bucket}/ds", f"--output={there}")[0] == 0
    code, _, err = run_here(
        capsys, "report", f"{strict_bucket}/ds", f"--output={strict_bucket}/ds/x"
    )
    assert (code, "would be inside the dataset" in err) == (2, True)


@pytest.mark.heavy
def test_show_prints_the_statistics_of_images(dataset) -> None:
    manifest = json.loads((dataset / "manifest.json").read_text())
    for split in ("train", "validation"):
        pixels = manifest["splits"][split]["statistics"]["pixels"]
        found = describe(str(dataset), split=split)
        assert found["split"] == split
        assert found["splits"][split]["statistics"]["pixels"]["count"] == pixels["count"]
        lines = shardmill("show", dataset, f"--split={split}").stdout.splitlines()
        at = lines.index(f"Statistics  of {split}")
        for channel in range(3):
            words = lines[at + 2 + channel].split()
            expected = [f"{pixels[name][channel]:.6g}" for name in ("mean", "std")]
            assert words == ["channel", str(channel), *expected]


def test_show_prints_the_statistics_of_rows(tmp_path) -> None:
    table = "age,price,city\n31,2.5,Bern\n,1.25,\n45,,Chur\n1000000,7,Bern\n"
    (tmp_path / "in.csv").write_text(table)
    build_dataset("rows", input=tmp_path / "in.csv", output=tmp_path / "ds", splits="train:1")
    frame = pd.read_csv(tmp_path / "in.csv")
    lines = shardmill("show", tmp_path / "ds").stdout.splitlines()
    at = lines.index("Statistics  of train")
    assert lines[at + 1].split() == ["missing", "min", "max", "mean", "std"]
    rows = {words[0]: words[1:] for words in map(str.split, lines[at + 2 : at + 5])}
    for name in ("age", "price"):
        column = frame[name]
        expected = [
            column.isna().sum(),
            column.min(),
            column.max(),
            column.mean(),
            column.std(ddof=0),
        ]
        found = [float(text.replace(",", "")) for text in rows[name]]
        assert found == pytest.approx(expected, rel=1e-5)
    assert rows["city"] == ["1", "-", "-", "-", "-"]
