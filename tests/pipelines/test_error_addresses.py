"""Commands and calls give the id and the address of an error."""

import json

import pytest

import shardmill
from shardmill.pipelines import cli
from shardmill.schemas.errors import InputError
from shardmill.schemas.errors.catalogue import PAGE
from tests.conftest import ADDRESS


@pytest.mark.parametrize(
    ("arguments", "message_id"),
    [
        ("images in out --image_size=big", "image-size-invalid"),
        ("images in out --imagesize=1", "flag-unknown"),
        ("show nowhere", "show-path-missing"),
        ("rows nowhere.csv out", "input-missing"),
    ],
)
def test_a_command_prints_the_address(arguments, message_id, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments.split()) in (1, 2)
    sentence, address = capsys.readouterr().err.splitlines()
    assert sentence.startswith("shardmill: ")
    assert not sentence.endswith("]")
    assert address == f"See {PAGE}#{message_id}"
    assert ADDRESS.fullmatch(address + "\n")
    assert cli.main([*arguments.split(), "--json"]) in (1, 2)
    body = json.loads(capsys.readouterr().out)
    assert (body["id"], body["address"]) == (message_id, f"{PAGE}#{message_id}")


def test_a_failure_in_a_worker_keeps_its_id(tmp_path, monkeypatch, capsys) -> None:
    """The in-memory runner raises the text of a traceback."""
    (tmp_path / "list.csv").write_text("path,label\n../x.jpg,a\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["images", "list.csv", "ds", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["id"] == "listing-entry-outside-root"


def test_a_call_raises_an_error_with_its_id(tmp_path) -> None:
    with pytest.raises(InputError) as raised:
        shardmill.rows(tmp_path / "nowhere.csv", tmp_path / "ds")
    assert raised.value.id == "input-missing"
    assert str(raised.value).endswith("a listing or a file.")
