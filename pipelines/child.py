"""The child process of a call from Python: runs the command whose options it reads, pickled."""

from __future__ import annotations

import pickle
import sys

from shardmill.pipelines.cli import report_errors
from shardmill.pipelines.commands import load_command
from shardmill.pipelines.commands.build import configure, run_build
from shardmill.pipelines.input_kinds import INPUT_KINDS
from shardmill.pipelines.report.answer import Answer


def main() -> int:
    """Run the command and return its exit code."""
    command, values = pickle.load(sys.stdin.buffer)  # noqa: S301 - the calling process wrote it
    answer = Answer(json=True)

    def run() -> int:
        if command in INPUT_KINDS:
            return run_build(command, configure(command, values, [], answer))
        code: int = load_command(command).run(values, [], answer)
        return code

    return report_errors(run, json=True)


if __name__ == "__main__":
    sys.exit(main())
