"""Errors keep the id of their message wherever they go."""

import pickle

import pytest

from shardmill.loaders.frameworks import FrameworkError
from shardmill.pipelines.runners.base import find_shardmill_error
from shardmill.schemas import ShardmillError
from shardmill.schemas.errors import DeniedError, InputError, OutputError, StorageError, UsageError
from shardmill.schemas.errors.catalogue import PAGE, coded
from shardmill.transforms import Outcome

SENTENCE = "--input=x does not exist: give a folder, a glob, a listing or a file."


def test_an_error_has_a_sentence_an_id_and_an_address() -> None:
    error = InputError("input-missing", pattern="x")
    assert str(error) == SENTENCE
    assert error.id == "input-missing"
    assert error.address == f"{PAGE}#input-missing"
    assert error.coded == coded("input-missing", pattern="x") == f"{SENTENCE} [input-missing]"


@pytest.mark.parametrize(
    "kind", [InputError, OutputError, StorageError, DeniedError, FrameworkError, UsageError]
)
def test_an_error_crosses_processes(kind) -> None:
    error = kind("input-missing", pattern="x")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.id) == (kind, SENTENCE, "input-missing")
    assert kind(error.coded).id == "input-missing"


def test_an_error_comes_back_from_beam() -> None:
    error = OutputError("input-missing", pattern="x")
    # As Beam's DoFnRunner does; runners then raise the text of a traceback.
    again = type(error)(error.args[0] + " [while running 'Step']", *error.args[1:])
    text = f"Traceback (most recent call last):\n  ...\n{type(again).__module__}.OutputError: {again}\n"
    for each in (error, again, RuntimeError(text)):
        found = find_shardmill_error(each)
        assert (type(found), str(found), found.id) == (OutputError, SENTENCE, "input-missing")


def test_an_outcome_keeps_the_id() -> None:
    with pytest.raises(ShardmillError) as raised:
        Outcome("failed", coded("input-missing", pattern="x")).check()
    assert raised.value.id == "input-missing"


def test_texts_of_others_have_no_id() -> None:
    for text in ("The disk is full.", "The list [a] of [b]", "x [not-an-id]"):
        error = ShardmillError(text)
        assert (str(error), error.id, error.address) == (text, "", PAGE)


@pytest.mark.parametrize(
    ("rows", "shown"), [(1, "1 row"), (2, "2 rows"), (1200, "1,200 rows"), (0, "0 rows")]
)
def test_messages_count(rows, shown) -> None:
    assert f"for {shown}:" in str(
        InputError("preprocessing-rows-differ", found=1, name="x", rows=rows)
    )
