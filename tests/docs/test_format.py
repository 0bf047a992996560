"""The page on the file format, compared with the bytes of a real shard."""

import re

from tests.conftest import ROOT, build_dataset
from tests.support.docs_code import code_of

TEXT = (ROOT / "docs" / "format.md").read_text()


def table() -> list[tuple[int, bytes]]:
    """Return each offset and its bytes from the page's table of a whole shard."""
    section = TEXT.partition("\n## A whole shard, byte by byte\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| `([0-9a-f ]+)`(?: \u00d7 (\d+))? \|", section, re.MULTILINE)
    return [(int(offset), bytes.fromhex(text) * int(times or 1)) for offset, text, times in rows]


def test_the_page_shows_every_byte_of_a_shard(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (dots,) = code_of(TEXT)
    exec(dots, {})
    build_dataset(
        input=tmp_path / "dots",
        output=tmp_path / "tiny",
        image_size=1,
        channels=1,
        encoding="png",
        splits="train:1",
        features="image=image/encoded,label=image/class/label",
    )
    (shard,) = (tmp_path / "tiny/current").glob("*.gz")
    at = 0
    for offset, shown in table():
        assert offset == at
        at += len(shown)
    assert b"".join(shown for _, shown in table()) == shard.read_bytes()
    assert at > 700
