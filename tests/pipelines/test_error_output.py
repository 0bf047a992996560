"""Commands and calls give the class and the sentence of an error."""

import json

import pytest

import shardmill
from shardmill.pipelines import cli
from shardmill.schemas.errors import InputError


@pytest.mark.parametrize(
    ("arguments", "kind", "part"),
    [
        ("images in out --image_size=big", "UsageError", "--image_size=big"),
        ("images in out --imagesize=1", "UsageError", "The flag --imagesize is unknown"),
        ("show nowhere", "InputError", "nowhere does not exist"),
        ("rows nowhere.csv out", "InputError", "--input=nowhere.csv does not exist"),
    ],
)
def test_a_command_prints_one_sentence(
    arguments, kind, part, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments.split()) in (1, 2)
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"shardmill: {part}")
    assert cli.main([*arguments.split(), "--json"]) in (1, 2)
    body = json.loads(capsys.readouterr().out)
    text = sentence.removeprefix("shardmill: ")
    assert body == {"status": "failed", "type": kind, "error": text}


def test_a_failure_in_a_worker_keeps_its_sentence(tmp_path, monkeypatch, capsys) -> None:
    """The in-memory runner raises the text of a traceback."""
    (tmp_path / "list.csv").write_text("path,label\n../x.jpg,a\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["images", "list.csv", "ds", "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert "leads outside the root" in body["error"]


@pytest.mark.heavy
def test_a_call_raises_an_error_of_its_class(tmp_path) -> None:
    with pytest.raises(InputError) as raised:
        shardmill.rows(tmp_path / "nowhere.csv", tmp_path / "ds")
    assert type(raised.value) is InputError
    assert str(raised.value).endswith("a listing or a file.")
