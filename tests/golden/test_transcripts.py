"""What commands print, for people and as JSON, and their exit codes and messages.

``tests/support/transcripts.py`` says how the files are written.
"""

import pytest

from tests.support.golden import GOLDEN, check_golden
from tests.support.transcripts import run_transcript

TRANSCRIPTS = sorted((GOLDEN / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path, place) -> None:
    check_golden(path, run_transcript(path.read_text(), place))
