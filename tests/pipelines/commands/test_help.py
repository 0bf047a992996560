"""``--help`` and mistakes in flags: correct, narrow and fast."""

import shlex
import subprocess
import sys

from shardmill.pipelines.commands import find_parser
from shardmill.pipelines.commands.parser import parse_flags

LIGHT = """
import contextlib, io, sys
from shardmill.pipelines import cli
from shardmill.pipelines.commands import COMMANDS
for command in COMMANDS:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        cli.main([command, "--help"])
    lines = output.getvalue().splitlines()
    assert lines[0].startswith(f"usage: shardmill {command} "), lines[0]
    assert max(map(len, lines)) <= 80, lines
    assert lines[-1].strip(), "no epilog"
for mistake in (["--imagesize=5"], ["--quality=high"], ["b", "stray"], ["--runner=X"], []):
    assert cli.main(["images", "--input=a", *mistake]) == 2
cli.main(["help"])
heavy = {"apache_beam", "numpy", "pyarrow", "PIL", "rich"} & set(sys.modules)
assert not heavy, heavy
"""


def test_help_and_mistakes_import_nothing_heavy(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    usage = done.stdout[done.stdout.index("usage: shardmill COMMAND") :].splitlines()
    assert max(map(len, usage)) <= 80
    for line in usage:
        if line.startswith("  shardmill "):  # the example is a command that parses
            words = shlex.split(line)
            parse_flags(find_parser(words[1]), words[2:])
