"""Each error message leads to its row in docs/errors.md."""

import json
import re

import pytest

from shardmill.pipelines import cli
from shardmill.pipelines.report.error_address import PAGE, address_of
from tests.conftest import ADDRESS, ROOT
from tests.docs.test_errors import PASSED_ON, one
from tests.support.error_tools import ANY, all_errors

ROWS = dict(
    re.findall(
        r'^\| <a id="(.+?)"></a>`+(.+?)`+ \| .*\|$',
        (ROOT / "docs/errors.md").read_text(),
        re.MULTILINE,
    )
)


def test_each_row_has_an_address() -> None:
    text = (ROOT / "docs/errors.md").read_text()
    anchors = re.findall(r'<a id="(.+?)">', text)
    assert len(anchors) == len(set(anchors)) == len(ROWS)
    assert len(re.findall(r"^\| `", text, re.MULTILINE)) == 0, "a row has no anchor"
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", anchor) for anchor in anchors)


def test_each_message_leads_to_a_row_that_explains_it() -> None:
    for row in ROWS.values():
        message = row.replace(ANY, "x")
        anchor = address_of(message).partition("#")[2]
        assert one(ROWS[anchor], message), row
        assert len(ROWS[anchor]) >= len(row)
    lost = [
        text
        for text in all_errors()
        if text not in PASSED_ON and "#" not in address_of(text.replace(ANY, "x"))
    ]
    # Rows that say more than the code, in which some words are values.
    assert len(lost) < 40, lost


@pytest.mark.parametrize(
    ("arguments", "anchor"),
    [
        ("images in out --image_size=big", "image-size-not-size"),
        ("images in out --imagesize=1", "flag-unknown-did-you"),
        ("show nowhere", "does-not-exist-give-dataset-tfrecord"),
        ("rows nowhere.csv out", "input-does-not-exist"),
    ],
)
def test_a_command_prints_the_address(arguments, anchor, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments.split()) in (1, 2)
    sentence, address = capsys.readouterr().err.splitlines()
    assert sentence.startswith("shardmill: ")
    assert address == f"See {PAGE}#{anchor}"
    assert ADDRESS.fullmatch(address + "\n")
    assert cli.main([*arguments.split(), "--json"]) in (1, 2)
    assert json.loads(capsys.readouterr().out)["address"] == f"{PAGE}#{anchor}"
