"""What commands print, for people and as JSON, and their exit codes and messages.

``tests/support/transcripts.py`` says how the files are written.
"""

import re

import pytest

from tests.support.golden import GOLDEN, check_golden
from tests.support.transcripts import run_transcript

TRANSCRIPTS = sorted((GOLDEN / "transcripts").glob("*.txt"))
# They build datasets of images, or several.
HEAVY = (
    "commands_images",
    "commands_rows",
    "images_annotations",
    "images_inputs",
    "json_images",
    "places",
    "preprocessing",
    "readers_frameworks",
)


@pytest.mark.usefixtures("golden_codecs", "golden_python")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.heavy] * (path.stem in HEAVY))
        for path in TRANSCRIPTS
    ],
)
def test_transcript(path, place) -> None:
    check_golden(path, run_transcript(path.read_text(), place))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_each_failure_is_one_sentence(path) -> None:
    """With exit code 1 or 2, and nothing new but the rejects of a build that has only rejects."""
    steps = re.split(r"^(?:[$] |>>> |#|$)", path.read_text(), flags=re.MULTILINE)
    for step in steps:
        lines = step.splitlines()[1:]
        sentences = [line[2:] for line in lines if line.startswith("! ")]
        codes = [line[2:] for line in lines if line.startswith("= ")]
        if codes and not step.startswith("shardmill\n"):
            assert codes[0] in ("1", "2"), step
            assert len(sentences) == 1, step
        for sentence in sentences:
            ours = sentence.startswith(("shardmill", "Usage", "Input", "Output", "Argument"))
            assert re.match(r"(shardmill|\w+Error): .*[.?]$" if ours else r"\w+Error: ", sentence)
            assert len(sentence) < 700, step
        changes = [line for line in lines if line.startswith(("+ ", "~ ", "- "))]
        assert not (codes and changes) or "rejects.jsonl" in step or "counted" in step, step


def test_a_transcript_is_renewed_without_a_change(tmp_path, monkeypatch) -> None:
    """Each kind of line: what was written is read as output, and written again."""
    text = (
        "# A title\n>>> def double(n):\n...     return 2 * n\n>>> double(3)\n| 6\n"
        ">>> print('a\\n\\nb')\n| a\n|\n| b\n>>> 1 / 0\n! ZeroDivisionError: division by zero\n"
        "\n>>> write('x/y', 'z')\n$ shardmill steps x --batch_size=0\n"
        "! shardmill: --batch_size=0 must be 1 or more.\n= 2\n"
    )
    for number, given in enumerate((text, re.sub(r"^[|!=].*\n", "", text, flags=re.MULTILINE))):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        assert run_transcript(given, tmp_path / str(number)) == text
