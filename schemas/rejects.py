"""Rejects: inputs that could not become records, each with its reason."""

from __future__ import annotations

import json
from typing import NamedTuple

# The fixed list of reasons; docs/images.md and docs/rows.md explain them, and a test keeps the
# three in step.
REASONS: dict[str, str] = {
    "bad_name": "the file's name is not valid UTF-8",
    "cast": "the value is none of its column's type",
    "changed": "the file changed between listing and reading",
    "color": "the pixels cannot be brought to 8-bit colour (16-bit FITS, odd palettes)",
    "columns": "the file lacks a column that every row needs",
    "compressed": "the compressed file is damaged: no row of it is taken; cut: the rows before are",
    "decode": "the bytes claim to be an image but do not decode",
    "domain": "the text is not in its column's string_domain",
    "empty": "the file has no bytes",
    "encode": "the decoded image cannot be stored in the chosen encoding",
    "encoding": "bytes that the encoding does not have",
    "float_range": "floating-point pixels outside [0, 1]",
    "header": "the first row gives the columns no sound names",
    "icc": "the embedded ICC profile cannot be applied",
    "int_range": "signed integer pixels, or wider than 16 bits",
    "key_conflict": "a row has the --key of another one and other values",
    "label_text": "the label has a line break or another control character",
    "missing": "the cell is missing and its column is required",
    "no_label": "the label pattern does not match the key",
    "no_split": "the first folder of the key, or the cell of --split_by, names no split",
    "not_a_file": "a pipe, socket or device, not a regular file",
    "not_an_image": "the bytes are no image format that is read here",
    "not_csv": "the bytes are no CSV text but another kind of file",
    "not_found": "the file does not exist",
    "outside_root": "the link leads outside the root",
    "quote": "a quote is not closed, or not properly",
    "ragged": "the row has more or fewer cells than the header",
    "range": "the number is outside its type or its column's domain",
    "too_large": "more pixels or bytes than is safe to read, decode or scale to",
    "unknown_label": "the label is not in the given labels file",
    "unreadable": "permission to read the file was denied",
}


class Reject(NamedTuple):
    """One input that could not become a record.

    Attributes:
        key: Stable identity of the input.
        uri: Where it lies.
        stage: ``match``, ``read``, ``decode`` or ``encode``.
        error: A reason, one of ``REASONS``.
        message: One sentence with the details.
        inputs: How many inputs it stands for: more than one where so many rows of a file are bad
            that they are not told one by one.
    """

    key: str
    uri: str
    stage: str
    error: str
    message: str
    inputs: int = 1

    def to_json(self) -> str:
        """Returns the reject as one line of ``rejects.jsonl``, without the newline."""
        body = self._asdict()
        if self.inputs == 1:
            del body["inputs"]
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


class RejectedError(Exception):
    """Raised inside a stage to refuse one input.

    Attributes:
        stage: As in ``Reject``.
        error: As in ``Reject``.
        message: As in ``Reject``.
    """

    def __init__(self, stage: str, error: str, message: str) -> None:
        super().__init__(stage, error, message)
        self.stage = stage
        self.error = error
        self.message = message
