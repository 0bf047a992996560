"""Rejects: inputs that could not become records, with a reason from a fixed list."""

from __future__ import annotations

import json
from typing import NamedTuple

# docs/images.md and docs/rows.md list the same reasons; a test compares them.
REASONS: dict[str, str] = {
    "annotation": "the annotation of the image is damaged, or a box has no class or sides",
    "bad_name": "the file name is not valid UTF-8",
    "cast": "the cell is not a value of its column's type",
    "changed": "the file changed between listing and reading",
    "color": "the pixels cannot be converted to 8-bit color (16-bit FITS, unusual palettes)",
    "columns": "the file does not have the columns of the dataset",
    "compressed": "the compressed file is damaged (no row is used) or cut short (earlier rows are)",
    "decode": "the file has the signature of an image but does not decode",
    "decoder_crashed": "decoding the file crashes the decoder, also alone in a fresh process",
    "decoder_memory": "decoding the file needs more memory than --decoder_memory",
    "decoder_timeout": "decoding the file takes longer than --decoder_seconds",
    "domain": "the text is not in its column's string_domain",
    "empty": "the file has no bytes",
    "encode": "the decoded image cannot be stored in the chosen encoding",
    "encoding": "bytes that are not valid in the encoding",
    "float_range": "floating-point pixels outside [0, 1]",
    "header": "the first row does not give valid column names",
    "int_range": "signed integer pixels, or wider than 16 bits",
    "json": "the line is not a JSON object with values of the columns' types",
    "jsonl": "the file is JSON Lines, among CSV files",
    "key_conflict": "another input has the same key, but is another file or has other values",
    "label_text": "the label has a line break or another control character",
    "mask": "the mask has several channels, values above 255, or another size than the image",
    "member": "the member of an archive is damaged, encrypted, a link, or outside of the archive",
    "missing": "the cell is missing and its column is required",
    "no_annotation": "no file or entry of --annotations describes the image",
    "no_label": "no label is in the key, the listing, or a `.cls` or `.json` member",
    "no_split": "the first folder of the key, or the cell of --split_by, does not name a split",
    "not_a_file": "a pipe, socket or device, not a regular file",
    "not_an_image": "the file does not have the signature of a supported image format",
    "not_csv": "the file is not CSV text but another kind of file",
    "not_found": "the file does not exist",
    "outside_root": "the link leads outside the root",
    "other_table": "the file is of another kind than the first one, such as CSV among Parquet",
    "parquet": "the Parquet file is damaged, cut short, encrypted, or among files of other kinds",
    "quote": "a quote is not closed, or text follows a closing quote",
    "ragged": "the row has more or fewer cells than the header",
    "range": "the number is outside its type or its column's domain",
    "too_large": "more pixels or bytes than is safe to read, decode or scale to",
    "unknown_label": "the label is not in the given labels file",
    "unreadable": "reading the file is not permitted, or the disk reports an error",
}
# Reasons that depend on the time of reading: the next run reads such an input again.
TRANSIENT = frozenset({"changed", "decoder_timeout", "not_found", "unreadable"})


class Reject(NamedTuple):
    """One input that could not become a record.

    Attributes:
        key: Stable identity of the input: of a row the key of its file, a colon and the line.
        uri: Path or URI of the file.
        stage: ``match``, ``read``, ``decode`` or ``encode``.
        error: A reason, one of ``REASONS``.
        message: One sentence with the details, without line and column.
        inputs: Number of inputs that this reject counts; more than 1 if a file has so many bad
            rows that they are not listed individually.
        line: Number of the first line of a rejected row in its file, from 1; None for a file.
        column: Name of the column with the wrong value, or None.
    """

    key: str
    uri: str
    stage: str
    error: str
    message: str
    inputs: int = 1
    line: int | None = None
    column: str | None = None

    def to_json(self) -> str:
        """Return the reject as a line of ``rejects.jsonl``, without fields at their defaults."""
        defaults = self._field_defaults
        body = {
            name: value
            for name, value in self._asdict().items()
            if name not in defaults or value != defaults[name]
        }
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


class RejectedError(Exception):
    """Raised inside a stage to reject one input.

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
